package contract

import (
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/sim/world"
)

// unfinished is an interrupted exchange, and how it is resumed.
type unfinished struct {
	strategy cluster.Strategy
	putBack  bool
}

func (u unfinished) String() string {
	if u.putBack {
		return string(u.strategy) + "/given up"
	}
	return string(u.strategy) + "/finished"
}

func unfinishedOnes() []unfinished {
	return []unfinished{{cluster.Recreate, false}, {cluster.Recreate, true}, {cluster.Reimage, false}, {cluster.Reimage, true}, {cluster.Rollback, false}}
}

// TestExchangeResume kills an exchange after each of its changes. Another process, which
// only has Proxmox's state, finishes or cancels it.
func TestExchangeResume(t *testing.T) {
	long(t)
	for i, u := range unfinishedOnes() {
		t.Run(u.String(), func(t *testing.T) {
			n, first, each := u.changes(t), 0, 1
			if _, isReal := realPlace(t); isReal { // every third takes minutes already
				first, each = i%3, 3
			}
			var chosen slice
			for k := first; k < n; k += each {
				chosen.story(t, fmt.Sprintf("after %d of %d changes", k, n), 0, func(t *testing.T, s *server) { u.killed(t, s, after(k)) })
			}
		})
	}
}

// changes counts the changes of an undisturbed exchange.
func (u unfinished) changes(t *testing.T) (n int) {
	t.Helper()
	if _, isReal := realPlace(t); !isReal {
		return u.changesSimulated(t)
	}
	story(t, "undisturbed", 0, func(t *testing.T, s *server) { n = u.count(t, s) })
	return n
}

// changesSimulated counts them in the simulator.
func (u unfinished) changesSimulated(t *testing.T) int {
	t.Helper()
	return u.simulate(t, u.count)
}

// simulate returns a count made in the simulator. It makes the count at once, while cases
// given to run begin only after this test has ended. A real server is not needed for cases
// that can't run on it.
func (unfinished) simulate(t *testing.T, count func(t *testing.T, s *server) int) (n int) {
	t.Helper()
	if _, isReal := realPlace(t); isReal {
		run(t, simulated, nil)
	}
	synctest.Test(t, func(t *testing.T) { n = count(t, newSimulated(t)) })
	return n
}

func (u unfinished) count(t *testing.T, s *server) int {
	t.Helper()
	x, px := u.node(t, s), mortal(s.newClient(), immortal)
	must(t, x.exchange(px, u.strategy, "r1"))
	u.check(t, x, false)
	return px.done
}

// node is one to be exchanged; for a rollback it was exchanged once before.
func (u unfinished) node(t *testing.T, s *server) *exchanged {
	t.Helper()
	x := s.newPlainNode()
	if u.strategy != cluster.Rollback {
		return x
	}
	must(t, x.exchange(s.newClient(), cluster.Reimage, "r0"))
	return x
}

// killed ends an exchange by lives, and another process resumes it.
func (u unfinished) killed(t *testing.T, s *server, lives func(int, mutation) bool) {
	t.Helper()
	x := u.node(t, s)
	x.interrupt(t, mortal(s.newClient(), lives), u.strategy)
	must(t, x.resume(s.newClient(), u.strategy, "r1", u.putBack))
	u.check(t, x, u.putBack)
}

// check compares the result with that of an undisturbed exchange.
func (u unfinished) check(t *testing.T, x *exchanged, putBack bool) {
	t.Helper()
	const what = "in the end"
	switch {
	case putBack:
		x.wantMachine(t, what, x.before)
		if parking, err := x.parking(x.s.client); err == nil && parking != nil {
			x.wantGivenUp(t, what, "r1", false)
		}
	case u.strategy == cluster.Rollback:
		x.wantMachine(t, what, x.before.markedBy("r1"))
		x.wantKept(t, what, x.replacement("r0"))
	default:
		x.wantMachine(t, what, x.before.renewedBy("r1", x.serial()))
		x.wantKept(t, what, x.before.Drives["scsi0"])
	}
	x.s.intact(t)
}

// replacement is the blank system disk that a run made for the node.
func (x *exchanged) replacement(run string) driveIs {
	x.s.t.Helper()
	parking, err := x.parking(x.s.client)
	if err != nil || parking == nil || len(parking.Record.Kept) != 1 {
		x.s.t.Fatalf("parking VM %v, %v", parking, err)
	}
	id, key := int(parking.VM.ID), parking.Record.Kept[0].Key
	d := x.before.renewedBy(run, "").Drives["scsi0"]
	now := x.s.machine(id).Drives[key]
	d.Options, d.Used, d.Bytes = now.Options, now.Used, now.Bytes
	return d
}

// TestExchangeCutOff: Proxmox itself is interrupted between the parts of each hand-over of
// a disk, when no configuration names the volume.
func TestExchangeCutOff(t *testing.T) {
	long(t)
	moves := map[cluster.Strategy]int{cluster.Recreate: 3, cluster.Reimage: 1, cluster.Rollback: 2}
	stages := map[string]world.MoveStage{"once it is renamed": world.AfterRename, "once the source is written": world.AfterSource}
	var chosen slice
	for _, u := range unfinishedOnes() {
		for n := 1; n <= moves[u.strategy]; n++ {
			for when, stage := range inOrder(stages) {
				chosen.story(t, fmt.Sprintf("%s/hand-over %d/%s", u, n, when), simulated, func(t *testing.T, s *server) {
					seen := 0
					u.killed(t, s, func(_ int, c mutation) bool {
						if c.what == "move" {
							if seen++; seen == n {
								s.sim.world.StopNextMove(stage, false)
							}
						}
						return true
					})
				})
			}
		}
	}
}

// TestExchangeNoQuorum removes the quorum before each change of an exchange, or of its
// cancellation: Proxmox would destroy disks and then fail, so recast must not ask it to.
func TestExchangeNoQuorum(t *testing.T) {
	for _, u := range []unfinished{{cluster.Recreate, false}, {cluster.Reimage, false}, {cluster.Recreate, true}} {
		t.Run(u.String(), func(t *testing.T) {
			n := u.simulate(t, func(t *testing.T, s *server) int {
				x, px := u.begun(t, s), mortal(s.newClient(), immortal)
				must(t, u.goOn(x, px))
				return px.done
			})
			var chosen slice
			for k := range n {
				chosen.story(t, fmt.Sprintf("before change %d", k+1), simulated, func(t *testing.T, s *server) { u.isolated(t, s, k) })
			}
		})
	}
}

// begun is a node whose exchange, or cancellation, is about to begin.
func (u unfinished) begun(t *testing.T, s *server) *exchanged {
	t.Helper()
	x := u.node(t, s)
	if u.putBack {
		x.interrupt(t, mortal(s.newClient(), untilClosed), u.strategy)
	}
	return x
}

func (u unfinished) goOn(x *exchanged, px cluster.Proxmox) error {
	if u.putBack {
		return x.resume(px, u.strategy, "r1", true)
	}
	return x.exchange(px, u.strategy, "r1")
}

// isolated removes the quorum after k changes. TestExchangeResume covers how the exchange
// continues.
func (u unfinished) isolated(t *testing.T, s *server, k int) {
	t.Helper()
	x := u.begun(t, s)
	px := mortal(s.newClient(), func(_ int, m mutation) bool {
		if m.needsQuorum() && !s.sim.world.Quorate() {
			t.Errorf("without quorum it asks Proxmox to %s: %v %v", m.what, m.set, m.del)
		}
		return true
	})
	px.then = func(made int) { s.sim.world.SetQuorum(made != k) }
	s.sim.world.SetQuorum(k > 0)
	if err := u.goOn(x, px); err == nil || px.done != k {
		t.Errorf("without quorum after change %d it made %d, and ended with: %v", k, px.done, err)
	}
	x.wantAllThere(t)
	s.sim.world.SetQuorum(true)
}
