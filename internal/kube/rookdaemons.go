package kube

import (
	"cmp"
	"context"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

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
