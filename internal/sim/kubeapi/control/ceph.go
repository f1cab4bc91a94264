package control

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
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

var cephBlockPools = schema.GroupVersionResource{Group: "ceph.rook.io", Version: "v1", Resource: "cephblockpools"}

var cephClusters = schema.GroupVersionResource{Group: "ceph.rook.io", Version: "v1", Resource: "cephclusters"}

// checkCeph is Rook's operator for clusters with OSDs and monitors as Deployments: once a minute it writes what Ceph says,
// which is that placement groups are degraded while an OSD is down, and until its data is repaired; that some are not
// available if too few copies are left of them; and which monitors are in quorum (toCustomResourceStatus in cephstatus.go).
func (m *Manager) checkCeph(ctx context.Context) error {
	clusters, err := all[*unstructured.Unstructured](ctx, m.store, cephClusters)
	if err != nil || len(clusters) == 0 {
		return err
	}
	deployments, err := all[*appsv1.Deployment](ctx, m.store, store.Deployments())
	if err != nil {
		return err
	}
	pools, err := all[*unstructured.Unstructured](ctx, m.store, cephBlockPools)
	if err != nil {
		return err
	}
	for _, c := range clusters {
		state := m.cephState(c.GetNamespace(), deployments)
		if len(state.osds) == 0 || !m.timers.again("ceph/"+c.GetNamespace()+"/"+c.GetName(), cephChecks) {
			continue
		}
		fresh := c.DeepCopy()
		details := state.details(slices.DeleteFunc(slices.Clone(pools), func(p *unstructured.Unstructured) bool { return p.GetNamespace() != c.GetNamespace() }))
		health := "HEALTH_OK"
		if len(details) > 0 {
			health = "HEALTH_WARN"
		}
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

// cephState is how the daemons of a Ceph cluster are.
type cephState struct {
	osds, down       []*appsv1.Deployment
	busy             bool // what an OSD has missed is being repaired
	monitors, quorum []string
}

func (m *Manager) cephState(namespace string, deployments []*appsv1.Deployment) (s cephState) {
	for _, d := range deployments {
		up := d.Status.AvailableReplicas > 0
		switch {
		case d.Namespace != namespace:
		case d.Labels["app"] == "rook-ceph-mon":
			if s.monitors = append(s.monitors, d.Labels["mon"]); up {
				s.quorum = append(s.quorum, d.Labels["mon"])
			}
		case d.Labels["app"] == "rook-ceph-osd":
			key := "ceph/" + d.Namespace + "/" + d.Name
			if s.osds = append(s.osds, d); !up {
				s.down = append(s.down, d)
				m.degraded[key] = true
			} else if m.degraded[key] {
				if m.timers.due(key, cephRecovers) {
					delete(m.degraded, key)
				} else {
					s.busy = true
				}
			}
		}
	}
	return s
}

// details are the health checks that fail. Without a quorum, Ceph does not answer (cephStatusOnError in cephstatus.go).
func (s cephState) details(pools []*unstructured.Unstructured) map[string]any {
	details := map[string]any{}
	check := func(code, format string, args ...any) {
		details[code] = map[string]any{"severity": "HEALTH_WARN", "message": fmt.Sprintf(format, args...)}
	}
	lost := len(s.monitors) - len(s.quorum)
	if lost > 0 && 2*len(s.quorum) <= len(s.monitors) {
		details["error"] = map[string]any{"severity": "Urgent", "message": "failed to get status. . timed out: exit status 1"}
		return details
	}
	if lost > 0 {
		check("MON_DOWN", "%d/%d mons down, quorum %s", lost, len(s.monitors), strings.Join(s.quorum, ","))
	}
	if len(s.down) > 0 {
		check("OSD_DOWN", "%d osds down", len(s.down))
	}
	if len(s.down) > 0 || s.busy {
		check("PG_DEGRADED", "Degraded data redundancy: 300/900 objects degraded (33.333%%), 20 pgs degraded, 20 pgs undersized")
	}
	if slices.ContainsFunc(pools, s.inactive) {
		check("PG_AVAILABILITY", "Reduced data availability: 7 pgs inactive")
	}
	return details
}

// inactive says whether a replicated pool has placement groups with fewer copies than half, its default min_size.
func (s cephState) inactive(pool *unstructured.Unstructured) bool {
	size, _, _ := unstructured.NestedInt64(pool.Object, "spec", "replicated", "size")
	domain, _, _ := unstructured.NestedString(pool.Object, "spec", "failureDomain")
	hosts := map[string]bool{}
	for _, d := range s.down {
		hosts[d.Spec.Template.Spec.NodeSelector[corev1.LabelHostname]] = true
	}
	lost := len(hosts)
	if domain == "osd" {
		lost = len(s.down)
	}
	return int64(lost) > size/2
}
