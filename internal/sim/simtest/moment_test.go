package simtest

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/pipeline"
)

// moment is a point of a run at which its process is killed: before or after a step, or
// right after a server has acted on a request.
type moment struct {
	step   string // suffix of its path
	after  bool   // after the step
	server string // suffix of a request's path or method, in place of a step
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

// killedAt runs do as a process that is killed at that moment: it sends no more requests,
// and writes nothing more to its journal.
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
func (c *Client) roll(policy planning.Policy) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := c.Roll(ctx, policy)
		return err
	}
}

// loseJournal simulates another machine, without recast's own files.
func (l *Lab) loseJournal() {
	l.t.Helper()
	must(l.t, os.RemoveAll(filepath.Join(l.Dir, ".recast")))
}

// machineConfigs are the present configurations of all nodes, as a user would have saved
// them to files.
func (l *Lab) machineConfigs() func(node string) (cluster.Secret, bool, error) {
	l.t.Helper()
	s, err := l.Client().connect(l.t.Context())
	must(l.t, err)
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
func (l *Lab) planOf(c *Client, node string, policy planning.Policy) planning.NodePlan {
	l.t.Helper()
	plan, err := c.Plan(l.t.Context(), policy)
	must(l.t, err)
	i := slices.IndexFunc(plan.Nodes, func(n planning.NodePlan) bool { return n.Node == node })
	if i < 0 {
		l.t.Fatalf("the plan leaves %s out: %+v", node, plan.Nodes)
	}
	return plan.Nodes[i]
}

// others are the lab's nodes except one.
func (l *Lab) others(but string) []string {
	var out []string
	for _, n := range l.Nodes {
		if n.Name != but {
			out = append(out, n.Name)
		}
	}
	return out
}

const (
	firstRun  = "20000101-0000-0001"
	secondRun = "20000101-0000-0002"
	thirdRun  = "20000101-0000-0003"
)

// as is a client whose run has that ID.
func (l *Lab) as(run string) *Client {
	c := l.Client()
	c.Run = run
	return c
}

// requireKept fails unless exactly that many old system disks are parked, each with a name, besides those
// of cancelled replacements, and the disk storage has no stray volumes.
func (l *Lab) requireKept(want int) {
	l.t.Helper()
	res, err := l.Client().Status(l.t.Context())
	if err != nil || len(res.Open) != 0 || len(res.Marked) != 0 || len(slices.DeleteFunc(slices.Clone(res.Kept), func(k pipeline.Kept) bool { return k.GivenUp })) != want || res.Claim != nil {
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
		must(l.t, err)
		for _, v := range volumes {
			if !named[host+" "+v.Volid] {
				out = append(out, v.Volid)
			}
		}
	}
	return out
}
