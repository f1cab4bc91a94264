// Package prune frees old system disks and deletes parking VMs that are no longer needed. [JudgeParked] says which,
// and why each of the others stays; [ParkingPruner] removes them.
package prune

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/exchange"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/words"
)

// ParkingPruner frees the old system disks that need not stay, and deletes the parking VMs that then own nothing.
type ParkingPruner struct {
	Proxmox cluster.Proxmox // checks that the claim is ours before each change: see Held.Guard
	Cluster string
	Kept    []KeptVerdict    // those that were freed are marked
	VMs     []ParkingVerdict // those that were deleted are marked
	// Say reports what the pruner waits for; may be nil.
	Say func(text string)
	// Uses returns the uses by all VMs and snapshots of the Proxmox cluster, and fails if some can't be read.
	Uses func(ctx context.Context) ([]cluster.Use, error)
	// Storages lists the storages for disks that a host sees.
	Storages func(ctx context.Context, host string) ([]string, error)
}

func (p ParkingPruner) Steps() (steps []step.Step) {
	for i := range p.Kept {
		if v := &p.Kept[i]; len(v.Keep) == 0 {
			steps = append(steps, p.freeStep(v))
		}
	}
	for i := range p.VMs {
		if v := &p.VMs[i]; len(v.Keep) == 0 {
			steps = append(steps, p.deleteStep(v))
		}
	}
	return steps
}

func (p ParkingPruner) freeStep(v *KeptVerdict) step.Step {
	ref := exchange.KeptRef{Cluster: p.Cluster, Node: v.Node, Parking: v.Parking, Key: v.Key, Run: v.Run, Volid: v.Volid}
	title := "free " + v.String()
	if v.Volid == "" {
		title = "forget " + v.String()
	}
	return step.Step{
		ID: fmt.Sprintf("free-%d-%s", v.Parking, v.Key), Kind: "free-disk", Title: title, Risk: step.Destructive,
		Skip: func(ctx context.Context) (string, error) {
			_, _, found, err := ref.Find(ctx, p.Proxmox)
			if err != nil || found {
				return "", err
			}
			v.Removed = true
			return "it is gone", nil
		},
		Do: func(ctx context.Context) error { return ref.Free(ctx, p.Proxmox, p.Uses) },
	}
}

func (p ParkingPruner) deleteStep(v *ParkingVerdict) step.Step {
	return step.Step{
		ID: fmt.Sprintf("delete-%d", v.VMID), Kind: "delete-parking", Title: "delete " + v.String() + ", which owns nothing", Risk: step.Destructive,
		Skip: func(ctx context.Context) (string, error) {
			_, err := p.Proxmox.VM(ctx, v.VMID)
			if errors.Is(err, cluster.ErrNotFound) {
				v.Removed = true
				return "it is gone", nil
			}
			return "", fault.Prefix(fmt.Sprintf("look up VM %d", v.VMID), err)
		},
		Do: func(ctx context.Context) error { return p.delete(ctx, *v) },
	}
}

// delete deletes a parking VM that provably owns nothing: Proxmox frees a VM's volumes with the VM.
func (p ParkingPruner) delete(ctx context.Context, v ParkingVerdict) error {
	vm, err := p.empty(ctx, v)
	if err == nil {
		vm, err = p.answered(ctx, vm, v)
	}
	if err != nil {
		return err
	}
	if vm.Config["protection"] == "1" {
		if err := exchange.LiftProtection(ctx, p.Proxmox, vm); err != nil {
			return err
		}
		if vm, err = p.empty(ctx, v); err != nil {
			return err
		}
	}
	if err := cluster.RequireQuorum(ctx, p.Proxmox); err != nil {
		return err
	}
	return fault.Prefix("delete "+vm.String(), p.Proxmox.DeleteVM(ctx, vm))
}

// answered waits until unanswered requests in an empty parking VM's record can't come true: no other record has them.
func (p ParkingPruner) answered(ctx context.Context, vm cluster.VM, v ParkingVerdict) (cluster.VM, error) {
	rec, _, err := parking.ReadRecord(vm)
	if err != nil || len(rec.Sent) == 0 {
		return vm, err
	}
	which := slices.Collect(maps.Keys(rec.Sent))
	if err := new(exchange.Late).Await(ctx, []parking.Parking{{VM: vm, Record: rec}}, which, p.Say); err != nil {
		return vm, err
	}
	return p.empty(ctx, v)
}

// empty reads a parking VM again, and refuses unless it is the one shown, is at rest, and owns no volume.
func (p ParkingPruner) empty(ctx context.Context, v ParkingVerdict) (cluster.VM, error) {
	vm, err := p.Proxmox.VM(ctx, v.VMID)
	if err != nil {
		return vm, fmt.Errorf("look up VM %d: %w", v.VMID, err)
	}
	rec, is, err := parking.ReadRecord(vm)
	if err != nil {
		return vm, err
	}
	vms, err := p.Proxmox.VMs(ctx)
	if err != nil {
		return vm, fmt.Errorf("list VMs: %w", err)
	}
	all, _ := parking.AllParkings(vms, p.Cluster) // an unreadable record is not one of this node
	park := parking.Parking{VM: vm, Record: rec}
	park.Record.Open = rec.Open && !park.CameLate(all)
	against := park.Untouchable(nil)
	switch {
	case !is || rec.Cluster != p.Cluster || rec.Node != v.Node || vm.Name != v.Name || vm.Host != v.Host:
		return vm, fault.PruneRefused.Refusedf("%s is not the parking VM of node %s that was shown: it is not deleted", vm, v.Node)
	case len(rec.Kept) > 0:
		against = append(against, fmt.Sprintf("its record keeps %s", rec.Kept[0].Key))
	}
	against = append(against, unrecorded(vm, nil)...)
	ties, err := p.Proxmox.Ties(ctx, vm)
	if err != nil {
		return vm, err
	}
	if len(ties.Snapshots) > 0 {
		against = append(against, "it has snapshots: "+strings.Join(ties.Snapshots, ", "))
	}
	unnamed, err := p.Unnamed(ctx, vm)
	if err != nil {
		return vm, err
	}
	if against = append(against, unnamed...); len(against) > 0 {
		return vm, fault.WithHint(fault.PruneRefused.Refusedf("%s is not deleted: %s", vm, strings.Join(against, "; ")), "recast prune shows what is there now")
	}
	return vm, nil
}

// Unnamed lists volumes with a VM's VMID outside of its configuration: the next VM of that number would own them.
func (p ParkingPruner) Unnamed(ctx context.Context, vm cluster.VM) ([]string, error) {
	storages, err := p.Storages(ctx, vm.Host)
	if err != nil {
		return nil, fmt.Errorf("list the storages of %s: %w", vm.Host, err)
	}
	var out []string
	for _, storage := range storages {
		volumes, err := p.Proxmox.OwnedVolumes(ctx, vm.Host, storage, vm.ID)
		if err != nil {
			return nil, fmt.Errorf("list the volumes of VM %d on %s: %w", vm.ID, storage, err)
		}
		for _, volid := range volumes {
			if len(cluster.ReferencedBy(volid, []cluster.VM{vm})) == 0 {
				out = append(out, fmt.Sprintf("%s carries its number and no configuration names it: look at it (qm disk rescan --vmid %d)", volid, vm.ID))
			}
		}
	}
	return slices.Compact(out), nil
}

func (p ParkingPruner) KeepUnnamed(ctx context.Context, vms []cluster.VM) error {
	for i := range p.VMs {
		v := &p.VMs[i]
		at := slices.IndexFunc(vms, func(vm cluster.VM) bool { return vm.ID == v.VMID })
		if len(v.Keep) > 0 || at < 0 {
			continue
		}
		unnamed, err := p.Unnamed(ctx, vms[at])
		if err != nil {
			return err
		}
		if v.Keep = append(v.Keep, unnamed...); len(v.Keep) > 0 {
			v.Goes = ""
		}
	}
	return nil
}

// JudgeParked decides what can be removed. What is not provably a finished replacement's system disk stays.
func JudgeParked(vms []cluster.VM, uses []cluster.Use, r Retention) ([]KeptVerdict, []ParkingVerdict) {
	j := judgement{Retention: r, vms: vms, uses: uses, vouched: map[int]bool{}}
	parks := []ParkingVerdict{}
	for _, vm := range vms {
		rec, is, err := parking.ReadRecord(vm)
		switch {
		case vm.ID == r.Except || err == nil && (!is || rec.Cluster != r.Cluster):
			continue
		case err != nil:
			parks = append(parks, ParkingVerdict{VMID: vm.ID, Name: vm.Name, Host: vm.Host, Keep: []string{err.Error()}})
			continue
		}
		j.parkings = append(j.parkings, parking.Parking{VM: vm, Record: rec})
		parks = append(parks, ParkingVerdict{VMID: vm.ID, Name: vm.Name, Host: vm.Host, Node: rec.Node})
	}
	for _, p := range j.parkings {
		for _, k := range p.Record.Kept {
			v, vouched := j.judge(p, k)
			j.vouched[len(j.kept)] = vouched
			j.kept, j.entries = append(j.kept, v), append(j.entries, k)
		}
	}
	j.copies()
	j.retain()
	for i := range j.kept {
		if len(j.kept[i].Keep) > 0 {
			j.kept[i].Goes = ""
		}
	}
	for i := range parks {
		if p := parkingWith(j.parkings, parks[i].VMID); p != nil {
			j.judgeVM(&parks[i], *p)
		}
	}
	return append([]KeptVerdict{}, j.kept...), parks
}

// KeptVerdict is what is to become of an old system disk.
type KeptVerdict struct {
	Node      string       `json:"node"`
	Run       string       `json:"run"`               // the run that replaced the disk, or made it and was given up
	GivenUp   bool         `json:"givenUp,omitempty"` // the run was given up: nothing boots the disk
	Replaced  time.Time    `json:"replaced,omitzero"` // if recorded; else when the run began, if its ID says so
	Talos     string       `json:"talos,omitempty"`   // version of the system on it
	Parking   cluster.VMID `json:"parking"`
	Host      string       `json:"host"`
	Key       string       `json:"key"`             // on the parking VM
	Volid     string       `json:"volid,omitempty"` // "": the disk is gone, and only its entry in the record goes
	SizeBytes uint64       `json:"sizeBytes,omitempty"`
	Goes      string       `json:"goes,omitempty"` // why it can go
	Keep      []string     `json:"keep,omitempty"` // why it stays; none: it can go
	Removed   bool         `json:"removed"`
	OfRemoved bool         `json:"ofRemoved,omitempty"` // any disk of a node that was removed
}

func (v KeptVerdict) String() string {
	if v.OfRemoved {
		return fmt.Sprintf("%s of VM %d on %s, a disk of %s, which run %s removed", v.Key, v.Parking, v.Host, v.Node, v.Run)
	}
	what := "the system disk"
	if v.Volid == "" {
		what = "the entry of a system disk"
	}
	return fmt.Sprintf("%s of VM %d on %s, %s of %s, which run %s %s", v.Key, v.Parking, v.Host, what, v.Node, v.Run, parking.WasDone(v.GivenUp))
}

// ParkingVerdict is what is to become of a parking VM.
type ParkingVerdict struct {
	VMID    cluster.VMID `json:"vmid"`
	Name    string       `json:"name"`
	Host    string       `json:"host"`
	Node    string       `json:"node,omitempty"` // "": its record can't be read
	Goes    string       `json:"goes,omitempty"` // why it can go
	Keep    []string     `json:"keep,omitempty"` // why it stays; none: it can go
	Removed bool         `json:"removed"`
}

func (v ParkingVerdict) String() string {
	return cluster.VM{ID: v.VMID, Name: v.Name, Host: v.Host}.String()
}

// Retention says which old system disks stay parked.
type Retention struct {
	Cluster string
	Nodes   []string       // in the configuration; the disks of all others are freed
	Keep    int            // how many of each node's newest stay; 0: none, so recast undo is impossible
	Holders []cluster.VMID // VMs that the configuration names as holders
	Except  cluster.VMID   // the claim
	// Removed names a removed node whose disks, and no others, are to be freed; "": none.
	Removed string
}

type judgement struct {
	Retention
	vms      []cluster.VM
	uses     []cluster.Use
	parkings []parking.Parking
	kept     []KeptVerdict
	entries  []parking.KeptDisk // of kept
	vouched  map[int]bool       // by index of kept: the disk is what its record says
}

// copies keeps each disk that two parking VMs claim: nothing shows which is the clone or restored backup.
func (j *judgement) copies() {
	at := map[string][]int{}
	for i, v := range j.kept {
		id := v.Node + "/" + v.Run
		at[id] = append(at[id], i)
	}
	for _, same := range at {
		for _, i := range same {
			for _, other := range same {
				if j.kept[other].Parking != j.kept[i].Parking {
					j.kept[i].Keep = append(j.kept[i].Keep, fmt.Sprintf("VM %d has a record of the same disk: one of them is a copy (clone, restore), look at both", j.kept[other].Parking))
					j.vouched[i] = false
				}
			}
		}
	}
}

// judge judges one disk by itself; vouched reports whether it is what its record says.
func (j *judgement) judge(p parking.Parking, k parking.KeptDisk) (v KeptVerdict, vouched bool) {
	v = KeptVerdict{Node: p.Record.Node, Run: k.Run, GivenUp: k.GivenUp, Replaced: k.Replaced, Talos: k.Talos, Parking: p.VM.ID, Host: p.VM.Host, Key: k.Key, OfRemoved: k.Removed}
	v.Keep = p.Untouchable(j.Holders)
	value, there := p.VM.Config[k.Key]
	if !there {
		v.Goes = fmt.Sprintf("VM %d has no %s any more: only its entry in the record goes", p.VM.ID, k.Key)
		return v, false
	}
	disk, err := p.KeptDisk(k)
	if err != nil {
		v.Volid, _, _ = strings.Cut(value, ",")
		v.Keep = append(v.Keep, err.Error())
		return v, false
	}
	v.Volid, v.SizeBytes = disk.Volid, disk.SizeBytes()
	if by := parking.NamedBeside(p.VM, disk, j.uses); len(by) > 0 {
		v.Keep = append(v.Keep, strings.Join(by, ", ")+" refers to it as well")
		return v, false
	}
	switch {
	case k.Removed && j.Removed != v.Node:
		v.Keep = append(v.Keep, fmt.Sprintf("node %s was removed, and its disks stay until recast remove %s --free %s", v.Node, v.Node, v.Node))
	case j.Removed != "" && (j.Removed != v.Node || !k.Removed):
		v.Keep = append(v.Keep, "only the disks of node "+j.Removed+", once it is removed, are asked for")
	}
	return v, true
}

// judgeVM decides that a parking VM can be deleted if it owns nothing, or will own nothing.
func (j *judgement) judgeVM(v *ParkingVerdict, p parking.Parking) {
	late := p.CameLate(j.parkings)
	p.Record.Open = p.Record.Open && !late
	v.Keep = append(v.Keep, p.Untouchable(j.Holders)...)
	staying, what := 0, "old system disk"
	known := map[string]bool{}
	for _, k := range j.kept {
		if k.Parking == v.VMID {
			known[k.Key] = true
			if len(k.Keep) > 0 {
				staying++
				if k.OfRemoved {
					what = "disk"
				}
			}
		}
	}
	if staying > 0 && len(v.Keep) == 0 {
		v.Keep = append(v.Keep, fmt.Sprintf("it keeps %s of node %s", words.Counted(staying, what), v.Node))
	}
	if !p.Record.Open {
		for _, d := range unrecorded(p.VM, known) {
			v.Keep = append(v.Keep, d+" is in no record of recast: not ours, look at it")
		}
	}
	switch {
	case len(v.Keep) > 0:
	case late:
		v.Goes = fmt.Sprintf("Proxmox made it for run %s when another one was in use: nothing was ever handed over to it", p.Record.Run)
	default:
		v.Goes = "it owns nothing any more"
	}
}

// lastOnItsHost: the disk, and no newer one, is on the host of the node's VM: disks are handed over within one host.
func (j *judgement) lastOnItsHost(newer []int, i int) bool {
	if vm := j.vmOf(j.kept[i].Parking); vm == nil || vm.Host != j.kept[i].Host {
		return false
	}
	return !slices.ContainsFunc(newer, func(n int) bool { return j.kept[n].Host == j.kept[i].Host })
}

// newerThan lists the disks that were provably replaced later than disk i: by their number, or by their place in the
// same record. The time in a run's ID does not count: it comes from the clock of the machine that began the run. The
// number of a disk on another parking VM of the same host does not count either: see parking.Later.
func (j *judgement) newerThan(i int, list []int) (newer []int) {
	for _, n := range list {
		a, b := parkingWith(j.parkings, j.kept[n].Parking).VM, parkingWith(j.parkings, j.kept[i].Parking).VM
		if a.ID == b.ID && n > i || a.ID != b.ID && j.entries[n].Nth > j.entries[i].Nth && parking.Later(j.entries[n], a, j.entries[i], b) > 0 {
			newer = append(newer, n)
		}
	}
	return newer
}

// retain keeps each node's newest disks, not counting those that a rollback can't go to.
func (j *judgement) retain() {
	type machine struct{ node, uuid string } // two clusters may have the same name
	byNode := map[machine][]int{}
	for i, v := range j.kept {
		if j.vouched[i] {
			m := machine{v.Node, parkingWith(j.parkings, v.Parking).Record.UUID}
			byNode[m] = append(byNode[m], i)
		}
	}
	for m, list := range byNode {
		node := m.node
		list = slices.DeleteFunc(list, func(i int) bool { return j.judgeGivenUp(i) })
		for _, i := range list {
			v, newer := &j.kept[i], j.newerThan(i, list)
			rank := len(newer)
			switch {
			case j.unfinished(v), len(v.Keep) > 0:
			case v.OfRemoved && j.vmBefore(*v) != nil:
				v.Keep = append(v.Keep, fmt.Sprintf("%s is there again: look at both", *j.vmBefore(*v)))
			case v.OfRemoved:
				v.Goes = "its node was removed"
			case !slices.Contains(j.Nodes, node) && j.vmOf(v.Parking) != nil:
				v.Keep = append(v.Keep, j.notOurs(node, *j.vmOf(v.Parking)))
			case !slices.Contains(j.Nodes, node):
				v.Goes = fmt.Sprintf("recast.yaml has no node %s any more", node)
			case j.Keep > 0 && rank == 0:
				v.Keep = append(v.Keep, "the way back: recast undo "+node)
			case rank < j.Keep:
				v.Keep = append(v.Keep, fmt.Sprintf("node %s has only %d newer", node, rank))
			case j.Keep > 0 && j.lastOnItsHost(newer, i):
				v.Keep = append(v.Keep, fmt.Sprintf("the VM of node %s is on %s, and it is the newest one there: what recast undo %s boots", node, v.Host, node))
			case j.Keep == 0:
				v.Goes = fmt.Sprintf("none is to stay: the way back of node %s is a roll to the previous lock then", node)
			default:
				v.Goes = fmt.Sprintf("node %s has %d newer", node, rank)
			}
		}
	}
}

// vmOf returns the VM whose disks a parking VM keeps; nil if it no longer exists.
func (j *judgement) vmOf(parking cluster.VMID) *cluster.VM {
	rec := parkingWith(j.parkings, parking).Record
	return pointer(j.vms, func(vm cluster.VM) bool { return vm.ID == rec.VMID && vm.UUID() == rec.UUID })
}

// vmBefore is vmOf for a disk of a removed node, which may have been made again since.
func (j *judgement) vmBefore(v KeptVerdict) *cluster.VM {
	kept := parkingWith(j.parkings, v.Parking).Record.Kept
	k, known := cluster.Find(kept, func(k parking.KeptDisk) bool { return k.Key == v.Key && k.UUID != "" })
	if !known {
		return j.vmOf(v.Parking)
	}
	return pointer(j.vms, func(vm cluster.VM) bool { return vm.UUID() == k.UUID })
}

func parkingWith(parkings []parking.Parking, id cluster.VMID) *parking.Parking {
	return pointer(parkings, func(p parking.Parking) bool { return p.VM.ID == id })
}

func pointer[T any](all []T, is func(T) bool) *T {
	if i := slices.IndexFunc(all, is); i >= 0 {
		return &all[i]
	}
	return nil
}

// judgeGivenUp: nothing boots a cancelled replacement's disk; it goes, unless its node is unfinished or another's.
func (j *judgement) judgeGivenUp(i int) bool {
	v := &j.kept[i]
	if !v.GivenUp {
		return false
	}
	switch vm := j.vmOf(v.Parking); {
	case j.unfinished(v), len(v.Keep) > 0:
	case !slices.Contains(j.Nodes, v.Node) && vm != nil:
		v.Keep = append(v.Keep, j.notOurs(v.Node, *vm))
	default:
		v.Goes = fmt.Sprintf("run %s made it and was cancelled: nothing boots it", v.Run)
	}
	return true
}

// unfinished keeps a disk, and says so, while another parking VM holds the unfinished replacement of its node.
func (j *judgement) unfinished(v *KeptVerdict) bool {
	open := pointer(j.parkings, func(p parking.Parking) bool { return p.Record.Node == v.Node && p.Record.Open })
	if open == nil || open.VM.ID == v.Parking {
		return false
	}
	v.Keep = append(v.Keep, fmt.Sprintf("%s holds the unfinished replacement of node %s", open.VM, v.Node))
	return true
}

// notOurs says why a disk stays if recast.yaml does not have its node but the node's VM exists.
func (j *judgement) notOurs(node string, vm cluster.VM) string {
	return fmt.Sprintf("recast.yaml has no node %s, but its VM is there: %s. Another recast.yaml may say cluster: %s as well", node, vm, j.Cluster)
}

func unrecorded(vm cluster.VM, known map[string]bool) (out []string) {
	for key, value := range vm.Config {
		if cluster.IsDiskKey(key) && !known[key] {
			volid, _, _ := strings.Cut(value, ",")
			out = append(out, fmt.Sprintf("%s (%s)", key, volid))
		}
	}
	slices.Sort(out)
	return out
}
