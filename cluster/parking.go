package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"

	"github.com/recast-sh/recast/internal/fault"
)

// replace gathers what was remembered into the exchange of this node's VM.
func (n *nodeRoll) replace(ctx context.Context) (*Replace, error) {
	if n.drawn != nil {
		return new(*n.drawn), nil
	}
	park, err := n.parking(ctx)
	if err != nil {
		return nil, err
	}
	return n.replaceWith(ctx, park)
}

// replaceWith is replace, with the parking VM as it was read.
func (n *nodeRoll) replaceWith(ctx context.Context, park Parking) (*Replace, error) {
	mem, err := n.memory(ctx)
	if err != nil {
		return nil, err
	}
	if !park.Record.Open || park.Record.Run != n.Run {
		return nil, fault.ParkedHalf.Refusedf("%s no longer has an open record of run %s: another run was here", park.VM, n.Run)
	}
	n.opened = n.replaceOf(mem, park.Record, park.VM.ID)
	return new(*n.opened), nil
}

func (n *nodeRoll) replacing() replacing { return replacing{read: n.replace, known: n.knownReplace} }

// knownReplace is replace as it was read last, if it was: which disks go where is
// written once, when the record is opened.
func (n *nodeRoll) knownReplace(ctx context.Context) (*Replace, error) {
	if n.opened == nil {
		return n.replace(ctx)
	}
	return new(*n.opened), nil
}

func (n *nodeRoll) replaceOf(mem memory, rec Record, parking VMID) *Replace {
	r := replaceOf(n.Proxmox, mem, rec, parking)
	r.ISO, r.SystemGiB, r.aloneAtStart = n.isoVolume, n.want.SystemGiB, true
	return r
}

// parked are the node's keys whose disks its open record has handed over.
func (p Parking) parked() []string {
	var keys []string
	for _, d := range p.Record.Disks {
		if d.ParkKey != "" && p.VM.Config[d.ParkKey] != "" {
			keys = append(keys, d.Key)
		}
	}
	return keys
}

// opening is the record of this node's replacement as far as it is known before
// anything of it is done.
func (n *nodeRoll) opening() Record {
	return Record{
		Cluster: n.Cluster, Node: n.plan.Node, Run: n.Run, Build: n.plan.build(), Strategy: n.plan.Strategy,
		Addr: n.plan.Addr, Restore: n.plan.restore,
	}
}

// open completes the record of a replacement. It maps the drives that have to
// leave the remembered VM to free keys of the parking VM (nil: one yet to be
// made): their own where that is free, else the lowest free SCSI key. The system
// disk stays parked for long, so it is kept out of the way at the other end. A
// holder's disks are only detached.
func (rec Record) open(mem memory, park *Parking) (Record, error) {
	rec.Open, rec.VMID, rec.UUID, rec.VMName = true, mem.VM.ID, mem.VM.UUID(), mem.VM.Name
	taken := map[string]bool{}
	if park != nil {
		rec.Kept = park.Record.Kept
		for key := range park.VM.Config {
			taken[key] = true
		}
		for _, k := range rec.Kept { // somebody may have taken its drive away
			taken[k.Key] = true
		}
	}
	disks, err := mem.disks()
	if err != nil {
		return Record{}, err
	}
	for _, d := range disks {
		system := d.Key == mem.SystemKey
		if rec.Strategy != Recreate && !system {
			continue // the VM stays, and its disks with it
		}
		p := ParkedDisk{Key: d.Key, Volid: d.Volid, Options: optionString(d), System: system}
		switch {
		case d.Owner == 0, system && d.Owner != mem.VM.ID:
			return Record{}, fault.ParkedHalf.Refusedf("%s of %s is %s, which does not carry that VM's number: it can't be handed over", d.Key, mem.VM, d.Volid)
		case d.Owner != mem.VM.ID:
			p.Holder = d.Owner
		default:
			if p.ParkKey, err = parkingKey(d.Key, system, taken); err != nil {
				return Record{}, fmt.Errorf("parking VM of %s: %w", rec.Node, err)
			}
			taken[p.ParkKey] = true
		}
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
	return "", fault.WithHint(fault.ParkedHalf.Refusedf("no drive key is free for %s", key), "free old system disks that are still parked there")
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
	var earlier *Parking
	park, err := n.parking(ctx)
	switch {
	case err == nil:
		earlier = &park
	case !errors.Is(err, ErrNotFound):
		return err
	}
	_, _, err = openParking(ctx, n.Proxmox, n.opening(), mem, earlier, n.parkingNumbers.inOrder(n.ParkingIDs), func(id VMID) error {
		n.parkingNumbers.next(id)
		// Known before it exists: a crash in between must not lose track of it.
		return prefix("journal", n.Journal.Put(n.key("parking"), id))
	})
	return err
}

// freeNumbers remembers where among the numbers for parking VMs the next one is looked
// for: those before were taken when this roll looked.
type freeNumbers struct {
	mu   sync.Mutex
	from VMID
}

// inOrder has those that were taken last.
func (p *freeNumbers) inOrder(ids []VMID) []VMID {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := max(0, slices.Index(ids, p.from))
	return slices.Concat(ids[i:], ids[:i])
}

// next notes that a number is about to be taken.
func (p *freeNumbers) next(id VMID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.from = id
}

// openParking writes the open record into the parking VM of an earlier
// replacement, or into a new one, whose number meant is told before it exists.
func openParking(ctx context.Context, px Proxmox, opening Record, mem memory, earlier *Parking, ids []VMID, meant func(VMID) error) (VMID, Record, error) {
	rec, err := opening.open(mem, earlier)
	switch {
	case err != nil:
		return 0, Record{}, err
	case earlier == nil:
		id, err := createParking(ctx, px, mem.VM, rec, ids, meant)
		return id, rec, err
	case earlier.VM.Host != mem.VM.Host:
		return 0, Record{}, fault.WithHint(fault.ParkedHalf.Refusedf("%s is not on %s, where VM %d is: disks can be handed over on one host only", earlier.VM, mem.VM.Host, mem.VM.ID),
			"on %s: %s", earlier.VM.Host, migrate(earlier.VM, mem.VM.Host))
	case earlier.Record.Open && earlier.Record.Run != rec.Run:
		return 0, Record{}, fault.ParkedHalf.Refusedf("%s has an open record of run %s: that replacement has to be ended first", earlier.VM, earlier.Record.Run)
	}
	return earlier.VM.ID, rec, writeRecord(ctx, px, earlier.VM, rec)
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
func createParking(ctx context.Context, px Proxmox, vm VM, rec Record, ids []VMID, meant func(VMID) error) (VMID, error) {
	config := map[string]string{"name": parkingName(rec.Node), "memory": "16", "protection": "1", "onboot": "0"}
	if vm.Pool != "" {
		config["pool"] = vm.Pool
	}
	for _, id := range ids {
		if _, err := px.VMConfig(ctx, id); err == nil {
			continue
		} else if !errors.Is(err, ErrNotFound) {
			return 0, fmt.Errorf("look up VM %d: %w", id, err)
		}
		if err := meant(id); err != nil {
			return 0, err
		}
		rec.Parking = id
		description, err := rec.Description()
		if err != nil {
			return 0, err
		}
		config["description"] = description
		err = px.CreateVM(ctx, vm.Host, id, config)
		if errors.Is(err, ErrExists) {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("create parking VM %d on %s: %w", id, vm.Host, err)
		}
		return id, nil
	}
	return 0, fault.WithHint(fault.ParkedHalf.Refusedf("no VMID is free for the parking VM of %s", rec.Node), "widen proxmox.vmids")
}
