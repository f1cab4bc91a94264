package control

import (
	"context"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
)

const (
	// cephChecks is how often Rook asks Ceph (rook, defaultStatusCheckInterval in
	// pkg/operator/ceph/cluster/cephstatus.go).
	cephChecks = 60 * time.Second
	// cephRecovers is how long Ceph takes to repair what an OSD has missed.
	cephRecovers = 30 * time.Second
)

var cephClusters = schema.GroupVersionResource{Group: "ceph.rook.io", Version: "v1", Resource: "cephclusters"}

// checkCeph is Rook's operator for clusters with OSDs as Deployments: once a minute it writes what Ceph says,
// which is that placement groups are degraded while an OSD is down, and until its data is repaired
// (toCustomResourceStatus in cephstatus.go).
func (m *Manager) checkCeph(ctx context.Context) error {
	clusters, err := all[*unstructured.Unstructured](ctx, m.store, cephClusters)
	if err != nil || len(clusters) == 0 {
		return err
	}
	deployments, err := all[*appsv1.Deployment](ctx, m.store, store.Deployments())
	if err != nil {
		return err
	}
	for _, c := range clusters {
		osds, down, busy := 0, 0, false
		for _, d := range deployments {
			if d.Namespace != c.GetNamespace() || d.Labels["app"] != "rook-ceph-osd" {
				continue
			}
			key := "ceph/" + d.Namespace + "/" + d.Name
			if osds++; d.Status.AvailableReplicas == 0 {
				down++
				m.degraded[key] = true
			} else if m.degraded[key] {
				if busy = !m.timers.due(key, cephRecovers); !busy {
					delete(m.degraded, key)
				}
			}
		}
		if osds == 0 || !m.timers.again("ceph/"+c.GetNamespace()+"/"+c.GetName(), cephChecks) {
			continue
		}
		details := map[string]any{}
		check := func(code, format string, args ...any) {
			details[code] = map[string]any{"severity": "HEALTH_WARN", "message": fmt.Sprintf(format, args...)}
		}
		health := "HEALTH_OK"
		if down > 0 {
			check("OSD_DOWN", "%d osds down", down)
		}
		if down > 0 || busy {
			health = "HEALTH_WARN"
			check("PG_DEGRADED", "Degraded data redundancy: 300/900 objects degraded (33.333%%), 20 pgs degraded, 20 pgs undersized")
		}
		fresh := c.DeepCopy()
		status := map[string]any{"health": health, "details": details, "lastChecked": stamp()}
		if err := unstructured.SetNestedMap(fresh.Object, status, "status", "ceph"); err != nil {
			return err
		}
		if _, err := m.store.Update(ctx, cephClusters, fresh, store.Status); err != nil {
			return err
		}
	}
	return nil
}
