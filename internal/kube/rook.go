package kube

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/recast-sh/recast/cluster"
)

var rookVersion = schema.GroupVersion{Group: "ceph.rook.io", Version: "v1"}

const rookDaemons = "app in (rook-ceph-mon, rook-ceph-osd)"

type cephCluster struct {
	Metadata metav1.ObjectMeta `json:"metadata"`
	Spec     struct {
		DataDir string `json:"dataDirHostPath"`
	} `json:"spec"`
}

// rookDirectories finds the directories in which Rook's monitors and OSDs keep their
// state on each node, and those of every CephCluster.
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
			continue // an external Ceph
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

// rookDaemons lists the kinds of daemons of a Ceph cluster that keep state below dir
// on each node. Deployments count as well as pods: they pin a daemon to its node,
// and a drained node has no pods left.
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

// rookWorkloads lists the Deployments and the pods of Rook's monitors and OSDs in a namespace.
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

// keepsState reports whether the pod has a directory at or below dir that is not
// regenerated. The loss of a daemon's logs, crash dumps and sockets there loses no
// data.
func keepsState(spec *corev1.PodSpec, dir string) bool {
	activated := activatedVolumes(spec)
	return slices.ContainsFunc(spec.Volumes, func(v corev1.Volume) bool {
		stateless := slices.Contains([]string{"rook-ceph-log", "rook-ceph-crash", "ceph-daemons-sock-dir"}, v.Name)
		return v.HostPath != nil && !stateless && !slices.Contains(activated, v.Name) && within(path.Clean(v.HostPath.Path), dir)
	})
}

// activatedVolumes returns the volumes of an OSD that its init container activate
// fills at every start from BlueStore or LVM's tags on the device: ceph-volume raw
// activate, ceph-volume lvm activate, or, on a claim, ceph-bluestore-tool
// prime-osd-dir (rook, pkg/operator/ceph/cluster/osd, activate-osd.sh and
// getActivatePVCInitContainer in spec.go). Such an OSD also mounts rook-data, the
// whole directory, but keeps nothing of its own there. OSDs in a directory or on a
// partition, of Rook before 1.3, have no such container. The mode is what Rook
// itself reads back from the Deployment (getOSDInfo in osd.go). A loop device may be
// a file on the system disk: it proves nothing.
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
	volumes := []string{"rook-data"}
	for _, m := range spec.InitContainers[i].VolumeMounts {
		volumes = append(volumes, m.Name)
	}
	return volumes
}

// cephDaemon is an OSD or a monitor of Rook.
type cephDaemon struct {
	id     string
	node   string // "": it runs on none, and is tied to none
	ready  bool
	labels map[string]string // of its Deployment (CephDaemonAppLabels in Rook's pkg/operator/ceph/controller/label.go)
}

// cephID is what Rook calls a daemon.
type cephID struct{ app, id string }

func cephIDOf(m metav1.ObjectMeta) cephID {
	return cephID{m.Labels["app"], cmp.Or(m.Labels["ceph_daemon_id"], m.Labels["ceph-osd-id"], m.Labels["mon"], m.Name)}
}

// cephDaemons are those of a Ceph cluster.
type cephDaemons struct{ osds, monitors []cephDaemon }

// nodes lists those with OSDs, sorted.
func (d cephDaemons) nodes() []string {
	names := map[string]bool{}
	for _, osd := range d.osds {
		if osd.node != "" {
			names[osd.node] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// serves says whether all OSDs of a node do.
func (d cephDaemons) serves(node string) bool {
	return !slices.ContainsFunc(d.osds, func(osd cephDaemon) bool { return osd.node == node && !osd.ready })
}

// cephDaemons reads the OSDs and monitors of a namespace. A Deployment ties a daemon to its node by the hostname; one on
// a claim is where its pod is.
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

// place puts a daemon that no Deployment ties to a node where its pod is; of several pods, where one serves.
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
