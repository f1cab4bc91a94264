package simtest

import (
	"context"
	"fmt"
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
	"github.com/recast-sh/recast/internal/sim/world"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/pipeline"
)

// moment is a point of a run at which its process is killed: before or after a step, around
// a request, or right before a change of its journal.
type moment struct {
	step    string // suffix of its path
	after   bool   // after the step
	server  string // suffix of "path method", or of a method: right after a server has acted on it
	with    string // "parameter=how it begins" of the request
	unsent  bool   // the server does not act on it
	journal string // the change
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
	return "before " + m.step + m.journal
}

func (m moment) is(e step.Event) bool {
	status := step.Started
	if m.after {
		status = step.Done
	}
	return m.step != "" && e.Status == status && strings.HasSuffix("/"+e.Path, "/"+m.step)
}

func (m moment) isCall(c record.Call) bool {
	path, _, _ := strings.Cut(c.Path, "?")
	if name, begins, with := strings.Cut(m.with, "="); with && !strings.HasPrefix(c.Params[name], begins) {
		return false
	}
	return strings.HasSuffix(path+" "+c.Method, m.server) || strings.HasSuffix(c.Method, m.server)
}

// killedAt runs do as a process that is killed at that moment: it sends no more requests,
// and writes nothing more to its journal.
func (c *Client) killedAt(t testing.TB, m moment, do func(ctx context.Context) error) {
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
	c.JournalSync = func(point string) error {
		if point == m.journal {
			die()
		}
		if dead.Load() {
			return errKilled
		}
		return nil
	}
	if m.server != "" {
		c.lab.Recorder.Hooks(func(call record.Call) error {
			if !m.unsent || !m.isCall(call) {
				return nil
			}
			die()
			return errKilled
		}, func(call record.Call) {
			if !m.unsent && m.isCall(call) {
				die()
			}
		})
		defer c.lab.Recorder.Hooks(nil, nil)
	}
	err := do(ctx)
	requireKilled(t, dead.Load(), err, m.String())
}

// rollKilled is a roll that is killed at a moment.
func (c *Client) rollKilled(m moment, policy planning.Policy) {
	c.lab.t.Helper()
	c.killedAt(c.lab.t, m, c.roll(policy))
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
func (l *Lab) machineConfigs() func(_ context.Context, node string) (cluster.Secret, bool, error) {
	l.t.Helper()
	s := l.session()
	defer s.end()
	files := map[string]cluster.Secret{}
	for _, n := range l.Nodes {
		config, err := s.machines.Talos.MachineConfig(l.t.Context(), n.Addr)
		must(l.t, err)
		files[n.Name] = config
	}
	return func(_ context.Context, node string) (cluster.Secret, bool, error) {
		config, found := files[node]
		return config, found, nil
	}
}

// policyFor is the policy of a roll of these nodes alone.
func policyFor(nodes ...string) planning.Policy { return planning.Policy{Only: nodes} }

// storiesOf names each story by what it prints.
func storiesOf[S any](all ...S) map[string]S {
	stories := map[string]S{}
	for _, s := range all {
		stories[fmt.Sprint(s)] = s
	}
	return stories
}

// requireUpgraded fails unless the node is in sync and serves, every other one is as stale as
// before, and every persistent disk is intact.
func (l *Lab) requireUpgraded(t *testing.T, node string) {
	t.Helper()
	requireInSync(t, l, l.others(node)...)
	l.requireServing(node)
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
	shared := slices.ContainsFunc(l.World.Storages("pve1"), func(s world.StorageStatus) bool { return s.ID == sim.DiskStorage && s.Shared })
	on := func(host, volid string) string {
		if shared {
			return volid
		}
		return host + " " + volid
	}
	named := map[string]bool{}
	for _, vm := range l.World.VMs() {
		for _, value := range vm.Config {
			volid, _, _ := strings.Cut(value, ",")
			named[on(vm.Host, volid)] = true
		}
	}
	var out []string
	for _, host := range l.World.Hosts() {
		volumes, err := l.World.Volumes(sim.DiskStorage, host)
		must(l.t, err)
		for _, v := range volumes {
			if !named[on(host, v.Volid)] {
				out = append(out, v.Volid)
			}
		}
	}
	return out
}
