package kube

import (
	"encoding/json"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/recast-sh/recast/cluster"
)

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
