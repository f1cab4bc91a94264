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
	mark := n.found.Node.Mark
	build, known := o.build(n.wanted, mark.Build)
	if !known && n.found.Machine != nil {
		return false
	}
	n.Resume, n.run, n.Strategy, n.etcdKept = true, mark.Run, InPlace, true
	n.Why = fmt.Sprintf("run %s began to upgrade it in place and did not finish", mark.Run)
	if n.found.Node.ControlPlane {
		n.Role = ControlPlane
	}
	if known {
		n.wanted.Build = build
	}
	return true
}

// planResume finishes what a run began, with the build that its record names;
// where that can't be done the old system disk is put back.
func planResume(n *NodePlan, o Observation) {
	rec := n.found.Parking.Record
	n.Resume, n.run, n.Strategy, n.restore = true, rec.Run, cmp.Or(rec.Strategy, Recreate), rec.Restore
	n.Why = fmt.Sprintf("run %s began to %s and did not finish", rec.Run, n.Strategy.onIt())
	n.VMID, n.UUID, n.Host = rec.VMID, rec.UUID, n.found.Parking.VM.Host
	if !n.Addr.IsValid() {
		n.Addr = rec.Addr
	}
	for _, d := range rec.Disks {
		disk, err := ParseDisk(d.Key, joinOptions(d.Volid, d.Options))
		if err != nil {
			n.Refused = append(n.Refused, fmt.Sprintf("record of run %s: %v", rec.Run, err))
			continue
		}
		n.addNow(d, disk.Option("serial"), o.Away)
	}
	mem, err := rec.memory(n.found.Parking.VM)
	if err != nil {
		n.Refused = append(n.Refused, err.Error())
		return
	}
	if moved := apart(n.found.VM, n.found.Parking.VM, mem.VM.Host, o.Away, rec.VMID); moved != "" {
		n.Refused = append(n.Refused, moved)
	}
	n.etcdKept = mem.EtcdKept
	if mem.ControlPlane {
		n.Role = ControlPlane
	}
	build, known := o.build(n.wanted, rec.Build)
	switch {
	case rec.PutBack:
		n.putBack("somebody asked for the old system disk")
	case n.Strategy == Rollback:
	case !known:
		n.putBack(fmt.Sprintf("its build %s is in no lock that is here", words.Short(rec.Build)))
	case n.found.ConfigDamaged != nil && n.found.Machine == nil:
		n.putBack(n.found.ConfigDamaged.Error())
	case !n.found.ConfigKnown && n.found.Machine == nil && n.found.file != nil:
		n.putBack(fmt.Sprintf("its file in talos.machineConfigs is not the configuration that run %s remembered", rec.Run))
	case !n.found.ConfigKnown && n.found.Machine == nil:
		n.putBack("its machine configuration is nowhere but on the old system disk")
	}
	if known {
		n.wanted.Build = build
	}
}

// onIt says what a strategy does to a node: "recreate it".
func (s Strategy) onIt() string {
	if s == Rollback {
		return "roll it back"
	}
	return string(s) + " it"
}

// build is the ID of the build that the node is being brought to.
func (n NodePlan) build() string {
	if n.restore != nil {
		return n.restore.Build
	}
	return n.wanted.Build.ID
}

func (n *NodePlan) putBack(because string) {
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
