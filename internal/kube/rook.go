package kube

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/replica"
	"github.com/recast-sh/recast/internal/foreign"
)

var rookVersion = schema.GroupVersion{Group: "ceph.rook.io", Version: "v1"}

const rookDaemons = "app in (rook-ceph-mon, rook-ceph-osd)"

// rookDirectories finds the directories in which Rook's monitors and OSDs keep their state on each node, and the
// directory of every CephCluster.
func (l *localScan) rookDirectories(ctx context.Context, groups []metav1.APIGroup) error {
	if installed, err := supports(groups, rookVersion); !installed {
		return err
	}
	clusters, err := listCustom[cephCluster](ctx, l.Client, rookVersion.WithResource("cephclusters"), "")
	if err != nil {
		return err
	}
	for _, ceph := range clusters {
		if ceph.Spec.DataDir == "" {
			continue
		}
		dir := path.Clean("/" + ceph.Spec.DataDir)
		daemons, err := l.rookDaemons(ctx, ceph.Metadata.Namespace, dir)
		if err != nil {
			return err
		}
		for _, n := range l.nodes {
			n.managed = append(n.managed, managed{ceph.Metadata.Namespace, "rook-ceph-", dir})
			if kinds := slices.Sorted(maps.Keys(daemons[n])); len(kinds) > 0 {
				what := fmt.Sprintf("Rook's directory of CephCluster %s/%s (%s)", ceph.Metadata.Namespace, ceph.Metadata.Name, strings.Join(kinds, ", "))
				n.directories = append(n.directories, cluster.LocalData{Name: "rook" + dir, What: what, Path: dir})
			}
		}
	}
	return nil
}

// rookDaemons lists the kinds of daemons of a Ceph cluster that keep state below dir on each node. Deployments count
// as well as pods: a Deployment pins a daemon to its node, and a drained node has no pods left.
func (l *localScan) rookDaemons(ctx context.Context, namespace, dir string) (map[*localNode]map[string]bool, error) {
	kinds := map[*localNode]map[string]bool{}
	note := func(app map[string]string, spec *corev1.PodSpec) {
		if !keepsState(spec, dir) {
			return
		}
		for _, n := range slices.Concat(l.named[spec.NodeName], l.named[spec.NodeSelector[corev1.LabelHostname]]) {
			hostname := spec.NodeSelector[corev1.LabelHostname]
			tied := hostname != "" && hostname == n.labels[corev1.LabelHostname]
			if !tied && spec.NodeName != n.name {
				continue
			}
			if kinds[n] == nil {
				kinds[n] = map[string]bool{}
			}
			kinds[n][app["app"]] = true
		}
	}
	deployments, pods, err := l.rookWorkloads(ctx, namespace)
	if err != nil {
		return nil, err
	}
	for _, d := range deployments {
		note(d.Labels, &d.Spec.Template.Spec)
	}
	for _, p := range pods {
		if !finished(p) {
			note(p.Labels, &p.Spec)
		}
	}
	return kinds, nil
}

func (c *Client) rookWorkloads(ctx context.Context, namespace string) (deployments []*appsv1.Deployment, pods []*corev1.Pod, err error) {
	list := func(o metav1.ListOptions) (*appsv1.DeploymentList, error) {
		o.LabelSelector = rookDaemons
		return c.api.AppsV1().Deployments(namespace).List(ctx, o)
	}
	err = each(c, "deployments", list, func() { deployments = nil }, func(d *appsv1.Deployment) { deployments = append(deployments, d) })
	if err != nil {
		return nil, nil, err
	}
	selected := metav1.ListOptions{LabelSelector: rookDaemons}
	err = c.eachPod(ctx, namespace, selected, func() { pods = nil }, func(p *corev1.Pod) { pods = append(pods, p) })
	return deployments, pods, err
}

// keepsState reports whether the pod has a directory at or below dir that is not regenerated. A daemon's logs, crash
// dumps and sockets there do not count: their loss loses no data.
func keepsState(spec *corev1.PodSpec, dir string) bool {
	activated := activatedVolumes(spec)
	return slices.ContainsFunc(spec.Volumes, func(v corev1.Volume) bool {
		stateless := slices.Contains([]string{"rook-ceph-log", "rook-ceph-crash", "ceph-daemons-sock-dir"}, v.Name)
		return v.HostPath != nil && !stateless && !slices.Contains(activated, v.Name) && within(path.Clean(v.HostPath.Path), dir)
	})
}

// activatedVolumes returns the volumes of an OSD that its init container activate fills at every start from BlueStore
// or LVM's tags on the device: ceph-volume raw activate, ceph-volume lvm activate, or, on a claim, ceph-bluestore-tool
// prime-osd-dir (rook, pkg/operator/ceph/cluster/osd, activate-osd.sh and getActivatePVCInitContainer in spec.go).
// Such an OSD also mounts rook-data, the whole directory, but keeps nothing of its own there. OSDs in a directory or
// on a partition, of Rook before 1.3, have no such container. The mode is what Rook itself reads back from the
// Deployment (getOSDInfo in osd.go). A loop device may be a file on the system disk: it proves nothing.
func activatedVolumes(spec *corev1.PodSpec) []string {
	i := slices.IndexFunc(spec.InitContainers, func(c corev1.Container) bool { return c.Name == "activate" })
	osd := slices.IndexFunc(spec.Containers, func(c corev1.Container) bool { return c.Name == "osd" })
	if i < 0 || osd < 0 {
		return nil
	}
	env := slices.Concat(spec.InitContainers[i].Env, spec.Containers[osd].Env)
	known := slices.ContainsFunc(env, func(e corev1.EnvVar) bool {
		return e.Name == "ROOK_CV_MODE" && (e.Value == "raw" || e.Value == "lvm")
	})
	loop := slices.ContainsFunc(env, func(e corev1.EnvVar) bool { return strings.HasPrefix(e.Value, "/dev/loop") })
	if !known || loop {
		return nil
	}
	return append([]string{"rook-data"}, cluster.Each(spec.InitContainers[i].VolumeMounts, func(m corev1.VolumeMount) string { return m.Name })...)
}

type cephDaemon struct {
	id     string
	node   string // "": the daemon runs on no node, and is tied to none
	ready  bool
	labels map[string]string // of its Deployment (CephDaemonAppLabels in Rook's pkg/operator/ceph/controller/label.go)
}

type cephID struct{ app, id string }

func cephIDOf(m metav1.ObjectMeta) cephID {
	return cephID{m.Labels["app"], cmp.Or(m.Labels["ceph_daemon_id"], m.Labels["ceph-osd-id"], m.Labels["mon"], m.Name)}
}

type cephDaemons struct{ osds, monitors []cephDaemon }

func (d cephDaemons) nodes() []string {
	names := cluster.Each(cluster.Where(d.osds, func(osd cephDaemon) bool { return osd.node != "" }), func(osd cephDaemon) string { return osd.node })
	slices.Sort(names)
	return slices.Compact(names)
}

func (d cephDaemons) serves(node string) bool {
	return !slices.ContainsFunc(d.osds, func(osd cephDaemon) bool { return osd.node == node && !osd.ready })
}

// cephDaemons reads the OSDs and monitors of a namespace. A Deployment ties a daemon to its node by the hostname; a
// daemon on a claim is where its pod is.
func (c *Client) cephDaemons(ctx context.Context, namespace string) (cephDaemons, error) {
	deployments, pods, err := c.rookWorkloads(ctx, namespace)
	if err != nil {
		return cephDaemons{}, err
	}
	known := map[cephID]cephDaemon{}
	for _, d := range deployments {
		id := cephIDOf(d.ObjectMeta)
		known[id] = cephDaemon{id: id.id, node: d.Spec.Template.Spec.NodeSelector[corev1.LabelHostname], ready: d.Status.AvailableReplicas > 0, labels: d.Labels}
	}
	for _, p := range pods {
		place(known, p)
	}
	var d cephDaemons
	for _, id := range slices.SortedFunc(maps.Keys(known), func(a, b cephID) int { return cmp.Or(cmp.Compare(a.app, b.app), cmp.Compare(a.id, b.id)) }) {
		switch {
		case known[id].labels["mon_canary"] == "true": // only finds a node for a monitor (getLabels in pkg/operator/ceph/cluster/mon/spec.go)
		case id.app == "rook-ceph-mon":
			d.monitors = append(d.monitors, known[id])
		default:
			d.osds = append(d.osds, known[id])
		}
	}
	return d, nil
}

// place sets the node of a daemon that no Deployment ties to a node: the node of its pod or, of several pods, of a
// ready one.
func place(known map[cephID]cephDaemon, p *corev1.Pod) {
	id := cephIDOf(p.ObjectMeta)
	d, found := known[id]
	_, tied := p.Spec.NodeSelector[corev1.LabelHostname]
	if tied || p.Spec.NodeName == "" || finished(p) || d.node != "" && (d.ready || !podServes(p)) {
		return
	}
	if !found {
		d = cephDaemon{id: id.id, labels: p.Labels}
	}
	d.node, d.ready = p.Spec.NodeName, podServes(p)
	known[id] = d
}

func podServes(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue })
}

const (
	cephName = "Ceph"
	// rookStale is several of Rook's checks, one a minute (defaultStatusCheckInterval in
	// pkg/operator/ceph/cluster/cephstatus.go).
	rookStale = 5 * time.Minute
	// rookMaintenance is how long Rook keeps the flag noout on a host that is drained
	// (DefaultMaintenanceTimeout in pkg/operator/ceph/disruption/clusterdisruption/osd.go).
	rookMaintenance = 30 * time.Minute
	// cephDownOut is Ceph's default for how long an OSD is down before its data is copied elsewhere
	// (mon_osd_down_out_interval in Ceph's src/common/options/mon.yaml.in); no object shows the interval.
	cephDownOut = 10 * time.Minute
)

// cephRedundancy are the health checks of Ceph that say that data has fewer copies than it should have, or none
// (https://docs.ceph.com/en/latest/rados/operations/health-checks/). Rook writes "error" where Ceph did not answer
// (cephStatusOnError in cephstatus.go). OSD_DOWN is not among them: once a down OSD's data is elsewhere, nothing lacks.
var cephRedundancy = []string{"PG_AVAILABILITY", "PG_DEGRADED", "PG_DAMAGED", "PG_RECOVERY_FULL", "OBJECT_UNFOUND", "error"}

// cephCluster is the part that we read of Rook's CephCluster
// (pkg/apis/ceph.rook.io/v1/types.go, ClusterSpec and CephStatus).
type cephCluster struct {
	Metadata metav1.ObjectMeta `json:"metadata"`
	Spec     struct {
		DataDir    string `json:"dataDirHostPath"` // "": of an external Ceph
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
	clusters, err := listCustom[cephCluster](ctx, c, rookVersion.WithResource("cephclusters"), "")
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
	s.Nodes = cluster.Each(slices.Sorted(maps.Keys(nodes)), func(name string) replica.Node { return replica.Node{Name: name} })
	return s, nil
}

func (ceph cephCluster) volume(d cephDaemons, pools []cephPool, now time.Time) replica.Volume {
	v := replica.Volume{Name: foreign.Line(ceph.Metadata.Namespace + "/" + ceph.Metadata.Name), Checked: ceph.Status.Ceph.LastChecked}
	v.Replicas = cluster.Each(d.nodes(), func(node string) replica.Replica { return replica.Replica{Node: node, Healthy: d.serves(node)} })
	v.Why = ceph.reduced(now)
	v.Robust = v.Why == ""
	v.Voters, v.Doubt = ceph.voters(d.monitors, now)
	own := cluster.Where(pools, func(p cephPool) bool { return p.namespace == ceph.Metadata.Namespace })
	v.Placements = cluster.Each(own, func(p cephPool) replica.Placement { return p.placement(d, ceph.Spec.Mon.Stretch) })
	return v
}

// patience returns how long Ceph waits for OSDs of a drained node, the setting that says so, and how to have Ceph
// wait longer. Rook keeps noout set for the OSDs' failure domain while their Node is cordoned. At every look it
// removes noout from all other domains, whoever had set it. Without managePodBudgets Rook does neither (updateNoout
// in pkg/operator/ceph/disruption/clusterdisruption/osd.go, reconcile in reconcile.go). Without noout, Ceph's own
// interval counts.
func (ceph cephCluster) patience() (waits time.Duration, setting, remedy string) {
	if d := ceph.Spec.Disruption; d.Manages {
		return cmp.Or(d.Timeout*time.Minute, rookMaintenance), "osdMaintenanceTimeout", "raise disruptionManagement.osdMaintenanceTimeout, which is in minutes"
	}
	return cephDownOut, "Ceph's default of mon_osd_down_out_interval, since managePodBudgets is off",
		"set disruptionManagement.managePodBudgets, or set noout yourself in Rook's toolbox before and unset it after: ceph osd set-group noout NODE, ceph osd unset-group noout NODE"
}

// stale says why the recorded health is not the present one; "" if it is.
func (ceph cephCluster) stale(now time.Time) string {
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

// reduced says why data may lack copies; "" if no data does.
func (ceph cephCluster) reduced(now time.Time) string {
	if stale := ceph.stale(now); stale != "" {
		return stale
	}
	return strings.Join(cluster.Where(cluster.Each(cephRedundancy, ceph.check), func(text string) bool { return text != "" }), ", ")
}

// check returns the text of a health check that Ceph reports; "" if Ceph does not report it.
func (ceph cephCluster) check(code string) string {
	d, ok := ceph.Status.Ceph.Details[code]
	if !ok {
		return ""
	}
	return foreign.Line(code + " (" + d.Message + ")")
}

// voters says which monitors are in quorum; doubt is why that is not known. MON_DOWN ends with the names of the
// monitors in quorum: "1/3 mons down, quorum a,b" (HealthMonitor::check_mon_health in Ceph's src/mon/HealthMonitor.cc).
func (ceph cephCluster) voters(monitors []cephDaemon, now time.Time) (out []replica.Voter, doubt string) {
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

func (c *Client) watchCeph(ctx context.Context, tell func(look bool)) error {
	checked := func(ceph cephCluster) (metav1.ObjectMeta, string) { return ceph.Metadata, ceph.Status.Ceph.LastChecked }
	return watchCustom(ctx, c, rookVersion.WithResource("cephclusters"), tell, checked, func(was, is string) bool { return was != is })
}

const (
	osdDomain  = "osd"
	hostDomain = "host" // the default (DefaultFailureDomain in Rook's pkg/apis/ceph.rook.io/v1/types.go)
	// cephCopies is Ceph's osd_pool_default_size.
	cephCopies = 3
)

type cephPool struct {
	namespace, name string
	spec            poolSpec
}

// poolSpec is the part of Rook's PoolSpec that says how data lies on OSDs (pkg/apis/ceph.rook.io/v1/types.go).
type poolSpec struct {
	Name       string `json:"name"`
	Domain     string `json:"failureDomain"`
	Class      string `json:"deviceClass"`
	Replicated struct {
		Size      int     `json:"size"`
		Ratio     float64 `json:"targetSizeRatio"`
		PerDomain int     `json:"replicasPerFailureDomain"`
		SubDomain string  `json:"subFailureDomain"`
		Hybrid    *struct {
			Primary   string `json:"primaryDeviceClass"`
			Secondary string `json:"secondaryDeviceClass"`
		} `json:"hybridStorage"`
	} `json:"replicated"`
	Coded struct {
		Data   int `json:"dataChunks"`
		Coding int `json:"codingChunks"`
	} `json:"erasureCoded"`
	Parameters map[string]string `json:"parameters"`
}

// cephStretch is the setting of a cluster over two sites. All pools of such a cluster have one CRUSH rule: two copies
// in each zone (createReplicatedPoolForApp in Rook's pkg/daemon/ceph/client/pool.go).
type cephStretch struct {
	SubDomain string `json:"subFailureDomain"`
}

// cephPoolOwner is an object of Rook that has pools. It has the fields of all kinds of such objects.
type cephPoolOwner struct {
	Metadata metav1.ObjectMeta `json:"metadata"`
	Spec     struct {
		poolSpec                // of a CephBlockPool
		MetadataPool poolSpec   `json:"metadataPool"`
		DataPools    []poolSpec `json:"dataPools"` // of a CephFilesystem
		DataPool     poolSpec   `json:"dataPool"`  // of a CephObjectStore or a CephObjectZone
	} `json:"spec"`
}

// cephPools reads the pools of all of Rook's objects. It does not see pools that no object describes.
func (c *Client) cephPools(ctx context.Context) (pools []cephPool, err error) {
	served, err := c.resources(ctx, rookVersion)
	if err != nil {
		return nil, err
	}
	for _, kind := range []struct{ resource, kind string }{
		{"cephblockpools", "CephBlockPool"}, {"cephfilesystems", "CephFilesystem"}, {"cephobjectstores", "CephObjectStore"}, {"cephobjectzones", "CephObjectZone"},
	} {
		if !slices.ContainsFunc(served, func(r metav1.APIResource) bool { return r.Name == kind.resource }) {
			continue
		}
		owners, err := listCustom[cephPoolOwner](ctx, c, rookVersion.WithResource(kind.resource), "")
		if err != nil {
			return nil, err
		}
		for _, o := range owners {
			add := func(what string, spec poolSpec) {
				if spec.copies() > 0 {
					pools = append(pools, cephPool{o.Metadata.Namespace, foreign.Line(what + kind.kind + " " + o.Metadata.Name), spec})
				}
			}
			add("", o.Spec.poolSpec)
			add("metadataPool of ", o.Spec.MetadataPool)
			add("dataPool of ", o.Spec.DataPool)
			for i, spec := range o.Spec.DataPools {
				add(fmt.Sprintf("dataPools[%d] of ", i), spec)
			}
		}
	}
	return pools, nil
}

// copies returns how many copies or chunks of an object there are; 0: the pool is not described.
func (p poolSpec) copies() int {
	if p.Replicated.Size == 0 && p.Replicated.Ratio > 0 {
		return cephCopies
	}
	return p.Replicated.Size + p.Coded.Data + p.Coded.Coding
}

// needs returns the pool's min_size: the value that Rook is told to set, else Ceph's default (prepare_pool_size in
// Ceph's src/mon/OSDMonitor.cc, get_osd_pool_default_min_size in src/common/config_proxy.h).
func (p poolSpec) needs() int {
	if set, err := strconv.Atoi(p.Parameters["min_size"]); err == nil && set > 0 {
		return set
	}
	if p.Coded.Data > 0 {
		return p.Coded.Data + max(0, min(1, p.Coded.Coding-1))
	}
	return p.copies() - p.copies()/2
}

// placement returns how the pool's data may lie on nodes, by the CRUSH rules that Rook makes
// (pkg/daemon/ceph/client/crush_rule.go).
func (p cephPool) placement(d cephDaemons, stretch *cephStretch) replica.Placement {
	s := p.spec
	domain := cmp.Or(s.Domain, hostDomain)
	out := replica.Placement{Pool: p.name, Domain: foreign.Line(domain), Copies: s.copies(), Needs: s.needs(), On: map[string]int{}}
	for _, node := range d.nodes() {
		on := func(class string) spread { return d.spread(node, class) }
		n := 0
		switch r := s.Replicated; {
		case stretch != nil:
			n = min(2, on("").of(cmp.Or(stretch.SubDomain, hostDomain)))
		case r.Hybrid != nil:
			n = min(1, on(r.Hybrid.Primary).of(domain)) + on(r.Hybrid.Secondary).of(domain)
		case r.PerDomain > 1:
			n = on(s.Class).of(domain) * min(r.PerDomain, on(s.Class).of(cmp.Or(r.SubDomain, hostDomain)))
		default:
			n = on(s.Class).of(domain)
		}
		out.On[node] = min(n, s.copies())
	}
	return out
}

// spread are the OSDs of one device class on a node.
type spread []cephDaemon

func (d cephDaemons) spread(node, class string) (out spread) {
	return cluster.Where(d.osds, func(osd cephDaemon) bool {
		has := osd.labels["device-class"]
		return osd.node == node && (class == "" || has == "" || has == class)
	})
}

// of counts the failure domains of a level that the OSDs are in. Rook labels an OSD with its place in CRUSH
// (getOSDTopologyLocationLabels in pkg/operator/ceph/cluster/osd/labels.go): a portable OSD on a claim is a host of
// its own. A level that recast does not know may be below a host.
func (s spread) of(domain string) int {
	label := "topology-location-" + domain
	places := map[string]bool{}
	for _, osd := range s {
		places[osd.labels[label]] = true
	}
	above := slices.Contains(crushLevels, domain)
	if _, labelled := places[""]; domain == osdDomain || !above && labelled {
		return len(s)
	}
	return len(places)
}

// crushLevels are CRUSH's levels from the host upwards (CRUSHMapLevelsOrdered in Rook's
// pkg/operator/ceph/cluster/osd/topology/topology.go).
var crushLevels = []string{hostDomain, "chassis", "rack", "row", "pdu", "pod", "room", "datacenter", "zone", "region", "root"}
