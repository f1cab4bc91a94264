package planning

import (
	"fmt"
	"slices"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/strategy"
	"github.com/recast-sh/recast/internal/words"
)

// Disks returns the node's disks that are parked or attached again. The disks of an unfinished replacement have the
// names that they had on the node's VM, which say what each is for.
func (n NodePlan) Disks() []DiskPlan {
	var out []DiskPlan
	if n.Found.Open() {
		for _, d := range n.Found.Parking.Record.Disks {
			out = append(out, DiskPlan{Key: d.Key, Volid: d.Volid})
		}
		return out
	}
	if !n.Strategy.SwapsInVM() {
		out = slices.Clone(n.Carried)
	}
	if n.System != nil {
		out = append(out, *n.System)
	}
	return out
}

// PlanAway plans, as far as it is known, a node whose VM or parking VM is on a host that does not answer.
func PlanAway(n *NodePlan, away *cluster.HostsAway) {
	n.Why = "it could not be read"
	n.Host = away.Names()
	if n.Found.Node != nil && n.Found.Node.ControlPlane {
		n.Role = cluster.ControlPlane
	}
	where := "its VM, or the parking VM with disks of it, is not among those that can be read"
	if vm, known := away.VM(n.Wanted.VMID); known {
		n.VMID, n.Host = vm.ID, vm.Host
		where = fmt.Sprintf("its VM %d is on %s", vm.ID, vm.Host)
	}
	n.Refused = []string{fmt.Sprintf("%s, and %s: bring %s back, or leave the node out with --exclude", where, away.Who(), away.Names())}
}

// AskLosses checks what is lost with the system disk, if the disk is about to leave the node: the plan shows what
// acceptLoss names and refuses the rest.
func (n *NodePlan) AskLosses() {
	c, leaves := strategy.Leaving(n.Strategy, n.Wanted, n.Found)
	if !leaves {
		return
	}
	for _, reason := range cluster.Texts(c.Irreplaceable()) {
		if n.Found.Open() && n.Strategy.From() == cluster.Serving && n.Strategy.System() != cluster.SystemKept {
			reason += fmt.Sprintf("; recast undo %s cancels the replacement instead", n.Node)
		}
		n.Refused = append(n.Refused, reason)
	}
	n.WillLose = append(n.WillLose, c.Accepted()...)
}

// addNow adds a disk of an unfinished replacement by its present name.
func (n *NodePlan) addNow(d parking.ParkedDisk, serial string, away *cluster.HostsAway) {
	park := n.Found.Parking
	now := park.Record.Locate(d, n.Found.VMOrZero(), park.VM, n.Found.Dangling)
	p := DiskPlan{Key: d.Key, Serial: serial, Volid: now.Volid, Size: now.Size, Where: now.Where}
	switch _, unread := away.VM(park.Record.VMID); {
	case now.Place == parking.Lost && unread:
		p.Volid, p.Where = "", fmt.Sprintf("not on parking VM %d; VM %d, which can't be read, may have it", park.VM.ID, park.Record.VMID)
	case now.Place == parking.Lost, now.Place == parking.Unnamed:
		p.Volid = ""
	}
	if d.System {
		n.System = &p
		return
	}
	n.Carried = append(n.Carried, p)
}

// Build returns the ID of the build that the node is being brought to.
func (n NodePlan) Build() string {
	if n.Restore != nil {
		return n.Restore.Build
	}
	return n.Wanted.Build.ID
}

func (n *NodePlan) PutBack(because string) {
	n.Strategy = cluster.PutBack
	n.Why += "; its old system disk is put back: " + because
}

// planReboot finishes an in-place upgrade that an earlier run installed, or whose machine is unavailable. It
// returns false if a new plan is better: the machine answers, and the build that it should get is unknown.
func planReboot(n *NodePlan, o observe.Observation) bool {
	mark := n.Found.Node.Mark
	if mark.Strategy.KeepsImage() {
		n.Resume, n.Run, n.Strategy, n.EtcdKept = true, mark.Run, cluster.ApplyConfig, true
		n.Why = fmt.Sprintf("run %s rebooted it for its configuration and did not finish: it is waited for, then everything is checked again", mark.Run)
		if n.Found.Node.ControlPlane {
			n.Role = cluster.ControlPlane
		}
		return true
	}
	build, known := o.Build(n.Wanted, mark.Build)
	if !known && n.Found.Machine != nil {
		return false
	}
	n.Resume, n.Run, n.Strategy, n.EtcdKept = true, mark.Run, cluster.InPlace, true
	n.Why = fmt.Sprintf("run %s began to upgrade it in place and did not finish", mark.Run)
	if n.Found.Node.ControlPlane {
		n.Role = cluster.ControlPlane
	}
	if known {
		n.Wanted.Build = build
	}
	return true
}

// planResume finishes what a run began, with the build that its record names; if that is
// impossible, the old system disk is put back.
func planResume(n *NodePlan, o observe.Observation) {
	rec := n.Found.Parking.Record
	n.Resume, n.Run, n.Strategy, n.Restore, n.Prepared = true, rec.Run, rec.Strategy, rec.Restore, rec.Prepared
	n.Why = fmt.Sprintf("run %s began to %s and did not finish", rec.Run, n.Strategy.Words().OnIt)
	n.VMID, n.UUID, n.Host = rec.VMID, rec.UUID, n.Found.Parking.VM.Host
	if !n.Addr.IsValid() {
		n.Addr = rec.Addr
	}
	for _, d := range rec.Disks {
		disk, err := cluster.ParseDisk(d.Key, cluster.JoinOptions(d.Volid, d.Options))
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
	if moved := cluster.OnOtherHosts(n.Found.VM, n.Found.Parking.VM, mem.VM.Host, o.Away, rec.VMID); moved != "" && (!rec.Strategy.Reshapes() || n.Found.VM == nil) {
		n.Refused = append(n.Refused, moved)
	}
	n.EtcdKept, n.Bootstraps, n.Rebuild = mem.EtcdKept, mem.Bootstraps, rec.Rebuild
	refuseOthersRebuild(n, o)
	if mem.ControlPlane {
		n.Role = cluster.ControlPlane
	}
	if o.First != "" && o.Rebuild == "" && rec.Rebuild == "" && n.Strategy.From() != cluster.Nowhere {
		n.Refused = append(n.Refused, "there was a cluster, since a run is unfinished in it: recast roll finishes that, once the cluster is back")
	}
	build, known := o.Build(n.Wanted, rec.Build)
	switch {
	case rec.PutBack:
		n.PutBack("someone asked for the old system disk")
	case !n.Strategy.BringsImage():
	case n.Strategy.From() == cluster.Nowhere && !known:
		n.Refused = append(n.Refused, fmt.Sprintf("its build %s is in no lock that is here: check that lock out, or recast undo %s says how to give it up", words.Short(rec.Build), n.Node))
	case n.Strategy.From() == cluster.Nowhere && !n.Found.ConfigKnown && n.Found.Machine == nil:
		n.Refused = append(n.Refused, "its file in talos.machineConfigs is not the configuration that was to be applied: put it back as it was")
	case n.Strategy.From() == cluster.Nowhere:
	case !known:
		n.PutBack(fmt.Sprintf("its build %s is in no lock that is here", words.Short(rec.Build)))
	case n.Found.ConfigDamaged != nil && n.Found.Machine == nil:
		n.PutBack(n.Found.ConfigDamaged.Error())
	case !n.Found.ConfigKnown && n.Found.Machine == nil && n.Found.File != nil:
		n.PutBack(fmt.Sprintf("its file in talos.machineConfigs is not the configuration that run %s remembered", rec.Run))
	case !n.Found.ConfigKnown && n.Found.Machine == nil:
		n.PutBack("its machine configuration is nowhere but on the old system disk")
	}
	if known {
		n.Wanted.Build = build
	}
}

// noteFile notes a file that an in-place upgrade does not apply.
func (n *NodePlan) noteFile(file *cluster.FoundFile) {
	const stays = "; this roll leaves the configuration as it is"
	switch {
	case file.Err != nil:
		n.Notes = append(n.Notes, "its file in talos.machineConfigs was not compared with what it runs: "+file.Err.Error()+stays)
	case n.Found.Machine == nil:
	case len(file.Changes) > 0:
		shown := file.ConfigFile
		n.ConfigFile = &shown
		n.Notes = append(n.Notes, "its file in talos.machineConfigs differs from what it runs"+stays)
	}
}

// planFile shows what a node's file would change if this strategy applies the file, and notes the file if not.
func (n *NodePlan) planFile() {
	file, applies := n.Found.File, n.AppliesConfig()
	switch {
	case file != nil && file.Err != nil && n.Strategy == "" && n.Found.Machine != nil && n.Paused == "" && !n.leavesConfig:
		n.Refused = append(n.Refused, "its file in talos.machineConfigs can't be compared with what it runs: "+file.Err.Error())
	case file == nil || !applies && !n.Strategy.Upgrades() || n.Resume && n.Strategy.KeepsImage():
	case n.Resume && applies && n.Found.ConfigIn == cluster.ConfigInJournal:
		if rec := n.Found.Parking.Record; rec.Config != file.Sum {
			n.Notes = append(n.Notes, fmt.Sprintf("its file in talos.machineConfigs is not applied yet: it gets the configuration that run %s remembered; what the file changes is shown once it is back", rec.Run))
		}
	case !applies:
		n.noteFile(file)
	case file.Err != nil:
		n.Refused = append(n.Refused, "its file in talos.machineConfigs can't be applied: "+file.Err.Error())
	default:
		n.Refused = append(n.Refused, n.refusedConfig(*file)...)
		for _, document := range file.Unknown {
			n.Notes = append(n.Notes, fmt.Sprintf("%s is of a kind that this recast does not know: it is passed on as it is written, and the node's Talos judges it", document))
		}
		if n.Found.VM != nil && n.Found.Machine != nil {
			if when := cluster.ArgsWait(*n.Found.VM, *n.Found.Machine, file.Changes); when != "" {
				n.Notes = append(n.Notes, when)
			}
		}
		shown := file.ConfigFile
		shown.Applied = true
		if n.Found.Machine == nil {
			shown.Uncompared = n.Found.NothingToCompare()
		}
		n.ConfigFile = &shown
	}
}

// NeedsSnapshot says whether etcd is to be saved before this node is touched.
func (n NodePlan) NeedsSnapshot() bool {
	return n.Role == cluster.ControlPlane && !n.Resume && !n.OnlyTidies() && n.Rebuild == ""
}

// DiskPlan is one drive in a plan.
type DiskPlan struct {
	Key    string `json:"key"`
	Serial string `json:"serial,omitempty"`
	Volid  string `json:"volid"` // now; "": the disk has none, and Where says more
	Size   string `json:"size,omitempty"`
	// Where is the present place of a disk of an unfinished replacement: "scsi30 of parking VM 9900".
	Where string `json:"where,omitempty"`
	// NewSize is the size of the blank system disk if it differs: never less.
	NewSize string `json:"newSize,omitempty"`
}

// PlanEtcd applies the rules of etcd to a decision. With auto, a node whose system disk must not be replaced
// because of etcd is upgraded in place.
func PlanEtcd(n *NodePlan, o observe.Observation, p Policy, d strategy.Decision, system cluster.Disk, systemErr error) strategy.Decision {
	onSystem, err := strategy.EtcdOnSystemDisk(*n.Found.Machine)
	if err != nil {
		d.Refused = append(d.Refused, err.Error())
		return d
	}
	n.EtcdKept = !onSystem && !n.etcdMoves(d.Strategy) || d.Strategy.KeepsVM()
	refused, warn := strategy.EtcdRules(len(o.ControlPlanes()), !n.EtcdKept, n.Found.Machine.TypeInit, d.Strategy, p.AcceptOutage)
	against, outage := strategy.EtcdRules(len(o.ControlPlanes()), false, false, cluster.InPlace, p.AcceptOutage)
	if len(refused) > 0 && len(against) == 0 && n.Wanted.Strategy == cluster.Auto && !d.Strategy.KeepsVM() {
		because := refused[0]
		n.EtcdKept = true
		w := n.Wanted
		w.Strategy = cluster.InPlace
		lifted := append(d.ToRecreate, cluster.Obstacle{Text: because})
		d = strategy.Decide(w, n.Found, o, system, systemErr)
		d.ToRecreate = lifted
		d.Why = "in-place: a new system disk is impossible (" + because + ")"
		refused, warn = nil, outage
	}
	d.Refused = append(d.Refused, refused...)
	d.Notes = append(d.Notes, warn...)
	return d
}
