package cluster

import (
	"errors"
	"maps"
	"slices"

	"github.com/recast-sh/recast/internal/fault"
)

// Parkings finds the parking VMs of a cluster among all VMs, but for those that came
// too late for anybody to use them.
func Parkings(vms []VM, cluster string) ([]Parking, error) {
	all, err := AllParkings(vms, cluster)
	return slices.DeleteFunc(slices.Clone(all), func(p Parking) bool { return p.CameLate(all) }), err
}

func AllParkings(vms []VM, cluster string) ([]Parking, error) {
	var out []Parking
	var problems []error
	for _, vm := range vms {
		rec, ok, err := ReadRecord(vm)
		switch {
		case err != nil:
			problems = append(problems, err)
		case ok && rec.Cluster == cluster:
			out = append(out, Parking{VM: vm, Record: rec})
		}
	}
	return out, errors.Join(problems...)
}

// CameLate says whether Proxmox made the parking VM when the run that asked for it had ended and
// another one was there: every run takes the one that its node has on the host. Of two that
// nobody has used either would do; which run began later is not asked, as that is a matter of clocks.
func (p Parking) CameLate(all []Parking) bool {
	return p.unused() && slices.ContainsFunc(all, func(q Parking) bool {
		same := q.VM.ID != p.VM.ID && q.VM.Host == p.VM.Host && q.Record.Node == p.Record.Node && q.Record.VMID == p.Record.VMID && q.Record.UUID == p.Record.UUID
		return same && (!q.unused() || q.VM.ID < p.VM.ID)
	})
}

// unused says whether nothing was done with the parking VM since it was created.
func (p Parking) unused() bool { return p.Empty() && p.Record.Written == 0 && len(p.Record.Sent) == 0 }

// Empty says whether nothing was ever handed over to the parking VM of a replacement.
func (p Parking) Empty() bool {
	drives := slices.ContainsFunc(slices.Collect(maps.Keys(p.VM.Config)), IsDiskKey)
	return p.Record.Open && p.Record.Intent == nil && !drives
}

// Twin says why two parking VMs of one node can't both be genuine.
func (p Parking) Twin(q Parking) error {
	hint := "look at their descriptions (recast status; qm config): a copy (clone, restore) of a parking VM has to go"
	switch {
	case p.Record.Open && q.Record.Open:
		return fault.WithHint(fault.ParkedHalf.Refusedf("node %s has two parking VMs with an unfinished replacement: %s and %s", p.Record.Node, q.VM, p.VM), "%s", hint)
	case p.VM.Host == q.VM.Host:
		return fault.WithHint(fault.ParkedHalf.Refusedf("node %s has two parking VMs on %s: %s and %s", p.Record.Node, p.VM.Host, q.VM, p.VM),
			"%s; one that was migrated there has to go back to where it was made", hint)
	}
	for _, k := range p.Record.Kept {
		if slices.ContainsFunc(q.Record.Kept, func(o KeptDisk) bool { return o.Run == k.Run }) {
			return fault.WithHint(fault.ParkedHalf.Refusedf("two parking VMs say that they keep the system disk of node %s that run %s replaced: %s and %s",
				p.Record.Node, k.Run, q.VM, p.VM), "%s", hint)
		}
	}
	return nil
}
