package simtest

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
	"github.com/recast-sh/recast/internal/step"
)

// initiators are the names for iSCSI of all nodes.
func (l *Lab) initiators() map[string]string {
	l.t.Helper()
	out := map[string]string{}
	nodes := l.allStored(store.Nodes(), "")
	for _, n := range nodes {
		out[n.GetName()] = cluster.InitiatorName(cluster.ISCSI, n.(*corev1.Node).Status.NodeInfo.MachineID)
	}
	return out
}

// letInAll has the server of iSCSI let in all nodes by their present names, and no other.
func (l *Lab) letInAll() { l.Kube.LetIn(slices.Collect(maps.Values(l.initiators()))...) }

// TestAServerThatKnowsNodesByName: a node with a new system disk has another name for iSCSI, which the server has to let
// in before the next node goes; the roll names the old and the new one.
func TestAServerThatKnowsNodesByName(t *testing.T) {
	inLab(t, twoWorkers, func(t *testing.T, lab *Lab) {
		lab.isImpatient()
		lab.Patch(sim.PatchedExtension)
		pods := podsOf("db").Spec
		pods.Volumes = []corev1.Volume{{Name: "disk", VolumeSource: corev1.VolumeSource{ISCSI: &corev1.ISCSIVolumeSource{TargetPortal: "10.0.0.1", IQN: "iqn.2000-01.com.example:disk"}}}}
		lab.put(store.DaemonSets(), daemonSet(corev1.NamespaceDefault, "db", pods))
		lab.letInAll()
		time.Sleep(20 * time.Second)
		was := lab.initiators()
		workers := planning.Policy{Only: []string{"wk1", "wk2"}, MaxUnavailable: func(int) int { return 2 }}
		for _, node := range workers.Only {
			n := lab.planOf(lab.Client(), node, workers)
			notes := strings.Join(n.Notes, "\n")
			require(t, strings.Contains(notes, "its name for iSCSI ("+was[node]+") changes with the system disk, as its machine-id does: where the server of volume disk of DaemonSet default/db lets"),
				"%s: %q", node, notes)
		}
		var said []string
		user := lab.Client()
		user.Emit = func(e step.Event) { said = append(said, e.Text) }
		err := user.roll(workers)(t.Context())
		is := lab.initiators()
		if err == nil || !strings.Contains(err.Error(), "wk1 is done and takes pods, but no other node is to follow") ||
			!strings.Contains(err.Error(), "with volume disk of DaemonSet default/db on iSCSI, on wk1, whose name is "+is["wk1"]+" (before: "+was["wk1"]+")") {
			t.Fatalf("err = %v", err)
		}
		mustBe(t, is["wk1"] != was["wk1"] && is["wk2"] == was["wk2"], "names before %v, after %v", was, is)
		all := strings.Join(said, "\n")
		require(t, strings.Contains(all, "its name for iSCSI is now "+is["wk1"]), "it does not say its new name:\n%s", all)
		if err := lab.Client().roll(workers)(t.Context()); fault.KindOf(err) != fault.Refused || !strings.Contains(err.Error(), "wk1, whose name is "+is["wk1"]) || lab.initiators()["wk2"] != was["wk2"] {
			t.Fatalf("the next roll: %v", err)
		}
		lab.letInAll()
		time.Sleep(20 * time.Second)
		user = lab.Client()
		user.Emit = whenStarted("wk2/await-served-again", lab.letInAll)
		must(t, user.roll(workers)(t.Context()))
		lab.RequireIntact()
	})
}
