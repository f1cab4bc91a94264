package simtest

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/claim"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/prune"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/pve"
	"github.com/recast-sh/recast/internal/registry"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/world"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/pipeline"
)

// machinesDump is settledDump of only the lab's own machines and their Nodes, without parking VMs, ISOs and the like.
func (l *Lab) machinesDump() string {
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
	lab.patch(everywhere, "strategy: "+string(r.strategy))
	if r.node == "wk1" {
		lab.World.AddHA(world.HAResource{SID: "vm:9031", State: "started", Options: map[string]string{"max_restart": "3", "comment": "wk1 of the lab"}})
		lab.allow("HA", "Sys.Console")
	}
	return lab
}

// TestRecover: wherever a replacement is cancelled, the node runs its old system, with all that it had.
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

func (l *Lab) requireRecovered(before string) {
	l.RequireIntact()
	requireSame(l.t, before, l.machinesDump(), "the machines are not as they were")
	l.requireKept(0)
	l.requireEtcd()
}

// TestRecoverKilled kills recover too: another recover leaves the node as it was, a roll rolls it again.
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
			killGrid[changed]{
				begin: func(t *testing.T) changed {
					lab := r.lab(t)
					dump := lab.machinesDump()
					lab.Client().rollKilled(r.at, policyFor(r.node))
					return changed{lab, dump}
				},
				do: func(ctx context.Context, c *Client) error { return c.giveUp(r.node)(ctx) }, journal: true,
				choose: func(t *testing.T, points []point) []point { return chosenKills(t, points, 2, nil) },
				goOn: func(t *testing.T, lab changed, _ point) bool {
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
				end: func(t *testing.T, lab changed) string { lab.requireRecovered(lab.before); return "" },
			}.killEverywhere(t)
		})
	}
}

// changed is a lab, and what is to be as before.
type changed struct {
	*Lab
	before string
}

// TestRecoverRefused: if nothing can be cancelled, the error says what to do instead.
func TestRecoverRefused(t *testing.T) {
	type story struct {
		o          sim.Options
		node       string
		begin      func(lab *Lab)
		text, hint string
	}
	eachLongIn(t, func(c story) sim.Options { return c.o }, map[string]story{
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
			"which is not a member any more: it would never join again", "let recast roll finish the replacement instead",
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

		n := valueOf(lab.as(secondRun).Rollback(t.Context(), policyFor(c.node)))(t).Plan.Nodes
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

// TestRollbackRefused: what the old system would not survive, or not as the same machine, is refused before.
func TestRollbackRefused(t *testing.T) {
	kept := func(node string, change func(*parking.KeptDisk)) edit { // its last kept disk, in the record
		return func(l *Lab) { l.editRecord(node, func(rec *parking.Record) { change(&rec.Kept[len(rec.Kept)-1]) }) }
	}
	type story struct {
		o     sim.Options
		node  string
		spoil edit
		text  string
	}
	eachLongIn(t, func(c story) sim.Options { return c.o }, map[string]story{
		"the machine configuration has changed": {
			oneWorker(), "wk1", func(lab *Lab) { lab.relabel("wk1") },
			"wk1: its machine configuration has changed since: restore the previous lock with its recast.yaml and schematics",
		},
		"the kubelet has another version": {
			oneWorker(), "wk1", kept("wk1", func(k *parking.KeptDisk) { k.Kubernetes = "v1.34.1" }),
			"wk1: its Kubernetes version was v1.34.1 and is v1.35.4: restore the previous lock",
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

// prune is recast prune --yes.
func (c *Client) prune(ctx context.Context, o pipeline.PruneOptions) (pipeline.PruneReport, error) {
	if o.Confirm == nil {
		o.Confirm = func(pipeline.PruneReport) (bool, error) { return true, nil }
	}
	o.Holder, o.Dead = claim.Holder{Host: "test", Boot: "b", PID: c.pid, Start: "s"}, c.lab.isKilled
	return connected(ctx, c, func(s *session) (pipeline.PruneReport, error) {
		if o.Only == pipeline.PruneMirror {
			o.Mirror = s.images.Registry.(*registry.Client)
		}
		px := s.machines.Proxmox.(*pve.Client)
		return pipeline.Prune(ctx, s.project, px, px, &step.Runner{Emit: c.emit}, o)
	})
}

// pruneDisks is recast prune --only disks --yes; keep < 0: as in roll.keepDisks. confirm
// sees what a person would be asked about; it may be nil.
func (c *Client) pruneDisks(ctx context.Context, keep int, confirm func(pipeline.PruneReport)) (pipeline.PruneReport, error) {
	o := pipeline.PruneOptions{Only: pipeline.PruneDisks}
	if keep >= 0 {
		o.KeepDisks = &keep
	}
	if confirm != nil {
		o.Confirm = func(rep pipeline.PruneReport) (bool, error) { confirm(rep); return true, nil }
	}
	return c.prune(ctx, o)
}

// parkOld makes the parking VM of a node with an old system disk of each of the runs, as finished rolls would leave it.
func (l *Lab) parkOld(id int, node string, runs ...string) {
	l.DefineVM(id, map[string]string{"name": "recast-parking-" + node, "memory": "16", "protection": "1", "onboot": "0", "smbios1": fmt.Sprintf("uuid=22222222-2222-4222-8222-%012d", id)})
	rec := parking.Record{Cluster: sim.ClusterName, Node: node, Run: runs[len(runs)-1], VMID: 9031, UUID: "11111111-1111-4111-8111-111111111111", VMName: node}
	for i, run := range runs {
		key := "scsi" + strconv.Itoa(30-i)
		l.EditVM(id, key, sim.DiskStorage+":1,backup=0,serial="+run)
		_, options, _ := strings.Cut(l.vmConfig(id)[key], ",")
		kept := slices.DeleteFunc(strings.Split(options, ","), func(o string) bool { return o == "backup=0" })
		rec.Kept = append(rec.Kept, parking.KeptDisk{Key: key, Run: run, Slot: "scsi0", Options: strings.Join(kept, ","), Talos: "v1.13.9"})
	}
	l.EditVM(id, "description", valueOf(rec.Description())(l.t))
	vm := l.vmWith(func(vm world.VM) bool { return vm.ID == id })
	must(l.t, valueOf(l.Client().Project())(l.t).Trust().Known.Add(cluster.VM{ID: cluster.VMID(id), Config: vm.Config}))
}

func (l *Lab) vmConfig(id int) map[string]string {
	return l.vmWith(func(vm world.VM) bool { return vm.ID == id }).Config
}

func (l *Lab) diskVolumes() []string {
	all := valueOf(l.World.Volumes(sim.DiskStorage, "pve1"))(l.t)
	volids := ofEach(all, func(v world.VolumeInfo) string { return v.Volid })
	slices.Sort(volids)
	return volids
}

func (l *Lab) parkingOf(node string) int {
	return l.vmWith(func(vm world.VM) bool { return vm.Config["name"] == "recast-parking-"+node }).ID
}

// TestCrashPrune kills a prune at each change, of the disks of a configured node and of another one.
func TestCrashPrune(t *testing.T) {
	long(t)
	t.Parallel()
	o := oneWorker()
	killGrid[*Lab]{
		begin: func(t *testing.T) *Lab {
			lab := New(t, o)
			lab.parkOld(9040, "wk1", firstRun, secondRun)
			lab.parkOld(9041, "wk9", firstRun)
			if o.Talos == nil { // the undisturbed world comes first
				o.Talos = lab.Talos
			}
			return lab
		},
		do: func(ctx context.Context, c *Client) error { return errOf(c.pruneDisks(ctx, -1, nil)) }, journal: true,
		choose: func(t *testing.T, points []point) []point {
			// Claim, for each of two disks: lift, free, record; lift, delete; claim.
			mustBe(t, len(points) >= 8, "an undisturbed prune makes only the changes %q", points)
			return everyPoint(t, points)
		},
		end: func(t *testing.T, lab *Lab) string {
			requireNoClaim(t, lab)
			lab.requireKept(1)
			lab.RequireIntact()
			require(t, lab.parkingOf("wk9") == 0 && lab.vmConfig(9040)["protection"] == "1",
				"parking VM of wk9: %d; that of wk1: %v", lab.parkingOf("wk9"), lab.vmConfig(9040))
			return lab.settledDump()
		},
	}.killEverywhere(t)
}

// TestPruneLooksAgain: any change between the question and the answer stops it; only what was shown is freed.
func TestPruneLooksAgain(t *testing.T) {
	const parkingID = 9040
	type story struct {
		edit edit
		text string
	}
	eachLong(t, oneWorker(), map[string]story{
		"another volume under the key": {func(lab *Lab) {
			lab.EditVM(parkingID, "protection", "0")
			lab.EditVM(parkingID, "scsi30", sim.DiskStorage+":1,backup=0,serial="+firstRun)
		}, "as shown: it is not freed"},
		"another VM names it": {func(l *Lab) { l.thief(parkingID) }, `VM 9050 "thief" on pve1 refers to it as well: it stays`},
		"no quorum":           {func(l *Lab) { l.World.SetQuorum(false) }, ""},
	}, func(t *testing.T, lab *Lab, tc story) {
		lab.parkOld(parkingID, "wk1", firstRun, secondRun)
		var before []string
		rep, err := lab.Client().pruneDisks(t.Context(), 1, func(pipeline.PruneReport) {
			tc.edit(lab)
			before = lab.diskVolumes()
		})
		lab.World.SetQuorum(true)
		requireError(t, err, tc.text)
		require(t, len(rep.GoingDisks()) == 1 && !rep.GoingDisks()[0].Removed, "report %+v", rep)
		requireSame(t, before, lab.diskVolumes(), "volumes changed")
	})
}

// TestPruneLeavesTheUnknown: a drive that is in no record keeps its parking VM, and so does an unnamed volume.
func TestPruneLeavesTheUnknown(t *testing.T) {
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.parkOld(9040, "wk1", firstRun)
		lab.EditVM(9040, "scsi3", sim.DiskStorage+":1,serial=mine")
		lab.parkOld(9041, "wk9", firstRun)
		lost := valueOf(lab.World.AllocDisk("", "pve1", world.AllocRequest{Storage: sim.DiskStorage, VMID: 9041, Name: "vm-9041-disk-7.raw", Bytes: 1 << 30}))(t)
		rep := valueOf(lab.Client().pruneDisks(t.Context(), 0, nil))(t)
		why := ofEach(rep.VMs, func(v prune.ParkingVerdict) string { return strings.Join(v.Keep, "; ") })
		want := []string{
			"scsi3 (" + volidOf(lab, 9040, "scsi3") + ") is in no record of recast: not ours, look at it",
			lost + " carries its number and no configuration names it: look at it (qm disk rescan --vmid 9041)",
		}
		requireSame(t, want, why, "why the parking VMs stay (-want +got)")
		for id, stays := range map[int]string{9040: "scsi3", 9041: "protection"} {
			config := lab.vmConfig(id)
			require(t, config["scsi30"] == "" && config[stays] != "", "VM %d has %v", id, config)
		}
		require(t, slices.Contains(lab.diskVolumes(), lost), "%s is gone", lost)
	})
}

func (l *Lab) thief(park int) {
	l.DefineVM(9050, map[string]string{"name": "thief", "memory": "512"})
	l.EditVM(9050, "scsi0", volidOf(l, park, "scsi30"))
}

func volidOf(lab *Lab, id int, key string) string {
	volid, _, _ := strings.Cut(lab.vmConfig(id)[key], ",")
	return volid
}

// TestAParkingVMThatCameLate: Proxmox makes the parking VM of a dead run after the next one has
// rolled the node with another. Rolls ignore it, and prune deletes it.
func TestAParkingVMThatCameLate(t *testing.T) {
	inStaleLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		must(t, lab.Client().roll(onlyWorker)(t.Context()))
		first := lab.parkingOf("wk1")
		rec, _, err := parking.ReadRecord(cluster.VM{Config: lab.vmConfig(first)})
		must(t, err)
		late := parking.Record{
			Cluster: rec.Cluster, Node: rec.Node, Run: "19991231-2359-dead", Parking: 9050, VMIDs: rec.VMIDs, Build: rec.Build, Strategy: cluster.Recreate,
			VMID: rec.VMID, UUID: rec.UUID, VMName: rec.VMName, Addr: rec.Addr, Open: true, Stage: "blank",
		}
		lab.DefineVM(9050, map[string]string{
			"name": "recast-parking-wk1", "memory": "16", "protection": "1", "onboot": "0",
			"description": valueOf(late.Description())(t),
		})

		lab.patch(sim.CommonExtension, "strategy: reimage")
		must(t, lab.second().roll(onlyWorker)(t.Context()))
		for _, v := range valueOf(lab.second().pruneDisks(t.Context(), -1, nil))(t).VMs {
			require(t, v.Removed == (v.VMID == 9050), "VM %d: removed %t, goes %q, keep %q", v.VMID, v.Removed, v.Goes, v.Keep)
		}
		require(t, lab.vmConfig(first) != nil && lab.vmConfig(9050) == nil, "the wrong parking VM was deleted")
	})
}

// TestRetention: after repeated rolls one old system disk stays; the earlier ones are freed as the plan showed.
func TestRetention(t *testing.T) {
	eachLong(t, oneWorker(), newDisks, func(t *testing.T, lab *Lab, s cluster.Strategy) {
		strategy(s)(lab)
		volumes, before := len(lab.diskVolumes()), ""
		for i, run := range []string{firstRun, secondRun, thirdRun} {
			lab.Patch(everywhere)
			c := lab.as(run)
			frees := lab.planOf(c, "wk1", onlyWorker).Frees
			requireSame(t, frees, c.mustRoll(onlyWorker).Plan.Nodes[0].Frees, "the plan shows other disks than the roll frees")
			require(t, i == 0 && len(frees) == 0 || i > 0 && len(frees) == 1 && frees[0].Run == before,
				"roll %d frees %v", i+1, frees)
			before = run
			lab.requireKept(1)
			now := lab.diskVolumes()
			require(t, len(now) == volumes+1, "before the first roll there were %d volumes, after roll %d %q", volumes, i+1, now)
			lab.RequireIntact()
		}
		park := lab.parkingOf("wk1")
		require(t, lab.vmConfig(park)["protection"] == "1", "the parking VM is not protected: %v", lab.vmConfig(park))

		// By default prune frees nothing; on request, everything.
		rep, err := lab.Client().pruneDisks(t.Context(), -1, func(pipeline.PruneReport) { t.Error("it asks, though nothing goes") })
		require(t, err == nil && len(rep.Disks) == 1 && len(rep.Disks[0].Keep) == 1 && rep.Disks[0].Run == thirdRun &&
			len(rep.VMs) == 1 && len(rep.VMs[0].Keep) != 0, "prune: %+v, %v", rep, err)
		rep = valueOf(lab.Client().pruneDisks(t.Context(), 0, nil))(t)
		require(t, len(rep.Disks) == 1 && rep.Disks[0].Removed && rep.Disks[0].SizeBytes != 0 && len(rep.VMs) == 1 && rep.VMs[0].Removed,
			"prune --keep-disks 0: %+v", rep)
		lab.requireKept(0)
		requireNoClaim(t, lab)
		park = lab.parkingOf("wk1")
		require(t, park == 0 && len(lab.diskVolumes()) == volumes, "parking VM %d, volumes %q", park, lab.diskVolumes())
		requireRefused(t, lab.Client().goBack("wk1")(t.Context()), "no earlier system disk of it is parked")
	})
}

// TestRetentionCannotFree: that a superseded disk can't be freed fails no roll. The disk stays, and prune says why.
func TestRetentionCannotFree(t *testing.T) {
	inLongLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.Patch(everywhere)
		must(t, lab.as(firstRun).roll(onlyWorker)(t.Context()))
		lab.Patch(everywhere)
		c := lab.as(secondRun)
		var notes []string
		c.Emit = func(e step.Event) {
			switch {
			case strings.HasSuffix(e.Path, "finish/keep") && e.Status == step.Done:
				lab.thief(lab.parkingOf("wk1"))
			case strings.HasSuffix(e.Path, "free-scsi30") && e.Status == step.Note:
				notes = append(notes, e.Text)
			}
		}
		rep := c.mustRoll(onlyWorker)
		mustBe(t, rep.Outcome == "done", "outcome %s", rep.Outcome)
		requireSays(t, strings.Join(notes, "; "), `VM 9050 "thief" on pve1 refers to it as well: it stays`,
			"recast prune can free it")
		requireDrift(t, lab, lab.others("wk1")...)
		lab.requireKept(2)
		require(t, lab.vmConfig(lab.parkingOf("wk1"))["protection"] == "1", "the parking VM is not protected")
		pruned := valueOf(lab.Client().pruneDisks(t.Context(), -1, nil))(t)
		require(t, len(pruned.Disks) == 2 && strings.Contains(strings.Join(pruned.Disks[0].Keep, ""), "thief"),
			"prune: %+v", pruned.Disks)
		lab.configure(world.ChangeRequest{ID: 9050, Delete: []string{"scsi0"}})
		must(t, errOf(lab.Client().pruneDisks(t.Context(), -1, nil)))
		lab.requireKept(1)
	})
}

// TestCrashRetention kills a roll from the closing of its record on: the next one frees what it was about to free.
func TestCrashRetention(t *testing.T) {
	long(t)
	t.Parallel()
	o := oneWorker()
	killGrid[*Lab]{
		begin: func(t *testing.T) *Lab {
			lab := New(t, o)
			if o.Talos == nil { // the undisturbed world comes first
				o.Talos = lab.Talos
			}
			lab.Patch(everywhere)
			must(t, lab.as(firstRun).roll(onlyWorker)(t.Context()))
			lab.Patch(everywhere)
			return lab
		},
		do: rollsAs(secondRun, onlyWorker),
		choose: func(t *testing.T, points []point) []point {
			first := 0
			for i, p := range points { // the worker that frees a disk is the last one of its kind
				if strings.Contains(p.name, "POST") && strings.HasSuffix(p.name, "/config") {
					first = i
				}
			}
			mustBe(t, first >= 2, "an undisturbed roll frees nothing: %q", points)
			freed := points[first]
			last := points[first-2:] // before, the record is closed and the protection lifted
			return chosenKills(t, last, 1, func(p point) bool { return p.at == freed.at || p.at == freed.at+1 })
		},
		then: rollsAs(thirdRun, onlyWorker), // nodes with nothing to do are left alone, so this is no third roll
		end: func(t *testing.T, lab *Lab) string {
			requireDrift(t, lab, lab.others("wk1")...)
			lab.requireKept(1)
			requireNoClaim(t, lab)
			lab.RequireIntact()
			return lab.settledDump()
		},
	}.killEverywhere(t)
}

// TestParkingVMWithOtherNotes: a parking VM whose Notes a person has edited is known by its name. Its node gets no
// second one; the line that the plan prints lets it have one, and once the Notes are back, both are recast's.
func TestParkingVMWithOtherNotes(t *testing.T) {
	inLongLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		strategy(cluster.Recreate)(lab)
		roll := func() error {
			lab.Patch(everywhere)
			return lab.Client().roll(onlyWorker)(t.Context())
		}
		must(t, roll())
		first := lab.parkingOf("wk1")
		notes := lab.vmConfig(first)["description"]
		lab.configure(world.ChangeRequest{ID: first, Set: map[string]string{"description": "do not touch"}})

		lab.Patch(everywhere)
		n := planOf(t, lab, "wk1")
		const command = "qm set 9002 --name kept-wk1"
		requireSays(t, strings.Join(n.Refused, "\n"), "was its parking VM, and its Notes", command)
		must(t, errOf(lab.Shell("pve1").Run(strings.Fields(command))))
		must(t, lab.Client().roll(onlyWorker)(t.Context()))
		lab.RequireIntact()

		lab.configure(world.ChangeRequest{ID: first, Set: map[string]string{"description": notes, "name": "recast-parking-wk1"}})
		requireDrift(t, lab, "cp1")
		must(t, roll())
		requireDrift(t, lab, "cp1")
	})
}

// TestParkingVMWithADamagedRecord: what a person writes behind the record does no harm; a record that can't be read keeps
// its own node from being changed, and no other.
func TestParkingVMWithADamagedRecord(t *testing.T) {
	inLongLab(t, sim.Options{ControlPlanes: 1, Workers: 2}, func(t *testing.T, lab *Lab) {
		lab.patch(everywhere, "strategy: recreate")
		must(t, lab.Client().roll(onlyWorker)(t.Context()))
		park := lab.parkingOf("wk1")
		notes := lab.vmConfig(park)["description"]
		write := func(text string) {
			lab.configure(world.ChangeRequest{ID: park, Set: map[string]string{"description": text}})
		}
		write(notes + " (do not touch, Bob)")
		requireDrift(t, lab, "cp1", "wk2")
		lab.Patch(sim.PatchedExtension)
		write(strings.Replace(notes, `"node":"wk1"`, `"node":wk1`, 1))
		for node, refused := range map[string]bool{"wk1": true, "wk2": false} {
			n := planOf(t, lab, node)
			got := strings.Contains(strings.Join(n.Refused, "\n"), "was its parking VM, and its Notes")
			require(t, got == refused, "%s: refused %q", node, n.Refused)
		}
		must(t, lab.Client().roll(policyFor("wk2"))(t.Context()))
		write(notes)
		must(t, lab.Client().roll(onlyWorker)(t.Context()))
	})
}

// TestUndoWithTwinParkingVMs: the second parking VM counts the node's disks anew; the last one is still the last.
func TestUndoWithTwinParkingVMs(t *testing.T) {
	inLongLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		strategy(cluster.Recreate)(lab)
		roll := func() {
			lab.Patch(everywhere)
			must(t, lab.Client().roll(onlyWorker)(t.Context()))
		}
		roll()
		roll()
		first := lab.parkingOf("wk1")
		notes := lab.vmConfig(first)["description"]
		lab.configure(world.ChangeRequest{ID: first, Set: map[string]string{"description": "do not touch", "name": "kept-wk1"}})
		roll()
		twin := lab.parkingOf("wk1")
		lab.configure(world.ChangeRequest{ID: first, Set: map[string]string{"description": notes, "name": "recast-parking-wk1"}})
		n := valueOf(lab.Client().Undo(t.Context(), onlyWorker, planning.Undone{}))(t).Plan.Work()[0]
		require(t, twin != first && n.Restore != nil && int(n.Found.Parking.VM.ID) == twin,
			"it boots %+v of VM %d, not of VM %d: %s", n.Restore, n.Found.Parking.VM.ID, twin, n.Why)
	})
}

// TestParkingVMThatAPersonEdits: no other setting of a parking VM keeps its node from being rolled.
func TestParkingVMThatAPersonEdits(t *testing.T) {
	inLongLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.patch(everywhere, "strategy: recreate")
		must(t, lab.Client().roll(onlyWorker)(t.Context()))
		park := lab.parkingOf("wk1")
		for key, value := range map[string]string{
			"name": "mine", "tags": "keep", "protection": "0", "memory": "512", "onboot": "1", "net0": "virtio,bridge=vmbr0", "ide2": "none,media=cdrom",
		} {
			lab.EditVM(park, key, value)
			lab.Patch(everywhere)
			err := lab.Client().roll(onlyWorker)(t.Context())
			mustBe(t, err == nil, "%s=%s: %v", key, value, err)
			lab.RequireIntact()
		}
		requireDrift(t, lab, "cp1")
	})
}
