package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/wait"
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
	r.ISO, r.SystemGiB, r.aloneAtStart, r.asks = n.isoVolume, n.want.SystemGiB, true, n.requireNoLossOff
	if b := n.want.Build; b.ID == rec.Build {
		r.made = KeptDisk{Build: b.LockHash, Talos: b.TalosVersion}
	}
	r.late, r.say, r.pods = &n.late, n.say, n.Kube.PodVolumes
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
		Cluster: n.Cluster, Node: n.plan.Node, Run: n.Run, VMIDs: n.VMIDs.String(), Build: n.plan.build(), Strategy: n.plan.Strategy,
		Addr: n.plan.Addr, Restore: n.plan.restore, Nth: nextNth(n.plan.found.parkings()),
	}
}

// nextNth counts the replacements of a node's system disk. The machines on which
// runs begin need not agree on the time, so that the IDs of runs give no order.
func nextNth(parkings []Parking) int {
	last := 0
	for _, p := range parkings {
		last = max(last, p.Record.Nth)
		for _, k := range p.Record.Kept {
			last = max(last, k.Nth)
		}
	}
	return last + 1
}

// open completes the record of a replacement. It maps the drives that have to
// leave the remembered VM to free keys of the parking VM (nil: one yet to be
// made): their own where that is free, else the lowest free SCSI key. The system
// disk stays parked for long, so it is kept out of the way at the other end. A
// holder's disks are only detached.
func (rec Record) open(mem memory, park *Parking) (Record, error) {
	rec.Open, rec.VMID, rec.UUID, rec.VMName, rec.ControlPlane = true, mem.VM.ID, mem.VM.UUID(), mem.VM.Name, mem.ControlPlane
	taken := map[string]bool{}
	if park != nil {
		rec.Kept, rec.Sent = park.Record.Kept, park.Record.Sent
		rec.Nth = max(rec.Nth, nextNth([]Parking{*park}))
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
	rec.Config = mem.ConfigSum
	if rec.Stage = rec.Strategy.firstStage(); rec.Stage != "" {
		// Where none is free now, one is by the time that disks have gone back.
		rec.SpareKey, _ = parkingKey(mem.SystemKey, true, taken)
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
		n.late.forgetting(park.VM.ID, func(*Record) {})(&park.Record)
		earlier = &park
	case !errors.Is(err, ErrNotFound):
		return err
	}
	_, _, err = openParking(ctx, n.Proxmox, n.opening(), mem, earlier, n.ParkingIDs, &n.parkingNumbers, func(id VMID) error {
		// Known before it exists: a crash in between must not lose track of it.
		return fault.Prefix("journal", n.Journal.Put(n.key("parking"), id))
	})
	return err
}

// freeNumbers remembers where among the numbers for parking VMs the next one is looked
// for: those before were taken when this roll looked.
type freeNumbers struct {
	mu   sync.Mutex
	from VMID
	of   map[string]VMID // nodes: where a parking VM may have come, or may yet come
	busy chan struct{}   // full while the first parking VM is made
	made bool            // it was
}

// turn waits while the first parking VM of this roll is being made: who makes that comes
// to know which ones have come late. end is called with whether it was made.
func (f *freeNumbers) turn(ctx context.Context) (end func(made bool), err error) {
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

// others says whether a number is that of another node's parking VM.
func (f *freeNumbers) others(node string, id VMID) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for other, its := range f.of {
		if its == id && other != node {
			return true
		}
	}
	return false
}

// inOrder has the node's own first, and those last that were taken.
func (f *freeNumbers) inOrder(node string, ids []VMID) []VMID {
	f.mu.Lock()
	defer f.mu.Unlock()
	i := max(0, slices.Index(ids, f.from))
	ids = slices.Concat(ids[i:], ids[:i])
	if own, known := f.of[node]; known {
		ids = slices.Insert(ids, 0, own)
	}
	return ids
}

// next notes that a number is about to be taken for a node.
func (f *freeNumbers) next(node string, id VMID) {
	f.met(node, id)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.from = id
}

// met notes where a parking VM of a node is, or may come.
func (f *freeNumbers) met(node string, id VMID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.of == nil {
		f.of = map[string]VMID{}
	}
	f.of[node] = id
}

// openParking writes the open record into the parking VM of an earlier
// replacement, or into a new one, whose number meant is told before it exists.
func openParking(ctx context.Context, px Proxmox, opening Record, mem memory, earlier *Parking, ids []VMID, numbers *freeNumbers, meant func(VMID) error) (VMID, Record, error) {
	rec, err := opening.open(mem, earlier)
	switch {
	case err != nil:
		return 0, Record{}, err
	case earlier == nil:
		id, err := createParking(ctx, px, mem.VM, rec, ids, numbers, meant)
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
	return changeRecord(ctx, n.Proxmox, park.VM, n.Run, n.late.forgetting(park.VM.ID, change))
}

// createParking takes the first free VMID; whoever loses a race for one takes the
// next. An empty parking VM of the node there is what an earlier request of ours made
// after nobody waited for it any more: that is the one then.
func createParking(ctx context.Context, px Proxmox, vm VM, rec Record, ids []VMID, numbers *freeNumbers, meant func(VMID) error) (id VMID, err error) {
	end, err := numbers.turn(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { end(err == nil) }()
	for _, id := range numbers.inOrder(rec.Node, ids) {
		if numbers.others(rec.Node, id) {
			continue
		}
		there, err := px.VMConfig(ctx, id)
		if errors.Is(err, ErrNotFound) {
			numbers.next(rec.Node, id)
			if err := meant(id); err != nil {
				return 0, err
			}
			err = makeParking(ctx, px, vm, rec, id)
			if err == nil || !errors.Is(err, ErrExists) {
				return id, err
			}
			there, err = px.VMConfig(ctx, id)
		}
		if err == nil {
			there, err = formed(ctx, px, there)
		}
		if err != nil {
			return 0, fmt.Errorf("look up VM %d: %w", id, err)
		}
		late, is := lateParking(there, rec.Cluster)
		switch {
		case is && late.Node == rec.Node && late.VMID == rec.VMID && there.Host == vm.Host:
			return id, errors.Join(meant(id), writeRecord(ctx, px, there, rec))
		case is:
			numbers.met(late.Node, id)
		}
	}
	return 0, fault.WithHint(fault.ParkedHalf.Refusedf("no VMID is free for the parking VM of %s", rec.Node), "widen proxmox.vmids")
}

func makeParking(ctx context.Context, px Proxmox, vm VM, rec Record, id VMID) error {
	rec.Parking = id
	description, err := rec.Description()
	if err != nil {
		return err
	}
	config := map[string]string{"name": parkingName(rec.Node), "memory": "16", "protection": "1", "onboot": "0", "description": description}
	if vm.Pool != "" {
		config["pool"] = vm.Pool
	}
	if err := px.CreateVM(ctx, vm.Host, id, config); err != nil {
		return fmt.Errorf("create parking VM %d on %s: %w", id, vm.Host, err)
	}
	return nil
}

// creationTakes is how long a VM without disks is being created at most, where no task
// of ours tells that it still is.
const creationTakes = 30 * time.Second

// formed waits until a VM that is being created says what it is to be: for as long as
// a task of ours about it runs, and a while for those that another token has started.
// A VM whose creation was killed never says it.
func formed(ctx context.Context, px Proxmox, vm VM) (VM, error) {
	within := time.Now().Add(creationTakes)
	err := wait.Until(ctx, wait.For{Name: "creation of " + vm.String(), Every: time.Second, Timeout: ownTasksTimeout}, func(ctx context.Context) (bool, string, error) {
		if !forming(vm) || time.Now().After(within) {
			return true, "", nil
		}
		running, err := px.OwnTasksOf(ctx, vm.Host, vm.ID)
		if err != nil {
			return false, "", err
		}
		if len(running) > 0 {
			within = time.Now().Add(creationTakes)
		}
		now, err := px.VMConfig(ctx, vm.ID)
		if err == nil {
			vm = now
		}
		return false, "it is locked (create)", err
	})
	return vm, err
}

// lateParking is the record of a parking VM of the cluster to which nothing was ever
// handed over.
func lateParking(vm VM, cluster string) (Record, bool) {
	rec, found, err := ReadRecord(vm)
	return rec, found && err == nil && rec.Cluster == cluster && Parking{vm, rec}.empty()
}
