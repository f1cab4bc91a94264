// Package parking is about the VMs on which disks wait while their own VM is replaced, and on
// which old system disks are kept. A [Parking] carries a [Record] in its description, from which
// an interrupted replacement is finished or undone, and a [Memory] of what was there before.
package parking

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/words"
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
	there := func(d ParkedDisk) bool { return d.ParkKey != "" && p.VM.Config[d.ParkKey] != "" }
	return cluster.Each(cluster.Where(p.Record.Disks, there), func(d ParkedDisk) string { return d.Key })
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
		if vm.Name != cluster.ParkingName(node) || vm.NotOurs != "" || cluster.Forming(vm) || ids != nil && !slices.Contains(ids, vm.ID) {
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

// Unproven is a VM that says it is a parking VM of the cluster, and that nothing proves to be ours.
type Unproven struct{ Parking }

func (u Unproven) String() string {
	return fmt.Sprintf("%s says that it is a parking VM of this cluster, and is not believed: %s. Nothing is taken from it or given to it. If it is one, recast status --ours %d remembers that", u.VM, u.VM.NotOurs, u.VM.ID)
}

// NotOurs lists the VMs that say they are parking VMs of the cluster ("": of any) and are not believed.
func NotOurs(vms []cluster.VM, clusterName string) (out []Unproven) {
	for _, vm := range vms {
		if rec, _, err := SaidRecord(vm); vm.NotOurs != "" && (err != nil || clusterName == "" || rec.Cluster == clusterName) {
			out = append(out, Unproven{Parking{VM: vm, Record: rec}})
		}
	}
	return out
}

// Of reports whether the VM says that it is the node's.
func (u Unproven) Of(node string) bool {
	return u.Record.Node == node || u.VM.Name == cluster.ParkingName(node)
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

// Machine returns what is known of a machine that does not answer: the volumes on its persistent disks, and where
// its pools were.
func (m Memory) Machine() cluster.Machine {
	return cluster.Machine{
		Remembered: true, SystemDisk: cluster.GoneSystemDisk, Volumes: m.Volumes, PoolMembers: m.Pools,
		RunningSystem: cluster.RunningSystem{Extensions: m.Extensions},
	}
}

// BecameNode reports whether the system on the new disk may have become a node of the cluster, to which pods have
// written. It has not if it has no configuration, nor if Kubernetes knows only the boot from before. If Kubernetes
// can't be asked, the system has not become a node unless its node may take pods again.
func (r Record) BecameNode(mem Memory, node *cluster.KubeNode) bool {
	switch {
	case r.Stage == stageBlank:
		return false
	case node != nil:
		return mem.BootID == "" || node.BootID != mem.BootID
	}
	return r.Stage != StageConfigured
}

// SystemOn reports whether the VM has a system disk, and whether the replacement made that disk.
func (r Record) SystemOn(vm cluster.VM, mem Memory) (there, isNew bool) {
	for _, d := range r.Disks {
		if disk, err := cluster.ParseDisk(d.Key, vm.Config[d.Key]); d.System && err == nil && disk.Owner == vm.ID {
			return true, disk.Option("serial") == mem.DiskSerial
		}
	}
	return false, false
}

// SystemParked reports whether the old system disk is on the parking VM.
func (r Record) SystemParked(park cluster.VM) bool {
	return slices.ContainsFunc(r.Disks, func(d ParkedDisk) bool { return d.System && park.Config[d.ParkKey] != "" })
}

// Unseen says why the content of the new system disk is unknown; "" if it is known, if the node has taken no pods
// since before the disk was made, or if the replacement was cancelled, which checks this first.
func (r Record) Unseen(node *cluster.KubeNode, machine *cluster.Machine) string {
	switch {
	case r.PutBack, node != nil && node.HeldBy(r.Run):
		return ""
	case node == nil:
		return "Kubernetes does not tell what is bound to the node"
	case machine == nil:
		return "its machine does not answer"
	}
	return ""
}

// Stage is how far the system on the new disk of a replacement has come. It is recorded before each
// step that advances it, so it is never behind.
type Stage string

const (
	stageBlank      Stage = "blank"      // the system never got a configuration
	StageConfigured Stage = "configured" // the system may have got a configuration
	StageServes     Stage = "serves"     // its node may take pods again
)

// firstStage returns the stage of a replacement that begins; "" if no new disk is made.
func firstStage(s cluster.Strategy) Stage {
	if s.Replaces() {
		return stageBlank
	}
	return ""
}

// LateOne describes a request. A record takes over the requests of the record before it.
func (p Parking) LateOne(what string) string {
	words := map[string]string{cluster.SentRemoveHA: "removal from Proxmox HA", cluster.SentAddHA: "return to Proxmox HA", cluster.SentFirewall: "change of the firewall"}
	if words[what] == "" {
		words[what] = what
	}
	return fmt.Sprintf("Proxmox has not yet answered the %s of VM %d that run %s or an earlier one sent, and may still carry it out", words[what], p.Record.VMID, p.Record.Run)
}

// Unanswered says of each unanswered request of a record what that may still do, and how long recast waits for it.
func (p Parking) Unanswered() []string {
	return cluster.Each(slices.Sorted(maps.Keys(p.Record.Sent)), func(what string) string {
		within := time.Duration(p.Record.Sent[what]) * time.Second
		return fmt.Sprintf("%s: %s, %s", p.Record.Node, p.LateOne(what), p.Record.guards(what, within))
	})
}

func (r Record) guards(what string, within time.Duration) string {
	switch {
	case slices.Contains(cluster.TakesDown, what) && !r.ControlPlane:
		return "which would leave one node more away than roll.maxUnavailable allows; nothing waits for it"
	case slices.Contains(cluster.TakesDown, what):
		return fmt.Sprintf("so recast waits up to %s before it takes another control plane out", within)
	case what == cluster.SentFirewall:
		return fmt.Sprintf("so recast waits up to %s before it writes that firewall again", within)
	case what == cluster.SentRemoveHA:
		return fmt.Sprintf("so recast waits up to %s before it puts the VM back under Proxmox HA", within)
	}
	return fmt.Sprintf("so recast waits up to %s before it moves disks of that VM", within)
}

// Sent holds the requests without a digest that were sent and are unanswered: Proxmox may carry them out late,
// whichever process sent them, on whatever VM then has the VMID. The value is the number of seconds in which that
// can happen, from when a process first sees the request here. A request is recorded before it is sent. Only its
// answer, or the end of that time, removes it: the VM may be off, or run again, for another reason, and the late
// request would still hit it. docs/notes/proxmox.md says what each request could do if it came late.
type Sent map[string]int

// With returns s with one more request.
func (s Sent) With(what string, within time.Duration) Sent {
	out := Sent{}
	maps.Copy(out, s)
	out[what] = max(out[what], int((within+time.Second-1)/time.Second))
	return out
}

// Without returns s without a request; nil if none is left.
func (s Sent) Without(what string) Sent {
	out := maps.Clone(s)
	delete(out, what)
	if len(out) == 0 {
		return nil
	}
	return out
}

// DiskPlace is where a disk of an unfinished replacement is.
type DiskPlace string

// The places of a disk.
const (
	OnVM      DiskPlace = "vm"
	OnParking DiskPlace = "parking"
	Detached  DiskPlace = "holder"  // detached from the node's VM, with the VM that owns it
	Unnamed   DiskPlace = "unnamed" // without a name on its storage; a hand-over was interrupted
	Lost      DiskPlace = "unknown" // someone moved the disk
)

// DiskNow is where a disk is now.
type DiskNow struct {
	Place DiskPlace
	Volid string // its name; the last known name if the disk has none, or is lost
	Size  string // "20G"; "" if unknown
	Where string // in words: "scsi1 of VM 9090"
}

// Locate finds a disk by its present name in Proxmox: each hand-over renames its volume, and the old name may go to
// another volume. vm is the zero VM if there is none; dangling is the result of Dangling.
func (r Record) Locate(d ParkedDisk, vm, park cluster.VM, dangling bool) DiskNow {
	if d.Holder != 0 {
		return r.locateHeld(d, vm)
	}
	in := r.Intent
	moving := in != nil && (in.To == park.ID && in.ToKey == d.ParkKey || in.From == park.ID && in.Key == d.ParkKey)
	from := func(vm cluster.VM) bool { return moving && dangling && in.From == vm.ID }
	if now, ok := drive(park, d.ParkKey); ok && now.Owner == park.ID && !from(park) {
		return DiskNow{OnParking, now.Volid, now.Option("size"), fmt.Sprintf("%s of parking VM %d", d.ParkKey, park.ID)}
	}
	if now, ok := drive(vm, d.Key); ok && now.Owner == vm.ID && !from(vm) && (!d.System || sameSerial(now, d)) {
		return DiskNow{OnVM, now.Volid, now.Option("size"), fmt.Sprintf("%s of VM %d", d.Key, vm.ID)}
	}
	if moving {
		return DiskNow{
			Place: Unnamed, Volid: in.Volid,
			Where: fmt.Sprintf("without a name, on the way from %s of VM %d to %s of VM %d; recast roll finds it", in.Key, in.From, in.ToKey, in.To),
		}
	}
	return DiskNow{Place: Lost, Volid: d.Volid, Where: fmt.Sprintf("neither on VM %d nor on parking VM %d: someone moved it", r.VMID, park.ID)}
}

func (r Record) locateHeld(d ParkedDisk, vm cluster.VM) DiskNow {
	if now, ok := drive(vm, d.Key); ok && now.Volid == d.Volid {
		return DiskNow{OnVM, now.Volid, now.Option("size"), fmt.Sprintf("%s of VM %d, owned by VM %d", d.Key, vm.ID, d.Holder)}
	}
	return DiskNow{Place: Detached, Volid: d.Volid, Where: fmt.Sprintf("with VM %d, which owns it; detached from VM %d", d.Holder, r.VMID)}
}

// Dangling reports whether the source of the last hand-over still names a volume that Proxmox has already renamed.
func (r Record) Dangling(ctx context.Context, px cluster.StorageReader, vm, park cluster.VM) (bool, error) {
	in := r.Intent
	if in == nil {
		return false, nil
	}
	for _, vm := range []cluster.VM{vm, park} {
		if now, ok := drive(vm, in.Key); ok && vm.ID == in.From && now.Volid == in.Volid {
			have, err := px.HasVolume(ctx, vm.Host, in.Volid)
			return err == nil && !have, fault.Prefix("look for "+in.Volid, err)
		}
	}
	return false, nil
}

func drive(vm cluster.VM, key string) (cluster.Disk, bool) {
	d, err := cluster.ParseDisk(key, vm.Config[key])
	return d, err == nil
}

// sameSerial distinguishes an old system disk from its replacement, which has a serial that recast generated.
func sameSerial(now cluster.Disk, was ParkedDisk) bool {
	old, err := cluster.ParseDisk(was.Key, cmp.Or(was.Volid, now.Volid)+","+was.Options)
	return err == nil && now.Option("serial") == old.Option("serial")
}

// FreePlan is an old system disk that is freed at the end of its node's roll.
type FreePlan struct {
	Parking cluster.VMID `json:"parking"`
	Key     string       `json:"key"` // on the parking VM
	Run     string       `json:"run"` // the run that replaced the disk, or had made it and was given up
	GivenUp bool         `json:"givenUp,omitempty"`
	Talos   string       `json:"talos,omitempty"`
	Volid   string       `json:"volid,omitempty"` // "": the disk is gone; only its entry in the record goes
	Size    string       `json:"size,omitempty"`
}

func (f FreePlan) String() string {
	what := "the system disk"
	if f.Volid == "" {
		what = "the entry of the system disk"
	}
	return fmt.Sprintf("%s of VM %d: %s that run %s %s, Talos %s", f.Key, f.Parking, what, f.Run, WasDone(f.GivenUp), words.OrNone(f.Talos))
}

// Freeable returns the drive of a kept disk, the zero Disk if it no longer exists, and what prevents freeing it. An
// open record does not prevent that: it is closed before.
func (p Parking) Freeable(k KeptDisk, vms []cluster.VM) (disk cluster.Disk, against []string) {
	p.Record.Open = false
	against = p.Untouchable(nil)
	if _, there := p.VM.Config[k.Key]; !there {
		return disk, against
	}
	disk, err := p.KeptDisk(k)
	if err != nil {
		return disk, append(against, err.Error())
	}
	return disk, append(against, NamedBeside(p.VM, disk, UsesOf(vms))...)
}

// NamedBeside lists what names a volume, apart from its one key on its parking VM.
func NamedBeside(park cluster.VM, disk cluster.Disk, uses []cluster.Use) []string {
	other := func(user string) bool { return user != cluster.PlaceOf(park.ID, disk.Key) }
	by := cluster.Where(cluster.ReferencedBy(disk.Volid, []cluster.VM{park}), other)
	for _, use := range uses {
		if use.By != park.String() && slices.ContainsFunc(use.Values, func(v string) bool { return namesVolume(v, disk.Volid) }) {
			by = append(by, use.By)
		}
	}
	return by
}

// KeptDisk returns the drive that an entry of the record describes. It fails unless the drive is
// exactly as recast left it.
func (p Parking) KeptDisk(k KeptDisk) (cluster.Disk, error) {
	disk, err := cluster.ParseDisk(k.Key, p.VM.Config[k.Key])
	entries := len(cluster.Where(p.Record.Kept, func(other KeptDisk) bool { return other.Key == k.Key }))
	want := ParkedOptions(ParkedDisk{Key: k.Slot, Options: k.Options})
	switch {
	case err != nil:
		return disk, err
	case disk.CDROM, !disk.Bootable() && !k.Removed:
		return disk, fmt.Errorf("%s is not a system disk: look at it", k.Key)
	case disk.Owner != p.VM.ID:
		return disk, fmt.Errorf("%s is not VM %d's own: look at it", disk.Volid, p.VM.ID)
	case entries > 1:
		return disk, fmt.Errorf("%d entries of the record are about %s: which one can't be determined", entries, k.Key)
	case !cluster.SameOptions(disk.Options, want):
		return disk, fmt.Errorf("it has the options %s, its record says %s: someone changed it, look at it",
			words.OrNone(strings.Join(disk.Options, ",")), words.OrNone(strings.Join(want, ",")))
	}
	return disk, nil
}

// Untouchable says why nothing may be changed on a parking VM.
func (p Parking) Untouchable(holders []cluster.VMID) []string {
	var out []string
	add := func(is bool, format string, args ...any) {
		if is {
			out = append(out, fmt.Sprintf("%s "+format, append([]any{p.VM}, args...)...))
		}
	}
	vm := p.VM
	add(p.Record.Open, "holds the unfinished replacement of node %s by run %s: recast roll finishes it", p.Record.Node, p.Record.Run)
	add(vm.Running, "runs, though a parking VM is never started: look at it")
	add(vm.Lock != "", "is locked (%s)", vm.Lock)
	add(vm.Template, "is a template")
	add(vm.HA, "is managed by Proxmox HA")
	add(vm.Config["parent"] != "", "has snapshots")
	add(len(vm.Pending) > 0, "has pending changes: %s", strings.Join(vm.Pending, ", "))
	add(slices.Contains(holders, vm.ID), "is a holder in recast.yaml")
	return out
}

// UsesOf returns the uses of volumes by the VMs themselves.
func UsesOf(vms []cluster.VM) []cluster.Use {
	var uses []cluster.Use
	for _, vm := range vms {
		use := cluster.Use{By: vm.String()}
		for key, value := range vm.Config {
			if key != "description" {
				use.Values = append(use.Values, value)
			}
		}
		uses = append(uses, use)
	}
	return uses
}

// WasDone says what the run did with a kept disk.
func WasDone(givenUp bool) string {
	if givenUp {
		return "made before it was cancelled"
	}
	return "replaced"
}

func namesVolume(value, volid string) bool {
	for option := range strings.SplitSeq(value, ",") {
		if name, named, is := strings.Cut(option, "="); option == volid || is && (name == "file" || name == "volume") && named == volid {
			return true
		}
	}
	return false
}

// Displaced lists the persistent disks that are not in their places in the blank machine, or not as they were. If
// the machine may already have had a configuration, Talos may have put a volume on a disk that had none.
func (mem Memory) Displaced(m cluster.Machine, configured bool) (problems []error) {
	vm := mem.BlankVM()
	drives, err := vm.Bootable()
	if err != nil {
		return []error{err}
	}
	refuse := func(format string, args ...any) { problems = append(problems, fault.Refusedf(format, args...)) }
	for _, was := range mem.Persistent {
		on := m.MachineDisks(vm, drives, was.Key)
		if len(on) != 1 {
			refuse("%d disks of the machine are the persistent disk %s, expected one", len(on), was.Key)
			continue
		}
		disk, had := on[0], mem.volumesOf(was)
		if disk.SizeBytes != was.SizeBytes && !mem.knownByContent(was) {
			refuse("the persistent disk %s is %s with %d bytes, and had %d before", was.Key, disk.Device, disk.SizeBytes, was.SizeBytes)
		}
		if elsewhere := mem.Elsewhere(m, was, disk); elsewhere != "" {
			refuse("%s", elsewhere)
		}
		if len(had) > 0 || configured {
			continue
		}
		now := slices.DeleteFunc(slices.Clone(m.Volumes), func(v cluster.Volume) bool { return v.Disk != disk.Device })
		unknown := slices.DeleteFunc(slices.Clone(now), func(v cluster.Volume) bool { _, later := cluster.ShownSince[v.Format]; return later })
		switch {
		case len(unknown) > 0:
			refuse("the persistent disk %s is %s, and had no volume before: now it has %s", was.Key, disk.Device, unknown[0])
		case disk.Blank != was.Blank && len(now) == 0:
			refuse("the persistent disk %s is %s, which is not as it was: blank %t, before %t", was.Key, disk.Device, disk.Blank, was.Blank)
		}
	}
	return problems
}

// Elsewhere says which volume of a persistent disk is on another disk instead.
func (mem Memory) Elsewhere(m cluster.Machine, was PersistentDisk, now cluster.MachineDisk) string {
	for _, want := range mem.volumesOf(was) {
		at := ""
		for _, v := range m.Volumes {
			if (want.SameContent(v) || m.SamePartition(want, v)) && at != now.Device {
				at = v.Disk
			}
		}
		if at != "" && at != now.Device {
			return fmt.Sprintf("the persistent volume %s is on %s, and not on %s, which is %s", want, at, now.Device, was.Key)
		}
	}
	return ""
}

// knownByContent reports whether the content of a persistent disk distinguishes it from the others.
// Its size may differ: someone may have enlarged it since.
func (mem Memory) knownByContent(p PersistentDisk) bool {
	before := cluster.Machine{Volumes: mem.Volumes}
	is := before.Identity(p.Device)
	return is != "" && !slices.ContainsFunc(mem.Persistent, func(q PersistentDisk) bool { return q.Key != p.Key && before.Identity(q.Device) == is })
}

func (mem Memory) volumesOf(was PersistentDisk) []cluster.Volume {
	return cluster.Where(mem.Volumes, func(v cluster.Volume) bool { return v.Disk == was.Device })
}

// PersistentDisk is a drive that outlives the system, as the machine showed it before the exchange. What the machine
// showed identifies it: the new VM must show, in that drive's place, a disk of that size with the same content.
type PersistentDisk struct {
	Key       string
	Device    string // the machine's disk, as its volumes name it
	SizeBytes uint64
	Blank     bool // it held nothing that Talos recognizes
}

// PersistentDisks returns the VM's persistent drives that each match exactly one disk of the machine; unknown are
// the others. Pods' disks are in neither.
func PersistentDisks(vm cluster.VM, m cluster.Machine, system string) (known []PersistentDisk, unknown []cluster.Disk, err error) {
	drives, err := vm.Bootable()
	if err != nil {
		return nil, nil, err
	}
	for _, d := range drives {
		switch on := m.MachineDisks(vm, drives, d.Key); {
		case d.Key == system || d.CSI():
		case len(on) != 1:
			unknown = append(unknown, d)
		default:
			disk := on[0]
			known = append(known, PersistentDisk{Key: d.Key, Device: disk.Device, SizeBytes: disk.SizeBytes, Blank: disk.Blank})
		}
	}
	return known, unknown, nil
}

// Unprovable lists the persistent disks for which a new VM could not prove that each came back to its place. A
// volume that the VM owns is renamed on its way; its drive's options, its size and its content together identify
// it. A holder's volume keeps its name.
func Unprovable(vm cluster.VM, m cluster.Machine, system string) ([]cluster.Obstacle, error) {
	known, unknown, err := PersistentDisks(vm, m, system)
	if err != nil {
		return nil, err
	}
	drives, err := vm.Bootable()
	if err != nil {
		return nil, err
	}
	var out []cluster.Obstacle
	unknown = slices.DeleteFunc(unknown, func(d cluster.Disk) bool { return d.Owner != vm.ID || nameIsUnique(drives, d) })
	if len(unknown) > 0 {
		keys := cluster.Each(unknown, func(d cluster.Disk) string { return d.Key })
		out = append(out, cluster.Obstacle{
			Text:    fmt.Sprintf("which of the machine's disks is %s can't be determined: %s", strings.Join(keys, " or "), cluster.NameThem(vm, unknown)),
			Command: cluster.NameLines(vm, unknown),
		})
	}
	for i, p := range known {
		d, _ := cluster.FindDrive(drives, p.Key)
		at := slices.IndexFunc(known[:i], func(q PersistentDisk) bool {
			other, _ := cluster.FindDrive(drives, q.Key)
			return d.Owner == vm.ID && other.Owner == vm.ID && p.SizeBytes == q.SizeBytes && p.Blank == q.Blank &&
				d.Option("serial") == other.Option("serial") && d.Option("wwn") == other.Option("wwn") &&
				m.Identity(p.Device) == m.Identity(q.Device)
		})
		if at >= 0 {
			same := "nothing that tells them apart is on them"
			if m.Identity(p.Device) != "" {
				same = "one is a copy of the other"
			}
			line := d.NameLine(vm, false)
			out = append(out, cluster.Obstacle{Command: line, Text: fmt.Sprintf("the persistent disks %s and %s have one size, and %s, so the new VM could not prove that each came back to its place: "+
				"%s gives one of them a name; the VM need not be restarted for that", known[at].Key, p.Key, same, line)})
		}
	}
	return out, nil
}

func nameIsUnique(drives []cluster.Disk, d cluster.Disk) bool {
	return slices.ContainsFunc([]string{"serial", "wwn"}, func(option string) bool {
		same := func(o cluster.Disk) bool { return o.Key != d.Key && o.Option(option) == d.Option(option) }
		return d.Option(option) != "" && !slices.ContainsFunc(drives, same)
	})
}
