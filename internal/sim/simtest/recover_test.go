package simtest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/world"
)

// machinesDump is settledDump of only the lab's own machines and their Nodes, without parking VMs, ISOs and the like.
func (l *Lab) machinesDump() string {
	l.t.Helper()
	dump, ours := "", false
	for line := range strings.Lines(l.settledDump()) {
		if !strings.HasPrefix(line, "  ") {
			ours = strings.HasPrefix(line, "node ") || slices.ContainsFunc(l.Nodes, func(n sim.Node) bool {
				return strings.HasPrefix(line, fmt.Sprintf("VM %d ", n.VMID))
			})
		}
		if ours {
			dump += line
		}
	}
	return dump
}

// recovery is one node's replacement that is cancelled at some moment.
type recovery struct {
	strategy cluster.Strategy
	node     string
	at       moment // of the roll
	onData   bool   // etcd's data is on a persistent disk
	journal  bool
	always   bool // also in the default slice
}

func (r recovery) String() string {
	where, journal := "", "without-journal"
	if r.onData {
		where = "etcd-on-data-disk/"
	}
	if r.journal {
		journal = "with-journal"
	}
	return fmt.Sprintf("%s/%s/%s%s/%s", r.strategy, r.node, where, r.at, journal)
}

func recoveries() []recovery {
	var all []recovery
	add := func(r recovery, always []moment, others ...moment) {
		for i, m := range slices.Concat(always, others) {
			r.at, r.journal, r.always = m, i%2 == 0, i < len(always)
			all = append(all, r)
		}
	}
	add(recovery{strategy: cluster.Recreate, node: "wk1"},
		[]moment{before("take-down/drain"), after("park/scsi0"), after("delete-vm"), onServer("ApplyConfiguration"), before("finish/keep")},
		after("take-down/drain"), after("take-down/stop"), after("park/efidisk0"), after("create-vm"), after("attach/scsi1"),
		before("bring-up/configure"), after("bring-up/configure"))
	add(recovery{strategy: cluster.Reimage, node: "wk1"}, []moment{after("blank-disk")},
		after("take-down/drain"), after("park/scsi0"), onServer("ApplyConfiguration"), before("finish/keep"))
	add(recovery{strategy: cluster.Recreate, node: "cp2"}, []moment{after("leave-etcd"), before("finish/keep")},
		after("delete-vm"), after("create-vm"), after("bring-up/configure"))
	add(recovery{strategy: cluster.Recreate, node: "cp2", onData: true}, nil, after("delete-vm"), before("finish/keep"))
	add(recovery{strategy: cluster.Reimage, node: "cp2"}, nil, after("park/scsi0"), before("finish/keep"))
	return all
}

func (r recovery) lab(t *testing.T) *Lab {
	o := oneWorker()
	if r.node != "wk1" {
		o = sim.Options{ControlPlanes: 3, Workers: 1, EtcdOnData: r.onData}
	}
	lab := New(t, o)
	strategy(r.strategy)(lab)
	lab.Patch(everywhere)
	if r.node == "wk1" {
		lab.World.AddHA(world.HAResource{SID: "vm:9031", State: "started", Options: map[string]string{"max_restart": "3", "comment": "wk1 of the lab"}})
		lab.allow("HA", "Sys.Console")
	}
	return lab
}

// TestRecover cancels a replacement at every moment: the node runs its old system, with
// all its disks, settings and options, and nothing is left.
func TestRecover(t *testing.T) {
	long(t)
	for _, r := range chosenKills(t, recoveries(), 1, func(r recovery) bool { return r.always }) {
		t.Run(r.String(), func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				lab := r.lab(t)
				before := lab.machinesDump()
				c := lab.Client()
				c.rollKilled(r.at, policyFor(r.node))
				if !r.journal {
					lab.loseJournal()
				}
				rep := valueOf(lab.Client().Recover(t.Context(), r.node))(t)
				require(t, rep.Outcome == "done" && strings.Join(rep.Resumed, " ") == c.Run, "report %+v", rep)
				lab.requireRecovered(before)
			})
		})
	}
}

// requireRecovered compares the machines with those before the roll.
func (l *Lab) requireRecovered(before string) {
	l.t.Helper()
	l.RequireIntact()
	requireSame(l.t, before, l.machinesDump(), "the machines are not as they were")
	l.requireKept(0)
	l.requireEtcd()
}

// TestRecoverKilled kills recover too, and the next command finishes it: another recover
// leaves the node as it was, a roll then rolls it again.
func TestRecoverKilled(t *testing.T) {
	long(t)
	atStart := recovery{strategy: cluster.Recreate, node: "wk1", at: before("bring-up/start")}
	atKeep := recovery{strategy: cluster.Recreate, node: "wk1", at: before("finish/keep")}
	control := recovery{strategy: cluster.Recreate, node: "cp2", at: before("finish/keep")}
	type kill struct {
		recovery
		then   moment // of recover
		roll   bool   // the next command is a roll
		always bool   // also in the default slice
	}
	for _, c := range chosenKills(t, []kill{
		{atStart, after("put-back/give-up"), true, false},
		{atStart, onServer("/qemu/9031/move_disk POST"), false, true},
		{atStart, after("put-back/attach/scsi0"), true, false},
		{atStart, after("put-back/start"), false, false},
		{atKeep, onServer("/status/shutdown POST"), false, false},
		{atKeep, onServer("/qemu/9031/config POST"), false, true},
		{atKeep, after("put-back/park-new"), true, true},
		{atKeep, before("finish/close"), false, false},
		{control, onServer("EtcdLeaveCluster"), false, false},
		{control, before("finish/restore-node"), false, true},
	}, 2, func(c kill) bool { return c.always }) {
		next := "recover"
		if c.roll {
			next = "roll"
		}
		t.Run(fmt.Sprintf("%s/%s/%s/%s", c.node, c.at, c.then, next), func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				lab := c.lab(t)
				dump := lab.machinesDump()
				lab.Client().rollKilled(c.at, policyFor(c.node))
				second := lab.Client()
				second.killedAt(t, c.then, second.giveUp(c.node))
				lab.loseJournal()
				p := lab.planOf(lab.Client(), c.node, planning.Policy{})
				require(t, p.Resume && p.Strategy == cluster.PutBack &&
					strings.Contains(p.Why, "someone asked for the old system disk"), "planned as %s: %s", p.Strategy, p.Why)
				if !c.roll {
					must(t, lab.Client().giveUp(c.node)(t.Context()))
					lab.requireRecovered(dump)
					return
				}
				lab.as("20000101-0000-beef").rollTo(t, policyFor(c.node), lab.others(c.node)...)
				lab.requireKept(1)
			})
		})
	}
}

func (c *Client) giveUp(node string) func(context.Context) error {
	return func(ctx context.Context) error { return errOf(c.Recover(ctx, node)) }
}

// TestRecoverKilledAnywhere kills recover at points of every kind.
func TestRecoverKilledAnywhere(t *testing.T) {
	long(t)
	if *crashSlice == 0 && !*crashAll {
		t.Skip("long: make crash")
	}
	for _, r := range []recovery{
		{strategy: cluster.Recreate, node: "wk1", at: before("finish/keep")},
		{strategy: cluster.Reimage, node: "wk1", at: before("finish/keep"), journal: true},
		{strategy: cluster.Recreate, node: "cp2", at: before("finish/keep")},
	} {
		t.Run(r.String(), func(t *testing.T) {
			t.Parallel()
			killGrid[halfRolled]{
				begin: func(t *testing.T) halfRolled {
					lab := r.lab(t)
					dump := lab.machinesDump()
					lab.Client().rollKilled(r.at, policyFor(r.node))
					return halfRolled{lab, dump}
				},
				do: func(ctx context.Context, c *Client) error { return c.giveUp(r.node)(ctx) }, journal: true,
				choose: func(t *testing.T, points []point) []point { return chosenKills(t, points, 2, nil) },
				goOn: func(t *testing.T, lab halfRolled, _ point) bool {
					if !r.journal {
						lab.loseJournal()
					}
					if res, err := lab.Client().Status(t.Context()); err != nil || len(res.Open) > 0 || res.Claim != nil {
						if err := lab.Client().giveUp(r.node)(t.Context()); err != nil && len(res.Open) > 0 {
							t.Error(err)
						}
					}
					return false
				},
				end: func(t *testing.T, lab halfRolled) string { lab.requireRecovered(lab.before); return "" },
			}.killEverywhere(t)
		})
	}
}

// halfRolled is a lab with a replacement that was killed.
type halfRolled struct {
	*Lab
	before string // its machinesDump
}

// TestRecoverRefused: if nothing can be cancelled, the error says what to do instead.
func TestRecoverRefused(t *testing.T) {
	long(t)
	type story struct {
		o          sim.Options
		node       string
		begin      func(lab *Lab)
		text, hint string
	}
	eachIn(t, func(c story) sim.Options { return c.o }, map[string]story{
		"a finished roll": {
			oneWorker(), "wk1", func(lab *Lab) { lab.Client().mustRoll(planning.Policy{}) },
			"node wk1: no replacement of it is unfinished", "recast undo wk1",
		},
		"a rollback": {
			oneWorker(), "wk1", func(lab *Lab) {
				lab.Client().mustRoll(planning.Policy{})
				c := lab.second()
				c.killedAt(lab.t, after("restore-disk"), c.goBack())
			},
			"node wk1: a rollback of it is unfinished", "recast roll finishes that; recast undo wk1 then goes the other way",
		},
		"its etcd member is gone": {
			threePlanes, "cp2", func(lab *Lab) { lab.Client().rollKilled(onServer("EtcdLeaveCluster"), policyFor("cp2")) },
			"which is no member any more: it would never join again", "let recast roll finish the replacement instead",
		},
	}, func(t *testing.T, lab *Lab, c story) {
		lab.Patch(sim.PatchedExtension)
		if c.node == "cp2" {
			lab.Patch(everywhere)
		}
		c.begin(lab)
		before := lab.machinesDump()
		requireFault(t, errOf(lab.Client().Recover(t.Context(), c.node)), fault.Refused, c.text, c.hint)
		requireSame(t, before, lab.machinesDump(), "it changed something")
		lab.as("20000101-0000-cafe").rollTo(t, planning.Policy{})
	})
}

func (c *Client) goBack(nodes ...string) func(context.Context) error {
	return func(ctx context.Context) error { return errOf(c.Rollback(ctx, planning.Policy{Only: nodes})) }
}

func (l *Lab) builds() string {
	l.t.Helper()
	of := func(n sim.Node) string { return n.Name + " " + l.machine(n.Name).Schematic.LockHash() }
	return strings.Join(ofEach(l.Nodes, of), "\n")
}

// TestRollback boots a node's previous system disk, keeps the present one, and then rolls back to that.
func TestRollback(t *testing.T) {
	type story struct {
		o        sim.Options
		node     string
		strategy cluster.Strategy
	}
	eachLongIn(t, func(c story) sim.Options { return c.o }, map[string]story{
		"worker after recreate":                           {oneWorker(), "wk1", cluster.Recreate},
		"worker after reimage":                            {oneWorker(), "wk1", cluster.Reimage},
		"worker with a data VM":                           {sim.Options{ControlPlanes: 1, Workers: 1, Holder: true}, "wk1", cluster.Recreate},
		"control plane that had left etcd":                {threePlanes, "cp2", cluster.Recreate},
		"control plane with etcd's data on its data disk": {sim.Options{ControlPlanes: 3, Workers: 1, EtcdOnData: true}, "cp2", cluster.Reimage},
	}, func(t *testing.T, lab *Lab, c story) {
		strategy(c.strategy)(lab)
		members := lab.EtcdMembers()
		old := lab.builds()
		lab.Patch(everywhere)
		must(t, lab.as(firstRun).roll(policyFor(c.node))(t.Context()))
		rolled := lab.builds()

		rep := valueOf(lab.as(secondRun).Rollback(t.Context(), policyFor(c.node)))(t)
		n := rep.Plan.Nodes
		require(t, len(n) == 1 && n[0].Strategy == cluster.Rollback && strings.Contains(n[0].Why, "boots the system disk that run "+firstRun+" replaced: Talos v1.13.9"),
			"plan %+v", n)
		requireSame(t, old, lab.builds(), "builds after the rollback")
		requireDrift(t, lab, lab.others("")...)
		lab.requireKept(1)
		lab.RequireIntact()

		must(t, lab.as(thirdRun).goBack(c.node)(t.Context()))
		requireSame(t, rolled, lab.builds(), "builds after the rollback of the rollback")
		requireDrift(t, lab, lab.others(c.node)...)
		lab.requireKept(1)
		if c.o.ControlPlanes == 3 {
			requireMembers(t, lab, fmt.Sprint(members), c.o.EtcdOnData)
		}
	})
}

// TestRollbackKilled: the next roll, with its journal or without, finishes the rollback.
func TestRollbackKilled(t *testing.T) {
	long(t)
	type kill struct {
		node    string
		at      moment
		journal bool
		always  bool // also in the default slice
	}
	for _, c := range chosenKills(t, []kill{
		{"wk1", after("take-down/drain"), false, false},
		{"wk1", after("park/scsi0"), true, false},
		{"wk1", onServer("/move_disk POST"), false, true},
		{"wk1", after("restore-disk"), false, true},
		{"wk1", after("bring-up/start"), true, false},
		{"wk1", before("finish/keep"), false, false},
		{"cp2", onServer("EtcdLeaveCluster"), false, true},
		{"cp2", after("restore-disk"), false, false},
		{"cp2", before("finish/restore-node"), false, false},
	}, 1, func(c kill) bool { return c.always }) {
		t.Run(c.node+"/"+c.at.String(), func(t *testing.T) {
			o := map[string]sim.Options{"wk1": oneWorker(), "cp2": threePlanes}[c.node]
			inLab(t, o, func(t *testing.T, lab *Lab) {
				old := lab.builds()
				lab.Patch(everywhere)
				must(t, lab.as(firstRun).roll(policyFor(c.node))(t.Context()))
				second := lab.as(secondRun)
				second.killedAt(t, c.at, second.goBack(c.node))
				if !c.journal {
					lab.loseJournal()
				}
				p := lab.planOf(lab.Client(), c.node, policyFor(c.node))
				requirePlanned(t, p, cluster.Rollback, "run "+secondRun+" began to roll it back")
				require(t, p.Resume, "it is no resume: %s", p.Why)
				// Only the unfinished work: afterwards the node is stale, and would be rolled again.
				third := lab.as(thirdRun)
				confirmed := 0
				third.Confirm = func(p planning.Plan) (bool, error) {
					confirmed++
					return p.Run == secondRun, nil
				}
				err := third.roll(policyFor(c.node))(t.Context())
				mustBe(t, fault.KindOf(err) == fault.Interrupted && confirmed == 2, "confirmed %d plans: %v", confirmed, err)
				requireSame(t, old, lab.builds(), "builds after the rollback")
				lab.requireKept(1)
				if c.node == "cp2" {
					requireMembers(t, lab, "", false)
				}
			})
		})
	}
}

// TestRollbackRefused: rollbacks that the old system would not survive, or not as the same
// machine, are refused before anything is touched.
func TestRollbackRefused(t *testing.T) {
	long(t)
	kept := func(node string, change func(*parking.KeptDisk)) edit { // its last kept disk, in the record
		return func(l *Lab) { l.editRecord(node, func(rec *parking.Record) { change(&rec.Kept[len(rec.Kept)-1]) }) }
	}
	type story struct {
		o     sim.Options
		node  string
		spoil edit
		text  string
	}
	eachIn(t, func(c story) sim.Options { return c.o }, map[string]story{
		"the machine configuration has changed": {
			oneWorker(), "wk1", func(lab *Lab) { lab.relabel("wk1") },
			"wk1: its machine configuration has changed since: put the previous lock back, with what it is of",
		},
		"the kubelet has another version": {
			oneWorker(), "wk1", kept("wk1", func(k *parking.KeptDisk) { k.Kubernetes = "v1.34.1" }),
			"wk1: its Kubernetes version was v1.34.1 and is v1.35.4: put the previous lock back",
		},
		"etcd has another minor version": {
			threePlanes, "cp2", kept("cp2", func(k *parking.KeptDisk) { k.Etcd = "3.5.21" }), "cp2: its etcd was 3.5.21 and is ",
		},
		"it had not left etcd": {
			threePlanes, "cp2", kept("cp2", func(k *parking.KeptDisk) { k.Left = false }),
			"cp2: its old system disk holds the data of an etcd member that did not leave before it was replaced: it would never join again",
		},
		"another machine is down": {
			sim.Options{Workers: 2}, "wk1", func(lab *Lab) {
				must(lab.t, lab.World.PowerOff(9032))
				lab.World.Delay(2 * time.Minute)
			}, "other nodes are not Ready: wk2: bring them back first",
		},
	}, func(t *testing.T, lab *Lab, c story) {
		lab.Patch(everywhere)
		must(t, lab.as(firstRun).roll(policyFor(c.node))(t.Context()))
		c.spoil(lab)
		before := lab.machinesDump()
		requireRefused(t, lab.as(thirdRun).goBack(c.node)(t.Context()), c.text)
		requireSame(t, before, lab.machinesDump(), "it changed something")
	})
}

// TestUndoMeansTheRunThatStartedLast: of two rolls of one minute, the second one has the ID that sorts first. On the
// machine that did both, undo without a node is about that one. Another machine has no journal of them, and their times in
// Proxmox may be of two clocks: there the run is to be named.
func TestUndoMeansTheRunThatStartedLast(t *testing.T) {
	const first, last = "20000101-0000-ffff", "20000101-0000-0000"
	stories := map[string]bool{"on the same machine": false, "on another machine": true}
	eachLong(t, twoWorkers, stories, func(t *testing.T, lab *Lab, elsewhere bool) {
		lab.Patch(everywhere)
		must(t, lab.as(first).roll(onlyWorker)(t.Context()))
		must(t, lab.as(last).roll(policyFor("wk2"))(t.Context()))
		c, run := lab.as("20000101-0000-8888"), ""
		if c.Elsewhere = elsewhere; elsewhere {
			lab.loseJournal()
			err := errOf(c.Undo(t.Context(), planning.Policy{}, planning.Undone{}))
			requireFault(t, err, fault.Refused, "is not certain", first, last)
			run = "0000-0000"
		}
		n := valueOf(c.Undo(t.Context(), planning.Policy{}, planning.Undone{Run: run}))(t).Plan.Work()
		require(t, len(n) == 1 && n[0].Node == "wk2", "undone: %+v", n)
	})
}
