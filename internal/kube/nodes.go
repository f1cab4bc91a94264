package kube

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/recast-sh/recast/cluster"
)

// Nodes lists the Node objects.
func (c *Client) Nodes(ctx context.Context) (nodes []cluster.KubeNode, err error) {
	var unreadable []error
	list := func(o metav1.ListOptions) (*corev1.NodeList, error) { return c.api.CoreV1().Nodes().List(ctx, o) }
	err = each(c, "nodes", list, func() { nodes, unreadable = nil, nil }, func(n *corev1.Node) {
		node, err := kubeNode(n)
		nodes, unreadable = append(nodes, node), append(unreadable, err)
	})
	if err != nil {
		return nil, err
	}
	if err := errors.Join(unreadable...); err != nil {
		return nil, err
	}
	return nodes, nil
}

// Node implements cluster.NodeReader.
func (c *Client) Node(ctx context.Context, name string) (cluster.KubeNode, error) {
	n, err := c.node(ctx, name)
	if err != nil {
		return cluster.KubeNode{}, fmt.Errorf("read node %s: %w", name, err)
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
		Metadata: cluster.NodeMetadata{Labels: n.Labels, Annotations: n.Annotations},
	}
	for _, a := range n.Status.Addresses {
		if a.Type != corev1.NodeInternalIP && a.Type != corev1.NodeExternalIP {
			continue
		}
		if addr, err := netip.ParseAddr(a.Address); err == nil {
			node.Addresses = append(node.Addresses, addr)
		}
	}
	for _, t := range n.Spec.Taints {
		node.Metadata.Taints = append(node.Metadata.Taints, cluster.Taint{Key: t.Key, Value: t.Value, Effect: string(t.Effect)})
	}
	return node, err
}

func (c *Client) node(ctx context.Context, name string) (*corev1.Node, error) {
	n, err := c.api.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, c.translate(err)
	}
	return n, nil
}

func isReady(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// PendingCertificates lists, by name, the serving certificates that the node's
// kubelet has requested and that are undecided. Without one the kubelet cannot be
// asked for logs, metrics or an exec.
func (c *Client) PendingCertificates(ctx context.Context, node string) ([]string, error) {
	selector := fields.OneTermEqualSelector("spec.signerName", certificatesv1.KubeletServingSignerName).String()
	list, err := c.api.CertificatesV1().CertificateSigningRequests().List(ctx, metav1.ListOptions{FieldSelector: selector})
	if err != nil {
		return nil, fmt.Errorf("list certificate signing requests: %w", c.translate(err))
	}
	var names []string
	for _, r := range list.Items {
		if r.Spec.Username == "system:node:"+node && !decided(r.Status) {
			names = append(names, r.Name)
		}
	}
	slices.Sort(names)
	return names, nil
}

// decided reports whether a request was approved, denied, failed or served. An
// approved one waits for the signer, not for approval.
func decided(s certificatesv1.CertificateSigningRequestStatus) bool {
	return len(s.Certificate) > 0 || slices.ContainsFunc(s.Conditions, func(c certificatesv1.CertificateSigningRequestCondition) bool {
		switch c.Type {
		case certificatesv1.CertificateApproved, certificatesv1.CertificateDenied, certificatesv1.CertificateFailed:
			return true
		}
		return false
	})
}
