package simtest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/world"
)

// machinesDump is settledDump of only the lab's own machines and their Nodes, without
// parking VMs, ISOs and the like.
func (l *Lab) machinesDump() string {
	l.t.Helper()
	var b strings.Builder
	ours := false
	for line := range strings.Lines(l.settledDump()) {
		if !strings.HasPrefix(line, "  ") {
			ours = strings.HasPrefix(line, "node ")
			for _, n := range l.Nodes {
				ours = ours || strings.HasPrefix(line, fmt.Sprintf("VM %d ", n.VMID))
			}
		}
		if ours {
			b.WriteString(line)
		}
	}
	return b.String()
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
	lab.Replace("recast.yaml", "roll:\n", "roll:\n  strategy: "+string(r.strategy)+"\n")
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
				c.killedAt(t, r.at, c.roll(planning.Policy{Only: []string{r.node}}))
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
				lab.Client().rollKilled(c.at, planning.Policy{Only: []string{c.node}})
				second := lab.Client()
				second.killedAt(t, c.then, second.giveUp(c.node))
				lab.loseJournal()
				p := lab.planOf(lab.Client(), c.node, planning.Policy{})
				if !p.Resume || p.Strategy != cluster.PutBack || !strings.Contains(p.Why, "someone asked for the old system disk") {
					t.Errorf("planned as %s: %s", p.Strategy, p.Why)
				}
				if !c.roll {
					must(t, lab.Client().giveUp(c.node)(t.Context()))
					lab.requireRecovered(dump)
					return
				}
				must(t, lab.as("20000101-0000-beef").roll(planning.Policy{Only: []string{c.node}})(t.Context()))
				requireInSync(t, lab, lab.others(c.node)...)
				lab.requireKept(1)
			})
		})
	}
}

// giveUp is Recover without its report.
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
				do: r.giveUp, journal: true,
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

// giveUp is Recover of the node.
func (r recovery) giveUp(ctx context.Context, c *Client) error { return c.giveUp(r.node)(ctx) }

// TestRecoverRefused: if nothing can be cancelled, the error says what to do instead.
func TestRecoverRefused(t *testing.T) {
	long(t)
	type story struct {
		o          sim.Options
		node       string
		begin      func(t *testing.T, lab *Lab)
		text, hint string
	}
	eachIn(t, func(c story) sim.Options { return c.o }, map[string]story{
		"a finished roll": {
			oneWorker(), "wk1", func(t *testing.T, lab *Lab) { must(t, lab.Client().roll(planning.Policy{})(t.Context())) },
			"node wk1: no replacement of it is unfinished", "recast undo wk1",
		},
		"a rollback": {
			oneWorker(), "wk1", func(t *testing.T, lab *Lab) {
				must(t, lab.Client().roll(planning.Policy{})(t.Context()))
				c := lab.as("20000101-0000-beef")
				c.killedAt(t, after("restore-disk"), c.goBack())
			},
			"node wk1: a rollback of it is unfinished", "recast roll finishes that; recast undo wk1 then goes the other way",
		},
		"its etcd member is gone": {
			sim.Options{ControlPlanes: 3, Workers: 1},
			"cp2", func(t *testing.T, lab *Lab) {
				lab.Client().rollKilled(onServer("EtcdLeaveCluster"), planning.Policy{Only: []string{"cp2"}})
			},
			"which is no member any more: it would never join again", "let recast roll finish the replacement instead",
		},
	}, func(t *testing.T, lab *Lab, c story) {
		lab.Patch(sim.PatchedExtension)
		if c.node == "cp2" {
			lab.Patch(everywhere)
		}
		c.begin(t, lab)
		before := lab.machinesDump()
		requireFault(t, errOf(lab.Client().Recover(t.Context(), c.node)), fault.Refused, c.text, c.hint)
		requireSame(t, before, lab.machinesDump(), "it changed something")
		must(t, lab.as("20000101-0000-cafe").roll(planning.Policy{})(t.Context()))
		requireInSync(t, lab)
	})
}
