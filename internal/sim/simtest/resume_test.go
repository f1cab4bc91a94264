package simtest

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/talosapi"
)

// resumption is one node's replacement that is finished without the journal.
type resumption struct {
	strategy cluster.Strategy
	node     string
	at       moment
	answers  bool // the node answers at that moment: nothing secret is missing
	files    bool // the user keeps machine configurations in files
}

func (r resumption) String() string {
	where := "no-files"
	if r.files {
		where = "machineConfigs"
	}
	return fmt.Sprintf("%s/%s/%s/%s", r.strategy, r.node, r.at, where)
}

func (r resumption) policy() planning.Policy { return policyFor(r.node) }

func (r resumption) prepare(lab *Lab) {
	lab.setRoll("strategy: " + string(r.strategy))
	lab.Patch(everywhere)
}

// lab is a lab with that node to roll.
func (r resumption) lab(t *testing.T, secrets *talosapi.Cluster) *Lab {
	o := threePlanes
	if r.node == "wk1" {
		o = oneWorker()
	}
	o.Talos = secrets
	lab := New(t, o)
	r.prepare(lab)
	return lab
}

// resumptions are the relevant points, for each strategy and role.
func resumptions() []resumption {
	var all []resumption
	for _, node := range []string{"wk1", "cp2"} {
		for _, s := range []cluster.Strategy{cluster.Recreate, cluster.Reimage} {
			add := func(answers bool, moments ...moment) {
				for _, m := range moments {
					all = append(all, resumption{s, node, m, answers, false}, resumption{s, node, m, answers, true})
				}
			}
			add(true, before("take-down/drain"), after("take-down/drain"))
			if node == "cp2" {
				add(true, onServer("EtcdLeaveCluster"), after("leave-etcd"))
			}
			add(false, after("take-down/stop"), after("park/scsi0"))
			switch {
			case s == cluster.Reimage:
				add(false, after("blank-disk"))
			case node == "wk1":
				add(false, after("park/efidisk0"), after("delete-vm"), after("create-vm"), after("attach/scsi1"))
			default:
				add(false, after("park/efidisk0"), after("delete-vm"), after("create-vm"))
			}
			add(false, before("bring-up/configure"))
			add(true, after("bring-up/configure"), before("finish/keep"))
		}
	}
	return all
}

// usual is the default slice: the most common case at points of every kind, and one or
// two of each other.
func (r resumption) usual() bool {
	var points []moment
	switch {
	case r.strategy == cluster.Recreate && r.node == "wk1" && !r.files:
		points = []moment{after("take-down/drain"), after("park/scsi0"), after("delete-vm"), after("attach/scsi1"), before("bring-up/configure"), before("finish/keep")}
	case r.strategy == cluster.Recreate && r.node == "wk1":
		points = []moment{after("delete-vm")}
	case r.strategy == cluster.Recreate && !r.files:
		points = []moment{onServer("EtcdLeaveCluster"), before("bring-up/configure")}
	case r.node == "wk1" && !r.files:
		points = []moment{after("blank-disk")}
	}
	return slices.Contains(points, r.at)
}

// TestResumeWithoutTheJournal kills a roll and finishes it without its journal: forward if
// nothing secret is missing, else through the old system disk, which has it. Either way
// the result is that of an undisturbed roll.
func TestResumeWithoutTheJournal(t *testing.T) {
	long(t)
	references := map[string]func() reference{}
	for _, r := range chosenKills(t, resumptions(), 1, resumption.usual) {
		key := string(r.strategy) + "/" + r.node
		if references[key] == nil {
			references[key] = sync.OnceValue(func() reference { return r.undisturbed(t) })
		}
		t.Run(r.String(), func(t *testing.T) {
			t.Parallel()
			ref := references[key]()
			synctest.Test(t, func(t *testing.T) { r.run(t, ref) })
		})
	}
}

func (r resumption) undisturbed(t *testing.T) (ref reference) {
	synctest.Test(t, func(t *testing.T) {
		lab := r.lab(t, nil)
		must(t, lab.Client().roll(r.policy())(t.Context()))
		ref = reference{dump: lab.settledDump(), secrets: lab.Talos}
	})
	return ref
}

func (r resumption) run(t *testing.T, ref reference) {
	lab := r.lab(t, ref.secrets)
	configs := lab.machineConfigs()
	c := lab.Client()
	c.killedAt(t, r.at, c.roll(r.policy()))
	lab.loseJournal()
	time.Sleep(time.Minute)

	c = lab.Client()
	if r.files {
		c.MachineConfig = configs
	}
	forward := r.files || r.answers
	p := lab.planOf(c, r.node, r.policy())
	want := r.strategy
	if !forward {
		want = cluster.PutBack
	}
	putBack := strings.Contains(p.Why, "its machine configuration is nowhere but on the old system disk")
	if p.Strategy != want || !p.Resume || !strings.Contains(p.Why, "run 20000101-0000-feed began to "+string(r.strategy)+" it") || putBack == forward {
		t.Errorf("planned as %s, want %s: %s", p.Strategy, want, p.Why)
	}
	rep := c.mustRoll(r.policy())
	if got := strings.Join(rep.Resumed, " "); got != "20000101-0000-feed" || rep.Outcome == "" {
		t.Errorf("resumed %q, outcome %q", got, rep.Outcome)
	}
	lab.RequireIntact()
	requireSame(t, ref.dump, lab.settledDump(), "the world differs from an undisturbed one")
	requireDrift(t, lab, lab.others(r.node)...)
	if v := lab.EtcdViolations(); len(v) > 0 && r.node != "wk1" {
		t.Errorf("etcd: %q", v)
	}
}

// TestResumeAfterTheLockMovedOn finishes, with a new lock, what was begun with the
// previous one: with its own build if that lock is still known here, else through the old
// system disk. Then the node is rolled to the new one.
func TestResumeAfterTheLockMovedOn(t *testing.T) {
	long(t)
	type story struct {
		at      moment
		journal bool
		why     string
	}
	eachInLab(t, oneWorker(), map[string]story{
		"the past lock is here":                     {after("delete-vm"), true, "did not finish"},
		"the past lock is lost":                     {after("delete-vm"), false, "is in no lock that is here"},
		"the past lock is lost, the new build runs": {before("finish/keep"), false, "is in no lock that is here"},
	}, func(t *testing.T, lab *Lab, c story) {
		lab.Patch(sim.PatchedExtension)
		first := lab.Client()
		first.killedAt(t, c.at, first.roll(planning.Policy{}))
		lab.Patch(sim.PatchedExtension)
		if !c.journal {
			lab.loseJournal()
		}
		second := lab.as("20000101-0000-beef")
		p := lab.planOf(second, "wk1", planning.Policy{})
		if !p.Resume || !strings.Contains(p.Why, c.why) {
			t.Errorf("plan: %s: %s", p.Strategy, p.Why)
		}
		rep := second.mustRoll(planning.Policy{})
		if strings.Join(rep.Resumed, " ") != first.Run || rep.Run != second.Run {
			t.Errorf("run %s resumed %q", rep.Run, rep.Resumed)
		}
		requireInSync(t, lab)
		lab.requireKept(1)
	})
}
