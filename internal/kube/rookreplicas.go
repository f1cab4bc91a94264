package kube

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/recast-sh/recast/cluster/replica"
	"github.com/recast-sh/recast/internal/foreign"
)

const (
	cephName = "Ceph"
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
		Mon struct {
			Stretch *cephStretch `json:"stretchCluster"`
		} `json:"mon"`
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

// cephReplicas reads the Ceph clusters of Rook, and on which nodes their OSDs and monitors are. No
// object says which data is on which OSD, but pools say how their data may lie on them.
func (c *Client) cephReplicas(ctx context.Context, _ schema.GroupVersion) (replica.System, error) {
	s := replica.System{Name: cephName, Pools: true}
	clusters, err := listCustom[cephHealth](ctx, c, rookVersion.WithResource("cephclusters"), "")
	if err != nil {
		return s, err
	}
	var pools []cephPool
	nodes := map[string]bool{}
	for _, ceph := range clusters {
		daemons, err := c.cephDaemons(ctx, ceph.Metadata.Namespace)
		if err != nil {
			return s, err
		}
		if len(daemons.osds) == 0 {
			continue // an external one, or one without data
		}
		if pools == nil {
			if pools, err = c.cephPools(ctx); err != nil {
				return s, err
			}
		}
		v := ceph.volume(daemons, pools, time.Now())
		for _, r := range v.Replicas {
			nodes[r.Node] = true
		}
		for _, m := range v.Voters {
			nodes[m.Node] = true
		}
		s.Volumes = append(s.Volumes, v)
		if waits, setting, remedy := ceph.patience(); s.Patience == 0 || waits < s.Patience {
			s.Patience, s.Waits, s.Remedy = waits, setting, remedy
		}
	}
	delete(nodes, "")
	for _, node := range slices.Sorted(maps.Keys(nodes)) {
		s.Nodes = append(s.Nodes, replica.Node{Name: node})
	}
	return s, nil
}

func (ceph cephHealth) volume(d cephDaemons, pools []cephPool, now time.Time) replica.Volume {
	v := replica.Volume{Name: foreign.Line(ceph.Metadata.Namespace + "/" + ceph.Metadata.Name), Checked: ceph.Status.Ceph.LastChecked}
	for _, node := range d.nodes() {
		v.Replicas = append(v.Replicas, replica.Replica{Node: node, Healthy: d.serves(node)})
	}
	v.Why = ceph.reduced(now)
	v.Robust = v.Why == ""
	v.Voters, v.Doubt = ceph.voters(d.monitors, now)
	for _, p := range pools {
		if p.namespace == ceph.Metadata.Namespace {
			v.Placements = append(v.Placements, p.placement(d, ceph.Spec.Mon.Stretch))
		}
	}
	return v
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

// stale says why the health is not the present one; "" if it is.
func (ceph cephHealth) stale(now time.Time) string {
	state := ceph.Status.Ceph
	checked, err := time.Parse(time.RFC3339, state.LastChecked)
	switch {
	case err != nil || state.Health == "":
		return "Rook has not checked its health yet"
	case now.Sub(checked) > rookStale:
		return fmt.Sprintf("Rook checked its health %s ago: its operator may be away", now.Sub(checked).Round(time.Minute))
	}
	return ""
}

// reduced says why data may lack copies; "" if it does not.
func (ceph cephHealth) reduced(now time.Time) string {
	if stale := ceph.stale(now); stale != "" {
		return stale
	}
	var found []string
	for _, code := range cephRedundancy {
		if text := ceph.check(code); text != "" {
			found = append(found, text)
		}
	}
	return strings.Join(found, ", ")
}

// check is a health check that Ceph reports, in its words; "" if it does not.
func (ceph cephHealth) check(code string) string {
	d, ok := ceph.Status.Ceph.Details[code]
	if !ok {
		return ""
	}
	return foreign.Line(code + " (" + d.Message + ")")
}

// voters says which monitors are in quorum; doubt is why that is not known. MON_DOWN ends with the names of those that
// are: "1/3 mons down, quorum a,b" (HealthMonitor::check_mon_health in Ceph's src/mon/HealthMonitor.cc).
func (ceph cephHealth) voters(monitors []cephDaemon, now time.Time) (out []replica.Voter, doubt string) {
	down, names := ceph.check("MON_DOWN"), []string(nil)
	if down != "" {
		_, list, known := strings.Cut(ceph.Status.Ceph.Details["MON_DOWN"].Message, "quorum ")
		if names = strings.Split(strings.TrimSpace(list), ","); !known || list == "" {
			doubt = down
		}
	}
	for _, m := range monitors {
		out = append(out, replica.Voter{Name: m.id, Node: m.node, Votes: m.ready && (down == "" || slices.Contains(names, m.id))})
	}
	return out, cmp.Or(ceph.stale(now), ceph.check("error"), doubt)
}

// watchCeph reports Ceph clusters whose health was checked.
func (c *Client) watchCeph(ctx context.Context, tell func(look bool)) error {
	checked := func(ceph cephHealth) (metav1.ObjectMeta, string) { return ceph.Metadata, ceph.Status.Ceph.LastChecked }
	return watchCustom(ctx, c, rookVersion.WithResource("cephclusters"), tell, checked, func(was, is string) bool { return was != is })
}
