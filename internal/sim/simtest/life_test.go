package simtest

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/artefact"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
	"github.com/recast-sh/recast/internal/sim/talosapi"
	"github.com/recast-sh/recast/internal/sim/world"
	"github.com/recast-sh/recast/pipeline"
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

// list takes a node into recast.yaml.
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

// requireRunning fails unless the workload runs on every worker that it is for.
func (l *life) requireRunning(t *testing.T) {
	t.Helper()
	for _, node := range []string{"wk1", "wk2"} {
		if slices.Contains(l.nodes, node) {
			d := l.stored(store.Deployments(), metav1.NamespaceDefault, "db-"+node).(*appsv1.Deployment)
			require(t, d.Status.ReadyReplicas == 1, "%s: %d pods are ready", d.Name, d.Status.ReadyReplicas)
		}
	}
}

// requireWorkers fails unless the VM of every worker has that.
func (l *life) requireWorkers(t *testing.T, key, want string) {
	t.Helper()
	for _, vm := range l.World.VMs() {
		require(t, !strings.HasPrefix(vm.Config["name"], "wk") || strings.Contains(vm.Config[key], want),
			"%s: %s is %q, want %q", vm.Config["name"], key, vm.Config[key], want)
	}
}

// requireParked fails unless a removed node is gone, and status lists its disks.
func (l *life) requireParked(t *testing.T, node string) {
	t.Helper()
	disks := slices.DeleteFunc(l.status().Kept, func(k pipeline.Kept) bool { return k.Node != node || !k.Removed })
	require(t, len(disks) == 2, "status lists these disks of %s: %+v", node, disks)
	require(t, l.made([]string{node}) == 0, "%s has a VM still", node)
}

func (l *life) live(t *testing.T, s stage, run string) {
	t.Helper()
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

// require fails unless the cluster is as a stage has to leave it.
func (l *life) require(t *testing.T, s stage) {
	t.Helper()
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
	t.Helper()
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
		requireSame(t, want, slices.Sorted(maps.Keys(l.Disks())),
			"protected disks, those of wk1 and wk2 with their content, too (-want +got)")
		requireSame(t, []string{"cp1", "cp2", "cp3", "wk1", "wk3"}, l.nodes, "nodes (-want +got)")
		l.requireParked(t, "wk2")
	})
}

func (l *life) started() int { return len(l.sent(0, toVM("POST", "/status/start"))) }

// TestLifeKilled kills the command of every stage at points of every kind, and types it again, with its
// journal or without: it ends as without the kill.
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
