package cluster

import (
	"cmp"
	"fmt"

	"github.com/recast-sh/recast/internal/words"
)

// planReboot finishes an upgrade in place that an earlier run had installed, or
// whose machine is away. It says false where that is better planned afresh: the
// machine answers, and nobody here knows the build that it was to get.
func planReboot(n *NodePlan, o Observation) bool {
	mark := n.Found.Node.Mark
	build, known := o.build(n.Wanted, mark.Build)
	if !known && n.Found.Machine != nil {
		return false
	}
	n.Resume, n.Run, n.Strategy, n.EtcdKept = true, mark.Run, InPlace, true
	n.Why = fmt.Sprintf("run %s began to upgrade it in place and did not finish", mark.Run)
	if n.Found.Node.ControlPlane {
		n.Role = ControlPlane
	}
	if known {
		n.Wanted.Build = build
	}
	return true
}

// planResume finishes what a run began, with the build that its record names;
// where that can't be done the old system disk is put back.
func planResume(n *NodePlan, o Observation) {
	rec := n.Found.Parking.Record
	n.Resume, n.Run, n.Strategy, n.Restore = true, rec.Run, cmp.Or(rec.Strategy, Recreate), rec.Restore
	n.Why = fmt.Sprintf("run %s began to %s and did not finish", rec.Run, n.Strategy.onIt())
	n.VMID, n.UUID, n.Host = rec.VMID, rec.UUID, n.Found.Parking.VM.Host
	if !n.Addr.IsValid() {
		n.Addr = rec.Addr
	}
	for _, d := range rec.Disks {
		disk, err := ParseDisk(d.Key, JoinOptions(d.Volid, d.Options))
		if err != nil {
			n.Refused = append(n.Refused, fmt.Sprintf("record of run %s: %v", rec.Run, err))
			continue
		}
		n.addNow(d, disk.Option("serial"), o.Away)
	}
	mem, err := rec.ReadMemory(n.Found.Parking.VM)
	if err != nil {
		n.Refused = append(n.Refused, err.Error())
		return
	}
	if moved := OnOtherHosts(n.Found.VM, n.Found.Parking.VM, mem.VM.Host, o.Away, rec.VMID); moved != "" {
		n.Refused = append(n.Refused, moved)
	}
	n.EtcdKept = mem.EtcdKept
	if mem.ControlPlane {
		n.Role = ControlPlane
	}
	build, known := o.build(n.Wanted, rec.Build)
	switch {
	case rec.PutBack:
		n.PutBack("somebody asked for the old system disk")
	case n.Strategy == Rollback:
	case !known:
		n.PutBack(fmt.Sprintf("its build %s is in no lock that is here", words.Short(rec.Build)))
	case n.Found.ConfigDamaged != nil && n.Found.Machine == nil:
		n.PutBack(n.Found.ConfigDamaged.Error())
	case !n.Found.ConfigKnown && n.Found.Machine == nil && n.Found.file != nil:
		n.PutBack(fmt.Sprintf("its file in talos.machineConfigs is not the configuration that run %s remembered", rec.Run))
	case !n.Found.ConfigKnown && n.Found.Machine == nil:
		n.PutBack("its machine configuration is nowhere but on the old system disk")
	}
	if known {
		n.Wanted.Build = build
	}
}

// onIt says what a strategy does to a node: "recreate it".
func (s Strategy) onIt() string {
	if s == Rollback {
		return "roll it back"
	}
	return string(s) + " it"
}

// Build is the ID of the build that the node is being brought to.
func (n NodePlan) Build() string {
	if n.Restore != nil {
		return n.Restore.Build
	}
	return n.Wanted.Build.ID
}

func (n *NodePlan) PutBack(because string) {
	n.Strategy = PutBack
	n.Why += "; its old system disk is put back: " + because
}

// build finds a build by its ID: the wanted one, or that of a past lock.
func (o Observation) build(w Wanted, id string) (Build, bool) {
	if id == w.Build.ID {
		return w.Build, true
	}
	b, ok := o.PastBuilds[id]
	return b, ok
}
