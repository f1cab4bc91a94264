package simtest

import (
	"slices"
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/sim"
)

// TestAFileWithoutEtcdsVolume drops the document of the volume ETCD, so that Talos uses an empty directory on EPHEMERAL: nothing
// lifts that for a node that keeps its system disk. With a new one, and acceptLoss, the member leaves etcd first and joins
// it again without data; the volume stays, empty.
func TestAFileWithoutEtcdsVolume(t *testing.T) {
	inLab(t, sim.Options{ControlPlanes: 3, Workers: sim.None, EtcdOnData: true, EtcdVolume: true, TalosVersion: talos14}, func(t *testing.T, lab *Lab) {
		only := planning.Policy{Only: []string{"cp2"}}
		own := lab.configOf("cp2")
		docs := strings.Split(string(own), "---\n")
		kept := slices.DeleteFunc(slices.Clone(docs), func(d string) bool { return strings.Contains(d, "kind: VolumeConfig\nname: ETCD\n") })
		if len(kept) != len(docs)-1 {
			t.Fatalf("%d of %d documents are left", len(kept), len(docs))
		}
		files := configFiles{"cp2": cluster.Secret(strings.Join(kept, "---\n"))}
		member := func() string {
			for _, m := range lab.EtcdMembers() {
				if m.Name == "cp2" {
					return m.ID
				}
			}
			return ""
		}
		before, was := lab.machine("cp2"), member()
		const lacks = "its file in talos.machineConfigs lacks VolumeConfig ETCD, or its provisioning, whose volume is on the disk sdb"
		refuse := func(strategy cluster.Strategy, lifted bool) {
			t.Helper()
			user := files.user(lab, firstRun)
			n := lab.planOf(user, "cp2", only)
			refused := strings.Join(n.Refused, "\n")
			if n.Strategy != strategy || !strings.Contains(refused, lacks) || strings.Contains(refused, "or name ETCD in nodes[].acceptLoss") != lifted {
				t.Errorf("%s: planned as %s, refused %q", strategy, n.Strategy, n.Refused)
			}
			requireRefused(t, user.roll(only)(t.Context()), lacks)
			if now := lab.machine("cp2"); now.BootID != before.BootID || member() != was {
				t.Errorf("%s: cp2 was touched", strategy)
			}
		}
		accept := func() { lab.Replace("recast.yaml", "{name: cp2,", "{name: cp2, acceptLoss: [ETCD],") }

		refuse(cluster.ApplyConfig, false)
		lab.Patch(everywhere)
		refuse(cluster.Recreate, true)
		accept()
		user := files.user(lab, secondRun)
		n := lab.planOf(user, "cp2", only)
		if n.Strategy != cluster.Recreate || n.EtcdKept || len(n.Refused) > 0 || !slices.ContainsFunc(n.WillLose, func(text string) bool {
			return strings.HasPrefix(text, lacks) && strings.Contains(text, "its member leaves etcd, which deletes what is on it")
		}) {
			t.Fatalf("planned as %s, etcd kept %t, refused %q, will lose %q", n.Strategy, n.EtcdKept, n.Refused, n.WillLose)
		}
		must(t, user.roll(only)(t.Context()))
		now := lab.machine("cp2")
		if now.BootID == before.BootID || member() == was || member() == "" || len(lab.EtcdMembers()) != 3 {
			t.Errorf("etcd has %+v, and cp2 was member %s", lab.EtcdMembers(), was)
		}
		if on := now.DisksWith("ETCD"); !slices.Equal(on, []string{"sdb"}) {
			t.Errorf("the volume is on %q", on)
		}
		if got := lab.EtcdViolations(); len(got) > 0 {
			t.Error(got)
		}
	})
}
