package parking

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
)

// NextNth returns the number of the next replacement of a node's system disk. The IDs of runs give
// no order, because the clocks of the machines on which runs begin may differ.
func NextNth(parkings []Parking) int {
	last := 0
	for _, p := range parkings {
		last = max(last, p.Record.Nth)
		for _, k := range p.Record.Kept {
			last = max(last, k.Nth)
		}
	}
	return last + 1
}

// ParkedOptions returns the drive's options while it is parked: a backup of the parking VM must not copy, or lock,
// a disk that is there only for a time. EFI variables, TPM state and detached volumes have no such option.
func ParkedOptions(d ParkedDisk) []string {
	if !(cluster.Disk{Key: d.Key}).Bootable() {
		return cluster.SplitOptions(d.Options)
	}
	return cluster.Disk{Options: cluster.SplitOptions(d.Options)}.With("backup", "0")
}

// Parked lists the node's keys whose disks were handed over to the parking VM.
func (p Parking) Parked() []string {
	var keys []string
	for _, d := range p.Record.Disks {
		if d.ParkKey != "" && p.VM.Config[d.ParkKey] != "" {
			keys = append(keys, d.Key)
		}
	}
	return keys
}

// Opened completes the record of a replacement. It maps the drives that must leave the remembered VM to free keys of
// the parking VM (nil: not yet created): their own key if it is free, else the lowest free SCSI key. The system disk
// stays parked for long, so it gets the highest free key. A holder's disks are only detached.
func (rec Record) Opened(mem Memory, park *Parking) (Record, error) {
	rec.Open, rec.VMID, rec.UUID, rec.VMName, rec.ControlPlane = true, mem.VM.ID, mem.VM.UUID(), mem.VM.Name, mem.ControlPlane
	taken := map[string]bool{}
	if park != nil {
		rec.Kept, rec.Sent = park.Record.Kept, park.Record.Sent
		rec.Nth = max(rec.Nth, NextNth([]Parking{*park}))
		for key := range park.VM.Config {
			taken[key] = true
		}
		rec.Kept = slices.Clone(rec.Kept)
		for i, k := range rec.Kept { // someone may have removed the disk's drive
			taken[k.Key] = true
			if rec.Strategy.From() == cluster.Nowhere { // the node had these disks before it was gone
				rec.Kept[i].Removed, rec.Kept[i].UUID = true, cmp.Or(k.UUID, park.Record.UUID)
			}
		}
	}
	disks, err := mem.Disks()
	if err != nil {
		return Record{}, err
	}
	for _, d := range disks {
		system := d.Key == mem.SystemKey
		if rec.Strategy.ParksNothing() || !rec.Strategy.DeletesVM() && !system {
			continue // the VM stays, and its disks with it
		}
		p := ParkedDisk{Key: d.Key, Volid: d.Volid, Options: cluster.OptionString(d), System: system}
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
	rec.Config = mem.ConfigSum
	if rec.Stage = firstStage(rec.Strategy); rec.Stage != "" {
		// If no key is free now, one is free once disks have left the parking VM.
		rec.SpareKey, _ = parkingKey(mem.SystemKey, true, taken)
	}
	rec.Memory, err = mem.Pack()
	return rec, err
}

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
	return "", fault.WithHint(fault.ParkedHalf.Refusedf("no drive key is free for %s", key), "recast prune frees the old system disks there that nothing needs any more")
}

// scsiKeys is how many SCSI drives a Proxmox VM can have.
const scsiKeys = 31

// Parking is a parking VM with the record in its description.
type Parking struct {
	VM     cluster.VM
	Record Record
}

// Newer compares two parking VMs by the last system disk that each keeps, the newer one first.
func (p Parking) Newer(q Parking) int {
	last := func(p Parking) (k KeptDisk) {
		for _, one := range p.Record.Kept {
			if one.later(k) > 0 {
				k = one
			}
		}
		return k
	}
	return Later(last(q), q.VM, last(p), p.VM)
}

// Later compares kept disks of a node on two parking VMs by when they were replaced. Two parking VMs on one host
// count apart: the second was created while nobody could read the record of the first.
func Later(k KeptDisk, on cluster.VM, o KeptDisk, other cluster.VM) int {
	if on.ID != other.ID && on.Host != "" && on.Host == other.Host && !k.Replaced.IsZero() && !o.Replaced.IsZero() {
		return k.Replaced.Compare(o.Replaced)
	}
	return k.later(o)
}

// later compares two kept disks of a node by when they were replaced, as far as that is recorded.
func (k KeptDisk) later(o KeptDisk) int {
	return cmp.Or(cmp.Compare(k.Nth, o.Nth), k.Replaced.Compare(o.Replaced), cmp.Compare(k.Run, o.Run))
}

// Unrecorded returns a node's parking VMs, by their names, whose Notes have no readable record any more. ids are
// the VMIDs that a parking VM may have; nil: any.
func Unrecorded(vms []cluster.VM, node string, ids []cluster.VMID) []cluster.VM {
	return slices.DeleteFunc(slices.Clone(vms), func(vm cluster.VM) bool {
		if vm.Name != cluster.ParkingName(node) || cluster.Forming(vm) || ids != nil && !slices.Contains(ids, vm.ID) {
			return true
		}
		_, has, _ := ReadRecord(vm)
		return has && !Damaged(vm)
	})
}

// KeptBy says in words what the parking VM keeps once a strategy is through.
func (p Parking) KeptBy(s cluster.Strategy) string {
	switch {
	case s.ParksNothing():
		return "nothing is parked"
	case s.VM() == cluster.VMGone:
		return fmt.Sprintf("its disks are on %s", p.VM)
	}
	return fmt.Sprintf("the old system disk is on %s", p.VM)
}

// Parkings finds the parking VMs of a cluster among all VMs, except those that were created too late to be used.
func Parkings(vms []cluster.VM, cluster string) ([]Parking, error) {
	all, err := AllParkings(vms, cluster)
	return slices.DeleteFunc(slices.Clone(all), func(p Parking) bool { return p.CameLate(all) }), err
}

// ControlPlaneOut says whether an unfinished replacement has a control plane out of service. Then neither Kubernetes nor
// Talos may answer, and a machine in maintenance mode may answer at a control plane's address, with another certificate.
func ControlPlaneOut(parkings []Parking) bool {
	return slices.ContainsFunc(parkings, func(p Parking) bool {
		mem, err := p.Record.ReadMemory(p.VM)
		return p.Record.Open && err == nil && mem.ControlPlane
	})
}

// Readable is Parkings, but a Damaged record keeps only its own node from being changed: see Unrecorded.
func Readable(vms []cluster.VM, cluster string) ([]Parking, error) {
	return Parkings(slices.DeleteFunc(slices.Clone(vms), Damaged), cluster)
}

func AllParkings(vms []cluster.VM, cluster string) ([]Parking, error) {
	var out []Parking
	var problems []error
	for _, vm := range vms {
		rec, ok, err := ReadRecord(vm)
		switch {
		case err != nil && (rec.Cluster == cluster || rec.Cluster == ""):
			problems = append(problems, err)
		case err != nil: // a newer recast wrote it for another cluster
		case ok && rec.Cluster == cluster:
			out = append(out, Parking{VM: vm, Record: rec})
		}
	}
	return out, errors.Join(problems...)
}

// CameLate reports whether Proxmox created the parking VM after the run that asked for it had ended and another
// parking VM existed: every run uses the one that its node has on the host. Of two unused ones, either would do.
// Which run began later does not count, because clocks may differ.
func (p Parking) CameLate(all []Parking) bool {
	return p.unused() && slices.ContainsFunc(all, func(q Parking) bool {
		same := q.VM.ID != p.VM.ID && q.VM.Host == p.VM.Host && q.Record.Node == p.Record.Node && q.Record.VMID == p.Record.VMID && q.Record.UUID == p.Record.UUID
		return same && (!q.unused() || q.VM.ID < p.VM.ID)
	})
}

// unused reports whether the parking VM was never used since it was created.
func (p Parking) unused() bool { return p.Empty() && p.Record.Written == 0 && len(p.Record.Sent) == 0 }

// Empty reports whether no disk was ever handed over to the parking VM of a replacement.
func (p Parking) Empty() bool {
	drives := slices.ContainsFunc(slices.Collect(maps.Keys(p.VM.Config)), cluster.IsDiskKey)
	return p.Record.Open && p.Record.Intent == nil && !drives
}

// Twin says why two parking VMs of one node can't both be genuine. Two on one host are genuine if recast wrote each
// where it is, as the records say: a copy (clone, restore) has the record of the VM from which it was copied. A
// genuine pair comes of Notes that were edited when a run began, and put back later.
func (p Parking) Twin(q Parking) error {
	genuine := p.Record.Parking == p.VM.ID && q.Record.Parking == q.VM.ID && p.Record.UUID == q.Record.UUID
	hint := "look at their descriptions (recast status; qm config): one is a copy (clone, restore) of the other, whose disks may be all that is left of a node's: give the copy a name and Notes of its own, and delete nothing before the node is whole"
	switch {
	case p.Record.Open && q.Record.Open:
		return fault.WithHint(fault.ParkedHalf.Refusedf("node %s has two parking VMs with an unfinished replacement: %s and %s", p.Record.Node, q.VM, p.VM), "%s", hint)
	case p.VM.Host == q.VM.Host && !genuine:
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

// Numbers remembers which VMID to try next for a parking VM. The VMIDs before it were already taken when this roll
// looked.
type Numbers struct {
	mu   sync.Mutex
	from cluster.VMID
	of   map[string]cluster.VMID // by node: the VMID that its parking VM has or may get
	busy chan struct{}           // full while the first parking VM is being created
	made bool                    // whether it was created
}

// InOrder returns ids with the node's own VMID first and taken ones last.
func (f *Numbers) InOrder(node string, ids []cluster.VMID) []cluster.VMID {
	f.mu.Lock()
	defer f.mu.Unlock()
	i := max(0, slices.Index(ids, f.from))
	ids = slices.Concat(ids[i:], ids[:i])
	if own, known := f.of[node]; known {
		ids = slices.Insert(ids, 0, own)
	}
	return ids
}

// Met notes the VMID that a node's parking VM has or may get.
func (f *Numbers) Met(node string, id cluster.VMID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.of == nil {
		f.of = map[string]cluster.VMID{}
	}
	f.of[node] = id
}

// Next notes that a VMID is about to be used for a node.
func (f *Numbers) Next(node string, id cluster.VMID) {
	f.Met(node, id)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.from = id
}

// Others reports whether a VMID belongs to the parking VM of another node.
func (f *Numbers) Others(node string, id cluster.VMID) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for other, its := range f.of {
		if its == id && other != node {
			return true
		}
	}
	return false
}

// Turn waits while another caller creates the first parking VM of this roll, because that caller finds out which
// parking VMs were created late. The caller tells end whether it created one.
func (f *Numbers) Turn(ctx context.Context) (end func(made bool), err error) {
	f.mu.Lock()
	if f.busy == nil {
		f.busy = make(chan struct{}, 1)
	}
	f.mu.Unlock()
	select {
	case f.busy <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.made {
		<-f.busy
		return func(bool) {}, nil
	}
	return func(made bool) {
		f.mu.Lock()
		f.made = made
		f.mu.Unlock()
		<-f.busy
	}, nil
}
