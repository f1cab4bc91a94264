package simtest

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
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
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/world"
	"github.com/recast-sh/recast/internal/step"
)

// foreignWay is the kind of replacement of a scene's worker, the owner of its data disk, and
// whether its new system disk is made from a disk image.
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

// foreignScene is a Proxmox with an exchange of a VM's system.
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

// undisturbed is the number of changes in Proxmox without interference.
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
	for _, vm := range s.world.VMs() {
		if strings.HasPrefix(vm.Config["name"], "recast-parking-") {
			return vm.ID
		}
	}
	return 0
}

var errNoVM = errors.New("there is no such VM")

func (s *foreignScene) look(id int) (world.VM, error) {
	for _, vm := range s.world.VMs() {
		if vm.ID == id {
			return vm, nil
		}
	}
	return world.VM{}, errNoVM
}

// change is another person's change of a VM.
func (s *foreignScene) change(id int, set map[string]string, del ...string) error {
	vm, err := s.look(id)
	if err != nil {
		return err
	}
	return s.world.SetConfig("", vm.Host, world.ChangeRequest{ID: id, Set: set, Delete: del})
}

// task waits for another person's task.
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

// data is the data disk's present state.
func (s *foreignScene) data() world.DiskState { return s.diskNamed(s.disk) }

func (s *foreignScene) diskNamed(serial string) world.DiskState {
	all := s.world.Persistent()
	if i := slices.IndexFunc(all, func(d world.DiskState) bool { return d.Serial == serial }); i >= 0 {
		return all[i]
	}
	return world.DiskState{}
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

// foreignCell is another person's act at one moment of one exchange.
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

// foreignFew is the number of ways to exchange a system that are played unless all are to be.
const foreignFew = 8

// TestForeignHands: another person does something to the VMs, at every moment of every kind of exchange. Nothing is
// lost except what they have broken themselves; the exchange continues or says what is where and what to do; and once
// the act is reverted the exchange completes.
func TestForeignHands(t *testing.T) {
	ways := foreignWays()
	switch {
	case testing.Short():
		ways = ways[:1]
	case !*crashAll:
		ways = drawn(ways, foreignFew, *crashSeed, "ways")
	}
	for _, way := range ways {
		t.Run(way.String(), func(t *testing.T) {
			foreignHands(t, way, map[bool]int{false: 8, true: 2}[testing.Short()], newForeignExchange)
		})
	}
}

// exchanged says how the final state deviates.
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
	if err != nil && advisesCancel(err) {
		if err = s.cancel(t.Context()); err == nil {
			err = s.again(t.Context())
		}
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

// advisesCancel says whether an error's remedy is to cancel the exchange and to begin again.
func advisesCancel(err error) bool {
	_, hints := saidForeign(err)
	return slices.ContainsFunc(hints, func(h string) bool {
		return strings.Contains(h, "recast undo NODE cancels the replacement") || strings.Contains(h, "if the prepared disk is gone: recast undo")
	})
}

// requireForeignSaid requires an error to name its VM and the remedy; an exchange's error
// also names where the disks are.
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

// newForeignRoll is a lab whose worker a whole roll replaces.
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
