package kube

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/recast-sh/recast/cluster"
)

// lacking is a node as it is, what it had, and what has to be restored.
type lacking struct {
	node        corev1.Node
	had         cluster.NodeMetadata
	labels      map[string]string
	annotations map[string]string
	taints      []corev1.Taint
}

func TestLacksLabelsAndAnnotations(t *testing.T) {
	t.Parallel()
	checkLacks(t, map[string]lacking{
		"nothing": {},
		"what is missing or different": {
			node: corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"same": "1", "other": "1"}}},
			had: cluster.NodeMetadata{
				Labels:      map[string]string{"same": "1", "other": "2", "gone": ""},
				Annotations: map[string]string{"note": "x"},
			},
			labels:      map[string]string{"other": "2", "gone": ""},
			annotations: map[string]string{"note": "x"},
		},
		"what kubelet, Talos and the network set": {
			had: cluster.NodeMetadata{
				Labels: map[string]string{
					"kubernetes.io/hostname": "a", "beta.kubernetes.io/os": "linux", "node-role.kubernetes.io/control-plane": "",
					"extensions.talos.dev/iscsi-tools": "v0.2.0", "node-role.kubernetes.io/worker": "",
				},
				Annotations: map[string]string{
					"csi.volume.kubernetes.io/nodeid": "{}", "flannel.alpha.coreos.com/public-ip": "1", "cluster.talos.dev/node-id": "x",
					"networking.talos.dev/self-ips": "1", "talos.dev/owned-taints": "[]",
				},
				Taints: []cluster.Taint{
					{Key: "node.kubernetes.io/unreachable", Effect: "NoExecute"},
					{Key: "node-role.kubernetes.io/control-plane", Effect: "NoSchedule"},
				},
			},
			labels: map[string]string{"node-role.kubernetes.io/worker": ""},
		},
		"what the machine configuration set": {
			node: corev1.Node{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{ownedLabels: `["zone"]`}}},
			had: cluster.NodeMetadata{
				Labels:      map[string]string{"zone": "a", "rack": "b", "mine": "c"},
				Annotations: map[string]string{ownedLabels: `["rack"]`, ownedTaints: `["gpu"]`},
				Taints:      []cluster.Taint{{Key: "gpu", Effect: "NoSchedule"}},
			},
			labels: map[string]string{"mine": "c"},
		},
		"what recast itself set": {
			node: corev1.Node{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{rollAnnotation: "new"}}},
			had:  cluster.NodeMetadata{Annotations: map[string]string{rollAnnotation: "old", failedBuildAnnotation: "b1", "note": "x"}},

			annotations: map[string]string{"note": "x"},
		},
		"topology without a cloud controller": {
			had:    cluster.NodeMetadata{Labels: map[string]string{"topology.kubernetes.io/zone": "a"}},
			labels: map[string]string{"topology.kubernetes.io/zone": "a"},
		},
		"topology with one": {
			node: corev1.Node{Spec: corev1.NodeSpec{ProviderID: "proxmox://lab/9011"}},
			had:  cluster.NodeMetadata{Labels: map[string]string{"topology.kubernetes.io/zone": "a"}},
		},
	})
}

func TestLacksTaints(t *testing.T) {
	t.Parallel()
	checkLacks(t, map[string]lacking{
		"taints beside those that are there": {
			node: corev1.Node{Spec: corev1.NodeSpec{Taints: []corev1.Taint{
				{Key: "node.kubernetes.io/unschedulable", Effect: corev1.TaintEffectNoSchedule}, {Key: "disk", Value: "hdd", Effect: corev1.TaintEffectNoSchedule},
			}}},
			had: cluster.NodeMetadata{Taints: []cluster.Taint{
				{Key: "disk", Value: "ssd", Effect: "NoSchedule"}, {Key: "gpu", Effect: "NoExecute"},
			}},
			taints: []corev1.Taint{
				{Key: "node.kubernetes.io/unschedulable", Effect: corev1.TaintEffectNoSchedule},
				{Key: "disk", Value: "ssd", Effect: corev1.TaintEffectNoSchedule},
				{Key: "gpu", Effect: corev1.TaintEffectNoExecute},
			},
		},
	})
}

func checkLacks(t *testing.T, cases map[string]lacking) {
	t.Helper()
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := missingMetadata(&tc.node, tc.had)
			var want *nodePatch
			if len(tc.labels)+len(tc.annotations)+len(tc.taints) > 0 {
				want = &nodePatch{}
				want.Metadata.Labels, want.Spec.Taints = tc.labels, tc.taints
				for k, v := range tc.annotations {
					want.annotate(k, &v)
				}
			}
			if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("patch (-want +got):\n%s", diff)
			}
		})
	}
}

// Users see which paths are taken to hold no data: no fewer and no more.
func TestRegeneratedPathsAreDocumented(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/notes/local-data.md")
	if err != nil {
		t.Fatal(err)
	}
	by := map[string]string{}
	for _, r := range regeneratedPaths {
		who := map[string]string{"DaemonSet": "DaemonSets", "static": "static pods", "": "any pod"}[r.pods]
		if r.namespace != "" {
			who += " of `" + r.namespace + "`"
		}
		if by[who] != "" {
			by[who] += ", "
		}
		by[who] += "`" + r.path + "`"
	}
	text := strings.ReplaceAll(string(page), "\n  ", " ")
	for who, paths := range by {
		if row := "- by " + who + ": " + paths + "\n"; !strings.Contains(text, row) {
			t.Errorf("docs/notes/local-data.md lacks %s", row)
		}
	}
}
