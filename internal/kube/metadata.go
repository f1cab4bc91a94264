package kube

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/recast-sh/recast/cluster"
)

// RestoreMetadata restores what people had put on the node. A node that lacks
// nothing is not written to.
func (c *Client) RestoreMetadata(ctx context.Context, node string, m cluster.NodeMetadata) error {
	return c.amendNode(ctx, "restore labels, annotations and taints of", node, func(n *corev1.Node) (*nodePatch, error) {
		return missingMetadata(n, m), nil
	})
}

// missingMetadata is the patch that gives n the keys of m that no other program writes; nil if
// there are none.
func missingMetadata(n *corev1.Node, m cluster.NodeMetadata) *nodePatch {
	o := ownership(n, m)
	p := &nodePatch{}
	p.Metadata.Labels = differing(n.Labels, m.Labels, o.label)
	for k, v := range differing(n.Annotations, m.Annotations, o.annotation) {
		p.annotate(k, &v)
	}
	taints := slices.Clone(n.Spec.Taints)
	for _, t := range m.Taints {
		if o.taint(t.Key) {
			continue
		}
		want := corev1.Taint{Key: t.Key, Value: t.Value, Effect: corev1.TaintEffect(t.Effect)}
		i := slices.IndexFunc(taints, func(have corev1.Taint) bool { return have.MatchTaint(&want) })
		switch {
		case i < 0:
			taints = append(taints, want)
		case taints[i].Value != want.Value:
			taints[i].Value = want.Value
		default:
			continue
		}
		p.Spec.Taints = taints
	}
	if len(p.Metadata.Labels)+len(p.Metadata.Annotations)+len(p.Spec.Taints) == 0 {
		return nil
	}
	return p
}

func differing(have, want map[string]string, skip func(string) bool) map[string]string {
	d := maps.Clone(want)
	maps.DeleteFunc(d, func(k, v string) bool {
		is, there := have[k]
		return skip(k) || there && is == v
	})
	return d
}

// owners knows which program owns a key on a Node. What a program writes itself must
// not be carried over: at best it is written again, at worst the old value belongs
// to a machine that is gone (flannel's MAC, a CSI node ID).
type owners struct {
	talosLabels, talosAnnotations, talosTaints []string // from the machine configuration, as Talos records them
	cloud                                      bool     // a cloud controller manages the node
}

// Talos lists the keys that it took from the machine configuration.
const (
	ownedLabels      = "talos.dev/owned-labels"
	ownedAnnotations = "talos.dev/owned-annotations"
	ownedTaints      = "talos.dev/owned-taints"
)

func ownership(n *corev1.Node, m cluster.NodeMetadata) owners {
	listed := func(key string) []string {
		return append(keyList(n.Annotations[key]), keyList(m.Annotations[key])...)
	}
	return owners{
		talosLabels: listed(ownedLabels), talosAnnotations: listed(ownedAnnotations), talosTaints: listed(ownedTaints),
		cloud: n.Spec.ProviderID != "",
	}
}

// keyList reads a JSON list of keys; anything else lists nothing.
func keyList(s string) []string {
	var keys []string
	if json.Unmarshal([]byte(s), &keys) != nil {
		return nil
	}
	return keys
}

func (o owners) label(key string) bool {
	switch key {
	case "kubernetes.io/hostname", "kubernetes.io/arch", "kubernetes.io/os": // kubelet
		return true
	case "node-role.kubernetes.io/control-plane": // Talos, from the machine's type
		return true
	case "node.kubernetes.io/instance-type", "topology.kubernetes.io/region", "topology.kubernetes.io/zone":
		return o.cloud
	}
	return slices.Contains(o.talosLabels, key) || below(key,
		"beta.kubernetes.io", // kubelet
		"talos.dev")          // Talos: extensions.talos.dev/…
}

func (o owners) annotation(key string) bool {
	switch key {
	case cluster.PauseMark: // a person's
		return false
	case "node.alpha.kubernetes.io/ttl": // node controller
		return true
	case "volumes.kubernetes.io/controller-managed-attach-detach", "csi.volume.kubernetes.io/nodeid": // kubelet
		return true
	case "alpha.kubernetes.io/provided-node-ip": // kubelet, for the cloud controller
		return true
	}
	return slices.Contains(o.talosAnnotations, key) || below(key,
		"recast.dev",               // ours: only Cordon and similar methods change it
		"talos.dev",                // Talos: owned-…, KubeSpan keys, the discovery's node ID
		"flannel.alpha.coreos.com", // flannel: the VXLAN device's MAC is the old machine's
		"network.cilium.io",        // Cilium agent
		"projectcalico.org",        // Calico node
		"k8s.ovn.org")              // OVN-Kubernetes: chassis ID
}

func (o owners) taint(key string) bool {
	switch key {
	case "node-role.kubernetes.io/control-plane": // Talos, from allowSchedulingOnControlPlanes
		return true
	case "node.cilium.io/agent-not-ready": // until Cilium runs on the new machine
		return true
	case "ToBeDeletedByClusterAutoscaler", "DeletionCandidateOfClusterAutoscaler":
		return true
	}
	return slices.Contains(o.talosTaints, key) || below(key,
		"node.kubernetes.io",               // node controller: the state of the old machine
		"node.cloudprovider.kubernetes.io") // cloud controller
}

// below reports whether the key's prefix is one of the domains or a subdomain of one.
func below(key string, domains ...string) bool {
	prefix, _, ok := strings.Cut(key, "/")
	return ok && slices.ContainsFunc(domains, func(d string) bool { return prefix == d || strings.HasSuffix(prefix, "."+d) })
}

// regenerated is a directory of the node, including all below it (except for /), that
// some pods write to and that holds no data: they fill it again on a new machine.
type regenerated struct {
	pods      string // the pod's kind, as stayingKind returns it: "DaemonSet", "static"; "" for any
	namespace string // of the pod; "" for any
	path      string
}

// regeneratedPaths is the complete list; everything else is data. Each row follows the
// standard manifests of its program; docs/notes/local-data.md shows it to users.
var regeneratedPaths = []regenerated{
	{"DaemonSet", "", "/var/lib/kubelet"},      // sockets of device plugins and CSI drivers, and mounts of pods: the kubelet recreates its directory
	{"DaemonSet", "", "/var/log"},              // logs of the machine and its pods, and how far a collector has read them
	{"static", "kube-system", "/var/log"},      // the API server's audit log
	{"static", "kube-system", "/var/lib/etcd"}, // etcd's data is checked separately, not as a path

	// CNI: calico.yaml and the Tigera operator; Cilium's and flannel's state is below /run.
	{"DaemonSet", "", "/opt/cni"},        // the CNI's programs, which it installs
	{"DaemonSet", "", "/var/lib/cni"},    // the addresses of this machine's pods
	{"DaemonSet", "", "/var/lib/calico"}, // Calico's name and MTU of this machine

	// Metrics and logs: node-exporter's textfile collector, and the positions of log collectors.
	{"DaemonSet", "", "/var/lib/node_exporter"},
	{"DaemonSet", "", "/var/lib/node-exporter"},
	{"DaemonSet", "", "/var/lib/alloy"},
	{"DaemonSet", "", "/var/lib/promtail"},
	{"DaemonSet", "", "/var/lib/vector"},
	{"DaemonSet", "", "/var/lib/fluent-bit"},
	{"DaemonSet", "", "/var/fluent-bit"},
	{"DaemonSet", "", "/var/lib/filebeat-data"},
	{"DaemonSet", "", "/var/lib/docker"}, // other runtimes' logs: Talos has no Docker, and the directory is empty

	// Storage systems that report themselves what they have on a node.
	{"", "longhorn-system", "/var/lib/longhorn"},        // Longhorn's own Node says which of its disks hold replicas; the rest is programs and sockets
	{"", "longhorn-system", "/var/lib/kubelet/plugins"}, // the socket of Longhorn's CSI driver, which its sidecars use too
	{"", "longhorn-system", "/"},                        // Longhorn's instance managers reach their disks by it: its own Node says what those hold
	{"DaemonSet", "", "/var/lib/linstor.d"},             // resource files that LINSTOR's controller writes to each satellite
	{"DaemonSet", "", "/var/lib/drbd"},                  // DRBD's notes on its devices of this machine
	{"DaemonSet", "", "/var/openebs/ndm"},               // OpenEBS' list of this machine's disks
}

// isRegenerated reports whether the pod fills the path again on a new machine.
func isRegenerated(p *corev1.Pod, at string) bool {
	return slices.ContainsFunc(regeneratedPaths, func(r regenerated) bool {
		return (r.pods == "" || r.pods == stayingKind(p)) && (r.namespace == "" || r.namespace == p.Namespace) &&
			(at == r.path || r.path != "/" && within(at, r.path))
	})
}
