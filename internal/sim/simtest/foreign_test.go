package simtest

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/claim"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/world"
	"github.com/recast-sh/recast/internal/step"
)

// foreignWay is how a worker is replaced, the owner of its data disk, and whether its new disk is made from an image.
type foreignWay struct {
	strategy cluster.Strategy // Recreate, Reimage, Rollback or PutBack
	holder   bool
	prepared bool
}

func (w foreignWay) String() string {
	name := string(w.strategy)
	if w.prepared {
		name += "-prepared"
	}
	if w.holder {
		return name + "/holder"
	}
	return name + "/owned"
}

func foreignWays() []foreignWay {
	var all []foreignWay
	for _, s := range []cluster.Strategy{cluster.Recreate, cluster.Reimage, cluster.Rollback, cluster.PutBack} {
		all = append(all, foreignWay{s, false, false}, foreignWay{s, true, false})
	}
	return append(all, foreignWay{cluster.Recreate, false, true}, foreignWay{cluster.Reimage, true, true}, foreignWay{cluster.PutBack, false, true})
}

// foreignMoment is right before Proxmox acts on the n-th change, or the first one of a kind, or right after that.
type foreignMoment struct {
	change int
	is     func(record.Call) bool
	after  bool
}

func (m foreignMoment) String() string {
	return fmt.Sprintf("%s %d", map[bool]string{false: "before", true: "after"}[m.after], m.change)
}

type foreignScene struct {
	lab      *Lab // nil: without one
	world    *world.World
	recorder *record.Recorder
	way      foreignWay
	host     string
	other    string // another one
	vm       int
	holder   int    // owner of the data disk, if not the VM itself
	park     int    // number of the parking VM, existing or planned
	disk     string // the world's name of the data disk
	storage  string // of the data disk
	act      func(ctx context.Context) error
	again    func(ctx context.Context) error // the next run
	cancel   func(ctx context.Context) error // recast undo
	ended    func() error                    // how the final state deviates
	giveUp   bool                            // the exchange is cancelled
	changes  []string                        // changes in Proxmox, in order, without the claim's

	mu    sync.Mutex
	notes []string // notes of the run
}

// isForeignChange says whether a call is one of the counted changes.
func isForeignChange(c record.Call) bool {
	return c.Proto == "proxmox" && c.Mutation && !strings.Contains(c.Path, fmt.Sprintf("/qemu/%d", claimVM)) && c.Params["vmid"] != fmt.Sprint(claimVM)
}

// disturbed runs the replacement and calls do at a moment. came is false if the run ended earlier.
func (s *foreignScene) disturbed(ctx context.Context, t *testing.T, at foreignMoment, do func()) (came bool, err error) {
	t.Helper()
	var mu sync.Mutex
	passed := false
	s.changes = nil
	s.recorder.Hooks(func(c record.Call) error {
		mu.Lock()
		now := false
		switch {
		case came:
		case passed:
			ours := func(task world.Task) bool { return task.Running && task.User != "" }
			now = c.Proto == "proxmox" && !slices.ContainsFunc(s.world.Tasks(), ours)
		case isForeignChange(c) && (len(s.changes)+1 == at.change || at.is != nil && at.is(c)):
			passed, now = true, !at.after
		}
		if isForeignChange(c) {
			s.changes = append(s.changes, c.Method+" "+strings.TrimPrefix(c.Path, "/api2/json/nodes/"))
		}
		came = came || now
		mu.Unlock()
		if now {
			do()
		}
		return nil
	}, nil)
	err = inTime(ctx, t, s.act)
	s.recorder.Hooks(nil, nil)
	return came, err
}

func (s *foreignScene) undisturbed(t *testing.T) int {
	t.Helper()
	_, err := s.disturbed(t.Context(), t, foreignMoment{}, nil)
	mustBe(t, err == nil && len(s.changes) >= 8, "%d changes: %q: %v", len(s.changes), s.changes, err)
	return len(s.changes)
}

func (s *foreignScene) listen(e step.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notes = append(s.notes, e.Text)
}

func (s *foreignScene) heard(text string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Contains(s.notes, text)
}

// parking is the parking VM; 0 if there is none.
func (s *foreignScene) parking() int {
	vm, _ := cluster.Find(s.world.VMs(), func(vm world.VM) bool { return strings.HasPrefix(vm.Config["name"], "recast-parking-") })
	return vm.ID
}

func (s *foreignScene) look(id int) (world.VM, error) {
	vm, found := cluster.Find(s.world.VMs(), func(vm world.VM) bool { return vm.ID == id })
	if !found {
		return vm, errors.New("there is no such VM")
	}
	return vm, nil
}

func (s *foreignScene) change(id int, set map[string]string, del ...string) error {
	vm, err := s.look(id)
	if err != nil {
		return err
	}
	return s.world.SetConfig("", vm.Host, world.ChangeRequest{ID: id, Set: set, Delete: del})
}

func (s *foreignScene) task(upid string, err error) error {
	if err != nil {
		return err
	}
	task, found := s.world.WaitTask(upid)
	if !found || task.ExitStatus != "OK" {
		return fmt.Errorf("%s: %s", upid, task.ExitStatus)
	}
	return nil
}

func (s *foreignScene) data() world.DiskState { return s.diskNamed(s.disk) }

func (s *foreignScene) diskNamed(serial string) world.DiskState {
	d, _ := cluster.Find(s.world.Persistent(), func(d world.DiskState) bool { return d.Serial == serial })
	return d
}

// dataKey finds the drive with the data disk on the VM or its parking VM.
func (s *foreignScene) dataKey() (vm world.VM, key string, err error) {
	volid := s.data().Volid
	for _, id := range []int{s.vm, s.parking()} {
		vm, err := s.look(id)
		if err != nil {
			continue
		}
		for _, key := range slices.Sorted(maps.Keys(vm.Config)) {
			if have, _, _ := strings.Cut(vm.Config[key], ","); have == volid && volid != "" && !strings.HasPrefix(key, "unused") {
				return vm, key, nil
			}
		}
	}
	return vm, "", errors.New("the data disk is in neither")
}

// saidForeign is an error's text, and its hints except those that only say that something is unfinished.
func saidForeign(err error) (said string, hints []string) {
	hints = slices.DeleteFunc(fault.Hints(err), func(h string) bool { return strings.HasPrefix(h, "still unfinished, cordoned or down") })
	return err.Error() + "\n" + strings.Join(hints, "\n"), hints
}

var foreignMany = flag.Int("foreign.cells", 0, "how many things that others do are tried in each way to exchange a system; 0: a few")

type foreignCell struct {
	way foreignWay
	act foreignAct
	at  foreignMoment
}

// foreignCells are a selection for an exchange with that many changes; the seed selects.
func foreignCells(way foreignWay, changes, n int) []foreignCell {
	var all []foreignCell
	for _, act := range foreignActs(way) {
		for n := 1; n <= changes; n++ {
			for _, after := range []bool{false, true} {
				all = append(all, foreignCell{way, act, foreignMoment{change: n, after: after}})
			}
		}
	}
	if *foreignMany > 0 {
		n = *foreignMany
	}
	return drawn(all, n, *crashSeed, way.String())
}

// foreignResults counts what came of the cells of one way.
type foreignResults struct{ cells, struck, stopped, violations atomic.Int64 }

// foreignHands plays n cells of a way, each in a scene of its own.
func foreignHands(t *testing.T, way foreignWay, n int, begin func(t *testing.T, way foreignWay) *foreignScene) {
	t.Parallel()
	changes := 0
	synctest.Test(t, func(t *testing.T) { changes = begin(t, way).undisturbed(t) })
	var r foreignResults
	t.Run("cells", func(t *testing.T) {
		for _, c := range foreignCells(way, changes, n) {
			t.Run(strings.ReplaceAll(c.act.name+"/"+c.at.String(), " ", "_"), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) { c.run(t, begin(t, way), &r) })
			})
		}
	})
	require(t, r.cells.Load() <= 10 || r.struck.Load() != 0, "no act was possible")
	for name, n := range map[string]*atomic.Int64{"cells": &r.cells, "struck": &r.struck, "stopped": &r.stopped, "violations": &r.violations} {
		t.Attr(name, strconv.FormatInt(n.Load(), 10))
	}
}

// newForeignExchange is a VM without a guest whose system is to be exchanged.
func newForeignExchange(t *testing.T, way foreignWay) *foreignScene {
	t.Helper()
	owned, strategy, disk := ownDisks, way.strategy, fmt.Sprintf("scsi1 of VM %d", matrixVM)
	if way.holder {
		owned, disk = heldDisks, fmt.Sprintf("scsi1 of VM %d", matrixHolder)
	}
	if strategy == cluster.PutBack {
		strategy = cluster.Recreate
	}
	lab := newMatrixLab(t, usualShape(owned, strategy).withPrepared(way.prepared))
	s := &foreignScene{
		world: lab.world, recorder: lab.recorder, way: way, host: matrixHost, other: "pve2", vm: matrixVM, holder: matrixHolder, park: matrixParking, disk: disk, storage: "data",
	}
	lab.world.AddHost(s.other)
	s.act = func(ctx context.Context) error { return s.exchange(ctx, lab, strategy) }
	s.again, s.ended = s.act, s.exchanged
	s.cancel = func(ctx context.Context) error {
		defer func(was bool) { s.giveUp = was }(s.giveUp)
		s.giveUp = true
		return s.act(ctx)
	}
	if way.strategy == cluster.PutBack {
		ctx, kill := context.WithCancel(t.Context())
		defer kill()
		made := func(c record.Call) bool { return c.Params["vmid"] == strconv.Itoa(matrixVM) }
		came, _ := s.disturbed(ctx, t, foreignMoment{is: made, after: true}, kill)
		mustBe(t, came, "the VM was not created")
		s.giveUp = true
	}
	return s
}

// exchange is a process that begins or continues the exchange, and waits for other users' locks as a roll does.
func (s *foreignScene) exchange(ctx context.Context, lab *matrixLab, strategy cluster.Strategy) error {
	ctx, life := lab.live(ctx)
	defer life.kill()
	x := life.exchangeBy(strategy)
	x.Proxmox = claim.WithPatience(x.Proxmox, 2*time.Second, func(text string) { s.listen(step.Event{Text: text}) })
	return life.run(ctx, x, s.giveUp)
}

// Whatever another person does to the VMs, at any moment of any exchange, nothing is lost but what they broke, and the
// exchange continues or says what is where and what to do; it completes once the act is reverted.
func TestForeignHands(t *testing.T) {
	ways, cells := foreignWays(), 8
	switch {
	case testing.Short():
		ways, cells = ways[:1], 2
	case !*crashAll:
		ways = drawn(ways, 8, *crashSeed, "ways")
	}
	for _, way := range ways {
		t.Run(way.String(), func(t *testing.T) { foreignHands(t, way, cells, newForeignExchange) })
	}
}

func (s *foreignScene) exchanged() error {
	vm, errVM := s.look(s.vm)
	park, errPark := s.look(s.parking())
	if err := errors.Join(errVM, errPark); err != nil {
		return err
	}
	data, _, _ := strings.Cut(vm.Config["scsi1"], ",")
	switch {
	case strings.Contains(park.Config["description"], `"open":true`):
		return errors.New("its record is open still")
	case data != s.data().Volid:
		return fmt.Errorf("scsi1 of VM %d is %s; the data disk is %s", s.vm, data, s.data().Volid)
	case vm.Config["scsi0"] == "":
		return errors.New("it has no system disk")
	}
	return nil
}

// run disturbs a scene, checks the result, reverts the disturbance, and checks that the next run completes.
func (c foreignCell) run(t *testing.T, s *foreignScene, r *foreignResults) {
	r.cells.Add(1)
	var undo func()
	var errAct error
	var theirs []string // promises broken by the act itself
	var where string
	came, err := s.disturbed(t.Context(), t, c.at, func() {
		before := s.world.Violations()
		where = fmt.Sprintf("%s is %s of VM %d", s.data().Volid, s.data().Key, s.data().VMID)
		undo, errAct = s.play(c.act)
		theirs = slices.DeleteFunc(s.world.Violations(), func(v string) bool { return slices.Contains(before, v) })
	})
	if !came {
		t.Errorf("the run was over after %d changes: %v", len(s.changes), err)
		return
	}
	change := s.changes[min(c.at.change, len(s.changes))-1]
	if errAct == nil {
		r.struck.Add(1)
	}
	t.Logf("%s (%s): they: %v; their doing: %q; the run: %v", change, where, errAct, theirs, err)
	for _, v := range s.world.Violations() {
		// Proxmox was told to start the VM when no other VM had its disks.
		together := strings.HasSuffix(change, "/status/start") && strings.Contains(v, "is in the running VMs")
		// Their disk was created in the VM after the request to delete that: a delete has no digest (Qemu.pm, destroy_vm).
		deletes := strings.HasPrefix(change, "DELETE") && strings.Contains(change, "/qemu/")
		late := deletes && strings.HasPrefix(v, "disk theirs:")
		if !c.at.after && (together || late) {
			theirs = append(theirs, v)
		}
	}
	if err != nil {
		r.stopped.Add(1)
		requireForeignSaid(t, s, err)
	}
	r.violations.Add(s.requireNothingElse(t, theirs, "after the run"))
	if undo != nil {
		undo()
	}
	err = s.again(t.Context())
	if err != nil && advises(err, "recast undo NODE cancels the replacement", "if the prepared disk is gone: recast undo") {
		if err = s.cancel(t.Context()); err == nil {
			err = s.again(t.Context())
		}
	}
	if err != nil && advises(err, fmt.Sprintf("start VM %d", s.vm)) {
		s.task(s.world.Start("", s.host, s.vm))
		err = s.again(t.Context())
	}
	if err == nil && !c.act.destroys {
		err = s.ended()
	}
	switch {
	case err == nil:
	case c.act.destroys:
		requireForeignSaid(t, s, err)
	default:
		said, _ := saidForeign(err)
		t.Errorf("the next run: %s", said)
	}
	r.violations.Add(s.requireNothingElse(t, theirs, "in the end"))
}

func advises(err error, texts ...string) bool {
	_, hints := saidForeign(err)
	return slices.ContainsFunc(hints, func(h string) bool {
		return slices.ContainsFunc(texts, func(what string) bool { return strings.Contains(h, what) })
	})
}

// requireForeignSaid requires an error to name its VM and the remedy, and that of an exchange where the disks are.
func requireForeignSaid(t *testing.T, s *foreignScene, err error) {
	t.Helper()
	said, hints := saidForeign(err)
	named := slices.ContainsFunc([]int{s.vm, s.park, s.parking()}, func(id int) bool { return strings.Contains(said, fmt.Sprintf("VM %d", id)) }) ||
		strings.Contains(said, fmt.Sprintf("SMBIOS UUID 5ec0ffee-0000-4000-8000-%012d", s.vm)) // where neither it nor its record is there
	require(t, named && len(hints) != 0, "it names no VM, or does not say what to do: %s", said)
	exchange := strings.HasPrefix(said, "replace/") || strings.HasPrefix(said, "put-back/")
	require(t, !exchange || strings.Contains(said, fmt.Sprintf("where the disks of VM %d are: ", s.vm)),
		"it does not say where the disks are: %s", said)
}

// requireNothingElse fails for every broken promise that is not due to the act.
func (s *foreignScene) requireNothingElse(t *testing.T, theirs []string, when string) (broken int64) {
	t.Helper()
	for _, v := range s.world.Violations() {
		detached := strings.HasPrefix(v, "disk pvc-1a2b: no VM's configuration names") // normal for volumes of pods
		if !detached && !slices.Contains(theirs, v) {
			t.Errorf("%s: promise broken: %s", when, v)
			broken++
		}
	}
	return broken
}

func newForeignRoll(t *testing.T, way foreignWay) *foreignScene {
	t.Helper()
	lab := New(t, sim.Options{ControlPlanes: 1, Workers: 1, Holder: way.holder})
	s := &foreignScene{
		lab: lab, world: lab.World, recorder: lab.Recorder, way: way, host: "pve1", vm: wk1, holder: 9201, park: claimVM + 2,
		disk: "data-wk1", storage: sim.DiskStorage,
	}
	if way.strategy == cluster.Recreate || way.strategy == cluster.Reimage {
		lab.setRoll("strategy: " + string(way.strategy))
	}
	if way.prepared {
		lab.BootsDisks(cluster.BootFromDisk)
	}
	lab.Patch(sim.PatchedExtension)
	c := lab.as(secondRun)
	c.Emit = s.listen
	s.act = c.roll(planning.Policy{})
	s.again = func(context.Context) error {
		time.Sleep(time.Minute)
		err := lab.rollInTime(t, thirdRun)
		if err == nil {
			requireDrift(t, lab)
		}
		return err
	}
	s.cancel = lab.as(secondRun).giveUp("wk1")
	s.ended = func() error { return nil }
	switch way.strategy {
	case cluster.Rollback:
		must(t, lab.rollInTime(t, firstRun))
		s.act = c.goBack("wk1")
	case cluster.PutBack:
		lab.as(firstRun).rollKilled(after("bring-up/start"), planning.Policy{})
		s.act = c.giveUp("wk1")
	default:
		must(t, c.Publish(t.Context()))
	}
	return s
}

// TestForeignHandsInARoll is TestForeignHands for a whole roll of a worker, with a machine in the VM.
func TestForeignHandsInARoll(t *testing.T) {
	long(t)
	for _, way := range foreignWays() {
		t.Run(way.String(), func(t *testing.T) { foreignHands(t, way, 6, newForeignRoll) })
	}
}

type foreignAct struct {
	name string
	// on finds the VM that it is about, and the drive with the data disk if it is about that.
	on func(s *foreignScene) (vm world.VM, key string, err error)
	// do fails if the act does not apply, or Proxmox refuses it. undo reverts it as far as
	// possible: what it leaves, the next run shows; nil: not needed.
	do func(s *foreignScene, vm world.VM, key string) (undo func(), err error)
	// destroys says that the worker can lose something for good, if only the name of its disk.
	destroys bool
}

func (s *foreignScene) play(act foreignAct) (undo func(), err error) {
	vm, key, err := act.on(s)
	if err != nil {
		return nil, err
	}
	return act.do(s, vm, key)
}

func foreignActNamed(name string) foreignAct {
	all := foreignActs(foreignWay{prepared: true})
	return all[slices.IndexFunc(all, func(act foreignAct) bool { return act.name == name })]
}

// editsForeign changes one key of a VM and reverts it later.
func editsForeign(key string, value func(old string) string) func(*foreignScene, world.VM, string) (func(), error) {
	return func(s *foreignScene, vm world.VM, _ string) (func(), error) {
		old, had := vm.Config[key]
		undo := func() { s.change(vm.ID, map[string]string{key: old}) }
		if !had {
			undo = func() { s.change(vm.ID, nil, key) }
		}
		return undo, s.change(vm.ID, map[string]string{key: value(old)})
	}
}

func ofVM(s *foreignScene) (world.VM, string, error)      { return s.found(s.vm) }
func ofParking(s *foreignScene) (world.VM, string, error) { return s.found(s.parking()) }
func ofHolder(s *foreignScene) (world.VM, string, error)  { return s.found(s.holder) }
func ofData(s *foreignScene) (world.VM, string, error)    { return s.dataKey() }

func (s *foreignScene) found(id int) (world.VM, string, error) {
	vm, err := s.look(id)
	return vm, "", err
}

func to(value string) func(string) string { return func(string) string { return value } }

func foreignActs(way foreignWay) []foreignAct {
	all := []foreignAct{
		{name: "edits the description", on: ofVM, do: editsForeign("description", func(old string) string { return old + "\nEdited." })},
		{name: "edits the memory", on: ofVM, do: editsForeign("memory", to("8192"))},
		{name: "adds a disk", on: ofVM, do: addsForeignDisk},
		{name: "detaches the data disk", on: ofData, do: detachesForeign},
		{name: "unprotects the parking VM", on: ofParking, do: func(s *foreignScene, vm world.VM, _ string) (func(), error) {
			return nil, s.change(vm.ID, map[string]string{"protection": "0"})
		}},
		{name: "spoils the record", on: ofParking, do: editsForeign("description", func(old string) string { return strings.Replace(old, `{"cluster"`, `{"cluster`, 1) })},
		{name: "removes the record", on: ofParking, do: editsForeign("description", to("Nothing to see."))},
		{name: "resizes the data disk", on: ofData, do: resizesForeign},
		{name: "moves the data disk to another storage", on: ofData, do: movesForeign},
		{name: "reassigns the data disk", on: ofData, do: reassignsForeign, destroys: true}, // its name: it may come back under another one
		{name: "attaches a volume of a pod", on: ofVM, do: attachesForeignPod},
		{name: "names the data disk twice", on: ofData, do: namesForeignTwice},
		{name: "names the data disk in another VM", on: ofData, do: func(s *foreignScene, _ world.VM, _ string) (func(), error) {
			return namesForeignTwice(s, world.VM{ID: foreignVM}, "")
		}},
		{name: "starts the VM", on: ofVM, do: startsForeign},
		{name: "starts the parking VM", on: ofParking, do: startsForeign},
		{name: "starts the holder", on: ofHolder, do: startsForeign},
		{name: "stops the VM", on: ofVM, do: stopsForeign},
		{name: "migrates the VM", on: ofVM, do: migratesForeign},
		{name: "migrates the parking VM", on: ofParking, do: migratesForeign},
		{name: "snapshots the VM", on: ofVM, do: snapshotsForeign},
		{name: "snapshots the parking VM", on: ofParking, do: snapshotsForeign},
		{name: "backs the VM up", on: ofVM, do: backsUpForeign},
		{name: "backs the parking VM up", on: ofParking, do: backsUpForeign},
		{name: "leaves a lock on the VM", on: ofVM, do: locksForeign},
		{name: "leaves a lock on the parking VM", on: ofParking, do: locksForeign},
		{name: "deletes the VM", on: ofVM, do: deletesForeign(false), destroys: true},
		{name: "deletes the VM and what is unreferenced", on: ofVM, do: deletesForeign(true), destroys: true},
		{name: "deletes the parking VM", on: ofParking, do: deletesForeign(false), destroys: true},
		{name: "deletes the parking VM and what is unreferenced", on: ofParking, do: deletesForeign(true), destroys: true},
		{name: "deletes the holder", on: ofHolder, do: deletesForeign(false), destroys: true},
		{name: "takes the VMID", on: func(s *foreignScene) (world.VM, string, error) { return world.VM{ID: s.vm}, "", nil }, do: takesForeign},
		{name: "takes the VMID of the parking VM", on: func(s *foreignScene) (world.VM, string, error) {
			return world.VM{ID: cmp.Or(s.parking(), s.park)}, "", nil // refused if it exists
		}, do: takesForeign},
	}
	if way.prepared {
		all = append(all, preparedActs()...)
	}
	return all
}

// foreignVM is a VM outside of the cluster.
const foreignVM = 9500

func (s *foreignScene) defineStranger() error {
	if _, err := s.look(foreignVM); err == nil {
		return nil
	}
	return s.world.DefineVM(s.host, foreignVM, map[string]string{"name": "stranger", "memory": "512"}, nil)
}

func (s *foreignScene) move(from int, key string, to int, toKey string) error {
	return s.task(s.world.MoveDisk("", s.host, world.MoveRequest{ID: from, Disk: key, Target: to, TargetDisk: toKey}))
}

// gives moves a disk into a VM outside of the cluster.
func (s *foreignScene) gives(from int, key, toKey string) error {
	if err := s.defineStranger(); err != nil {
		return err
	}
	return s.move(from, key, foreignVM, toKey)
}

// frees deletes a detached volume of a VM.
func (s *foreignScene) frees(id int, volid string) error {
	vm, err := s.look(id)
	for unused, value := range vm.Config {
		if value == volid {
			err = errors.Join(err, s.change(id, nil, unused))
		}
	}
	return err
}

// detach removes a drive from a VM; a protected VM does not allow it.
func (s *foreignScene) detach(id int, key string) error {
	vm, err := s.look(id)
	if err != nil {
		return err
	}
	if vm.Config["protection"] != "1" {
		return s.change(id, nil, key)
	}
	return errors.Join(
		s.change(id, map[string]string{"protection": "0"}), s.change(id, nil, key), s.change(id, map[string]string{"protection": "1"}),
	)
}

// addsForeignDisk adds a disk to the worker's VM, which is then protected like the others.
func addsForeignDisk(s *foreignScene, vm world.VM, _ string) (func(), error) {
	if err := s.change(vm.ID, map[string]string{"scsi5": s.storage + ":1,serial=theirs"}); err != nil {
		return nil, err
	}
	// Its owner moves it into another VM.
	return func() {
		d := s.diskNamed("theirs")
		if d.VMID != vm.ID {
			return
		}
		if !strings.HasPrefix(d.Key, "unused") {
			s.detach(vm.ID, d.Key)
			d = s.diskNamed("theirs")
		}
		s.gives(vm.ID, d.Key, "scsi5")
	}, s.protect(vm.ID, "scsi5", "theirs")
}

func (s *foreignScene) protect(id int, key, serial string) error {
	vm, err := s.look(id)
	if err != nil {
		return err
	}
	volid, _, _ := strings.Cut(vm.Config[key], ",")
	s.world.Protect(world.Protected{Serial: serial, Media: s.world.Media(volid, s.host)})
	return nil
}

func detachesForeign(s *foreignScene, vm world.VM, key string) (func(), error) {
	value := vm.Config[key]
	return func() {
		now, err := s.look(vm.ID)
		volid, _, _ := strings.Cut(value, ",")
		if err == nil && now.Config[key] == "" && s.data().Volid == volid {
			s.change(vm.ID, map[string]string{key: value})
		}
	}, s.detach(vm.ID, key)
}

func resizesForeign(s *foreignScene, vm world.VM, key string) (func(), error) {
	return nil, s.task(s.world.Resize("", s.host, world.ResizeRequest{ID: vm.ID, Disk: key, Size: "+1G"}))
}

// movesForeign is move_disk to another storage, with delete=1.
func movesForeign(s *foreignScene, vm world.VM, key string) (func(), error) {
	if vm.Config["lock"] != "" || s.way.holder {
		return nil, errors.New("Proxmox does not let them")
	}
	s.world.AddStorage(world.Storage{ID: "slow", Type: "dir", Content: []string{"images"}})
	old, options, _ := strings.Cut(vm.Config[key], ",")
	volid, err := s.world.Alloc("slow", s.host, vm.ID, 20<<30, s.world.Media(old, s.host))
	if err != nil {
		return nil, err
	}
	for _, set := range []map[string]string{{"protection": "0"}, {key: volid + "," + options}} {
		if err := s.change(vm.ID, set); err != nil {
			return nil, err
		}
	}
	protection := cmp.Or(vm.Config["protection"], "0")
	return nil, errors.Join(s.frees(vm.ID, old), s.change(vm.ID, map[string]string{"protection": protection}))
}

func reassignsForeign(s *foreignScene, vm world.VM, key string) (func(), error) {
	if s.way.holder {
		return nil, errors.New("that would rename it under its holder")
	}
	return func() {
		for _, id := range []int{vm.ID, s.parking(), s.vm} {
			if _, err := s.look(id); err == nil && s.data().VMID == foreignVM {
				s.move(foreignVM, "scsi1", id, key)
				return
			}
		}
	}, s.gives(vm.ID, key, "scsi1")
}

// attachesForeignPod is what proxmox-csi does for a pod.
func attachesForeignPod(s *foreignScene, vm world.VM, _ string) (func(), error) {
	volid, err := s.world.AllocDisk("", s.host, world.AllocRequest{Storage: s.storage, VMID: 9999, Name: "vm-9999-pvc-1a2b.raw", Bytes: 1 << 30, Format: "raw"})
	if err != nil {
		return nil, err
	}
	s.world.Protect(world.Protected{Serial: "pvc-1a2b", Media: s.world.Media(volid, s.host)})
	return s.detaches(vm.ID, "scsi7"), s.change(vm.ID, map[string]string{"scsi7": volid + ",serial=pvc-1a2b"})
}

// detaches removes a drive if the VM still has it.
func (s *foreignScene) detaches(id int, key string) func() {
	return func() {
		if vm, err := s.look(id); err == nil && vm.Config[key] != "" {
			s.detach(id, key)
		}
	}
}

// namesForeignTwice names the data disk under a second key of its VM, or of another VM.
func namesForeignTwice(s *foreignScene, vm world.VM, _ string) (func(), error) {
	if err := s.defineStranger(); err != nil {
		return nil, err
	}
	return s.detaches(vm.ID, "scsi6"), s.change(vm.ID, map[string]string{"scsi6": s.data().Volid + ",serial=again"})
}

func startsForeign(s *foreignScene, vm world.VM, _ string) (func(), error) {
	return func() {
		if !vm.Running && !(vm.ID == s.vm && s.finished()) { // a worker that is done is to run
			s.task(s.world.Stop("", s.host, vm.ID))
		}
	}, s.task(s.world.Start("", s.host, vm.ID))
}

func stopsForeign(s *foreignScene, vm world.VM, _ string) (func(), error) {
	if !vm.Running {
		return nil, errors.New("it does not run")
	}
	return func() {
		if s.finished() {
			s.task(s.world.Start("", s.host, vm.ID))
		}
	}, s.task(s.world.Stop("", s.host, vm.ID))
}

// finished says whether the worker's replacement is.
func (s *foreignScene) finished() bool {
	park, err := s.look(s.parking())
	return err == nil && !strings.Contains(park.Config["description"], `"open":true`)
}

// migratesForeign migrates a VM with its disks to the other host. Holders' disks can't move.
func migratesForeign(s *foreignScene, vm world.VM, _ string) (func(), error) {
	to := map[string]string{s.host: s.other, s.other: s.host}[vm.Host]
	move := func(from, to string) error {
		return s.task(s.world.Migrate("", from, world.MigrateRequest{ID: vm.ID, Target: to, Online: vm.Running, WithLocalDisks: vm.Running}))
	}
	return func() { move(to, vm.Host) }, move(vm.Host, to)
}

func snapshotsForeign(s *foreignScene, vm world.VM, _ string) (func(), error) {
	return func() { s.world.DeleteSnapshot(vm.ID, "theirs") }, s.world.AddSnapshot(vm.ID, world.Snapshot{Name: "theirs"})
}

const foreignBackup = 3 * time.Minute

func backsUpForeign(s *foreignScene, vm world.VM, _ string) (func(), error) {
	upid := s.world.StartBackup("", s.host, foreignBackup, vm.ID)
	undo := func() { s.world.WaitTask(upid) }
	for range 100 { // until it has its lock
		time.Sleep(100 * time.Millisecond)
		if now, err := s.look(vm.ID); err == nil && now.Config["lock"] == "backup" {
			return undo, nil
		}
	}
	return undo, fmt.Errorf("%s did not begin", upid)
}

func locksForeign(s *foreignScene, vm world.VM, _ string) (func(), error) {
	if vm.Config["lock"] != "" {
		return nil, errors.New("it is locked already")
	}
	s.world.SetLock(vm.ID, "suspended")
	return func() { s.world.SetLock(vm.ID, "") }, nil
}

func deletesForeign(unreferenced bool) func(*foreignScene, world.VM, string) (func(), error) {
	return func(s *foreignScene, vm world.VM, _ string) (func(), error) {
		if vm.Running {
			return nil, errors.New("Proxmox does not delete a VM that runs")
		}
		if err := s.change(vm.ID, map[string]string{"protection": "0"}); err != nil {
			return nil, err
		}
		return nil, s.task(s.world.DestroyVM("", s.host, world.DestroyRequest{ID: vm.ID, Unreferenced: unreferenced}))
	}
}

// takesForeign creates another VM under a number that is free at that moment.
func takesForeign(s *foreignScene, vm world.VM, _ string) (func(), error) {
	config := map[string]string{"name": "thief", "memory": "512", "scsi0": s.storage + ":1,serial=thief"}
	if err := s.task(s.world.CreateVM("", s.host, world.CreateRequest{ID: vm.ID, Config: config})); err != nil {
		return nil, err
	}
	return func() {
		s.gives(vm.ID, "scsi0", "scsi9")
		s.task(s.world.DestroyVM("", s.host, world.DestroyRequest{ID: vm.ID}))
	}, s.protect(vm.ID, "scsi0", "thief")
}

// preparedActs are what others do to the new system disk on the parking VM: nothing is lost that can't be made again.
func preparedActs() []foreignAct {
	return []foreignAct{
		{name: "detaches the prepared disk", on: ofPrepared, do: func(s *foreignScene, vm world.VM, key string) (func(), error) {
			volid, _, _ := strings.Cut(vm.Config[key], ",")
			return func() { s.takesAway(vm.ID, volid) }, s.detach(vm.ID, key)
		}},
		{name: "deletes the prepared disk", on: ofPrepared, do: deletesPrepared},
		{name: "resizes the prepared disk", on: ofPrepared, do: resizesForeign},
		{name: "moves the prepared disk to another storage", on: ofPrepared, do: movesForeign},
		{name: "reassigns the prepared disk", on: ofPrepared, do: func(s *foreignScene, vm world.VM, key string) (func(), error) {
			return nil, s.gives(vm.ID, key, "scsi1")
		}},
		{name: "boots the prepared disk first", on: ofPrepared, do: func(s *foreignScene, vm world.VM, key string) (func(), error) {
			return nil, s.change(vm.ID, map[string]string{"boot": "order=" + key})
		}},
	}
}

func ofPrepared(s *foreignScene) (vm world.VM, key string, err error) {
	vm, err = s.look(s.parking())
	rec, _, errRecord := parking.ReadRecord(cluster.VM{Config: vm.Config})
	if err := errors.Join(err, errRecord); err != nil {
		return vm, "", err
	}
	entry, known := rec.SpareEntry(rec.Run, rec.SpareKey)
	if !known || vm.Config[entry.Key] == "" {
		return vm, "", errors.New("no prepared disk is on the parking VM")
	}
	return vm, entry.Key, nil
}

// takesAway gives a detached volume of a VM to one of theirs.
func (s *foreignScene) takesAway(id int, volid string) {
	vm, err := s.look(id)
	for key, value := range vm.Config {
		if err == nil && value == volid {
			s.gives(id, key, "scsi1")
		}
	}
}

func deletesPrepared(s *foreignScene, vm world.VM, key string) (func(), error) {
	volid, _, _ := strings.Cut(vm.Config[key], ",")
	if err := errors.Join(s.change(vm.ID, map[string]string{"protection": "0"}), s.change(vm.ID, nil, key)); err != nil {
		return nil, err
	}
	return nil, s.frees(vm.ID, volid)
}

// A VM that another person makes under a number right before recast is left alone. A node's VM needs its own number.
func TestTheVMIDIsTaken(t *testing.T) {
	long(t)
	type story struct {
		act  string
		vmid int
		err  string
	}
	eachInBubble(t, map[string]story{
		"of the VM":         {"takes the VMID", matrixVM, `VM 9011 "thief" on pve1 has UUID `},
		"of the parking VM": {"takes the VMID of the parking VM", matrixParking, ""},
	}, func(t *testing.T, c story) {
		s := newForeignExchange(t, foreignWay{cluster.Recreate, false, false})
		var undo func()
		made := func(call record.Call) bool { return call.Params["vmid"] == strconv.Itoa(c.vmid) }
		came, err := s.disturbed(t.Context(), t, foreignMoment{is: made}, func() {
			var errAct error
			undo, errAct = s.play(foreignActNamed(c.act))
			must(t, errAct)
		})
		mustBe(t, came, "it could not be taken")
		if c.err == "" {
			must(t, err)
			requireSame(t, c.vmid+1, s.parking(), "the parking VM (-want +got)")
		} else {
			mustBe(t, err != nil, "it continued with their VM")
			requireForeignSaid(t, s, err)
			requireRefused(t, s.again(t.Context()), c.err)
			undo()
			must(t, s.again(t.Context()))
		}
		must(t, s.ended())
		s.requireNothingElse(t, nil, "in the end")
	})
}

// Two workers with data disks of one VM are rolled one after the other, and that VM is unchanged.
func TestTwoNodesShareAHolder(t *testing.T) {
	o := sim.Options{ControlPlanes: 1, Workers: 2, Holder: true}
	eachLong(t, o, storiesOf(cluster.Recreate, cluster.Reimage), func(t *testing.T, lab *Lab, strategy cluster.Strategy) {
		lab.setRoll("strategy: "+string(strategy), "maxUnavailable: {workers: 2, perHost: 2}")
		lab.Patch(sim.PatchedExtension)
		before := fmt.Sprint(lab.vm(9201).Config)
		var together atomic.Bool
		lab.Recorder.Hooks(nil, func(record.Call) {
			open := 0
			for _, vm := range lab.World.VMs() {
				open += strings.Count(vm.Config["description"], `"open":true`)
			}
			if open == 2 {
				together.Store(true)
			}
		})
		must(t, lab.rollInTime(t, firstRun))
		lab.Recorder.Hooks(nil, nil)
		require(t, !together.Load(), "they were rolled at the same time")
		lab.requireRolled(t)
		requireSame(t, before, fmt.Sprint(lab.vm(9201).Config), "the holder (-before +after)")
	})
}

var advised = regexp.MustCompile(`qm disk move \d+ \w+ --target-vmid OTHER --target-disk KEY|qm set \d+ --delete [a-z]+\d+`)

// A person attaches a disk to a VM during its exchange, and types only what the hints say: the disk stays.
func TestAdviceKeepsAForeignDisk(t *testing.T) {
	long(t)
	created := foreignMoment{is: func(c record.Call) bool { return c.Params["vmid"] == strconv.Itoa(matrixVM) }, after: true}
	parked := foreignMoment{is: func(c record.Call) bool { return strings.HasSuffix(c.Path, "/move_disk") }, after: true}
	type story struct {
		at      foreignMoment
		detach  bool   // as the page says
		refused string // then
	}
	eachInBubble(t, map[string]story{
		"the new VM":           {at: created, refused: "has scsi5"},
		"the new VM, detached": {at: created, detach: true},
		"the old VM":           {at: parked, refused: "has scsi5"},
		"the old VM, detached": {at: parked, detach: true, refused: "has unused0"},
	}, func(t *testing.T, c story) {
		s := newForeignExchange(t, foreignWay{cluster.Recreate, false, false})
		came, err := s.disturbed(t.Context(), t, c.at, func() { must(t, errOf(s.play(foreignActNamed("adds a disk")))) })
		if came && err != nil && !strings.Contains(err.Error(), "has scsi5") {
			err = s.again(t.Context()) // their command crossed a change of ours
		}
		mustBe(t, came && err != nil && strings.Contains(err.Error(), "has scsi5"), "came %t, err = %v", came, err)
		must(t, s.defineStranger())
		if c.detach {
			s.typed(t, fmt.Sprintf("qm set %d --protection 0", s.vm))
			s.typed(t, fmt.Sprintf("qm set %d --delete scsi5", s.vm))
			err = s.again(t.Context())
		}
		if c.refused == "" {
			must(t, err)
		} else {
			requireError(t, err, c.refused)
			for _, command := range advised.FindAllString(strings.Join(fault.Hints(err), "\n"), -1) {
				s.typed(t, command)
			}
			must(t, s.again(t.Context()))
		}
		must(t, s.ended())
		s.requireNothingElse(t, nil, "in the end")
	})
}

// typed runs a command from a hint, with one of their VMs in place of OTHER.
func (s *foreignScene) typed(t *testing.T, command string) {
	t.Helper()
	shell := sim.Shell{World: s.world, Host: s.host}
	filled := strings.NewReplacer("OTHER", strconv.Itoa(foreignVM), "KEY", "scsi5").Replace(command)
	said, err := shell.Run(strings.Fields(filled))
	mustBe(t, err == nil, "%s: %v\n%s", filled, err, said)
}

// A roll waits for a backup of the VM, or of its parking VM, says so, and completes.
func TestBackupIsWaitedOut(t *testing.T) {
	for _, c := range []struct {
		strategy cluster.Strategy
		act      string
		vm       int
		change   string // requested from Proxmox at that moment
	}{
		{cluster.Recreate, "backs the VM up", wk1, "/qemu/9031/status/shutdown"},
		{cluster.Recreate, "backs the VM up", wk1, "/qemu/9031/move_disk"},
		{cluster.Recreate, "backs the VM up", wk1, "/qemu/9031"},
		{cluster.Reimage, "backs the VM up", wk1, "/qemu/9031/status/start"},
		{cluster.Recreate, "backs the parking VM up", claimVM + 2, "/qemu/9031/move_disk"},
		{cluster.Reimage, "backs the parking VM up", claimVM + 2, "/qemu/9002/config"},
	} {
		t.Run(fmt.Sprintf("%s/%s before %s", c.strategy, c.act, strings.ReplaceAll(c.change, "/", " ")), func(t *testing.T) {
			long(t)
			inBubble(t, func(t *testing.T) {
				s := newForeignRoll(t, foreignWay{c.strategy, false, false})
				at := foreignMoment{is: func(call record.Call) bool { return strings.HasSuffix(call.Path, c.change) }}
				came, err := s.disturbed(t.Context(), t, at, func() { must(t, errOf(s.play(foreignActNamed(c.act)))) })
				mustBe(t, came && err == nil, "came %t: %v", came, err)
				require(t, s.heard(fmt.Sprintf("waiting for VM %d: it is locked (backup)", c.vm)), "it did not say that it waits")
				requireInSync(t, s.lab)
				s.lab.requireKept(1)
			})
		})
	}
}
