package simtest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/step"
)

// moment is a point of a run at which its process ends: a step is about to
// begin, or has ended, or a server has just acted on a request.
type moment struct {
	step   string // the end of its path
	after  bool   // the step has ended
	server string // the end of a request's path or method, instead of a step
}

func before(step string) moment   { return moment{step: step} }
func after(step string) moment    { return moment{step: step, after: true} }
func onServer(call string) moment { return moment{server: call} }

func (m moment) String() string {
	switch {
	case m.server != "":
		return "on " + m.server[strings.LastIndex(m.server, "/")+1:]
	case m.after:
		return "after " + m.step
	}
	return "before " + m.step
}

func (m moment) is(e step.Event) bool {
	status := step.Started
	if m.after {
		status = step.Done
	}
	return m.step != "" && e.Status == status && strings.HasSuffix("/"+e.Path, "/"+m.step)
}

// killedAt runs do as a process that is killed at that moment: no server hears
// of it any more, and it writes nothing more to its journal.
func (c *Client) killedAt(t *testing.T, m moment, do func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var dead atomic.Bool
	die := func() {
		if dead.CompareAndSwap(false, true) {
			c.Kill()
			cancel()
		}
	}
	c.Emit = func(e step.Event) {
		if m.is(e) {
			die()
		}
	}
	c.JournalSync = func(string) error {
		if dead.Load() {
			return errKilled
		}
		return nil
	}
	if m.server != "" {
		c.lab.Recorder.Hooks(nil, func(call record.Call) {
			if strings.HasSuffix(call.Path+" "+call.Method, m.server) || strings.HasSuffix(call.Method, m.server) {
				die()
			}
		})
		defer c.lab.Recorder.Hooks(nil, nil)
	}
	if err := do(ctx); !dead.Load() || err == nil {
		t.Fatalf("it was not killed %s: %v", m, err)
	}
}

// inBubble runs a test that makes its own lab.
func inBubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, f)
}

// roll is Roll without its report.
func (c *Client) roll(policy cluster.Policy) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := c.Roll(ctx, policy)
		return err
	}
}

// loseJournal is another machine: what recast kept for itself is not there.
func (l *Lab) loseJournal() {
	l.t.Helper()
	if err := os.RemoveAll(filepath.Join(l.Dir, ".recast")); err != nil {
		l.t.Fatal(err)
	}
}

// machineConfigs are the configurations of all nodes as they are now, as a user
// would have saved them to files.
func (l *Lab) machineConfigs() func(node string) (cluster.Secret, bool, error) {
	l.t.Helper()
	s, err := l.Client().connect(l.t.Context())
	if err != nil {
		l.t.Fatal(err)
	}
	defer s.end()
	files := map[string]cluster.Secret{}
	for _, n := range l.Nodes {
		if files[n.Name], err = s.machines.Talos.MachineConfig(l.t.Context(), n.Addr); err != nil {
			l.t.Fatal(err)
		}
	}
	return func(node string) (cluster.Secret, bool, error) {
		config, found := files[node]
		return config, found, nil
	}
}

// planOf is what a roll would do to one node now.
func (l *Lab) planOf(c *Client, node string, policy cluster.Policy) cluster.NodePlan {
	l.t.Helper()
	plan, err := c.Plan(l.t.Context(), policy)
	if err != nil {
		l.t.Fatal(err)
	}
	i := slices.IndexFunc(plan.Nodes, func(n cluster.NodePlan) bool { return n.Node == node })
	if i < 0 {
		l.t.Fatalf("the plan leaves %s out: %+v", node, plan.Nodes)
	}
	return plan.Nodes[i]
}

// resumption is one node's replacement that somebody finishes who has no journal.
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

func (r resumption) options() sim.Options {
	if r.node == "wk1" {
		return oneWorker()
	}
	return sim.Options{ControlPlanes: 3, Workers: 1}
}

func (r resumption) policy() cluster.Policy { return cluster.Policy{Only: []string{r.node}} }

func (r resumption) prepare(lab *Lab) {
	lab.Replace("recast.yaml", "roll:\n", "roll:\n  strategy: "+string(r.strategy)+"\n")
	lab.Patch(everywhere)
}

// resumptions are the points that matter, for each strategy and role.
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

// chosen is the slice of them that is run unless all are asked for: every point
// of the commonest case, and one of each kind of the others.
func (r resumption) chosen() bool {
	switch {
	case *crashAll, r.strategy == cluster.Recreate && r.node == "wk1" && !r.files:
		return true
	case r.strategy == cluster.Recreate && r.node == "wk1":
		return r.at == after("delete-vm")
	case r.strategy == cluster.Recreate:
		return !r.files && (r.at == onServer("EtcdLeaveCluster") || r.at == after("park/scsi0") || r.at == before("bring-up/configure"))
	}
	return r.node == "wk1" && !r.files && r.at == after("blank-disk")
}

// TestResumeWithoutTheJournal kills a roll and finishes it where its journal is
// not: forward as long as nothing secret is missing, else by way of the old
// system disk, which has it. Either way the end is that of an undisturbed roll.
func TestResumeWithoutTheJournal(t *testing.T) {
	references := map[string]func() reference{}
	for _, r := range resumptions() {
		if !r.chosen() {
			continue
		}
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
		lab := New(t, r.options())
		r.prepare(lab)
		if _, err := lab.Client().Roll(t.Context(), r.policy()); err != nil {
			t.Fatal(err)
		}
		ref = reference{dump: lab.settledDump(), secrets: lab.Talos}
	})
	return ref
}

func (r resumption) run(t *testing.T, ref reference) {
	o := r.options()
	o.Talos = ref.secrets
	lab := New(t, o)
	r.prepare(lab)
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
	rep, err := c.Roll(t.Context(), r.policy())
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(rep.Resumed, " "); got != "20000101-0000-feed" || rep.Outcome == "" {
		t.Errorf("resumed %q, outcome %q", got, rep.Outcome)
	}
	lab.RequireIntact()
	if diff := cmp.Diff(ref.dump, lab.settledDump()); diff != "" {
		t.Errorf("the world differs from an undisturbed one:\n%s", diff)
	}
	requireDrift(t, lab, lab.others(r.node)...)
	if v := lab.EtcdViolations(); len(v) > 0 && r.node != "wk1" {
		t.Errorf("etcd: %q", v)
	}
}

// others are the lab's nodes but one.
func (l *Lab) others(but string) []string {
	var out []string
	for _, n := range l.Nodes {
		if n.Name != but {
			out = append(out, n.Name)
		}
	}
	return out
}

// TestResumeAfterTheLockMovedOn finishes, with another lock, what was begun with
// the one before: with its own build where that lock is still known here, else by
// way of the old system disk. Then the node is rolled to the new one.
func TestResumeAfterTheLockMovedOn(t *testing.T) {
	for name, c := range map[string]struct {
		at      moment
		journal bool
		why     string
		kept    int
	}{
		"the past lock is here":                     {after("delete-vm"), true, "did not finish", 2},
		"the past lock is lost":                     {after("delete-vm"), false, "is in no lock that is here", 1},
		"the past lock is lost, the new build runs": {before("finish/keep"), false, "is in no lock that is here", 1},
	} {
		t.Run(name, func(t *testing.T) {
			inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
				lab.Patch(sim.PatchedExtension)
				first := lab.Client()
				first.killedAt(t, c.at, first.roll(cluster.Policy{}))
				lab.Patch(sim.PatchedExtension)
				if !c.journal {
					lab.loseJournal()
				}
				second := lab.Client()
				second.Run = "20000101-0000-beef"
				second.MachineConfig = nil
				p := lab.planOf(second, "wk1", cluster.Policy{})
				if !p.Resume || !strings.Contains(p.Why, c.why) {
					t.Errorf("plan: %s: %s", p.Strategy, p.Why)
				}
				rep, err := second.Roll(t.Context(), cluster.Policy{})
				if err != nil {
					t.Fatal(err)
				}
				if strings.Join(rep.Resumed, " ") != first.Run || rep.Run != second.Run {
					t.Errorf("run %s resumed %q", rep.Run, rep.Resumed)
				}
				requireDrift(t, lab)
				lab.RequireIntact()
				lab.requireKept(c.kept)
			})
		})
	}
}

// requireKept fails unless exactly that many old system disks are parked, every
// one of them with a name, and nothing else lies about on the disk storage.
func (l *Lab) requireKept(want int) {
	l.t.Helper()
	res, err := l.Client().Status(l.t.Context())
	if err != nil || len(res.Open) != 0 || len(res.Marked) != 0 || len(res.Kept) != want || res.Claim != nil {
		l.t.Errorf("status %+v, %v; want %d kept disks and nothing open", res, err, want)
	}
	for _, volid := range l.strays() {
		l.t.Errorf("no configuration names volume %s", volid)
	}
}

// strays are the volumes on the disk storage that no VM's configuration names.
func (l *Lab) strays() []string {
	l.t.Helper()
	named := map[string]bool{}
	for _, vm := range l.World.VMs() {
		for _, value := range vm.Config {
			volid, _, _ := strings.Cut(value, ",")
			named[vm.Host+" "+volid] = true
		}
	}
	var out []string
	for _, host := range l.World.Hosts() {
		volumes, err := l.World.Volumes(sim.DiskStorage, host)
		if err != nil {
			l.t.Fatal(err)
		}
		for _, v := range volumes {
			if !named[host+" "+v.Volid] {
				out = append(out, v.Volid)
			}
		}
	}
	return out
}
