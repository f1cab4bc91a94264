package simtest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/talosapi"
	"github.com/recast-sh/recast/schematics"
)

// killWhen kills a roll right after the first matching changing call has had its effect,
// before the answer is sent.
func (l *Lab) killWhen(is func(record.Call) bool, p planning.Policy) {
	l.t.Helper()
	ctx, cancel := context.WithCancel(l.t.Context())
	defer cancel()
	c := l.Client()
	killed := false
	l.Recorder.Hooks(nil, func(call record.Call) {
		if !killed && call.Mutation && is(call) {
			killed = true
			c.Kill()
			cancel()
		}
	})
	defer l.Recorder.Hooks(nil, nil)
	if rep, err := c.Roll(ctx, p); err == nil || !killed {
		l.t.Fatalf("the run was to be killed (%t): %s, %v", killed, rep.Outcome, err)
	}
}

func toVM(method, suffix string) func(record.Call) bool {
	return func(c record.Call) bool {
		path, _, _ := strings.Cut(c.Path, "?")
		return c.Proto == "proxmox" && c.Method == method && strings.HasSuffix(path, suffix)
	}
}

// kubernetesAnswers is nil if the API of Kubernetes can be read now.
func (l *Lab) kubernetesAnswers() error {
	s, err := l.Client().connect(l.t.Context())
	if err != nil {
		return err
	}
	defer s.end()
	_, err = s.machines.Kube.Nodes(l.t.Context())
	return err
}

// TestControlPlanesByCount rolls clusters of one, two and five control planes.
func TestControlPlanesByCount(t *testing.T) {
	long(t)
	const two = "etcd has two members: without this one it has no quorum"
	cases := []struct {
		planes   int
		onData   bool
		accept   bool
		refused  string
		strategy cluster.Strategy
		kept     bool // the members are the same afterwards
		outage   bool // etcd has no quorum meanwhile
		note     string
	}{
		{planes: 1, onData: true, strategy: cluster.Recreate, kept: true, outage: true, note: "it is the only control plane: the Kubernetes API is down meanwhile"},
		{planes: 1, strategy: cluster.InPlace, kept: true, outage: true, note: "it is the only control plane: the Kubernetes API is down meanwhile"},
		{planes: 2, onData: true, refused: two},
		{planes: 2, refused: two},
		{planes: 2, onData: true, accept: true, strategy: cluster.Recreate, kept: true, outage: true, note: "etcd has two members: it has no quorum and the Kubernetes API is down meanwhile"},
		{planes: 2, accept: true, strategy: cluster.Recreate, note: "etcd has two members"},
		{planes: 5, strategy: cluster.Recreate},
	}
	for _, c := range cases {
		t.Run(fmt.Sprintf("%d/onData=%t/accept=%t", c.planes, c.onData, c.accept), func(t *testing.T) {
			inLab(t, sim.Options{ControlPlanes: c.planes, Workers: 1, EtcdOnData: c.onData}, func(t *testing.T, lab *Lab) {
				lab.Patch(everywhere)
				before, from := lab.memberIDs(), len(lab.Recorder.Calls())
				var names []string
				for _, n := range lab.Nodes[:min(c.planes, 2)] { // a sample
					names = append(names, n.Name)
				}
				rep, err := lab.Client().Roll(t.Context(), planning.Policy{Only: names, AcceptOutage: c.accept})
				if c.refused != "" {
					requireRefused(t, err, c.refused)
					for _, name := range names {
						lab.requireLeftAlone(from, name)
					}
					for _, n := range rep.Plan.Nodes {
						if len(n.Refused) != 1 || strings.Contains(n.Why, "impossible") {
							t.Errorf("%s: %s: %s; refused %q", n.Node, n.Strategy, n.Why, n.Refused)
						}
					}
					return
				}
				must(t, err)
				for _, n := range rep.Plan.Nodes {
					if n.Strategy != c.strategy || !strings.Contains(strings.Join(n.Notes, "; "), c.note) {
						t.Errorf("%s: %s (%s), notes %q", n.Node, n.Strategy, n.Why, n.Notes)
					}
				}
				after := lab.memberIDs()
				if diff := cmp.Diff(before, after); (diff == "") != c.kept || len(after) != c.planes {
					t.Errorf("members of etcd (-before +after):\n%s", diff)
				}
				if v := lab.EtcdViolations(); (len(v) > 0) != c.outage {
					t.Errorf("outages of etcd: %q", v)
				}
				lab.RequireIntact()
			})
		})
	}
}

// TestTheOnlyControlPlaneIsDown kills a roll while only Proxmox answers.
func TestTheOnlyControlPlaneIsDown(t *testing.T) {
	long(t)
	points := map[string]func(record.Call) bool{
		"shut down":  toVM("POST", "/qemu/9001/status/shutdown"),
		"deleted":    toVM("DELETE", "/qemu/9001"),
		"parked":     toVM("POST", "/qemu/9001/move_disk"),
		"one of two": toVM("DELETE", "/qemu/9001"),
		"started":    toVM("POST", "/qemu/9001/status/start"),
	}
	for name, point := range points {
		for _, journal := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/journal=%t", name, journal), func(t *testing.T) {
				planes := 1
				if name == "one of two" {
					planes = 2
				}
				only := planning.Policy{Only: []string{"cp1"}, AcceptOutage: planes == 2}
				inLab(t, sim.Options{ControlPlanes: planes, Workers: 1, EtcdOnData: true}, func(t *testing.T, lab *Lab) {
					lab.Patch(everywhere)
					members := lab.memberIDs()
					lab.killWhen(point, only)
					if !journal {
						must(t, os.RemoveAll(filepath.Join(lab.Dir, ".recast")))
					}
					if name != "shut down" { // the shutdown continues for a while
						if err := lab.kubernetesAnswers(); err == nil {
							t.Error("the Kubernetes API answers")
						}
					}
					rep, err := lab.Client().Roll(t.Context(), only)
					must(t, err)
					if diff := cmp.Diff([]string{"20000101-0000-feed"}, rep.Resumed); diff != "" {
						t.Error(diff)
					}
					if fresh := rep.Plan.Nodes[0]; len(rep.Plan.Nodes) != 1 || fresh.Node != "cp1" || fresh.Drift.Stale {
						again, err := lab.Client().Plan(t.Context(), only)
						if err != nil || len(again.Work()) > 0 {
							t.Errorf("cp1 is not done: %+v, %v", again.Work(), err)
						}
					}
					if diff := cmp.Diff(members, lab.memberIDs()); diff != "" {
						t.Errorf("members of etcd (-before +after):\n%s", diff)
					}
					lab.RequireIntact()
				})
			})
		}
	}
}

// TestTheOnlyControlPlaneHangs: the Kubernetes API is down too, and with it the mark on its
// Node.
func TestTheOnlyControlPlaneHangs(t *testing.T) {
	long(t)
	for _, reimage := range []bool{false, true} {
		t.Run(fmt.Sprintf("reimage=%t", reimage), func(t *testing.T) {
			inLab(t, sim.Options{ControlPlanes: 1, Workers: 1, EtcdOnData: true}, func(t *testing.T, lab *Lab) {
				roll, text := "roll:\n  strategy: in-place\n", "and it can't be asked to roll back"
				if reimage {
					roll, text = roll+"  bootFailure: reimage\n", "it was reimaged and runs build "
				}
				lab.Replace("recast.yaml", "roll:\n", roll)
				lab.Patch(everywhere)
				lab.mustRoll("20000101-0000-0001", planning.Policy{}) // to a build locked by recast
				must(t, lab.Client().Publish(t.Context()))
				lab.Patch(everywhere)
				lock, err := schematics.ReadLock(filepath.Join(lab.Dir, "recast.lock"))
				must(t, err)
				members := lab.memberIDs()
				lab.BreakImage(lock.Schematics["default"].SchematicID, talosapi.Hangs)
				c := lab.as("20000101-0000-0002")
				_, err = c.Roll(t.Context(), planning.Policy{Only: []string{"cp1"}})
				if err == nil || !strings.Contains(err.Error(), "cp1 did not come back from its upgrade") || !strings.Contains(err.Error(), text) {
					t.Errorf("err = %v\nhints %q", err, fault.Hints(err))
				}
				if diff := cmp.Diff(members, lab.memberIDs()); diff != "" {
					t.Errorf("members of etcd (-before +after):\n%s", diff)
				}
				if answers := lab.kubernetesAnswers(); (answers == nil) != reimage {
					t.Errorf("the Kubernetes API: %v", answers)
				}
				lab.RequireIntact()
			})
		})
	}
}

// TestAControlPlaneIsOffBeforeItLeaves: the VM is powered off between a run's death and
// the next run. Its member is removed only if the others keep the quorum.
func TestAControlPlaneIsOffBeforeItLeaves(t *testing.T) {
	long(t)
	for planes, refused := range map[int]bool{2: true, 3: false} {
		t.Run(fmt.Sprint(planes), func(t *testing.T) {
			inLab(t, sim.Options{ControlPlanes: planes, Workers: 1}, func(t *testing.T, lab *Lab) {
				lab.Patch(everywhere)
				only := planning.Policy{Only: []string{"cp1"}, AcceptOutage: true}
				lab.killWhen(func(c record.Call) bool { return c.Proto == "kubernetes" && c.Target == "cp1" }, only)
				must(t, lab.World.PowerOff(9001))
				_, err := lab.Client().Roll(t.Context(), only)
				if refused {
					requireRefused(t, err, "cp1 is off before it could leave etcd, and the other members can't do without it")
					must(t, lab.World.PowerOn(9001))
					time.Sleep(2 * time.Minute)
					_, err = lab.Client().Roll(t.Context(), only)
				}
				must(t, err)
				requireRecord(t, lab, "cp1", true, refused)
				if ids := lab.memberIDs(); len(ids) != planes {
					t.Errorf("members of etcd: %v", ids)
				}
				lab.RequireIntact()
			})
		})
	}
}
