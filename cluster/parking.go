package cluster

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/recast-sh/recast/internal/fault"
)

// replace gathers what was remembered into the exchange of this node's VM.
func (n *nodeRoll) replace(ctx context.Context) (*Replace, error) {
	mem, err := n.memory(ctx)
	if err != nil {
		return nil, err
	}
	park, err := n.parking(ctx)
	if err != nil {
		return nil, err
	}
	if !park.Record.Open || park.Record.Run != n.Run {
		return nil, fault.Refusedf("%s no longer has an open record of run %s: another run was here", park.VM, n.Run)
	}
	return n.replaceOf(mem, park.Record, park.VM.ID), nil
}

func (n *nodeRoll) replaceOf(mem memory, rec Record, parking VMID) *Replace {
	return &Replace{
		Proxmox: n.Proxmox, Strategy: rec.Strategy, Run: n.Run, Build: rec.Build, VM: mem.VM, Parking: parking,
		Disks: rec.Disks, Restore: rec.Restore, ISO: n.isoVolume, SystemGiB: n.want.SystemGiB, Serial: mem.DiskSerial,
	}
}

// newRecord maps the drives that have to leave the remembered VM to free keys of
// the parking VM (nil: one yet to be made): their own where that is free, else
// the lowest free SCSI key. The system disk stays parked for long, so it is kept
// out of the way at the other end. A holder's disks are only detached.
func (n *nodeRoll) newRecord(mem memory, park *Parking) (Record, error) {
	rec := Record{
		Cluster: n.Cluster, Node: n.plan.Node, Run: n.Run, Build: n.plan.build(), Strategy: n.plan.Strategy,
		VMID: mem.VM.ID, UUID: mem.VM.UUID(), VMName: mem.VM.Name, Addr: n.plan.Addr, Open: true, Restore: n.plan.restore,
	}
	taken := map[string]bool{}
	if park != nil {
		rec.Kept = park.Record.Kept
		for key := range park.VM.Config {
			taken[key] = true
		}
	}
	disks, err := mem.disks()
	if err != nil {
		return Record{}, err
	}
	for _, d := range disks {
		system := d.Key == mem.SystemKey
		if n.plan.Strategy != Recreate && !system {
			continue // the VM stays, and its disks with it
		}
		p := ParkedDisk{Key: d.Key, Volid: d.Volid, Options: optionString(d), System: system}
		if d.Owner != mem.VM.ID {
			p.Holder = d.Owner
		} else if p.ParkKey, err = parkingKey(d.Key, system, taken); err != nil {
			return Record{}, fmt.Errorf("parking VM of %s: %w", n.plan.Node, err)
		}
		taken[p.ParkKey] = true
		rec.Disks = append(rec.Disks, p)
	}
	rec.Memory, err = mem.pack()
	return rec, err
}

// scsiKeys is how many SCSI drives a Proxmox VM can have.
const scsiKeys = 31

func parkingKey(key string, system bool, taken map[string]bool) (string, error) {
	if !system && !taken[key] {
		return key, nil
	}
	for i := range scsiKeys {
		if system {
			i = scsiKeys - 1 - i
		}
		if k := "scsi" + strconv.Itoa(i); !taken[k] {
			return k, nil
		}
	}
	return "", fault.WithHint(fault.Refusedf("no drive key is free for %s", key), "free old system disks that are still parked there")
}

func optionString(d Disk) string {
	d.Volid = ""
	if v := d.Value(); v != "" {
		return v[1:]
	}
	return ""
}

// openRecord makes the parking VM, or uses the one of an earlier roll, and
// writes the open record into it. From here on the replacement is unfinished.
func (n *nodeRoll) openRecord(ctx context.Context, mem memory) error {
	park, err := n.parking(ctx)
	switch {
	case errors.Is(err, ErrNotFound):
		return n.createParking(ctx, mem)
	case err != nil:
		return err
	case park.VM.Host != mem.VM.Host:
		return fault.WithHint(fault.Refusedf("%s is not on %s, where VM %d is: disks can be handed over on one host only", park.VM, mem.VM.Host, mem.VM.ID),
			"migrate the parking VM to that host")
	}
	rec, err := n.newRecord(mem, &park)
	if err != nil {
		return err
	}
	return writeRecord(ctx, n.Proxmox, park.VM, rec)
}

// updateRecord changes the open record of this run.
func (n *nodeRoll) updateRecord(ctx context.Context, change func(*Record)) error {
	park, err := n.parking(ctx)
	if err != nil {
		return err
	}
	return changeRecord(ctx, n.Proxmox, park.VM, n.Run, change)
}

// createParking takes the first free VMID; whoever loses a race for one takes the next.
func (n *nodeRoll) createParking(ctx context.Context, mem memory) error {
	rec, err := n.newRecord(mem, nil)
	if err != nil {
		return err
	}
	description, err := rec.Description()
	if err != nil {
		return err
	}
	config := map[string]string{
		"name": "recast-parking-" + n.plan.Node, "memory": "16", "protection": "1", "onboot": "0", "description": description,
	}
	if mem.VM.Pool != "" {
		config["pool"] = mem.VM.Pool
	}
	for _, id := range n.ParkingIDs {
		if _, err := n.Proxmox.VM(ctx, id); err == nil {
			continue
		} else if !errors.Is(err, ErrNotFound) {
			return fmt.Errorf("look up VM %d: %w", id, err)
		}
		// Known before it exists: a crash in between must not lose track of it.
		if err := n.Journal.Put(n.key("parking"), id); err != nil {
			return fmt.Errorf("journal: %w", err)
		}
		err := n.Proxmox.CreateVM(ctx, mem.VM.Host, id, config)
		if errors.Is(err, ErrExists) {
			continue
		}
		if err != nil {
			return fmt.Errorf("create parking VM %d on %s: %w", id, mem.VM.Host, err)
		}
		return nil
	}
	return fault.WithHint(fault.Refusedf("no VMID is free for the parking VM of %s", n.plan.Node), "widen proxmox.vmids")
}
