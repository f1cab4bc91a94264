package pipeline

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
)

// Half is an unfinished replacement.
type Half struct {
	Node     string           `json:"node"`
	Run      string           `json:"run"`
	Strategy cluster.Strategy `json:"strategy"`
	Build    string           `json:"build,omitempty"` // the target build; for a rollback, the lock hash
	Talos    string           `json:"talos,omitempty"` // its version, if a lock here has the build
	GivenUp  bool             `json:"givenUp,omitempty"`
	Rebuild  string           `json:"rebuild,omitempty"`  // SHA-256 of the snapshot with which its cluster is rebuilt
	LeftEtcd bool             `json:"leftEtcd,omitempty"` // the node is not a member of etcd until it is back

	VMID    cluster.VMID `json:"vmid"`
	VMState VMState      `json:"vmState"`
	VM      string       `json:"vm"` // the same in words
	Running bool         `json:"running"`
	Parking cluster.VMID `json:"parking"`
	Disks   []DiskStatus `json:"disks"`

	// Whether this machine can finish it.
	BuildLocked   bool     `json:"buildLocked"`   // a lock on this machine has the build
	MachineConfig bool     `json:"machineConfig"` // its machine configuration is in the journal here, or unchanged in talos.machineConfigs
	Next          []Advice `json:"next"`
}

// VMState says which VM has the VMID of a node.
type VMState string

// The states of a VM in a replacement.
const (
	VMDeleted      VMState = "deleted"
	VMAway         VMState = "away"          // on a Proxmox host that does not answer
	VMStranger     VMState = "stranger"      // another VM uses the VMID
	VMOld          VMState = "old"           // the VM from before the replacement
	VMNew          VMState = "new"           // created by this run
	VMSystemParked VMState = "system-parked" // the same VM; its system disk is on the parking VM
	VMBlankSystem  VMState = "new-system"    // the same VM with a new system disk
	VMRestored     VMState = "restored"      // the same VM with its kept system disk
)

// DiskPlace is the location of a disk.
type DiskPlace string

// The places of a disk.
const (
	OnVM      = DiskPlace(parking.OnVM)
	OnParking = DiskPlace(parking.OnParking)
	Detached  = DiskPlace(parking.Detached)
	Unnamed   = DiskPlace(parking.Unnamed)
	Lost      = DiskPlace(parking.Lost)
)

// DiskStatus is one disk of a node and where it is now.
type DiskStatus struct {
	Disk   string    `json:"disk"` // its key on the node's VM
	System bool      `json:"system,omitempty"`
	Kept   bool      `json:"kept,omitempty"` // in a rollback: the disk that is put back
	Place  DiskPlace `json:"place"`
	Volid  string    `json:"volid,omitempty"` // now, or as last known
	Where  string    `json:"where"`           // in words: "scsi1 of VM 9090"
}

// half describes an open record. The error says which details could not be read.
func half(ctx context.Context, px cluster.Inventory, park parking.Parking, vms []cluster.VM, away *cluster.HostsAway) (Half, error) {
	rec := park.Record
	h := Half{
		Node: rec.Node, Run: rec.Run, Strategy: rec.Strategy, Build: rec.Build,
		GivenUp: rec.PutBack, Rebuild: rec.Rebuild, LeftEtcd: rec.Left, VMID: rec.VMID, Parking: park.VM.ID,
	}
	vm, there := find(vms, rec.VMID)
	stranger := there && vm.UUID() != rec.UUID
	s := scene{rec: rec, park: park.VM}
	var errState error
	if there && !stranger {
		var now cluster.VM // the list of VMs shows power states about 10 s late
		now, errState = px.VM(ctx, vm.ID)
		s.vm, h.Running = vm, now.Running
	}
	dangling, err := rec.Dangling(ctx, px, s.vm, park.VM)
	for _, d := range rec.Disks {
		h.Disks = append(h.Disks, s.locate(d, dangling))
	}
	if back := rec.Restore; back != nil {
		h.Talos = back.Talos
		at := s.locate(parking.ParkedDisk{Key: back.Slot, ParkKey: back.Key, Options: back.Options, System: true}, dangling)
		at.Kept = true
		h.Disks = append(h.Disks, at)
	}
	elsewhere, unread := away.VM(rec.VMID)
	switch {
	case unread:
		h.VMState, h.VM = VMAway, fmt.Sprintf("on %s, which does not answer", elsewhere.Host)
		for i, d := range h.Disks {
			if d.Place == Lost {
				h.Disks[i].Where = fmt.Sprintf("not on parking VM %d; VM %d may have it", park.VM.ID, rec.VMID)
			}
		}
	case !there:
		h.VMState, h.VM = VMDeleted, "deleted"
	case stranger:
		h.VMState, h.VM = VMStranger, "a stranger: "+vm.String()
	default:
		h.VMState, h.VM = s.vmState(h)
		if vm.Host != park.VM.Host {
			h.VM += fmt.Sprintf("; it is on %s and the parking VM is on %s: recast plan says how to bring them together", vm.Host, park.VM.Host)
		}
	}
	return h, errors.Join(errState, err)
}

func find(vms []cluster.VM, id cluster.VMID) (cluster.VM, bool) {
	i := slices.IndexFunc(vms, func(vm cluster.VM) bool { return vm.ID == id })
	if i < 0 {
		return cluster.VM{}, false
	}
	return vms[i], true
}

// scene is the two VMs of a replacement and its record.
type scene struct {
	rec  parking.Record
	vm   cluster.VM // zero if there is none, or another VM has the VMID
	park cluster.VM
}

func (s scene) vmState(h Half) (VMState, string) {
	if h.Strategy.MakesVM() {
		switch {
		case s.vm.MadeBy() == s.rec.Run:
			return VMNew, "created by this run"
		case s.rec.PutBack:
			return VMOld, "as it was before"
		}
		return VMOld, "the old one"
	}
	i := slices.IndexFunc(h.Disks, func(d DiskStatus) bool { return d.System && !d.Kept })
	switch {
	case i < 0 || h.Disks[i].Place == OnVM:
		return VMOld, "the same one, with the system disk that it had"
	case s.vm.Config[h.Disks[i].Disk] == "":
		return VMSystemParked, "the same one, without a system disk"
	case h.Strategy.System() == cluster.SystemKept:
		return VMRestored, "the same one, with its kept system disk"
	}
	return VMBlankSystem, "the same one, with a new system disk"
}

// locate finds a disk by its names in Proxmox.
func (s scene) locate(d parking.ParkedDisk, dangling bool) DiskStatus {
	now := s.rec.Locate(d, s.vm, s.park, dangling)
	return DiskStatus{Disk: d.Key, System: d.System, Place: DiskPlace(now.Place), Volid: now.Volid, Where: now.Where}
}

// advise says what a roll on this machine would do, and what else is possible.
func (h Half) advise() []Advice {
	const roll, before = "recast roll", "; otherwise it puts the old system disk back first, and plans the node again"
	giveUp := Advice{"recast undo " + h.Node, h.Strategy.Words().Cancel}
	switch {
	case h.VMState == VMAway:
		return []Advice{{"pvecm status", "on another Proxmox node shows which nodes are up; recast continues when that host is back"}}
	case h.VMState == VMStranger:
		return []Advice{{fmt.Sprintf("qm config %d", h.VMID), "shows which VM has the number; recast does not touch it, and continues when the number is free"}}
	case h.Rebuild != "":
		return []Advice{{"recast rebuild CONTROL-PLANE --from FILE", "as it was run, with the same snapshot, goes on"}}
	case h.GivenUp:
		return []Advice{{roll, "continues to put the old system disk back"}}
	case h.Strategy.System() == cluster.SystemKept:
		return []Advice{{roll, "finishes the rollback"}}
	case h.Strategy.Reshapes(), h.Strategy.VM() == cluster.VMGone:
		return []Advice{{roll, "finishes it"}, giveUp}
	case h.Strategy.From() == cluster.Nowhere && !(h.BuildLocked && h.MachineConfig):
		return []Advice{{"recast plan", "says what is missing to finish it"}, giveUp}
	case !h.BuildLocked:
		return []Advice{{roll, "puts the old system disk back first, since no lock here has that build, and plans the node again"}, giveUp}
	case !h.MachineConfig:
		return []Advice{{roll, "finishes it if the node answers" + before + ": its machine configuration is neither in a journal here nor in talos.machineConfigs"}, giveUp}
	}
	return []Advice{{roll, "finishes it"}, giveUp}
}

// Advice is a command and what it does.
type Advice struct {
	Command string `json:"command"`
	Does    string `json:"does"`
}
