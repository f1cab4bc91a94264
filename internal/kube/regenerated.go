package kube

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

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
