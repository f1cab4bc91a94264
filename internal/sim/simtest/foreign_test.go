package simtest

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/claim"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/step"
)

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

// drawn are n of a list, or all if there are fewer, in an order that depends on the seed and
// a name.
func drawn[E any](list []E, n int, seed uint64, name string) []E {
	var stream uint64
	for _, b := range []byte(name) {
		stream = stream*31 + uint64(b)
	}
	list = slices.Clone(list)
	rand.New(rand.NewPCG(seed, stream)).Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	return list[:min(n, len(list))]
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
	if r.cells.Load() > 10 && r.struck.Load() == 0 {
		t.Error("no act was possible")
	}
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
		if came, _ := s.disturbed(ctx, t, foreignMoment{is: made, after: true}, kill); !came {
			t.Fatal("the VM was not created")
		}
		s.giveUp = true
	}
	return s
}

// exchange is a process that begins or continues the exchange, and waits for other users'
// locks as a roll does.
func (s *foreignScene) exchange(ctx context.Context, lab *matrixLab, strategy cluster.Strategy) error {
	ctx, life := lab.live(ctx)
	defer life.kill()
	x := life.exchangeBy(strategy)
	x.Proxmox = claim.WithPatience(x.Proxmox, 2*time.Second, func(text string) { s.listen(step.Event{Text: text}) })
	return life.run(ctx, x, s.giveUp)
}

// foreignFew is the number of ways to exchange a system that are played unless all are to be.
const foreignFew = 8

// TestForeignHands: another person does something to the VMs, at every moment of every
// kind of exchange. Nothing is lost except what they have broken themselves; the exchange
// continues or says what is where and what to do; and once the act is reverted the
// exchange completes.
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
			n := 8
			if testing.Short() {
				n = 2
			}
			foreignHands(t, way, n, newForeignExchange)
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

// run disturbs a scene, checks the result, reverts the disturbance, and checks that the
// next run completes.
func (c foreignCell) run(t *testing.T, s *foreignScene, r *foreignResults) {
	r.cells.Add(1)
	var undo func()
	var errAct error
	var theirs []string // promises broken by the act itself
	var where string
	came, err := s.disturbed(t.Context(), t, c.at, func() {
		before := s.world.Violations()
		where = s.places()
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
	if strings.HasSuffix(change, "/status/start") && !c.at.after {
		theirs = append(theirs, s.together()...) // Proxmox was told to start the VM when no other VM had its disks
	}
	if strings.HasPrefix(change, "DELETE") && strings.Contains(change, "/qemu/") && !c.at.after {
		theirs = append(theirs, s.late()...)
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

// together are the broken promises about disks in two running VMs.
func (s *foreignScene) together() []string {
	return slices.DeleteFunc(s.world.Violations(), func(v string) bool { return !strings.Contains(v, "is in the running VMs") })
}

// late are the broken promises about a disk that was created in the VM after the request
// to delete it: a delete has no digest (Qemu.pm, destroy_vm).
func (s *foreignScene) late() []string {
	return slices.DeleteFunc(s.world.Violations(), func(v string) bool { return !strings.HasPrefix(v, "disk theirs:") })
}

// requireForeignSaid requires an error to name its VM and the remedy; an exchange's error
// also names where the disks are.
func requireForeignSaid(t *testing.T, s *foreignScene, err error) {
	t.Helper()
	said, hints := saidForeign(err)
	named := slices.ContainsFunc([]int{s.vm, s.park, s.parking()}, func(id int) bool { return strings.Contains(said, fmt.Sprintf("VM %d", id)) }) ||
		strings.Contains(said, fmt.Sprintf("SMBIOS UUID 5ec0ffee-0000-4000-8000-%012d", s.vm)) // where neither it nor its record is there
	if !named || len(hints) == 0 {
		t.Errorf("it names no VM, or does not say what to do: %s", said)
	}
	exchange := strings.HasPrefix(said, "replace/") || strings.HasPrefix(said, "put-back/")
	if exchange && !strings.Contains(said, fmt.Sprintf("where the disks of VM %d are: ", s.vm)) {
		t.Errorf("it does not say where the disks are: %s", said)
	}
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

// places says where the data disk is.
func (s *foreignScene) places() string {
	d := s.data()
	return fmt.Sprintf("%s is %s of VM %d", d.Volid, d.Key, d.VMID)
}
