package pipeline

import (
	"context"
	"fmt"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/journal"
)

// StatusResult is the last run and what is unfinished or kept in the world.
type StatusResult struct {
	Cluster string     `json:"cluster"`
	LastRun *RunStatus `json:"lastRun,omitempty"` // as the journal here knows it
	Open    []Half     `json:"open"`              // unfinished replacements, as Proxmox knows them
	Kept    []Parked   `json:"kept"`              // old system disks that are still there
}

// RunStatus is one run as its journal tells it.
type RunStatus struct {
	ID       string    `json:"id"`
	Started  time.Time `json:"started"`
	Finished time.Time `json:"finished,omitzero"`
	Outcome  string    `json:"outcome,omitempty"` // "": still running, or killed
}

// Half is a replacement that was begun and not finished.
type Half struct {
	Node    string       `json:"node"`
	Run     string       `json:"run"`
	VMID    cluster.VMID `json:"vmid"`
	VM      string       `json:"vm"` // what is there under that VMID, in words
	Parking cluster.VMID `json:"parking"`
	Disks   []Parked     `json:"disks"`
}

// Parked is one disk and where it is now.
type Parked struct {
	Node  string `json:"node"`
	Disk  string `json:"disk"`            // its key on the node's VM; "" for an old system disk
	Volid string `json:"volid,omitempty"` // "" if it is in neither place
	Where string `json:"where"`           // in words: "scsi1 of VM 9090"
}

// Status says how the last run ended and, for every unfinished replacement,
// where each disk is. It changes nothing.
func Status(ctx context.Context, p Project, px cluster.Inventory) (StatusResult, error) {
	res := StatusResult{Cluster: p.Config.Cluster, Open: []Half{}, Kept: []Parked{}}
	runs, err := journal.Runs(p.runs())
	if err != nil {
		return res, err
	}
	if len(runs) > 0 {
		last := RunStatus(runs[0])
		res.LastRun = &last
	}
	vms, err := px.VMs(ctx)
	if err != nil {
		return res, fmt.Errorf("read Proxmox: %w", err)
	}
	parkings, err := cluster.Parkings(vms, p.Config.Cluster)
	if err != nil {
		return res, err
	}
	for _, park := range parkings {
		for _, k := range park.Record.Kept {
			disk, err := cluster.ParseDisk(k.Key, park.VM.Config[k.Key])
			if err != nil {
				continue // freed by somebody: nothing is kept there any more
			}
			res.Kept = append(res.Kept, Parked{
				Node: park.Record.Node, Volid: disk.Volid, Where: fmt.Sprintf("%s of VM %d, parked by run %s", k.Key, park.VM.ID, k.Run),
			})
		}
		if park.Record.Open {
			res.Open = append(res.Open, half(park, vms))
		}
	}
	return res, nil
}

func half(park cluster.Parking, vms []cluster.VM) Half {
	rec := park.Record
	h := Half{Node: rec.Node, Run: rec.Run, VMID: rec.VMID, Parking: park.VM.ID, VM: "deleted"}
	var vm cluster.VM
	for _, v := range vms {
		if v.ID == rec.VMID {
			vm = v
		}
	}
	switch {
	case vm.ID == 0:
	case vm.UUID() != rec.UUID:
		h.VM = "a stranger: " + vm.String()
	case vm.MadeBy() == rec.Run:
		h.VM = "created by this run"
	default:
		h.VM = "the old one"
	}
	for _, d := range rec.Disks {
		h.Disks = append(h.Disks, where(d, vm, park.VM))
	}
	return h
}

func where(d cluster.ParkedDisk, vm, park cluster.VM) Parked {
	for _, at := range []struct {
		vm  cluster.VM
		key string
	}{{park, d.ParkKey}, {vm, d.Key}} {
		disk, err := cluster.ParseDisk(d.Key, at.vm.Config[at.key])
		if err == nil && disk.Owner == at.vm.ID {
			return Parked{Disk: d.Key, Volid: disk.Volid, Where: fmt.Sprintf("%s of VM %d", at.key, at.vm.ID)}
		}
	}
	return Parked{Disk: d.Key, Where: "neither on VM " + fmt.Sprint(vm.ID) + " nor on the parking VM: it was " + d.Volid}
}
