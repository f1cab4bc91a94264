package operator

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/recast-sh/recast/api/v1alpha1"
)

// Metrics are made of the objects in the cache at each scrape, so that every replica has the same.
type Metrics struct {
	Objects client.Reader
	// Context is what reads of the cache end with: Prometheus gives none.
	Context context.Context
}

// scrapeTime bounds a scrape.
const scrapeTime = 10 * time.Second

var (
	conditionMetric = prometheus.NewDesc("recast_cluster_condition", "1 for the status that a condition of a TalosCluster has.", []string{"namespace", "cluster", "type", "status"}, nil)
	nodesMetric     = prometheus.NewDesc("recast_cluster_nodes", "Nodes of a TalosCluster.", []string{"namespace", "cluster", "state"}, nil)
	checkMetric     = prometheus.NewDesc("recast_cluster_check_timestamp_seconds", "When the newest check of a TalosCluster ended.", []string{"namespace", "cluster"}, nil)
	dueMetric       = prometheus.NewDesc("recast_cluster_check_due_timestamp_seconds", "When the check after the newest one of a TalosCluster is due; none if it is suspended or has no schedule.", []string{"namespace", "cluster"}, nil)
	phaseMetric     = prometheus.NewDesc("recast_imageroll_phase", "1 for the phase of an ImageRoll that is not finished, or is the newest of its cluster.", []string{"namespace", "roll", "cluster", "phase"}, nil)
	membersMetric   = prometheus.NewDesc("recast_fleetroll_members", "Clusters of a FleetRoll.", []string{"namespace", "fleet", "phase"}, nil)
)

// Describe implements prometheus.Collector.
func (m Metrics) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{conditionMetric, nodesMetric, checkMetric, dueMetric, phaseMetric, membersMetric} {
		to <- d
	}
}

// Collect implements prometheus.Collector. A cache that is not ready yet yields nothing. The objects belong
// to the cache: a copy of all of them at each scrape would be most of what the operator allocates.
func (m Metrics) Collect(to chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(m.Context, scrapeTime)
	defer cancel()
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	var clusters v1alpha1.TalosClusterList
	if m.Objects.List(ctx, &clusters, client.UnsafeDisableDeepCopy) == nil {
		for _, c := range clusters.Items {
			collectCluster(gauge, c)
		}
	}
	var rolls v1alpha1.ImageRollList
	if m.Objects.List(ctx, &rolls, client.UnsafeDisableDeepCopy) == nil {
		newest := map[client.ObjectKey]v1alpha1.ImageRoll{}
		for _, r := range rolls.Items {
			key := client.ObjectKey{Namespace: r.Namespace, Name: r.Spec.ClusterName}
			if last, ok := newest[key]; !ok || last.CreationTimestamp.Before(&r.CreationTimestamp) {
				newest[key] = r
			}
			if !r.Status.Phase.Finished() {
				gauge(phaseMetric, 1, r.Namespace, r.Name, r.Spec.ClusterName, string(r.Status.Phase))
			}
		}
		for _, r := range newest {
			if r.Status.Phase.Finished() {
				gauge(phaseMetric, 1, r.Namespace, r.Name, r.Spec.ClusterName, string(r.Status.Phase))
			}
		}
	}
	var fleets v1alpha1.FleetRollList
	if m.Objects.List(ctx, &fleets, client.UnsafeDisableDeepCopy) == nil {
		for _, f := range fleets.Items {
			members := map[v1alpha1.MemberPhase]float64{v1alpha1.MemberWaiting: 0, v1alpha1.MemberRunning: 0, v1alpha1.MemberDone: 0, v1alpha1.MemberFailed: 0}
			for _, member := range f.Status.Members {
				members[member.Phase]++
			}
			for phase, n := range members {
				gauge(membersMetric, n, f.Namespace, f.Name, string(phase))
			}
		}
	}
}

func collectCluster(gauge func(*prometheus.Desc, float64, ...string), c v1alpha1.TalosCluster) {
	for _, k := range c.Status.Conditions {
		gauge(conditionMetric, 1, c.Namespace, c.Name, k.Type, string(k.Status))
	}
	if n := c.Status.Nodes; n != nil {
		for state, count := range map[string]int32{"total": n.Total, "in-sync": n.InSync, "stale": n.Stale, "unread": n.Unread} {
			gauge(nodesMetric, float64(count), c.Namespace, c.Name, state)
		}
	}
	if k := c.Status.Check; k != nil && k.Ended != nil {
		gauge(checkMetric, float64(k.Ended.Unix()), c.Namespace, c.Name)
	}
	if due := NextCheck(&c); !due.IsZero() {
		gauge(dueMetric, float64(due.Unix()), c.Namespace, c.Name)
	}
}

// NextCheck is when the check after the newest one is due; zero: never.
func NextCheck(c *v1alpha1.TalosCluster) time.Time {
	plans, err := readSchedules(c.Spec)
	switch {
	case err != nil || c.Spec.Suspend:
		return time.Time{} // its conditions say so
	case c.Status.Check == nil || c.Status.Check.Started == nil:
		return c.CreationTimestamp.Time
	}
	return plans.drift.Next(c.Status.Check.Started.Time)
}
