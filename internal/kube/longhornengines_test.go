package kube_test

import (
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster/replica"
	"github.com/recast-sh/recast/internal/sim/kubeapi"
)

// TestRebuildsOfLonghorn: an Engine says how far the replicas are that it fills; without the right to list
// engines that is not known, and no error.
func TestRebuildsOfLonghorn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		add := map[string]func(namespace, name string, content map[string]any){}
		for resource, kind := range map[string]string{"nodes": "Node", "volumes": "Volume", "replicas": "Replica", "settings": "Setting", "engines": "Engine"} {
			add[resource] = l.install(t, "longhorn.io", "v1beta2", resource, kind, true)
		}
		const ns, at = "longhorn-system", "2026-08-21T17:16:52Z"
		add["volumes"](ns, "a", map[string]any{"spec": map[string]any{"numberOfReplicas": int64(2)}, "status": map[string]any{"state": "attached", "robustness": "degraded"}})
		for name, spec := range map[string]map[string]any{
			"a-r-1": {"volumeName": "a", "nodeID": "wk1", "healthyAt": at, "lastHealthyAt": at, "failedAt": "", "active": true},
			"a-r-3": {"volumeName": "a", "nodeID": "wk3", "healthyAt": "", "lastHealthyAt": at, "failedAt": "", "active": true},
		} {
			add["replicas"](ns, name, map[string]any{"spec": spec, "status": map[string]any{"currentState": "running"}})
		}
		add["engines"](ns, "a-e-0", map[string]any{"status": map[string]any{
			"currentReplicaAddressMap": map[string]any{"a-r-1": "10.0.0.1:10000", "a-r-3": "10.0.0.3:10010"},
			"rebuildStatus": map[string]any{
				"tcp://10.0.0.1:10000": map[string]any{"isRebuilding": false, "progress": int64(100), "state": "complete"},
				"tcp://10.0.0.3:10010": map[string]any{"isRebuilding": true, "progress": int64(42), "state": "in_progress"},
			},
		}})
		l.Grant("readers", func(r kubeapi.Request) bool { return r.Resource != "engines" })
		for group, percent := range map[string]int{"system:masters": 42, "readers": 0} {
			got, err := l.client(t, group).Replicas(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			want := []replica.Replica{{Node: "wk1", Healthy: true}, {Node: "wk3", Rebuilt: true, Percent: percent}}
			if diff := cmp.Diff(want, got[0].Volumes[0].Replicas); diff != "" {
				t.Errorf("%s (-want +got):\n%s", group, diff)
			}
		}
	})
}
