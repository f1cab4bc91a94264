package kube

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/siderolabs/go-kubernetes/kubernetes/upgrade"
	appsv1 "k8s.io/api/apps/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/foreign"
	"github.com/recast-sh/recast/internal/format"
	"github.com/recast-sh/recast/internal/wait"
)

func (c *Client) Nodes(ctx context.Context) (nodes []cluster.KubeNode, err error) {
	var unreadable []error
	list := func(o metav1.ListOptions) (*corev1.NodeList, error) { return c.api.CoreV1().Nodes().List(ctx, o) }
	err = each(c, "nodes", list, func() { nodes, unreadable = nil, nil }, func(n *corev1.Node) {
		node, err := kubeNode(n)
		nodes, unreadable = append(nodes, node), append(unreadable, err)
	})
	if err == nil {
		err = errors.Join(unreadable...)
	}
	if err != nil {
		return nil, err
	}
	return nodes, nil
}

func (c *Client) Node(ctx context.Context, name string) (cluster.KubeNode, error) {
	n, err := c.api.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return cluster.KubeNode{}, fmt.Errorf("read node %s: %w", name, c.translate(err))
	}
	return kubeNode(n)
}

func kubeNode(n *corev1.Node) (cluster.KubeNode, error) {
	mark, err := markOf(n)
	info := n.Status.NodeInfo
	_, controlPlane := n.Labels["node-role.kubernetes.io/control-plane"]
	node := cluster.KubeNode{
		Name: n.Name, UUID: strings.ToLower(info.SystemUUID), BootID: info.BootID, MachineID: info.MachineID,
		ControlPlane: controlPlane, Unschedulable: n.Spec.Unschedulable, Mark: mark, FailedBuild: n.Annotations[failedBuildAnnotation],
		Booted: bootedOf(n),
		Pause:  cluster.Pause(n.Annotations), ProviderID: n.Spec.ProviderID, KubeletVersion: info.KubeletVersion,
		Ready: isReady(n), UID: string(n.UID),
		Metadata: cluster.NodeMetadata{Labels: n.Labels, Annotations: n.Annotations, Taints: cluster.Each(n.Spec.Taints, func(t corev1.Taint) cluster.Taint {
			return cluster.Taint{Key: t.Key, Value: t.Value, Effect: string(t.Effect)}
		})},
	}
	for _, a := range n.Status.Addresses {
		if a.Type != corev1.NodeInternalIP && a.Type != corev1.NodeExternalIP {
			continue
		}
		if addr, err := netip.ParseAddr(a.Address); err == nil {
			node.Addresses = append(node.Addresses, addr)
		}
	}
	return node, err
}

func isReady(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// PendingCertificates lists, by name, the serving certificates that the node's kubelet has requested and that are
// undecided. Without a certificate the kubelet cannot be asked for logs, metrics or an exec.
func (c *Client) PendingCertificates(ctx context.Context, node string) ([]string, error) {
	selector := fields.OneTermEqualSelector("spec.signerName", certificatesv1.KubeletServingSignerName).String()
	list, err := c.api.CertificatesV1().CertificateSigningRequests().List(ctx, metav1.ListOptions{FieldSelector: selector})
	if err != nil {
		return nil, fmt.Errorf("list certificate signing requests: %w", c.translate(err))
	}
	open := cluster.Where(list.Items, func(r certificatesv1.CertificateSigningRequest) bool {
		return r.Spec.Username == "system:node:"+node && !decided(r.Status)
	})
	names := cluster.Each(open, func(r certificatesv1.CertificateSigningRequest) string { return r.Name })
	slices.Sort(names)
	return names, nil
}

// decided reports whether a request was approved, denied, failed or served. An approved request waits for the signer,
// not for approval.
func decided(s certificatesv1.CertificateSigningRequestStatus) bool {
	ends := []certificatesv1.RequestConditionType{
		certificatesv1.CertificateApproved, certificatesv1.CertificateDenied, certificatesv1.CertificateFailed,
	}
	return len(s.Certificate) > 0 || slices.ContainsFunc(s.Conditions, func(c certificatesv1.CertificateSigningRequestCondition) bool {
		return slices.Contains(ends, c.Type)
	})
}

// Annotations in which recast records on a Node what it does to the node. A kubelet that registers again keeps them.
const (
	rollAnnotation        = "recast.dev/roll" // JSON of a cluster.Mark
	failedBuildAnnotation = "recast.dev/failed-build"
	bootedAnnotation      = "recast.dev/booted"
)

// Cordon makes the node unschedulable and marks it with why, in one write. If the node was already unschedulable,
// without a mark or with a Foreign one, someone else has cordoned it: then the new mark is Foreign, too.
func (c *Client) Cordon(ctx context.Context, node string, why cluster.Mark) error {
	return c.amendNode(ctx, "cordon", node, func(n *corev1.Node) (*nodePatch, error) {
		had, err := markOf(n)
		if err != nil {
			return nil, err
		}
		mark := why
		mark.Foreign = why.Foreign || n.Spec.Unschedulable && (had == nil || had.Foreign)
		if had != nil && *had == mark && n.Spec.Unschedulable {
			return nil, nil
		}
		text, err := json.Marshal(mark)
		if err != nil {
			return nil, fmt.Errorf("encode mark: %w", err)
		}
		p := &nodePatch{}
		p.annotate(rollAnnotation, new(string(text)))
		p.Spec.Unschedulable = new(true)
		return p, nil
	})
}

// Uncordon removes the mark and, unless it is Foreign, makes the node schedulable again, in one write.
func (c *Client) Uncordon(ctx context.Context, node string) error {
	return c.amendNode(ctx, "uncordon", node, func(n *corev1.Node) (*nodePatch, error) {
		had, err := markOf(n)
		if had == nil || err != nil {
			return nil, err
		}
		p := &nodePatch{}
		p.annotate(rollAnnotation, nil)
		if !had.Foreign {
			p.Spec.Unschedulable = new(false)
		}
		return p, nil
	})
}

// SetFailedBuild records on the Node a build from which the node came back with its old system; "" removes the record.
func (c *Client) SetFailedBuild(ctx context.Context, node, build string) error {
	return c.amendNode(ctx, "record the failed build on", node, func(n *corev1.Node) (*nodePatch, error) {
		if n.Annotations[failedBuildAnnotation] == build {
			return nil, nil
		}
		p := &nodePatch{}
		if p.annotate(failedBuildAnnotation, &build); build == "" {
			p.annotate(failedBuildAnnotation, nil)
		}
		return p, nil
	})
}

func (c *Client) SetBooted(ctx context.Context, node string, b cluster.Booted) error {
	return c.amendNode(ctx, "record the boot entry on", node, func(n *corev1.Node) (*nodePatch, error) {
		if bootedOf(n) == b {
			return nil, nil
		}
		text, err := json.Marshal(b)
		if err != nil {
			return nil, err
		}
		p := &nodePatch{}
		if p.annotate(bootedAnnotation, new(string(text))); b == (cluster.Booted{}) {
			p.annotate(bootedAnnotation, nil)
		}
		return p, nil
	})
}

// bootedOf reads the recorded boot entry. It is empty if someone has made the annotation unreadable: then the machine
// is believed.
func bootedOf(n *corev1.Node) (b cluster.Booted) {
	if json.Unmarshal([]byte(n.Annotations[bootedAnnotation]), &b) != nil {
		return cluster.Booted{}
	}
	return b
}

// markOf reads the node's mark; nil if it has none. An unreadable mark is an error: it would be unclear whose cordon
// it is.
func markOf(n *corev1.Node) (*cluster.Mark, error) {
	text, ok := n.Annotations[rollAnnotation]
	if !ok {
		return nil, nil
	}
	var m cluster.Mark
	err := format.Decode([]byte(text), &m)
	if err == nil && m.Run == "" {
		err = errors.New("it names no run")
	}
	if err != nil {
		return nil, fault.WithHint(fmt.Errorf("annotation %s of node %s: %w", rollAnnotation, n.Name, foreign.Error(err)),
			"if a newer recast has worked here, use that one. Else recast status shows whether a roll is under way; if none is, remove it: kubectl annotate node %s %s-", n.Name, rollAnnotation)
	}
	return &m, nil
}

// amendTimeout bounds how long others may keep changing the node meanwhile, and how
// long the API may give no usable answer.
const amendTimeout = time.Minute

// nodePatch is a merge patch of a node. Its revision ensures that the node is unchanged since it was read: the patch
// replaces the whole list of taints, and a mark must not overwrite a concurrent one.
type nodePatch struct {
	Metadata struct {
		ResourceVersion string             `json:"resourceVersion"`
		Labels          map[string]string  `json:"labels,omitempty"`
		Annotations     map[string]*string `json:"annotations,omitempty"` // nil removes
	} `json:"metadata"`
	Spec struct {
		Unschedulable *bool          `json:"unschedulable,omitempty"`
		Taints        []corev1.Taint `json:"taints,omitempty"`
	} `json:"spec"`
}

// annotate sets one annotation, or removes it if value is nil.
func (p *nodePatch) annotate(key string, value *string) {
	if p.Metadata.Annotations == nil {
		p.Metadata.Annotations = map[string]*string{}
	}
	p.Metadata.Annotations[key] = value
}

// amendNode changes a node in one write; change returns nil for none. If someone else writes between our read and our
// write, or the answer is lost, it reads the node again and calls change again: the revision prevents a second write
// of the same change.
func (c *Client) amendNode(ctx context.Context, what, node string, change func(n *corev1.Node) (*nodePatch, error)) error {
	return c.repeat(ctx, what+" node "+node, func(ctx context.Context) error {
		n, err := c.api.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		patch, err := change(n)
		if err != nil || patch == nil {
			return err
		}
		patch.Metadata.ResourceVersion = n.ResourceVersion
		body, err := json.Marshal(patch)
		if err != nil {
			return fmt.Errorf("encode patch: %w", err)
		}
		_, err = c.api.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, body, metav1.PatchOptions{})
		return err
	})
}

// DeleteNode deletes the Node object if it still has that UID.
func (c *Client) DeleteNode(ctx context.Context, node, uid string) error {
	err := c.repeat(ctx, "delete node "+node, func(ctx context.Context) error {
		n, err := c.api.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		if err == nil && string(n.UID) == uid {
			err = c.api.CoreV1().Nodes().Delete(ctx, node, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: new(n.UID)}})
		}
		return err
	})
	if errors.Is(err, cluster.ErrNotFound) {
		return nil
	}
	return err
}

// repeat repeats a change, which must be safe to repeat, while the API does not answer or someone else changes the
// same object.
func (c *Client) repeat(ctx context.Context, name string, do func(context.Context) error) error {
	w := wait.For{Name: name, Every: c.poll, Timeout: amendTimeout}
	var transient error
	err := wait.Until(ctx, w, func(ctx context.Context) (bool, string, error) {
		err := do(ctx)
		switch {
		case apierrors.IsConflict(err):
			transient = nil
			return false, "changed by someone else meanwhile", nil
		case ctx.Err() != nil: // says nothing about the node
			return err == nil, "", err
		case isTransient(err):
			transient = c.translate(err)
			return false, "", transient
		}
		return err == nil, "", wait.Stop(c.translate(err))
	})
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		for _, hint := range fault.Hints(transient) {
			err = fault.WithHint(err, "%s", hint)
		}
	}
	return err
}

// isTransient reports whether the API gave no answer, or an error of its own.
func isTransient(err error) bool {
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return false
	}
	if _, ok := errors.AsType[*url.Error](err); ok || errors.Is(err, errSilent) {
		return true
	}
	status, ok := errors.AsType[*apierrors.StatusError](err)
	return ok && isBusy(status.ErrStatus.Code)
}

// RestoreMetadata restores the labels, annotations and taints that people had put on the node. It writes nothing if
// the node lacks nothing.
func (c *Client) RestoreMetadata(ctx context.Context, node string, m cluster.NodeMetadata) error {
	return c.amendNode(ctx, "restore labels, annotations and taints of", node, func(n *corev1.Node) (*nodePatch, error) {
		return missingMetadata(n, m), nil
	})
}

// missingMetadata returns the patch that gives n the keys of m that no other program writes; nil if n lacks none.
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

// owners knows which program owns a key on a Node. A key that a program writes itself must not be carried over: at best
// the program writes it again, at worst the old value belongs to a machine that is gone (flannel's MAC, a CSI node ID).
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
	case "kubernetes.io/hostname", "kubernetes.io/arch", "kubernetes.io/os", // kubelet
		"node-role.kubernetes.io/control-plane": // Talos, from the machine's type
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
	case "node.alpha.kubernetes.io/ttl", // node controller
		"volumes.kubernetes.io/controller-managed-attach-detach", "csi.volume.kubernetes.io/nodeid", // kubelet
		"alpha.kubernetes.io/provided-node-ip": // kubelet, for the cloud controller
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
	case "node-role.kubernetes.io/control-plane", // Talos, from allowSchedulingOnControlPlanes
		"node.cilium.io/agent-not-ready", // until Cilium runs on the new machine
		"ToBeDeletedByClusterAutoscaler", "DeletionCandidateOfClusterAutoscaler":
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

// regenerated is a directory of the node, with all below it (except for /), that some pods write to and that holds no
// data: the pods fill it again on a new machine.
type regenerated struct {
	pods      string // the pod's kind, as stayingKind returns it: "DaemonSet", "static"; "" for any
	namespace string // of the pod; "" for any
	label     string // of the pod: "app=multus"; "" for any
	path      string // "*" stands for one name
	source    string // of a program that writes there: its version, or that of its chart, and the file
}

// regeneratedPaths is the complete list; everything else is data. docs/notes/local-data.md shows it to users.
var regeneratedPaths = []regenerated{
	// Sockets of device plugins and CSI drivers, and mounts of pods: the kubelet recreates its directory. No driver keeps a volume there.
	{"", "", "", "/var/lib/kubelet", "csi-driver-nfs 4.13.4, csi-nfs-controller.yaml; Velero 1.18.1, pkg/exposer/pod_volume.go; Longhorn 1.12.1, csi/deployment_util.go"},

	// Logs of the machine and its pods, and how far a collector has read them.
	{"DaemonSet", "", "", "/var/log", "fluent-bit 0.58.1, values.yaml; Piraeus 2.6.0, satellite/daemonset.yaml"},
	{"", "kube-system", "", "/var/log", "Talos, the API server's audit log; kube-ovn 1.16.2, central-deploy.yaml; Antrea 2.7.0, controller/deployment.yaml"},
	{"", "flow-aggregator", "", "/var/log/antrea", "Antrea 2.7.0, flow-aggregator/templates/deployment.yaml"},
	{"", "", "", "/var/lib/cephcsi", "ceph-csi-operator 1.0.4, internal/controller/defaults.go"},
	{"", "", "", "/var/lib/rook/*/log", "Rook 1.17.8, csi/template/rbd/csi-rbdplugin.yaml"},
	{"static", "kube-system", "", "/var/lib/etcd", "Talos: etcd's data is checked separately, not as a path"},

	// The programs and the state of a network: addresses of this machine's pods, its name and MTU, open vSwitch' identity.
	{"DaemonSet", "", "", "/opt/cni", "Cilium 1.19.6, cilium-agent/daemonset.yaml; Flannel 0.28.9, daemonset.yaml; Calico 87c15906, calico.yaml"},
	{"DaemonSet", "", "", "/var/lib/cni", "Calico 87c15906, calico.yaml; Multus 4.3.0, multus-daemonset-thick.yml"},
	{"DaemonSet", "", "", "/var/lib/calico", "Calico 87c15906, calico.yaml; tigera operator 40788b9b, pkg/render/node.go"},
	{"DaemonSet", "", "", "/var/lib/openvswitch", "kube-ovn 1.16.2, ovsovn-ds.yaml; its databases are in /var/lib/ovn, and data"},
	{"DaemonSet", "kube-system", "app=multus", "/", "Multus 4.3.0, multus-daemonset-thick.yml: it runs the programs of other CNIs in the host"},

	// Metrics, logs and images: files of node-exporter's textfile collector, positions of log collectors, an identity that is made when it is missing.
	{"DaemonSet", "", "", "/var/lib/node_exporter", "by convention: node-exporter's --collector.textfile.directory"},
	{"DaemonSet", "", "", "/var/lib/node-exporter", "by convention: node-exporter's --collector.textfile.directory"},
	{"DaemonSet", "", "", "/var/lib/alloy", "by convention: alloy.storagePath of Alloy's chart"},
	{"DaemonSet", "", "", "/var/lib/promtail", "by convention: positions of Promtail, whose chart 6.17.1 has them in /run/promtail"},
	{"DaemonSet", "", "", "/var/lib/vector", "vector 0.57.0, _pod.tpl"},
	{"DaemonSet", "", "", "/var/lib/fluent-bit", "fluent-operator of fluent/helm-charts 5b81bf7, values.yaml"},
	{"DaemonSet", "", "", "/var/fluent-bit", "aws-for-fluent-bit's chart: its state"},
	{"DaemonSet", "", "", "/var/lib/filebeat-data", "Filebeat's manifest for Kubernetes: its registry"},
	{"DaemonSet", "", "", "/var/lib/docker", "fluent-bit 0.58.1, values.yaml: logs of another runtime; Talos has no Docker, and the directory is empty"},
	{"DaemonSet", "", "", "/var/lib/spegel", "Spegel 0.7.4, daemonset.yaml and pkg/routing/p2p.go"},

	// Storage systems that themselves report what they have on a node.
	{"", "longhorn-system", "", "/var/lib/longhorn", "Longhorn 1.12.1: its own Node says which of its disks hold replicas; the rest is programs and sockets"},
	{"", "longhorn-system", "", "/", "Longhorn 1.12.1, instance_manager_controller.go: instance managers reach their disks by it, and its own Node says what those hold"},
	{"DaemonSet", "", "", "/var/lib/linstor.d", "Piraeus 2.6.0, satellite/daemonset.yaml: resource files that the controller writes to each satellite"},
	{"DaemonSet", "", "", "/var/lib/drbd", "Piraeus 2.6.0, satellite/daemonset.yaml: DRBD's notes on its devices of this machine"},
	{"DaemonSet", "", "", "/var/etc/lvm", "Piraeus 2.6.0, docs/how-to/talos.md: LVM's copies, as text, of metadata that is on the disks"},
	{"DaemonSet", "", "", "/var/openebs/ndm", "OpenEBS NDM 2.1.0, daemonset.yaml: a list of this machine's disks"},
	// ptpl, persist through power loss: a file for each replica and nexus with its NVMe reservations, that is, which nexus may write. Without the file
	// a replica starts without reservations, and each nexus registers again when it opens the replica (io-engine, bdev/nexus/nexus_child.rs). A
	// DiskPool in a file there is data: see mayastorPools.
	{"DaemonSet", "", "app=io-engine", "/var/local/*/io-engine", "Mayastor 2.7.1, io/io-engine-daemonset.yaml"},
	{"DaemonSet", "", "app=io-engine", "/var/local/io-engine", "Mayastor 2.0, io/io-engine-daemonset.yaml"},
	{"DaemonSet", "", "", "/var/lib/iscsi", "democratic-csi 0.15.1, node.yaml: records that each login makes again"},
	{"DaemonSet", "", "app.kubernetes.io/name=democratic-csi", "/", "democratic-csi 0.15.1, node.yaml: it runs iscsiadm and mount in the host"},
	{"DaemonSet", "synology-csi", "app=synology-csi-node", "/", "synology-csi 1.2.1, node.yml: it runs iscsiadm and mount in the host"},
	{"DaemonSet", "", "", "/var/lib/seaweedfs-mount", "SeaweedFS CSI 1.4.29, daemonset-mount.yaml: a socket"},
}

// isRegenerated reports whether the pod fills the path again on a new machine.
func isRegenerated(p *corev1.Pod, at string) bool {
	return slices.ContainsFunc(regeneratedPaths, func(r regenerated) bool {
		key, value, _ := strings.Cut(r.label, "=")
		return (r.pods == "" || r.pods == stayingKind(p)) && (r.namespace == "" || r.namespace == p.Namespace) && p.Labels[key] == value && r.covers(at)
	})
}

func (r regenerated) covers(at string) bool {
	names := strings.Split(at, "/")
	names = names[:min(len(names), strings.Count(r.path, "/")+1)]
	ok, err := path.Match(r.path, strings.Join(names, "/"))
	return ok && err == nil
}

const (
	systemNamespace = "kube-system"
	proxyName       = string(cluster.KubeProxy)
	partLabel       = "k8s-app" // Talos' label on the pods of its own manifests
	// configRevision is the revision of the configuration from which Talos generated
	// a static pod (AnnotationStaticPodConfigVersion in constants.go).
	configRevision = "talos.dev/config-version"
	// fieldManager is what Talos uses for its manifests, so Talos stays the owner of the image.
	fieldManager = "talos"
)

func (c *Client) StaticPods(ctx context.Context) ([]cluster.StaticPod, error) {
	selector := fmt.Sprintf("%s in (%s, %s, %s)", partLabel, cluster.APIServer, cluster.ControllerManager, cluster.Scheduler)
	list, err := c.api.CoreV1().Pods(systemNamespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return nil, fmt.Errorf("list pods of %s: %w", systemNamespace, c.translate(err))
	}
	mirrors := cluster.Where(list.Items, func(p corev1.Pod) bool {
		return metav1.HasAnnotation(p.ObjectMeta, corev1.MirrorPodAnnotationKey)
	})
	pods := cluster.Each(mirrors, staticPod)
	slices.SortFunc(pods, func(a, b cluster.StaticPod) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Component, b.Component))
	})
	return pods, nil
}

func staticPod(p corev1.Pod) cluster.StaticPod {
	s := cluster.StaticPod{Node: p.Spec.NodeName, Component: cluster.Component(p.Labels[partLabel])}
	s.Revision, _ = strconv.ParseUint(p.Annotations[configRevision], 10, 64) // without a revision it is older than any
	for _, container := range p.Spec.Containers {
		if container.Name == string(s.Component) {
			s.Image = container.Image
		}
	}
	if s.Why = string(p.Status.Phase); p.Status.Phase == corev1.PodRunning {
		s.Why = "it runs, and its probe has not succeeded"
	}
	for _, status := range p.Status.ContainerStatuses {
		if w := status.State.Waiting; w != nil {
			s.Why = foreign.Line(strings.TrimSuffix(w.Reason+": "+w.Message, ": "))
		}
	}
	s.Ready = p.DeletionTimestamp == nil && podServes(&p)
	return s
}

func (c *Client) ProxySet(ctx context.Context) (cluster.ProxySet, error) {
	set, err := c.api.AppsV1().DaemonSets(systemNamespace).Get(ctx, proxyName, metav1.GetOptions{})
	if err != nil {
		return cluster.ProxySet{}, fmt.Errorf("read DaemonSet %s: %w", proxyName, c.translate(err))
	}
	image, err := proxyImage(set)
	if err != nil {
		return cluster.ProxySet{}, err
	}
	return cluster.ProxySet{
		Image: image, Seen: set.Status.ObservedGeneration >= set.Generation, Wanted: int(set.Status.DesiredNumberScheduled),
		Updated: int(set.Status.UpdatedNumberScheduled), Available: int(set.Status.NumberAvailable),
	}, nil
}

func proxyImage(set *appsv1.DaemonSet) (string, error) {
	for _, container := range set.Spec.Template.Spec.Containers {
		if container.Name == proxyName {
			return container.Image, nil
		}
	}
	return "", fault.Refusedf("DaemonSet %s has no container of that name: it is not Talos' own", proxyName)
}

// SetProxyImage sets the image of kube-proxy's DaemonSet, in one write that fails if someone else writes meanwhile.
func (c *Client) SetProxyImage(ctx context.Context, from, to string) error {
	set, err := c.api.AppsV1().DaemonSets(systemNamespace).Get(ctx, proxyName, metav1.GetOptions{})
	if err != nil {
		return c.translate(err)
	}
	image, err := proxyImage(set)
	switch {
	case err != nil || image == to:
		return err
	case image != from:
		return fmt.Errorf("%w: its image is %s, not %s", cluster.ErrChanged, image, from)
	}
	type named map[string]string
	body, err := json.Marshal(map[string]any{
		"metadata": map[string]string{"resourceVersion": set.ResourceVersion},
		"spec":     map[string]any{"template": map[string]any{"spec": map[string]any{"containers": []named{{"name": proxyName, "image": to}}}}},
	})
	if err != nil {
		return fmt.Errorf("encode patch: %w", err)
	}
	_, err = c.api.AppsV1().DaemonSets(systemNamespace).Patch(ctx, proxyName, types.StrategicMergePatchType, body, metav1.PatchOptions{FieldManager: fieldManager})
	if apierrors.IsConflict(err) {
		return fmt.Errorf("%w: %w", cluster.ErrChanged, err)
	}
	return c.translate(err)
}

// RemovedObjects counts the objects of resources that the next version no longer serves, by Sidero's own table.
func (c *Client) RemovedObjects(ctx context.Context, from, to string) ([]string, error) {
	path, err := upgrade.NewPath(from, to)
	if err != nil {
		return nil, fault.As(fault.Refused, err)
	}
	if !path.IsSupported() {
		return nil, fault.WithHint(fault.Refusedf("this recast does not know what Kubernetes %s has removed", to), "use a newer recast")
	}
	// With a transport that has TLS and credentials, client-go takes none from its cache.
	config := &rest.Config{Host: c.host, Transport: c.rt, Timeout: requestTimeout, WarningHandler: rest.NewWarningWriter(io.Discard, rest.WarningWriterOptions{})}
	checks, err := upgrade.NewChecksWithStateProvider(path, nil, config, nil, nil, func(string, ...any) {})
	if err != nil {
		return nil, err
	}
	err = checks.Run(ctx)
	removed, found := errors.AsType[upgrade.ComponentRemovedItemsError](err)
	if !found {
		return nil, c.translate(err)
	}
	var out []string
	for resource, count := range removed.APIResources {
		out = append(out, fmt.Sprintf("Kubernetes %s no longer serves %s, and there are %d of them: convert them to a newer version", to, resource, count))
	}
	slices.Sort(out)
	return out, nil
}
