package simtest

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/world"
	"github.com/recast-sh/recast/pipeline"
	"github.com/recast-sh/recast/pipeline/rebuild"
)

// Rebuild is recast rebuild cp1 --from file --yes.
func (c *Client) Rebuild(ctx context.Context, file string) (pipeline.Report, error) {
	return connected(ctx, c, func(s *session) (pipeline.Report, error) {
		c.Runner.Emit = c.emit
		return rebuild.Rebuild(ctx, s.project, s.images, s.machines, &c.Runner, c.rollOptions(planning.Policy{}), rebuild.Options{First: "cp1", File: file})
	})
}

func (l *Lab) namedVM(node string) world.VM {
	l.t.Helper()
	vm := l.vmWith(func(vm world.VM) bool { return vm.Config["name"] == node })
	mustBe(l.t, vm.ID != 0, "there is no VM %s", node)
	return vm
}

// broken is a cluster whose etcd has lost its quorum, with a snapshot of it.
type broken struct {
	*Lab
	nodes  []string
	file   string            // the snapshot
	before map[string]string // objects in Kubernetes then
	worker world.VM
	other  string // a snapshot from later
}

// breakCluster makes a cluster, takes a snapshot, and destroys the VMs of control planes.
func breakCluster(t *testing.T, controlPlanes int, destroyed ...string) *broken {
	t.Helper()
	b := &broken{Lab: New(t, sim.Options{Empty: true, Hosts: 2})}
	b.nodes = b.newCluster(controlPlanes, 1, 2)
	must(t, errOf(b.Client().Bootstrap(t.Context(), "cp1")))
	b.note("before")
	b.before, b.file = b.kubernetes(), b.Dir+"/snapshot.db"
	must(t, os.Rename(b.backUp().File, b.file)) // its directory may be lost
	b.note("after")
	b.other = b.backUp().File
	for _, node := range destroyed {
		b.destroyVM(b.namedVM(node).ID)
	}
	time.Sleep(time.Minute)
	b.worker = b.namedVM("wk1")
	return b
}

// require fails the test unless the cluster is whole, has the objects of the snapshot, and nothing was
// done to its worker.
func (b *broken) require(t *testing.T) {
	t.Helper()
	b.requireNodes(t, b.nodes)
	defer b.requireKubelets("wk1")
	now := b.kubernetes()
	for _, objects := range []map[string]string{b.before, now} {
		maps.DeleteFunc(objects, func(key, _ string) bool {
			return strings.HasPrefix(key, "nodes ") || strings.HasPrefix(key, "leases ") || strings.HasPrefix(key, "certificatesigningrequests ")
		})
	}
	requireSame(t, b.before, now, "Kubernetes (-before +after)")
	requireSame(t, b.worker, b.namedVM("wk1"), "the worker's VM (-before +after)")
	isBreak := func(v string) bool { return strings.Contains(v, "of the voting members") }
	formed := slices.DeleteFunc(b.EtcdViolations(), isBreak) // one is the cluster that the rebuild formed
	require(t, len(formed) <= 1, "etcd: %q", formed)
}

// kept lists the disks of control planes that status shows as parked.
func (b *broken) kept(t *testing.T) (kept []string) {
	t.Helper()
	kept = ofEach(b.status().Kept, func(k pipeline.Kept) string { return fmt.Sprintf("%s %t", k.Node, k.Removed) })
	slices.Sort(kept)
	return kept
}

// TestRebuild makes the control planes of a broken cluster again. The worker runs all the time.
func TestRebuild(t *testing.T) {
	type story struct {
		controlPlanes int
		destroyed     []string
		kept          []string
	}
	eachLongStory(t, map[string]story{
		"the only control plane is gone":     {1, []string{"cp1"}, nil},
		"the only control plane has no etcd": {1, nil, []string{"cp1 true"}},
		"two of three are gone":              {3, []string{"cp2", "cp3"}, []string{"cp1 true"}},
		"the other two are gone":             {3, []string{"cp1", "cp2"}, []string{"cp3 true"}},
	}, func(t *testing.T, s story) {
		b := breakCluster(t, s.controlPlanes, s.destroyed...)
		if s.destroyed == nil {
			must(t, b.World.PowerOff(b.namedVM("cp1").ID))
		}
		requireSame(t, "done", valueOf(b.as(secondRun).Rebuild(t.Context(), b.file))(t).Outcome, "outcome (-want +got)")
		b.require(t)
		requireSame(t, s.kept, b.kept(t), "parked disks (-want +got)")
	})
}

// TestRebuildKilled kills a rebuild at points of every kind, and goes on with its journal or without: there
// is one cluster in the end, with the objects of the snapshot.
func TestRebuildKilled(t *testing.T) {
	long(t)
	for name, s := range map[string]struct {
		begin func(t *testing.T) *broken
		kept  []string
	}{
		"one is gone": {func(t *testing.T) *broken { return breakCluster(t, 2, "cp2") }, []string{"cp1 true"}},
		"both are left": {func(t *testing.T) *broken {
			b := breakCluster(t, 2)
			must(t, b.World.PowerOff(b.namedVM("cp2").ID))
			return b
		}, []string{"cp1 true", "cp2 true"}},
	} {
		t.Run(name, killGrid[*broken]{
			begin: s.begin, do: rebuildsAs(thirdRun), choose: chosenPoints,
			goOn: func(t *testing.T, b *broken, _ point) bool {
				b.finish(t, rebuildsAs(secondRun))
				return false
			},
			end: func(t *testing.T, b *broken) string {
				b.require(t)
				requireSame(t, s.kept, b.kept(t), "parked disks (-want +got)")
				return ""
			},
		}.killEverywhere)
	}
}

// rebuildsAs is a rebuild from the snapshot of a broken cluster, by that run.
func rebuildsAs(run string) deed {
	return func(ctx context.Context, c *Client) error {
		c.Run = run
		return errOf(c.Rebuild(ctx, filepath.Join(c.Dir, "snapshot.db")))
	}
}

// outOfReach has nobody answer by these protocols.
func outOfReach(protocols ...string) func(*testing.T, *broken) {
	return func(_ *testing.T, b *broken) {
		b.Recorder.Hooks(func(c record.Call) error {
			if slices.Contains(protocols, c.Proto) {
				return errKilled
			}
			return nil
		}, nil)
	}
}

// TestRebuildRefused: nothing is touched where the cluster is not broken, or the snapshot is not of it.
func TestRebuildRefused(t *testing.T) {
	type story struct {
		controlPlanes int
		spoil         func(*testing.T, *broken)
		err           string
	}
	eachLongStory(t, map[string]story{
		"the API answers":    {1, nil, "the cluster's Kubernetes API answers: it is not broken"},
		"etcd has a leader":  {3, outOfReach("kubernetes"), "has a leader, so the cluster is not broken"},
		"it is out of reach": {3, outOfReach("kubernetes", "talos"), "its VM runs, and its etcd does not say whether it has a leader"},
		"a snapshot of another cluster": {1, func(t *testing.T, b *broken) {
			b.destroyVM(b.namedVM("cp1").ID)
			other := New(t, sim.Options{ControlPlanes: 3, Workers: 1})
			must(t, errOf(other.Client().Remove(t.Context(), "cp1")))
			b.file = other.backUp().File
		}, "is it a snapshot of another cluster?"},
		"its VM may have another name": {1, func(t *testing.T, b *broken) {
			b.destroyVM(b.namedVM("cp1").ID)
			must(t, errOf(b.Client().prune(t.Context(), pipeline.PruneOptions{Only: pipeline.PruneDisks})))
		}, "no VM has its name, and none answers at its address"},
		"no machine configuration": {1, func(_ *testing.T, b *broken) {
			b.destroyVM(b.namedVM("cp1").ID)
			all := b.MachineConfig
			b.MachineConfig = func(ctx context.Context, node string) (cluster.Secret, bool, error) {
				text, _, err := all(ctx, node)
				return text, node != "cp1", err
			}
		}, "cp1 is a control plane, and has no configuration in talos.machineConfigs"},
		"two VMs may be it": {1, func(t *testing.T, b *broken) {
			must(t, b.World.PowerOff(b.namedVM("cp1").ID))
			b.Replace("recast.yaml", "{name: cp1,", fmt.Sprintf("{name: cp1, vmid: %d,", b.namedVM("wk1").ID))
		}, "may be its VM, by nodes[].vmid, by its name, or by the machine at its address"},
	}, func(t *testing.T, s story) {
		b := breakCluster(t, s.controlPlanes)
		if s.spoil != nil {
			s.spoil(t, b)
		}
		time.Sleep(time.Minute)
		vms := func() (all []string) {
			for _, vm := range b.World.VMs() {
				if name := vm.Config["name"]; !strings.Contains(name, "claim") {
					all = append(all, fmt.Sprint(vm.ID, name, vm.Running))
				}
			}
			return all
		}
		before := vms()
		requireError(t, errOf(b.as(secondRun).Rebuild(t.Context(), b.file)), s.err)
		requireSame(t, before, vms(), "VMs (-before +after)")
	})
}

// TestRebuildGoesOn: only the same command, with the same snapshot, finishes a rebuild.
func TestRebuildGoesOn(t *testing.T) {
	eachLongStory(t, map[string]string{
		"a VM is being taken away": "after take-down/stop",
		"it has no etcd yet":       "before begin-etcd",
		"etcd runs":                "before wait-healthy",
	}, func(t *testing.T, at string) {
		b := breakCluster(t, 1)
		must(t, b.World.PowerOff(b.namedVM("cp1").ID))
		other := b.Dir + "/other.db"
		first := b.as(secondRun)
		when, step, _ := strings.Cut(at, " ")
		first.killedAt(t, moment{step: step, after: when == "after"}, func(ctx context.Context) error { return errOf(first.Rebuild(ctx, b.file)) })
		time.Sleep(time.Minute)
		must(t, os.WriteFile(other, readFile(t, b.other), 0o600))

		requireError(t, b.Client().roll(planning.Policy{})(t.Context()), "recast rebuild")
		requireError(t, errOf(b.Client().Bootstrap(t.Context(), "cp1")), "recast rebuild")
		if when == "before" {
			err := errOf(b.Client().Rebuild(t.Context(), other))
			if err == nil || !strings.Contains(fmt.Sprint(err, fault.Hints(err)), "began with another snapshot") && !strings.Contains(err.Error(), "API answers") {
				t.Errorf("another snapshot: %v, hints %q", err, fault.Hints(err))
			}
		}
		must(t, errOf(b.as("20000101-0000-0009").Rebuild(t.Context(), b.file)))
		b.require(t)
		requireSame(t, []string{"cp1 true"}, b.kept(t), "parked disks (-want +got)")
		freed := valueOf(b.Client().prune(t.Context(), pipeline.PruneOptions{Removed: "cp1"}))(t)
		requireNone(t, b.kept(t), fmt.Sprintf("once they are freed (%+v), status lists", freed.Disks))
		requireInSync(t, b.Lab)
	})
}

// TestRebuildIsNotNeeded: what a rebuild was taking away is put back once the others are there again.
func TestRebuildIsNotNeeded(t *testing.T) {
	long(t)
	synctest.Test(t, func(t *testing.T) {
		b := breakCluster(t, 3)
		off := []int{b.namedVM("cp2").ID, b.namedVM("cp3").ID}
		for _, id := range off {
			must(t, b.World.PowerOff(id))
		}
		time.Sleep(time.Minute)
		first := b.as(secondRun)
		first.killedAt(t, after("take-down/park"), func(ctx context.Context) error { return errOf(first.Rebuild(ctx, b.file)) })
		requireRefused(t, errOf(b.Client().Recover(t.Context(), "cp1")), "its cluster is not there to take it back")
		for _, id := range off {
			must(t, b.World.PowerOn(id))
		}
		time.Sleep(5 * time.Minute)
		requireRefused(t, errOf(b.Client().Rebuild(t.Context(), b.file)), "the cluster's Kubernetes API answers")
		must(t, errOf(b.Client().Recover(t.Context(), "cp1")))
		requireInSync(t, b.Lab)
		require(t, len(b.memberIDs()) == 3, "members %v", b.memberIDs())
	})
}
