package simtest

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
)

// goBack is Rollback without its report.
func (c *Client) goBack(nodes ...string) func(context.Context) error {
	return func(ctx context.Context) error { return errOf(c.Rollback(ctx, planning.Policy{Only: nodes})) }
}

// builds are the builds of all nodes.
func (l *Lab) builds() string {
	l.t.Helper()
	var out []string
	for _, n := range l.Nodes {
		out = append(out, n.Name+" "+l.machine(n.Name).Schematic.LockHash())
	}
	return strings.Join(out, "\n")
}

// TestRollback boots a node's previous system disk, keeps the present one, and then rolls
// back to that.
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
		"control plane that had left etcd":                {sim.Options{ControlPlanes: 3, Workers: 1}, "cp2", cluster.Recreate},
		"control plane with etcd's data on its data disk": {sim.Options{ControlPlanes: 3, Workers: 1, EtcdOnData: true}, "cp2", cluster.Reimage},
	}, func(t *testing.T, lab *Lab, c story) {
		lab.Replace("recast.yaml", "roll:\n", "roll:\n  strategy: "+string(c.strategy)+"\n")
		members := lab.EtcdMembers()
		old := lab.builds()
		lab.Patch(everywhere)
		must(t, lab.as(firstRun).roll(planning.Policy{Only: []string{c.node}})(t.Context()))
		rolled := lab.builds()

		rep := valueOf(lab.as(secondRun).Rollback(t.Context(), planning.Policy{Only: []string{c.node}}))(t)
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
		lab.RequireIntact()
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
			o := oneWorker()
			if c.node == "cp2" {
				o = sim.Options{ControlPlanes: 3, Workers: 1}
			}
			inLab(t, o, func(t *testing.T, lab *Lab) {
				old := lab.builds()
				lab.Patch(everywhere)
				must(t, lab.as(firstRun).roll(planning.Policy{Only: []string{c.node}})(t.Context()))
				second := lab.as(secondRun)
				second.killedAt(t, c.at, second.goBack(c.node))
				if !c.journal {
					lab.loseJournal()
				}
				p := lab.planOf(lab.Client(), c.node, planning.Policy{Only: []string{c.node}})
				if p.Strategy != cluster.Rollback || !p.Resume || len(p.Refused) > 0 || !strings.Contains(p.Why, "run "+secondRun+" began to roll it back") {
					t.Errorf("planned as %s: %s; %q", p.Strategy, p.Why, p.Refused)
				}
				// Only the unfinished work: afterwards the node is stale, and would be rolled again.
				third := lab.as(thirdRun)
				confirmed := 0
				third.Confirm = func(p planning.Plan) (bool, error) {
					confirmed++
					return p.Run == secondRun, nil
				}
				if err := third.roll(planning.Policy{Only: []string{c.node}})(t.Context()); fault.KindOf(err) != fault.Interrupted || confirmed != 2 {
					t.Fatalf("confirmed %d plans: %v", confirmed, err)
				}
				requireSame(t, old, lab.builds(), "builds after the rollback")
				lab.requireKept(1)
				lab.RequireIntact()
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
	threeControlPlanes := sim.Options{ControlPlanes: 3, Workers: 1}
	type story struct {
		o     sim.Options
		node  string
		spoil func(t *testing.T, lab *Lab)
		text  string
	}
	eachIn(t, func(c story) sim.Options { return c.o }, map[string]story{
		"the machine configuration has changed": {
			oneWorker(), "wk1", func(t *testing.T, lab *Lab) { lab.relabel("wk1") },
			"wk1: its machine configuration has changed since: put the previous lock back, with what it is of",
		},
		"the kubelet has another version": {
			oneWorker(), "wk1", func(t *testing.T, lab *Lab) {
				lab.editKept(t, "wk1", func(k *parking.KeptDisk) { k.Kubernetes = "v1.34.1" })
			}, "wk1: its Kubernetes version was v1.34.1 and is v1.35.4: put the previous lock back",
		},
		"etcd has another minor version": {
			threeControlPlanes, "cp2", func(t *testing.T, lab *Lab) {
				lab.editKept(t, "cp2", func(k *parking.KeptDisk) { k.Etcd = "3.5.21" })
			}, "cp2: its etcd was 3.5.21 and is ",
		},
		"it had not left etcd": {
			threeControlPlanes, "cp2", func(t *testing.T, lab *Lab) {
				lab.editKept(t, "cp2", func(k *parking.KeptDisk) { k.Left = false })
			}, "cp2: its old system disk holds the data of an etcd member that did not leave before it was replaced: it would never join again",
		},
		"another machine is down": {
			sim.Options{Workers: 2}, "wk1", func(t *testing.T, lab *Lab) {
				must(t, lab.World.PowerOff(9032))
				lab.World.Delay(2 * time.Minute)
			}, "other nodes are not Ready: wk2: bring them back first",
		},
	}, func(t *testing.T, lab *Lab, c story) {
		lab.Patch(everywhere)
		must(t, lab.as(firstRun).roll(planning.Policy{Only: []string{c.node}})(t.Context()))
		c.spoil(t, lab)
		before := lab.machinesDump()
		requireRefused(t, lab.as(thirdRun).goBack(c.node)(t.Context()), c.text)
		requireSame(t, before, lab.machinesDump(), "it changed something")
		lab.RequireIntact()
	})
}

// editKept changes the last kept disk in the record of a node's parking VM.
func (l *Lab) editKept(t *testing.T, node string, change func(*parking.KeptDisk)) {
	t.Helper()
	l.editRecord(node, func(rec *parking.Record) { change(&rec.Kept[len(rec.Kept)-1]) })
}

// TestUndoMeansTheRunThatStartedLast: of two rolls of one minute, the second one has the ID that sorts first. On the
// machine that did both, undo without a node is about that one. Another machine has no journal of them, and their times in
// Proxmox may be of two clocks: there the run is to be named.
func TestUndoMeansTheRunThatStartedLast(t *testing.T) {
	const first, last = "20000101-0000-ffff", "20000101-0000-0000"
	eachLongIn(t, func(bool) sim.Options { return sim.Options{ControlPlanes: 1, Workers: 2} }, map[string]bool{"on the same machine": false, "on another machine": true},
		func(t *testing.T, lab *Lab, elsewhere bool) {
			lab.Patch(everywhere)
			must(t, lab.as(first).roll(planning.Policy{Only: []string{"wk1"}})(t.Context()))
			must(t, lab.as(last).roll(planning.Policy{Only: []string{"wk2"}})(t.Context()))
			c, run := lab.as("20000101-0000-8888"), ""
			if c.Elsewhere = elsewhere; elsewhere {
				lab.loseJournal()
				_, err := c.Undo(t.Context(), planning.Policy{}, planning.Undone{})
				requireFault(t, err, fault.Refused, "is not certain", first, last)
				run = "0000-0000"
			}
			rep := valueOf(c.Undo(t.Context(), planning.Policy{}, planning.Undone{Run: run}))(t)
			n := rep.Plan.Work()
			require(t, len(n) == 1 && n[0].Node == "wk2", "undone: %+v", n)
		})
}
