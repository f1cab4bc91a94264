package simtest

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/artefact"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/talosapi"
	"github.com/recast-sh/recast/internal/sim/world"
	"github.com/recast-sh/recast/pipeline"
	"github.com/recast-sh/recast/pipeline/rebuild"
)

// life is a cluster from its first day: an empty lab, and the stages through which it goes.
type life struct {
	*Lab
	drafted
}

// newLife is the first day: files, and no machine.
func newLife(t *testing.T, ours *talosapi.Cluster) *life {
	lab := New(t, sim.Options{Empty: true})
	l := &life{Lab: lab}
	l.drafted = lab.draft(draft{
		controlPlanes: 3, workers: 3, hosts: 1, later: []string{"wk3", "cp2", "cp3"}, ours: ours,
		documents: []string{"apiVersion: v1alpha1\nkind: UserVolumeConfig\nname: data\nprovisioning:\n  diskSelector:\n    match: '!system_disk'\n  minSize: 1GB\nfilesystem:\n  type: xfs\n"},
	})
	return l
}

// stage is a change of the cluster: what a person writes, and then types.
type stage struct {
	name  string
	write func(*life)
	typed func(context.Context, *Client) error // nil: nothing
	after func(*life)                          // what a person writes afterwards
	ended func(*testing.T, *life)              // fails the test unless that came of it
}

func roll(ctx context.Context, c *Client) error { return errOf(c.Roll(ctx, planning.Policy{})) }

func stages() []stage {
	added := func(node string) stage {
		return stage{name: node + " added", write: func(l *life) { l.list(node) }, typed: roll}
	}
	return []stage{
		{name: "bootstrap", typed: func(ctx context.Context, c *Client) error { return errOf(c.Bootstrap(ctx, "cp1")) }},
		{name: "workload", write: (*life).deploy, ended: func(t *testing.T, l *life) { l.requireRunning(t) }},
		{
			name: "memory doubled", write: func(l *life) { l.Replace("recast.yaml", "worker: {memory: 4096", "worker: {memory: 8192") }, typed: roll,
			ended: func(t *testing.T, l *life) { l.requireWorkers(t, "memory", "8192") },
		},
		{
			name: "disk grown", write: func(l *life) { l.Replace("recast.yaml", "size: 5G", "size: 8G") }, typed: roll,
			ended: func(t *testing.T, l *life) { l.requireWorkers(t, "scsi1", "size=8G") },
		},
		added("wk3"),
		{
			name: "wk2 removed", after: func(l *life) { l.unlist("wk2"); l.without("wk2") },
			typed: func(ctx context.Context, c *Client) error { return errOf(c.Remove(ctx, "wk2")) },
			ended: func(t *testing.T, l *life) { l.requireParked(t, "wk2") },
		},
		added("cp2"),
		added("cp3"),
	}
}

func (l *life) list(node string) {
	l.Write("recast.yaml", []byte(strings.Replace(string(l.Read("recast.yaml")), "nodes:\n", "nodes:\n"+l.lines[node], 1)))
	l.nodes = append(l.nodes, node)
	slices.Sort(l.nodes)
}

func (l *life) without(node string) {
	l.nodes = slices.DeleteFunc(l.nodes, func(n string) bool { return n == node })
}

// deploy makes a workload that has data on the disks of wk1 and wk2.
func (l *life) deploy() {
	for _, vm := range l.World.VMs() {
		node := vm.Config["name"]
		if node != "wk1" && node != "wk2" {
			continue
		}
		media := l.World.Media(volidOf(l.Lab, vm.ID, "scsi1"), vm.Host)
		disk := valueOf(artefact.ReadDisk(media.Bytes()))(l.t)
		mustBe(l.t, len(disk.Partitions) == 1 && disk.Partitions[0].Label == "u-data",
			"Talos made %+v on the data disk of %s", disk.Partitions, node)
		disk.Partitions[0].Data = []byte("what only " + node + " has\n")
		media.Write(artefact.WriteDisk(disk))
		l.World.Protect(world.Protected{Serial: "data-" + node, Media: media})
		l.persistent = append(l.persistent, content{"data-" + node, media.SHA256()})
		pod := writesTo("db", "/var/mnt/data")
		pod.NodeSelector = map[string]string{corev1.LabelHostname: node}
		labels := map[string]string{"app": "db-" + node}
		l.put(store.Deployments(), deployment(metav1.NamespaceDefault, "db-"+node, labels, pod))
	}
	time.Sleep(time.Minute)
}

func (l *life) requireRunning(t *testing.T) {
	for _, node := range []string{"wk1", "wk2"} {
		if slices.Contains(l.nodes, node) {
			d := l.stored(store.Deployments(), metav1.NamespaceDefault, "db-"+node).(*appsv1.Deployment)
			require(t, d.Status.ReadyReplicas == 1, "%s: %d pods are ready", d.Name, d.Status.ReadyReplicas)
		}
	}
}

func (l *life) requireWorkers(t *testing.T, key, want string) {
	for _, vm := range l.World.VMs() {
		require(t, !strings.HasPrefix(vm.Config["name"], "wk") || strings.Contains(vm.Config[key], want),
			"%s: %s is %q, want %q", vm.Config["name"], key, vm.Config[key], want)
	}
}

func (l *life) requireParked(t *testing.T, node string) {
	disks := slices.DeleteFunc(l.status().Kept, func(k pipeline.Kept) bool { return k.Node != node || !k.Removed })
	require(t, len(disks) == 2, "status lists these disks of %s: %+v", node, disks)
	require(t, l.made([]string{node}) == 0, "%s has a VM still", node)
}

func (l *life) live(t *testing.T, s stage, run string) {
	if s.write != nil {
		s.write(l)
	}
	if s.typed != nil {
		must(t, s.typed(t.Context(), l.as(run)))
	}
	if s.after != nil {
		s.after(l)
	}
}

func (l *life) require(t *testing.T, s stage) {
	requireCluster(t, l.Lab, l.nodes...)
	if s.ended != nil {
		s.ended(t, l)
	}
}

// madeUp is what is made up anew in every world: UUIDs of partitions, MAC addresses, and the numbers of parking VMs,
// which depend on who was rolled first.
var madeUp = regexp.MustCompile(`(u-data|EPHEMERAL) [0-9a-f-]{36} [0-9a-f-]{36}|BC:24:11(:[0-9A-F]{2}){3}|\b90\d\d\b`)

// end is the world in the end, without the parking VMs of nodes that were only reshaped.
func (l *life) end(t *testing.T) string {
	must(t, errOf(l.Client().prune(t.Context(), pipeline.PruneOptions{Only: pipeline.PruneDisks})))
	var dump strings.Builder
	dump.WriteString(madeUp.ReplaceAllString(l.settledDump(), "made up"))
	for _, name := range l.nodes {
		node := l.kubeNode(name)
		fmt.Fprintf(&dump, "node %s: cordoned %t, labels %v, ", name, node.Spec.Unschedulable, node.Labels)
		fmt.Fprintf(&dump, "taints %v\n", node.Spec.Taints)
	}
	return dump.String()
}

func runOf(i int) string { return fmt.Sprintf("20000101-%04d-feed", i) }

// TestLife makes a cluster in an empty datacentre and changes all of it.
func TestLife(t *testing.T) {
	long(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLife(t, nil)
		for i, s := range stages() {
			starts := l.started()
			l.live(t, s, runOf(i))
			l.require(t, s)
			n := l.started() - starts
			require(t, s.name != "disk grown" || n == 0, "%s: %d VMs were started", s.name, n)
		}
		l.requireRunning(t)
		want := []string{"data-wk1", "data-wk2", "u-data of wk1", "u-data of wk2", "u-data of wk3"}
		requireSame(t, want, slices.Sorted(maps.Keys(l.Disks())), "protected disks, with their content (-want +got)")
		requireSame(t, []string{"cp1", "cp2", "cp3", "wk1", "wk3"}, l.nodes, "nodes (-want +got)")
		l.requireParked(t, "wk2")
	})
}

func (l *life) started() int { return len(l.sent(0, toVM("POST", "/status/start"))) }

// TestLifeKilled kills the command of every stage, and types it again, with its journal or without.
func TestLifeKilled(t *testing.T) {
	long(t)
	all := stages()
	for i, s := range all {
		if s.typed == nil {
			continue
		}
		t.Run(s.name, func(t *testing.T) {
			long(t)
			t.Parallel()
			var ours *talosapi.Cluster // of the undisturbed world, which comes first
			killGrid[*life]{
				begin: func(t *testing.T) *life {
					l := newLife(t, ours)
					if ours == nil {
						ours = l.ours
					}
					for j, before := range all[:i] {
						l.live(t, before, runOf(j))
					}
					if s.write != nil {
						s.write(l)
					}
					return l
				},
				do: func(ctx context.Context, c *Client) error {
					c.Run = runOf(i)
					return s.typed(ctx, c)
				},
				choose: chosenPoints,
				end: func(t *testing.T, l *life) string {
					if s.after != nil {
						s.after(l)
					}
					l.require(t, s)
					return l.end(t)
				},
			}.killEverywhere(t)
		})
	}
}

// Rebuild is recast rebuild cp1 --from file --yes.
func (c *Client) Rebuild(ctx context.Context, file string) (pipeline.Report, error) {
	return connected(ctx, c, func(s *session) (pipeline.Report, error) {
		c.Runner.Emit = c.emit
		return rebuild.Rebuild(ctx, s.project, s.images, s.machines, &c.Runner, c.rollOptions(planning.Policy{}), rebuild.Options{First: "cp1", File: file})
	})
}

func (l *Lab) namedVM(node string) world.VM {
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

func (b *broken) kept(t *testing.T) (kept []string) {
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

// TestRebuildKilled goes on with the journal or without: there is one cluster, with the objects of the snapshot.
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
			begin: s.begin, do: rebuildsAs(thirdRun), choose: chosenPoints, then: rebuildsAs(secondRun),
			end: func(t *testing.T, b *broken) string {
				b.require(t)
				requireSame(t, s.kept, b.kept(t), "parked disks (-want +got)")
				return ""
			},
		}.killEverywhere)
	}
}

func rebuildsAs(run string) deed {
	return func(ctx context.Context, c *Client) error {
		c.Run = run
		return errOf(c.Rebuild(ctx, filepath.Join(c.Dir, "snapshot.db")))
	}
}

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
		vms := func() []string {
			return some(b.World.VMs(), func(vm world.VM) (string, bool) {
				name := vm.Config["name"]
				return fmt.Sprint(vm.ID, name, vm.Running), !strings.Contains(name, "claim")
			})
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
