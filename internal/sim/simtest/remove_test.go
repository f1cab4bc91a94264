package simtest

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/world"
	"github.com/recast-sh/recast/pipeline"
)

// Remove is recast remove --yes.
func (c *Client) Remove(ctx context.Context, node string) (pipeline.Report, error) {
	return connected(ctx, c, func(s *session) (pipeline.Report, error) {
		c.Runner.Emit = c.emit
		return pipeline.Remove(ctx, s.project, s.machines, &c.Runner, c.rollOptions(planning.Policy{}), node)
	})
}

// unlist takes a node out of recast.yaml.
func (l *Lab) unlist(node string) {
	l.t.Helper()
	var rest []string
	for line := range strings.Lines(string(l.Read("recast.yaml"))) {
		if !strings.Contains(line, "{name: "+node+",") {
			rest = append(rest, line)
		}
	}
	l.Write("recast.yaml", []byte(strings.Join(rest, "")))
}

// requireRemoved fails unless nothing of a node is left but its disks, which no prune frees.
func (l *Lab) requireRemoved(t *testing.T, node string, disks int) {
	t.Helper()
	if _, err := l.Kube.Node(t.Context(), node); err == nil {
		t.Errorf("Kubernetes has node %s still", node)
	}
	for _, vm := range l.World.VMs() {
		if vm.Config["name"] == node {
			t.Errorf("VM %d %s is there still", vm.ID, node)
		}
	}
	for _, m := range l.EtcdMembers() {
		if m.Name == node {
			t.Errorf("etcd has member %s still", node)
		}
	}
	kept := func() (n int) {
		res, err := l.Client().Status(t.Context())
		must(t, err)
		for _, k := range res.Kept {
			if k.Node == node {
				n++
			}
		}
		return n
	}
	if got := kept(); got != disks {
		t.Errorf("status lists %d disks of it, want %d", got, disks)
	}
	zero := 0
	_, err := l.Client().prune(t.Context(), pipeline.PruneOptions{Only: pipeline.PruneDisks, KeepDisks: &zero})
	must(t, err)
	if got := kept(); got != disks {
		t.Errorf("after a prune, status lists %d disks of it, want %d", got, disks)
	}
	l.RequireIntact()
	rep, err := l.Client().prune(t.Context(), pipeline.PruneOptions{Removed: node})
	must(t, err)
	if got := kept(); got != 0 {
		t.Errorf("once they are freed, status lists %d disks of it: %+v", got, rep.Disks)
	}
}

// TestRemove takes nodes away. Their disks stay until they are freed by name.
func TestRemove(t *testing.T) {
	eachLong(t, sim.Options{ControlPlanes: 3, Workers: 2}, map[string][]string{
		"a worker":                    {"wk1"},
		"control planes, down to one": {"cp3", "cp1"},
	}, func(t *testing.T, lab *Lab, nodes []string) {
		lab.allowShape()
		lab.World.AddHA(world.HAResource{SID: fmt.Sprintf("vm:%d", lab.node(nodes[0]).VMID), State: "started"})
		for _, node := range nodes {
			must(t, errOf(lab.Client().Remove(t.Context(), node)))
			lab.unlist(node)
			requireDrift(t, lab)
			lab.requireRemoved(t, node, map[bool]int{true: 3, false: 2}[strings.HasPrefix(node, "wk")])
		}
		if ha := lab.World.HA(); len(ha) > 0 {
			t.Errorf("Proxmox HA has %v still", ha)
		}
		for _, v := range lab.EtcdViolations() {
			t.Errorf("etcd: %s", v)
		}
	})
}

// TestNotRemoved refuses what would end the cluster, or what is not there.
func TestNotRemoved(t *testing.T) {
	long(t)
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		_, err := lab.Client().Remove(t.Context(), "cp1")
		requireFault(t, err, fault.Refused, "it is the only control plane")
		_, err = lab.Client().Remove(t.Context(), "wk9")
		requireFault(t, err, fault.Config, `no node "wk9"`)
		requireInSync(t, lab)
	})
}

// TestRemoveKilled kills a removal at points of every kind; the same command, or a roll, goes on, with
// the journal or without.
func TestRemoveKilled(t *testing.T) {
	long(t)
	for node, disks := range map[string]int{"wk1": 3, "cp2": 2} {
		t.Run(node, func(t *testing.T) {
			o := sim.Options{ControlPlanes: 3, Workers: 2}
			removes := func(ctx context.Context, c *Client) error { return errOf(c.Remove(ctx, node)) }
			var points []point
			synctest.Test(t, func(t *testing.T) { points, _ = New(t, o).finish(t, removes) })
			for _, at := range chosenPoints(t, points) {
				t.Run(strconv.Itoa(at.at), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						lab := New(t, o)
						lab.diesAt(t, at, removes)
						if at.at%2 == 0 {
							lab.loseJournal()
						}
						if at.at%3 == 0 { // cancelled, where there is something to cancel
							if _, err := lab.Client().Recover(t.Context(), node); err == nil {
								t.Attr("put-back", "1")
								requireInSync(t, lab)
								return
							}
						}
						_, err := lab.Client().Remove(t.Context(), node)
						if err != nil && !strings.Contains(err.Error(), "Kubernetes knows no node of that name") {
							t.Fatalf("killed at %s: %v", at, err)
						}
						lab.unlist(node)
						requireDrift(t, lab)
						lab.requireRemoved(t, node, disks)
						for _, v := range lab.EtcdViolations() {
							t.Errorf("etcd: %s", v)
						}
					})
				})
			}
		})
	}
}
