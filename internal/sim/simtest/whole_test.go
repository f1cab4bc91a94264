package simtest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/sim"
)

// everywhere is an extension that every node of the lab has.
const everywhere = "qemu-guest-agent"

// wholeNodes is the number of nodes in a whole cluster: three control planes and two
// workers, or one in a short run.
func wholeNodes() int {
	if testing.Short() {
		return 4
	}
	return 5
}

// whole is such a cluster, and how to roll it.
type whole struct {
	strategy   cluster.Strategy
	etcdOnData bool // etcd's data is on persistent disks
	holder     bool // data disks belong to a data VM
	shaped     bool // the VMs get another shape, too
}

func (w whole) String() string {
	where, owner := "etcd-on-system-disk", "owned"
	if w.etcdOnData {
		where = "etcd-on-data-disk"
	}
	if w.holder {
		owner = "holder"
	}
	if w.shaped {
		owner += "/shaped"
	}
	return fmt.Sprintf("%s/%s/%s", w.strategy, where, owner)
}

func (w whole) options() sim.Options {
	return sim.Options{ControlPlanes: 3, Workers: wholeNodes() - 3, EtcdOnData: w.etcdOnData, Holder: w.holder}
}

// keepsEtcd says whether the members of etcd stay the same.
func (w whole) keepsEtcd() bool {
	return w.etcdOnData || w.strategy.KeepsVM() || w.strategy == cluster.Reshape
}

// prepare makes every node stale: of those that get another configuration, every second one
// reboots for it.
func (w whole) prepare(lab *Lab) {
	if w.shaped {
		lab.shapeAll("memory: 6144, cores: 3, tags: [talos]", "disks: [{slot: scsi1, size: 25G, cache: writeback}]")
	}
	if w.strategy == cluster.Reshape {
		return
	}
	if w.strategy == cluster.ApplyConfig {
		files := lab.keptConfigs()
		for i, n := range lab.Nodes {
			files.set(lab.t, n.Name, []string{noReboot, needsReboot}[i%2])
		}
		lab.MachineConfig = files.read
		return
	}
	lab.Replace("recast.yaml", "roll:\n", "roll:\n  strategy: "+string(w.strategy)+"\n")
	lab.Patch(everywhere)
}

func wholes() []whole {
	var all []whole
	for _, s := range []cluster.Strategy{cluster.Recreate, cluster.Reimage, cluster.InPlace} {
		for _, etcdOnData := range []bool{false, true} {
			for _, holder := range []bool{false, true} {
				all = append(all, whole{strategy: s, etcdOnData: etcdOnData, holder: holder})
			}
		}
	}
	for _, s := range []cluster.Strategy{cluster.Recreate, cluster.Reimage, cluster.InPlace, cluster.Reshape} {
		all = append(all, whole{strategy: s, shaped: true})
	}
	return append(all, whole{strategy: cluster.ApplyConfig})
}

// requireMembers compares etcd with its earlier state: IDs too if its data was kept.
func requireMembers(t *testing.T, lab *Lab, before string, kept bool) {
	t.Helper()
	var names []string
	for _, m := range lab.EtcdMembers() {
		names = append(names, m.Name)
		if m.Learner {
			t.Errorf("%s is a learner still", m.Name)
		}
	}
	if got := strings.Join(names, " "); got != "cp1 cp2 cp3" {
		t.Errorf("members of etcd: %s", got)
	}
	if after := fmt.Sprint(lab.EtcdMembers()); kept && after != before {
		t.Errorf("members of etcd: %s, before: %s", after, before)
	}
	for _, v := range lab.EtcdViolations() {
		t.Errorf("etcd: %s", v)
	}
}
