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
	mem, err := n.memory()
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
	iso, err := n.isoVolume(ctx)
	if err != nil {
		return nil, err
	}
	return n.replaceOf(mem, park.Record, park.VM.ID, iso), nil
}

func (n *nodeRoll) replaceOf(mem memory, rec Record, parking VMID, iso string) *Replace {
	return &Replace{
		Proxmox: n.Proxmox, Run: n.Run, Build: n.want.Build.ID, VM: mem.VM, Parking: parking,
		Disks: rec.Disks, ISO: iso, SystemGiB: n.want.SystemGiB, Serial: mem.DiskSerial,
	}
}

// newRecord maps every drive of the remembered VM to a free key of the parking
// VM (nil: one yet to be made): its own key where that is free, else the lowest
// free SCSI key. The system disk stays parked for long, so it is kept out of
// the way at the other end.
func (n *nodeRoll) newRecord(mem memory, park *Parking) (Record, error) {
	rec := Record{
		Cluster: n.Cluster, Node: n.plan.Node, Run: n.Run, Build: n.want.Build.ID,
		VMID: mem.VM.ID, UUID: mem.VM.UUID(), VMName: mem.VM.Name, Open: true, WasCordoned: mem.WasCordoned,
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
		key, err := parkingKey(d.Key, system, taken)
		if err != nil {
			return Record{}, fmt.Errorf("parking VM of %s: %w", n.plan.Node, err)
		}
		taken[key] = true
		rec.Disks = append(rec.Disks, ParkedDisk{
			Key: d.Key, ParkKey: key, Volid: d.Volid, Options: optionString(d), System: system,
		})
	}
	return rec, nil
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
	return n.writeRecord(ctx, park.VM, rec)
}

func (n *nodeRoll) writeRecord(ctx context.Context, park VM, rec Record) error {
	description, err := rec.Description()
	if err != nil {
		return err
	}
	if err := n.Proxmox.SetConfig(ctx, park, map[string]string{"description": description}, nil); err != nil {
		return fmt.Errorf("write the record into %s: %w", park, err)
	}
	return nil
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
