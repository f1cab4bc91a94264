package pipeline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/recast-sh/recast/cluster"
)

// Half is a replacement that was begun and not finished.
type Half struct {
	Node     string           `json:"node"`
	Run      string           `json:"run"`
	Strategy cluster.Strategy `json:"strategy"`
	Build    string           `json:"build,omitempty"` // that the node is being brought to; of a rollback, the lock hash
	Talos    string           `json:"talos,omitempty"` // version of that, if a lock here knows it
	GivenUp  bool             `json:"givenUp,omitempty"`
	LeftEtcd bool             `json:"leftEtcd,omitempty"` // the node is no member of etcd until it is back

	VMID    cluster.VMID `json:"vmid"`
	VMState VMState      `json:"vmState"`
	VM      string       `json:"vm"` // the same in words
	Running bool         `json:"running"`
	Parking cluster.VMID `json:"parking"`
	Disks   []DiskStatus `json:"disks"`

	// What it takes to finish it from here.
	BuildLocked   bool     `json:"buildLocked"`   // a lock that is here describes the build
	MachineConfig bool     `json:"machineConfig"` // the machine configuration that it gets is in the journal here, or unchanged in talos.machineConfigs
	Next          []Advice `json:"next"`
}

// VMState is what is under the number of a node's VM.
type VMState string

// The states of a VM in a replacement.
const (
	VMDeleted      VMState = "deleted"
	VMAway         VMState = "away"          // on a Proxmox host that does not answer
	VMStranger     VMState = "stranger"      // another VM has taken the number
	VMOld          VMState = "old"           // as it was before
	VMNew          VMState = "new"           // made by this run
	VMSystemParked VMState = "system-parked" // the same VM; its system disk is on the parking VM
	VMBlankSystem  VMState = "new-system"    // the same VM with a new system disk
	VMRestored     VMState = "restored"      // the same VM with its kept system disk
)

// DiskPlace is where a disk is.
type DiskPlace string

// The places of a disk.
const (
	OnVM      = DiskPlace(cluster.OnVM)
	OnParking = DiskPlace(cluster.OnParking)
	Detached  = DiskPlace(cluster.Detached)
	Unnamed   = DiskPlace(cluster.Unnamed)
	Lost      = DiskPlace(cluster.Lost)
)

// DiskStatus is one disk of a node and where it is now.
type DiskStatus struct {
	Disk   string    `json:"disk"` // its key on the node's VM
	System bool      `json:"system,omitempty"`
	Kept   bool      `json:"kept,omitempty"` // of a rollback: the one that comes back
	Place  DiskPlace `json:"place"`
	Volid  string    `json:"volid,omitempty"` // now, or as last known
	Where  string    `json:"where"`           // in words: "scsi1 of VM 9090"
}

// half explains an open record. Its error is about details that could not be read.
func half(ctx context.Context, px cluster.Inventory, park cluster.Parking, vms []cluster.VM, away *cluster.HostsAway) (Half, error) {
	rec := park.Record
	h := Half{
		Node: rec.Node, Run: rec.Run, Strategy: cmp.Or(rec.Strategy, cluster.Recreate), Build: rec.Build,
		GivenUp: rec.PutBack, LeftEtcd: rec.Left, VMID: rec.VMID, Parking: park.VM.ID,
	}
	vm, there := find(vms, rec.VMID)
	stranger := there && vm.UUID() != rec.UUID
	s := scene{rec: rec, park: park.VM}
	var errState error
	if there && !stranger {
		var now cluster.VM // the list of VMs tells about 10 s late whether they run
		now, errState = px.VM(ctx, vm.ID)
		s.vm, h.Running = vm, now.Running
	}
	dangling, err := rec.Dangling(ctx, px, s.vm, park.VM)
	for _, d := range rec.Disks {
		h.Disks = append(h.Disks, s.locate(d, dangling))
	}
	if back := rec.Restore; back != nil {
		h.Talos = back.Talos
		at := s.locate(cluster.ParkedDisk{Key: back.Slot, ParkKey: back.Key, Options: back.Options, System: true}, dangling)
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
			h.VM += fmt.Sprintf("; it is on %s and the parking VM on %s: recast plan says what brings them together", vm.Host, park.VM.Host)
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

// scene is the two VMs of a replacement and what its record says of them.
type scene struct {
	rec  cluster.Record
	vm   cluster.VM // zero while there is none, or a stranger's
	park cluster.VM
}

func (s scene) vmState(h Half) (VMState, string) {
	if h.Strategy == cluster.Recreate {
		switch {
		case s.vm.MadeBy() == s.rec.Run:
			return VMNew, "made by this run"
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
	case h.Strategy == cluster.Rollback:
		return VMRestored, "the same one, with its kept system disk"
	}
	return VMBlankSystem, "the same one, with a new system disk"
}

// locate finds a disk by the names that Proxmox has for it.
func (s scene) locate(d cluster.ParkedDisk, dangling bool) DiskStatus {
	now := s.rec.Locate(d, s.vm, s.park, dangling)
	return DiskStatus{Disk: d.Key, System: d.System, Place: DiskPlace(now.Place), Volid: now.Volid, Where: now.Where}
}

// advise says what a roll would do about it here, and what else can be done.
func (h Half) advise() []Advice {
	const roll, before = "recast roll", "; otherwise it puts the old system disk back first, and plans the node anew"
	giveUp := Advice{"recast recover " + h.Node, "gives it up: puts the old system disk back"}
	switch {
	case h.VMState == VMAway:
		return []Advice{{"pvecm status", "on another Proxmox node shows which are up; recast goes on once that host is back"}}
	case h.VMState == VMStranger:
		return []Advice{{fmt.Sprintf("qm config %d", h.VMID), "shows what has taken the number; recast touches it not, and goes on once it is free"}}
	case h.GivenUp:
		return []Advice{{roll, "goes on putting the old system disk back"}}
	case h.Strategy == cluster.Rollback:
		return []Advice{{roll, "finishes the rollback"}}
	case !h.BuildLocked:
		return []Advice{{roll, "puts the old system disk back first, since no lock here has that build, and plans the node anew"}, giveUp}
	case !h.MachineConfig:
		return []Advice{{roll, "finishes it if the node answers" + before + ": its machine configuration is neither in a journal here nor in talos.machineConfigs"}, giveUp}
	}
	return []Advice{{roll, "finishes it"}, giveUp}
}
