package simtest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/recast-sh/recast/internal/adminconfig"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/talosapi"
	"github.com/recast-sh/recast/pipeline/configs"
	"github.com/recast-sh/recast/schematics"
)

// draft is a cluster that is not there yet.
type draft struct {
	controlPlanes, workers, hosts int

	later     []string          // nodes that are not in recast.yaml yet
	documents []string          // of the workers' configurations
	ours      *talosapi.Cluster // shared, so that two worlds can be compared; nil: made
}

// drafted is a draft that is written.
type drafted struct {
	nodes []string
	ours  *talosapi.Cluster
	lock  schematics.Lock
	lines map[string]string // of recast.yaml, by node
}

// newCluster writes a draft.
func (l *Lab) newCluster(controlPlanes, workers, hosts int) (nodes []string) {
	l.t.Helper()
	return l.draft(draft{controlPlanes: controlPlanes, workers: workers, hosts: hosts}).nodes
}

// draft writes the files of a cluster that is not there yet, as recast init --new does: its nodes
// are cp1, cp2 … and wk1, wk2 …, spread over the hosts.
func (l *Lab) draft(d draft) drafted {
	l.t.Helper()
	if d.ours == nil {
		d.ours = valueOf(talosapi.NewCluster(sim.ClusterName, "https://127.42.7.10:6443", sim.TalosVersion, sim.KubernetesVersion))(l.t)
	}
	l.Guard(d.ours.Secrets)
	l.allowShape()
	const class = "{memory: 4096, onboot: true, cloudinit: fast, nics: [{bridge: vmbr0}], disks: [{slot: scsi0, storage: fast, size: 10G, system: true}%s]}\n"
	var text strings.Builder
	fmt.Fprintf(&text, "vmClasses:\n  control-plane: "+class+"  worker: "+class+"nodes:\n", "", ", {slot: scsi1, storage: fast, size: 5G}")
	files, made := configFiles{}, drafted{ours: d.ours, lines: map[string]string{}}
	add := func(node, class string, number int) {
		line := fmt.Sprintf("  - {name: %s, schematic: default, class: %s, host: pve%d, vm: {ipconfig: ['ip=127.42.7.%d/24,gw=127.42.7.1']}}\n", node, class, 1+len(files)%d.hosts, number)
		if made.lines[node] = line; !slices.Contains(d.later, node) {
			made.nodes = append(made.nodes, node)
			text.WriteString(line)
		}
		m := talosapi.Machine{Hostname: node, ControlPlane: class == "control-plane", Installer: "ghcr.io/siderolabs/installer:" + sim.TalosVersion}
		if !m.ControlPlane {
			m.Documents = d.documents
		}
		config := valueOf(d.ours.MachineConfig(m))(l.t)
		files[node] = config
	}
	for i := range d.controlPlanes {
		add(fmt.Sprintf("cp%d", i+1), "control-plane", 11+i)
	}
	for i := range d.workers {
		add(fmt.Sprintf("wk%d", i+1), "worker", 31+i)
	}
	made.lock = l.Configure(text.String())
	l.Replace("recast.yaml", "roll:\n", fmt.Sprintf("roll:\n  maxUnavailable: {workers: 1, perHost: %d}\n", d.controlPlanes+d.workers))
	l.MachineConfig = files.read
	p := valueOf(l.Client().Project())(l.t)
	config, endpoints, err := configs.Begin(l.t.Context(), p, files.read, "cp1")
	must(l.t, err)
	access := valueOf(adminconfig.Of(sim.ClusterName, config, endpoints))(l.t)
	l.Write("talosconfig", access.Talosconfig)
	l.Write("kubeconfig", access.Kubeconfig)
	return made
}

// requireNodes fails the test unless nothing is stale, each node has one VM, and etcd's members are the
// control planes.
func (l *Lab) requireNodes(t *testing.T, nodes []string) {
	t.Helper()
	requireInSync(t, l)
	var planes []string
	for _, node := range nodes {
		requireSame(t, 1, l.made([]string{node}), "there are … VMs %s (-want +got)", node)
		if strings.HasPrefix(node, "cp") {
			planes = append(planes, node)
		}
	}
	requireSame(t, planes, l.memberNames(), "members of etcd (-want +got)")
}

// memberNames are the members of etcd, in order.
func (l *Lab) memberNames() (names []string) {
	for _, m := range l.EtcdMembers() {
		names = append(names, m.Name)
	}
	slices.Sort(names)
	return names
}

// requireCluster fails the test unless the nodes are there, Ready, and nothing of them is twice.
func requireCluster(t *testing.T, l *Lab, nodes ...string) {
	t.Helper()
	l.requireNodes(t, nodes)
	for _, v := range append(l.EtcdViolations(), l.World.Violations()...) {
		t.Error(v)
	}
}

// TestBootstrap makes clusters from nothing.
func TestBootstrap(t *testing.T) {
	eachLong(t, sim.Options{Empty: true, Hosts: 3}, map[string]struct{ controlPlanes, workers int }{
		"one control plane":    {1, 0},
		"and a worker":         {1, 1},
		"three, and five more": {3, 5},
	}, func(t *testing.T, lab *Lab, s struct{ controlPlanes, workers int }) {
		nodes := lab.newCluster(s.controlPlanes, s.workers, 3)
		rep, err := lab.Client().Bootstrap(t.Context(), "cp1")
		mustBe(t, err == nil, "%v\n%s", err, rep.Outcome)
		requireCluster(t, lab, nodes...)
		again := valueOf(lab.Client().Bootstrap(t.Context(), "cp1"))(t)
		require(t, again.Outcome == "nothing to do", "again: %s", again.Outcome)
	})
}

// TestBootstrapTakesAsLongAsItsLongestChain: eight nodes take no longer than one control plane, and then
// one worker.
func TestBootstrapTakesAsLongAsItsLongestChain(t *testing.T) {
	long(t)
	took := func(controlPlanes, workers int) (took time.Duration) {
		synctest.Test(t, func(t *testing.T) {
			lab := New(t, sim.Options{Empty: true, Hosts: 3})
			nodes := lab.newCluster(controlPlanes, workers, 3)
			began := time.Now()
			must(t, errOf(lab.Client().Bootstrap(t.Context(), "cp1")))
			took = time.Since(began)
			requireCluster(t, lab, nodes...)
		})
		return took
	}
	chain, all := took(1, 1), took(3, 5)
	ratio := float64(all) / float64(chain)
	t.Logf("%s for one control plane and a worker, %s for 3 + 5 nodes: %.2f times", chain, all, ratio)
	require(t, ratio <= 1.1, "3 + 5 nodes take %.2f times as long as one control plane and then a worker", ratio)
}

// founding is a cluster that is to be made.
type founding struct {
	*Lab
	nodes []string
}

// TestBootstrapKilled kills a bootstrap at points of every kind, and goes on with its journal or without:
// there is one cluster in the end.
func TestBootstrapKilled(t *testing.T) {
	long(t)
	killGrid[founding]{
		begin: func(t *testing.T) founding {
			lab := New(t, sim.Options{Empty: true, Hosts: 2})
			return founding{lab, lab.newCluster(2, 1, 2)}
		},
		do:     func(ctx context.Context, c *Client) error { return errOf(c.Bootstrap(ctx, "cp1")) },
		choose: chosenPoints,
		end:    func(t *testing.T, f founding) string { requireCluster(t, f.Lab, f.nodes...); return "" },
	}.killEverywhere(t)
}
