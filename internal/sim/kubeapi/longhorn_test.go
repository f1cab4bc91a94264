package kubeapi_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
)

var longhornNodes = store.Resource{
	GroupVersionResource: schema.GroupVersionResource{Group: "longhorn.io", Version: "v1beta2", Resource: "nodes"},
	Kind:                 "Node", Namespaced: true, Status: true,
}

func longhornNode(name string, evicting bool, replicas ...string) *unstructured.Unstructured {
	scheduled := map[string]any{}
	for _, r := range replicas {
		scheduled[r] = int64(1 << 30)
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "longhorn.io/v1beta2", "kind": "Node", "metadata": map[string]any{"name": name, "namespace": "longhorn-system"},
		"spec": map[string]any{
			"allowScheduling": !evicting, "evictionRequested": evicting,
			"disks": map[string]any{"default-disk": map[string]any{"path": "/var/lib/longhorn/", "allowScheduling": true, "evictionRequested": false}},
		},
		"status": map[string]any{"diskStatus": map[string]any{"default-disk": map[string]any{"diskUUID": name, "scheduledReplica": scheduled}}},
	}}
}

// Longhorn moves replicas from an evicted node to nodes that take replicas and have none of the volume.
func TestLonghornEvicts(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		wk1, wk2 *unstructured.Unstructured
		volumes  []string // with replicas on wk1 in the end
	}{
		"nobody asked":           {longhornNode("wk1", false, "a-r-1"), longhornNode("wk2", false), []string{"a-r"}},
		"another node":           {longhornNode("wk1", true, "a-r-1", "b-r-1"), longhornNode("wk2", false), nil},
		"one that has a replica": {longhornNode("wk1", true, "a-r-1", "b-r-1"), longhornNode("wk2", false, "b-r-2"), []string{"b-r"}},
		"one that is evicted":    {longhornNode("wk1", true, "a-r-1"), longhornNode("wk2", true), []string{"a-r"}},
		"no machine of it":       {longhornNode("wk1", true, "a-r-1"), longhornNode("wk9", false), []string{"a-r"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l := newLab(t, "wk1", "wk2")
				l.Define(longhornNodes)
				for _, n := range []*unstructured.Unstructured{tc.wk1, tc.wk2} {
					if _, err := l.Store().Create(t.Context(), longhornNodes.GroupVersionResource, n); err != nil {
						t.Fatal(err)
					}
				}
				time.Sleep(5 * time.Minute)
				count, left := 0, []string(nil)
				objects, _, err := l.Store().List(t.Context(), longhornNodes.GroupVersionResource, "")
				if err != nil {
					t.Fatal(err)
				}
				for _, o := range objects {
					replicas, _, _ := unstructured.NestedMap(o.(*unstructured.Unstructured).Object, "status", "diskStatus", "default-disk", "scheduledReplica")
					count += len(replicas)
					for r := range replicas {
						if o.GetName() == "wk1" {
							left = append(left, r[:3])
						}
					}
				}
				slices.Sort(left)
				before, _, _ := unstructured.NestedMap(tc.wk1.Object, "status", "diskStatus", "default-disk", "scheduledReplica")
				others, _, _ := unstructured.NestedMap(tc.wk2.Object, "status", "diskStatus", "default-disk", "scheduledReplica")
				if diff := cmp.Diff(tc.volumes, left); diff != "" || count != len(before)+len(others) {
					t.Errorf("%d replicas in all; on wk1 (-want +got):\n%s", count, diff)
				}
			})
		})
	}
}
