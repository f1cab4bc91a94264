package kube

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/recast-sh/recast/cluster/replica"
	"github.com/recast-sh/recast/internal/foreign"
)

const (
	cephName = "Ceph"
	rookOSDs = "app=rook-ceph-osd"
	// rookStale is several of Rook's checks, one a minute (defaultStatusCheckInterval in
	// pkg/operator/ceph/cluster/cephstatus.go).
	rookStale = 5 * time.Minute
	// rookMaintenance is how long Rook keeps the flag noout on a host that is drained
	// (DefaultMaintenanceTimeout in pkg/operator/ceph/disruption/clusterdisruption/osd.go).
	rookMaintenance = 30 * time.Minute
	// cephDownOut is the default of how long an OSD is down before its data is made again elsewhere
	// (mon_osd_down_out_interval in Ceph's src/common/options/mon.yaml.in); no object shows it.
	cephDownOut = 10 * time.Minute
)

// cephRedundancy are the health checks of Ceph that say that data has fewer copies
// than it should have, or none (https://docs.ceph.com/en/latest/rados/operations/health-checks/).
// Rook writes "error" where Ceph did not answer (cephStatusOnError in cephstatus.go). A
// down OSD alone is none: once its data is elsewhere, nothing lacks.
var cephRedundancy = []string{"PG_AVAILABILITY", "PG_DEGRADED", "PG_DAMAGED", "PG_RECOVERY_FULL", "OBJECT_UNFOUND", "error"}

// cephHealth is the part of Rook's CephCluster that we read for its health
// (pkg/apis/ceph.rook.io/v1/types.go, ClusterSpec and CephStatus).
type cephHealth struct {
	Metadata metav1.ObjectMeta `json:"metadata"`
	Spec     struct {
		Disruption struct {
			Manages bool          `json:"managePodBudgets"`
			Timeout time.Duration `json:"osdMaintenanceTimeout"` // in minutes
		} `json:"disruptionManagement"`
	} `json:"spec"`
	Status struct {
		Ceph struct {
			Health      string `json:"health"`
			LastChecked string `json:"lastChecked"`
			Details     map[string]struct {
				Message string `json:"message"`
			} `json:"details"`
		} `json:"ceph"`
	} `json:"status"`
}

// cephReplicas reads the Ceph clusters of Rook, and on which nodes their OSDs are. No
// object says which data is on which OSD.
func (c VolumeReader) cephReplicas(ctx context.Context) (replica.System, error) {
	s := replica.System{Name: cephName, Pools: true}
	clusters, err := listCustom[cephHealth](ctx, c.conn, rookVersion.WithResource("cephclusters"), "")
	if err != nil {
		return s, err
	}
	nodes := map[string]bool{}
	for _, ceph := range clusters {
		v := replica.Volume{Name: foreign.Line(ceph.Metadata.Namespace + "/" + ceph.Metadata.Name), Checked: ceph.Status.Ceph.LastChecked}
		serves, err := c.cephNodes(ctx, ceph.Metadata.Namespace)
		if err != nil {
			return s, err
		}
		if len(serves) == 0 {
			continue // an external one, or one without data
		}
		for _, node := range slices.Sorted(maps.Keys(serves)) {
			v.Replicas = append(v.Replicas, replica.Replica{Node: node, Healthy: serves[node]})
			nodes[node] = true
		}
		v.Why = ceph.reduced(time.Now())
		v.Robust = v.Why == ""
		s.Volumes = append(s.Volumes, v)
		if waits, setting, remedy := ceph.patience(); s.Patience == 0 || waits < s.Patience {
			s.Patience, s.Waits, s.Remedy = waits, setting, remedy
		}
	}
	for _, node := range slices.Sorted(maps.Keys(nodes)) {
		s.Nodes = append(s.Nodes, replica.Node{Name: node})
	}
	return s, nil
}

// patience is how long Ceph waits for OSDs of a node that is drained, what says so, and how it waits longer.
// Rook keeps noout set for their failure domain while its Node is cordoned, and takes it away from all others
// at every look, whoever had set it; without managePodBudgets it does neither (updateNoout in
// pkg/operator/ceph/disruption/clusterdisruption/osd.go, reconcile in reconcile.go). Without noout, Ceph's own
// interval counts.
func (ceph cephHealth) patience() (waits time.Duration, setting, remedy string) {
	if d := ceph.Spec.Disruption; d.Manages {
		return cmp.Or(d.Timeout*time.Minute, rookMaintenance), "osdMaintenanceTimeout", "raise disruptionManagement.osdMaintenanceTimeout, which is in minutes"
	}
	return cephDownOut, "Ceph's default of mon_osd_down_out_interval, since managePodBudgets is off",
		"set disruptionManagement.managePodBudgets, or set noout yourself in Rook's toolbox before and unset it after: ceph osd set-group noout NODE, ceph osd unset-group noout NODE"
}

// reduced says why data may lack copies; "" if it does not.
func (ceph cephHealth) reduced(now time.Time) string {
	state := ceph.Status.Ceph
	checked, err := time.Parse(time.RFC3339, state.LastChecked)
	switch {
	case err != nil || state.Health == "":
		return "Rook has not checked its health yet"
	case now.Sub(checked) > rookStale:
		return fmt.Sprintf("Rook checked its health %s ago: its operator may be away", now.Sub(checked).Round(time.Minute))
	}
	var found []string
	for _, code := range cephRedundancy {
		if d, ok := state.Details[code]; ok {
			found = append(found, foreign.Line(code+" ("+d.Message+")"))
		}
	}
	return strings.Join(found, ", ")
}

// cephNodes says for each node with OSDs whether all of them serve. A Deployment pins
// an OSD to its node by the hostname; one on a claim is where its pod is.
func (c VolumeReader) cephNodes(ctx context.Context, namespace string) (map[string]bool, error) {
	serves := map[string]bool{}
	note := func(node string, ready bool) {
		before, known := serves[node]
		serves[node] = ready && (before || !known)
	}
	err := inPages(func(o metav1.ListOptions) (string, error) {
		if o.LabelSelector = rookOSDs; o.Continue == "" {
			clear(serves)
		}
		list, err := c.api.AppsV1().Deployments(namespace).List(ctx, o)
		if err != nil {
			return "", c.translate(err)
		}
		for _, d := range list.Items {
			if host := d.Spec.Template.Spec.NodeSelector[corev1.LabelHostname]; host != "" {
				note(host, d.Status.AvailableReplicas > 0)
			}
		}
		return list.Continue, nil
	})
	if err != nil {
		return nil, fmt.Errorf("list deployments: %w", err)
	}
	err = inPages(func(o metav1.ListOptions) (string, error) {
		o.LabelSelector = rookOSDs
		list, err := c.api.CoreV1().Pods(namespace).List(ctx, o)
		if err != nil {
			return "", c.translate(err)
		}
		for i := range list.Items {
			p := &list.Items[i]
			if _, pinned := p.Spec.NodeSelector[corev1.LabelHostname]; !pinned && p.Spec.NodeName != "" && !finished(p) {
				note(p.Spec.NodeName, podServes(p))
			}
		}
		return list.Continue, nil
	})
	if err != nil {
		return nil, fmt.Errorf("list pods: %w", err)
	}
	return serves, nil
}

func podServes(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue })
}

// watchCeph reports Ceph clusters whose health was checked.
func (c VolumeReader) watchCeph(ctx context.Context, tell func(look bool)) error {
	was := map[string]string{}
	return watchCustom(ctx, c.conn, rookVersion.WithResource("cephclusters"), tell, func(ceph cephHealth) bool {
		name := ceph.Metadata.Namespace + "/" + ceph.Metadata.Name
		before, known := was[name]
		was[name] = ceph.Status.Ceph.LastChecked
		return known && before != was[name]
	})
}
