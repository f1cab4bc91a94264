package contract

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/claim"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
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
		return u.simulate(t, u.count)
	}
	story(t, "undisturbed", 0, func(t *testing.T, s *server) { n = u.count(t, s) })
	return n
}

// simulate returns a count made in the simulator. It makes the count at once, while cases given to run begin only after
// this test has ended. A real server is not needed for cases that can't run on it.
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
	must.Do(t, x.exchange(px, u.strategy, "r1"))
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
	must.Do(t, x.exchange(s.newClient(), cluster.Reimage, "r0"))
	return x
}

// killed ends an exchange by lives, and another process resumes it.
func (u unfinished) killed(t *testing.T, s *server, lives func(int, mutation) bool) {
	t.Helper()
	x := u.node(t, s)
	x.interrupt(t, mortal(s.newClient(), lives), u.strategy)
	must.Do(t, x.resume(s.newClient(), u.strategy, "r1", u.putBack))
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
				must.Do(t, x.resume(px, u.strategy, "r1", u.putBack))
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

// isolated removes the quorum after k changes. TestExchangeResume covers how the exchange continues.
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
	if err := x.resume(px, u.strategy, "r1", u.putBack); err == nil || px.done != k {
		t.Errorf("without quorum after change %d it made %d, and ended with: %v", k, px.done, err)
	}
	x.wantAllThere(t)
	s.sim.world.SetQuorum(true)
}

// errKilled is the result of every action of a killed process.
var errKilled = errors.New("killed")

// dying is a Proxmox for a process that will be killed: from some change on it makes no
// more. It embeds only the reading methods.
type dying struct {
	cluster.Access
	cluster.Inventory
	cluster.Tasks
	px    cluster.Proxmox
	lives func(changes int, c mutation) bool
	then  func(changes int) // called after each change; may be nil
	done  int               // changes made
	dead  bool
}

var _ cluster.Proxmox = (*dying)(nil)

// mutation is a change that recast is about to make.
type mutation struct {
	what string // the method
	set  map[string]string
	del  []string
}

var newVolume = regexp.MustCompile(`^[^:,]+:\d+(?:\.\d+)?(?:,|$)`)

// needsQuorum says whether Proxmox does part of it before it notices that it can't write
// the configuration: it frees, renames or makes volumes, and then fails.
func (m mutation) needsQuorum() bool {
	for key, value := range m.set {
		if cluster.IsDiskKey(key) && newVolume.MatchString(value) {
			return true
		}
	}
	return m.what == "delete" || m.what == "free" || m.what == "move" || slices.ContainsFunc(m.del, cluster.IsDiskKey)
}

// mortal is a Proxmox that makes changes while lives allows it.
func mortal(px cluster.Proxmox, lives func(changes int, c mutation) bool) *dying {
	return &dying{Access: px, Inventory: px, Tasks: px, px: px, lives: lives}
}

// immortal only counts.
func immortal(int, mutation) bool { return true }

// after allows n changes.
func after(n int) func(int, mutation) bool {
	return func(changes int, _ mutation) bool { return changes < n }
}

// untilClosed allows everything except closing the record, which is the last change.
func untilClosed(_ int, c mutation) bool {
	return !strings.Contains(c.set["description"], `"open":false`)
}

func (d *dying) do(c mutation, carryOut func() error) error {
	if d.dead = d.dead || !d.lives(d.done, c); d.dead {
		return errKilled
	}
	if err := carryOut(); err != nil {
		return err
	}
	d.done++
	if d.then != nil {
		d.then(d.done)
	}
	return nil
}

func (d *dying) CreateVM(ctx context.Context, host string, id cluster.VMID, config map[string]string) error {
	return d.do(mutation{what: "create", set: config}, func() error { return d.px.CreateVM(ctx, host, id, config) })
}

func (d *dying) SetConfig(ctx context.Context, vm cluster.VM, set map[string]string, del []string) error {
	return d.do(mutation{what: "set", set: set, del: del}, func() error { return d.px.SetConfig(ctx, vm, set, del) })
}

func (d *dying) FreeDisk(ctx context.Context, vm cluster.VM, key string) error {
	return d.do(mutation{what: "free"}, func() error { return d.px.FreeDisk(ctx, vm, key) })
}

func (d *dying) DeleteVM(ctx context.Context, vm cluster.VM) error {
	return d.do(mutation{what: "delete"}, func() error { return d.px.DeleteVM(ctx, vm) })
}

func (d *dying) MoveDisk(ctx context.Context, vm cluster.VM, key string, to cluster.VMID, toKey string) error {
	return d.do(mutation{what: "move"}, func() error { return d.px.MoveDisk(ctx, vm, key, to, toKey) })
}

func (d *dying) GrowDisk(ctx context.Context, vm cluster.VM, key, size string) error {
	return d.do(mutation{what: "grow"}, func() error { return d.px.GrowDisk(ctx, vm, key, size) })
}

func (d *dying) Migrate(ctx context.Context, vm cluster.VM, to string) error {
	return d.do(mutation{what: "migrate"}, func() error { return d.px.Migrate(ctx, vm, to) })
}

func (d *dying) SetPool(ctx context.Context, id cluster.VMID, pool string) error {
	return d.do(mutation{what: "set pool"}, func() error { return d.px.SetPool(ctx, id, pool) })
}

func (d *dying) SetFirewall(ctx context.Context, vm cluster.VM, want cluster.FirewallConfig) error {
	return d.do(mutation{what: "set firewall"}, func() error { return d.px.SetFirewall(ctx, vm, want) })
}

func (d *dying) RemoveHA(ctx context.Context, id cluster.VMID) error {
	return d.do(mutation{what: "remove HA"}, func() error { return d.px.RemoveHA(ctx, id) })
}

func (d *dying) AddHA(ctx context.Context, r cluster.HAResource) error {
	return d.do(mutation{what: "add HA"}, func() error { return d.px.AddHA(ctx, r) })
}

func (d *dying) SetHA(ctx context.Context, r cluster.HAResource) error {
	return d.do(mutation{what: "set HA"}, func() error { return d.px.SetHA(ctx, r) })
}

func (d *dying) Start(ctx context.Context, vm cluster.VM) error {
	return d.do(mutation{what: "start"}, func() error { return d.px.Start(ctx, vm) })
}

func (d *dying) Shutdown(ctx context.Context, vm cluster.VM, grace time.Duration) error {
	return d.do(mutation{what: "shutdown"}, func() error { return d.px.Shutdown(ctx, vm, grace) })
}

func (d *dying) Stop(ctx context.Context, vm cluster.VM) error {
	return d.do(mutation{what: "stop"}, func() error { return d.px.Stop(ctx, vm) })
}

// claimant is a process that wants the claim, with its own connection.
func (s *server) claimant(id int, run string) *claim.Claim {
	return &claim.Claim{
		Proxmox: s.newClient(), Cluster: exchangeCluster, VMID: cluster.VMID(id), Host: s.place.node, Run: run,
		Holder: claim.Holder{Host: "contract", Boot: "b", PID: len(run), Start: run},
		Parked: true, // other tests exchange VMs under the same cluster's name
	}
}

// beat is the counter of the claim's holder.
func (s *server) beat(id int) int {
	s.t.Helper()
	state, found, err := claim.Peek([]cluster.VM{s.read(id)}, exchangeCluster, cluster.VMID(id))
	if err != nil || !found {
		s.t.Fatalf("no claim: %v", err)
	}
	return state.Beat
}

// TestClaim: one process at a time.
func TestClaim(t *testing.T) {
	story(t, "keeps a second process out, for as long as the first one lives", 0, func(t *testing.T, s *server) {
		id := s.freeID()
		held := must.Get(s.claimant(id, "r1").Acquire(t.Context()))(t)
		began := s.beat(id)
		if _, err := s.claimant(id, "r2").Acquire(t.Context()); fault.KindOf(err) != fault.Claimed || !strings.Contains(err.Error(), "run r1") {
			t.Errorf("the second one: %v", err)
		}
		if now := s.beat(id); now <= began {
			t.Errorf("the claim's counter stands at %d, stood at %d", now, began)
		}
		must.Do(t, held.Check(t.Context()))
		must.Do(t, held.Release(t.Context()))
		if r := s.do(http.MethodGet, s.vm(id, "config")); r.Code == http.StatusOK {
			t.Error("given back, the claim is still there")
		}
		next := must.Get(s.claimant(id, "r2").Acquire(t.Context()))(t)
		must.Do(t, next.Release(t.Context()))
	})
	story(t, "is no other VM's number", 0, func(t *testing.T, s *server) {
		id := s.newVM()
		before := s.config(id)["digest"]
		if _, err := s.claimant(id, "r1").Acquire(t.Context()); fault.KindOf(err) != fault.Refused {
			t.Error(err)
		}
		same(t, before, s.config(id)["digest"])
	})
}

// TestClaimTakenOver: a process that was stopped for long loses the claim, and changes
// nothing any more; the process that has taken it over continues.
func TestClaimTakenOver(t *testing.T) {
	long(t)
	run(t, 0, func(t *testing.T, s *server) {
		id, x, px := s.freeID(), s.newPlainNode(), s.newClient()
		beating, stopBeating := context.WithCancel(t.Context())
		held := must.Get(s.claimant(id, "r1").Acquire(beating))(t)
		steps := must.Get(x.open(held.Guard(px), cluster.Recreate, "r1"))(t)
		stopBeating()
		began := time.Now()
		next := must.Get(s.claimant(id, "r2").Acquire(t.Context()))(t)
		wantTook(t, began, claim.Watch, 0)
		parked := s.digest(x.park)
		if err := s.carryOut(steps); fault.KindOf(err) != fault.Claimed || !strings.Contains(err.Error(), "run r2") {
			t.Errorf("the first one continued: %v", err)
		}
		x.wantMachine(t, "of the first one", x.before)
		same(t, parked, s.digest(x.park))
		if err := x.resume(next.Guard(s.newClient()), cluster.Recreate, "r1", false); err != nil {
			t.Errorf("the second one: %v", err)
		}
		x.wantMachine(t, "the second one", x.before.renewedBy("r1", x.serial()))
		x.wantKept(t, "the second one", x.before.Drives["scsi0"])
		must.Do(t, next.Release(t.Context()))
		s.intact(t)
	})
}

// TestClaimLost takes the claim before each change of an exchange: neither that change nor any later one is made.
func TestClaimLost(t *testing.T) {
	u := unfinished{strategy: cluster.Reimage}
	var chosen slice
	for k := range u.simulate(t, u.count) {
		chosen.story(t, fmt.Sprintf("before change %d", k+1), simulated, func(t *testing.T, s *server) {
			id, x := s.freeID(), u.node(t, s)
			held := must.Get(s.claimant(id, "r1").Acquire(t.Context()))(t)
			px := mortal(held.Guard(s.newClient()), func(made int, _ mutation) bool {
				if made == k {
					s.usurp(id)
				}
				return true
			})
			if err := x.exchange(px, u.strategy, "r1"); fault.KindOf(err) != fault.Claimed || px.done != k {
				t.Errorf("it made %d changes and ended with: %v", px.done, err)
			}
			x.wantAllThere(t)
		})
	}
}

// usurp has another process take over at once, as if it knew that the holder is dead.
func (s *server) usurp(id int) {
	s.t.Helper()
	c := s.claimant(id, "usurper")
	c.Dead = func(claim.Holder) bool { return true }
	if _, err := c.Acquire(s.t.Context()); err != nil {
		s.t.Error(err)
	}
}
