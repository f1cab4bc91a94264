package simtest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/usergate"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
)

// presetCase is a state of the storage, and the results of the gates in examples/gates.
type presetCase struct {
	Name    string           `json:"name"`
	Objects []map[string]any `json:"objects"`
	Fails   []string         `json:"fails"` // "description: what was seen"
}

func TestGatePresets(t *testing.T) {
	served := []store.Resource{
		longhornNodes, longhornVolumes, longhornReplicas, longhornSettings, cephClusters,
		resource("postgresql.cnpg.io/v1", "clusters", "Cluster", true),
		linstorClusters, linstorSatellites,
	}
	presets, err := filepath.Glob("../../../examples/gates/*.yaml")
	if err != nil || len(presets) != 4 {
		t.Fatalf("%d presets: %v", len(presets), err)
	}
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		for _, r := range served {
			lab.Kube.Define(r)
		}
		config := lab.Read("recast.yaml")
		for _, file := range presets {
			gates := lab.preset(file, config)
			for _, c := range presetCases(t, filepath.Base(file)) {
				remove := lab.fill(c.Objects, served)
				if diff := cmp.Diff(c.Fails, lab.failing(gates)); diff != "" {
					t.Errorf("%s: %s (-want +got):\n%s", filepath.Base(file), c.Name, diff)
				}
				remove()
			}
		}
	})
}

// TestGatePresetOfTaints checks nodes, which the lab itself has.
func TestGatePresetOfTaints(t *testing.T) {
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		gates := lab.preset("../../../examples/gates/piraeus.yaml", lab.Read("recast.yaml"))[2:]
		if got := lab.failing(gates); got != nil {
			t.Errorf("without a taint: %q", got)
		}
		node, err := lab.Kube.Node(t.Context(), "wk1")
		must(t, err)
		node.Spec.Taints = []corev1.Taint{{Key: "drbd.linbit.com/lost-quorum", Effect: corev1.TaintEffectNoSchedule}}
		must(t, errOf(lab.Kube.Store().Update(t.Context(), store.Nodes(), node, store.Main)))
		want := []string{`DRBD has quorum on every node: 1 of 2: wk1: spec.taints=[{"effect":"NoSchedule","key":"drbd.linbit.com/lost-quorum"}]`}
		if diff := cmp.Diff(want, lab.failing(gates)); diff != "" {
			t.Error(diff)
		}
	})
}

func resource(gv, plural, kind string, namespaced bool) store.Resource {
	group, version, _ := strings.Cut(gv, "/")
	return store.Resource{
		GroupVersionResource: schema.GroupVersionResource{Group: group, Version: version, Resource: plural},
		Kind:                 kind, Namespaced: namespaced, Status: true,
	}
}

// preset adds the gates of a file to recast.yaml, and plans with them.
func (l *Lab) preset(file string, config []byte) []cluster.UserGate {
	l.t.Helper()
	b, err := os.ReadFile(file)
	must(l.t, err)
	_, gates, found := strings.Cut(string(b), "\nroll:\n")
	if !found {
		l.t.Fatalf("%s has no section roll", file)
	}
	l.Write("recast.yaml", config)
	l.Replace("recast.yaml", "roll:\n", "roll:\n"+gates)
	plan, err := l.Client().Plan(l.t.Context(), planning.Policy{})
	if err != nil {
		l.t.Fatalf("%s: %v", file, err)
	}
	l.Write("recast.yaml", config)
	return plan.Gates
}

func presetCases(t *testing.T, name string) []presetCase {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", "gates", name))
	must(t, err)
	var cases []presetCase
	if err := yaml.UnmarshalStrict(b, &cases); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return cases
}

// fill creates objects in the cluster; remove deletes them.
func (l *Lab) fill(objects []map[string]any, served []store.Resource) (remove func()) {
	l.t.Helper()
	var undo []func()
	for _, content := range objects {
		u := &unstructured.Unstructured{Object: content}
		for _, r := range served {
			if r.GVK() != u.GroupVersionKind() {
				continue
			}
			l.put(r.GroupVersionResource, u.DeepCopy())
			undo = append(undo, func() { without(r.GroupVersionResource, u.GetNamespace(), u.GetName())(l) })
		}
	}
	if len(undo) != len(objects) {
		l.t.Fatalf("%d of %d objects are of a kind that is served", len(undo), len(objects))
	}
	return func() {
		for _, f := range undo {
			f()
		}
	}
}

// failing asks every gate once, and returns the observations of those that don't hold.
func (l *Lab) failing(gates []cluster.UserGate) []string {
	l.t.Helper()
	s, err := l.Client().connect(l.t.Context())
	must(l.t, err)
	defer s.end()
	var out []string
	for _, g := range gates {
		holds, seen, err := usergate.Ask{Objects: s.machines.Objects}.Look(l.t.Context(), g)
		if err != nil {
			l.t.Fatalf("%s: %v", g, err)
		}
		if !holds {
			out = append(out, g.String()+": "+seen)
		}
	}
	return out
}
