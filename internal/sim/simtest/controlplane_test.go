package simtest

import (
	"fmt"
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
)

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
	const alone = "it is the only control plane: the Kubernetes API is down meanwhile"
	type story struct {
		planes   int
		onData   bool
		strategy cluster.Strategy
		kept     bool // the members are the same afterwards
		outage   bool // etcd has no quorum meanwhile
		note     string
	}
	eachLongIn(t, func(c story) sim.Options {
		return sim.Options{ControlPlanes: c.planes, Workers: 1, EtcdOnData: c.onData}
	}, map[string]story{
		"one, its data kept": {planes: 1, onData: true, strategy: cluster.Recreate, kept: true, outage: true, note: alone},
		"one":                {planes: 1, strategy: cluster.InPlace, kept: true, outage: true, note: alone},
		"two, their data kept": {
			planes: 2, onData: true, strategy: cluster.Recreate, kept: true, outage: true,
			note: "etcd has two members: it has no quorum and the Kubernetes API is down meanwhile",
		},
		"two":  {planes: 2, strategy: cluster.Recreate, note: "etcd has two members"},
		"five": {planes: 5, strategy: cluster.Recreate},
	}, func(t *testing.T, lab *Lab, c story) {
		lab.Patch(everywhere)
		before := lab.memberIDs()
		var names []string
		for _, n := range lab.Nodes[:min(c.planes, 2)] { // a sample
			names = append(names, n.Name)
		}
		rep := lab.Client().mustRoll(planning.Policy{Only: names, AcceptOutage: c.planes == 2})
		for _, n := range rep.Plan.Nodes {
			require(t, n.Strategy == c.strategy && strings.Contains(strings.Join(n.Notes, "; "), c.note),
				"%s: %s (%s), notes %q", n.Node, n.Strategy, n.Why, n.Notes)
		}
		after := lab.memberIDs()
		diff := cmp.Diff(before, after)
		require(t, (diff == "") == c.kept && len(after) == c.planes, "members of etcd (-before +after):\n%s", diff)
		v := lab.EtcdViolations()
		require(t, (len(v) > 0) == c.outage, "outages of etcd: %q", v)
		lab.RequireIntact()
	})
}

// TestTheOnlyControlPlaneIsDown kills a roll while only Proxmox answers.
func TestTheOnlyControlPlaneIsDown(t *testing.T) {
	long(t)
	type story struct {
		planes int
		at     moment
	}
	stories := map[string]story{
		"shut down":  {1, onServer("/qemu/9001/status/shutdown POST")},
		"deleted":    {1, onServer("/qemu/9001 DELETE")},
		"parked":     {1, onServer("/qemu/9001/move_disk POST")},
		"one of two": {2, onServer("/qemu/9001 DELETE")},
		"started":    {1, onServer("/qemu/9001/status/start POST")},
	}
	for _, journal := range []bool{true, false} {
		t.Run(fmt.Sprintf("journal=%t", journal), func(t *testing.T) {
			eachIn(t, func(c story) sim.Options { return sim.Options{ControlPlanes: c.planes, Workers: 1, EtcdOnData: true} }, stories, func(t *testing.T, lab *Lab, c story) {
				cp1 := planning.Policy{Only: []string{"cp1"}, AcceptOutage: c.planes == 2}
				lab.Patch(everywhere)
				members := lab.memberIDs()
				first := lab.Client()
				first.killedAt(t, c.at, first.roll(cp1))
				if !journal {
					lab.loseJournal()
				}
				if c.at != stories["shut down"].at { // the shutdown continues for a while
					require(t, lab.kubernetesAnswers() != nil, "the Kubernetes API answers")
				}
				rep := lab.Client().mustRoll(cp1)
				requireSame(t, []string{first.Run}, rep.Resumed, "resumed (-want +got)")
				if fresh := rep.Plan.Nodes[0]; len(rep.Plan.Nodes) != 1 || fresh.Node != "cp1" || fresh.Drift.Stale {
					again := valueOf(lab.Client().Plan(t.Context(), cp1))(t)
					require(t, len(again.Work()) == 0, "cp1 is not done: %+v", again.Work())
				}
				requireSame(t, members, lab.memberIDs(), "members of etcd (-before +after)")
				lab.RequireIntact()
			})
		})
	}
}

// TestTheOnlyControlPlaneHangs: the Kubernetes API is down too, and with it the mark on its
// Node.
func TestTheOnlyControlPlaneHangs(t *testing.T) {
	long(t)
	alone := sim.Options{ControlPlanes: 1, Workers: 1, EtcdOnData: true}
	eachFault(t, map[string]*talosFault{
		"reimage=false": {
			o: alone, rolls: "cp1", strategy: cluster.InPlace, first: published, begins: breakImage(talosapi.Hangs),
			mends: inTurn(withoutKubernetes, breakImage(talosapi.Sound), switchedOff, poweredOn, later),
			says:  []string{"cp1 did not come back from its upgrade", "and it can't be asked to roll back"}, stands: "on, cordoned",
		},
		"reimage=true": {
			o: alone, rolls: "cp1", strategy: cluster.InPlace, roll: []string{"bootFailure: reimage"}, first: published, begins: breakImage(talosapi.Hangs),
			remedy: (*talosScene).again, parks: true,
			says: []string{"cp1 did not come back from its upgrade", "it was reimaged and runs build "}, stands: untouched,
		},
	})
}

func withoutKubernetes(s *talosScene) {
	s.t.Helper()
	require(s.t, s.kubernetesAnswers() != nil, "the Kubernetes API answers")
}

// TestAControlPlaneIsOffBeforeItLeaves: the VM is powered off between a run's death and
// the next run. Its member is removed only if the others keep the quorum.
func TestAControlPlaneIsOffBeforeItLeaves(t *testing.T) {
	eachLongIn(t, func(planes int) sim.Options { return sim.Options{ControlPlanes: planes, Workers: 1} }, storiesOf(2, 3), func(t *testing.T, lab *Lab, planes int) {
		lab.Patch(everywhere)
		cp1 := planning.Policy{Only: []string{"cp1"}, AcceptOutage: true}
		lab.Client().rollKilled(onServer("/nodes/cp1 PATCH"), cp1)
		must(t, lab.World.PowerOff(9001))
		err := lab.Client().roll(cp1)(t.Context())
		if planes == 2 {
			requireFault(t, err, fault.Refused, "cp1 is off before it could leave etcd, and the other members can't do without it")
			must(t, lab.World.PowerOn(9001))
			time.Sleep(2 * time.Minute)
			err = lab.Client().roll(cp1)(t.Context())
		}
		must(t, err)
		requireRecord(t, lab, "cp1", true, planes == 2)
		ids := lab.memberIDs()
		require(t, len(ids) == planes, "members of etcd: %v", ids)
		lab.RequireIntact()
	})
}
