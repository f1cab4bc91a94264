package kube

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/recast-sh/recast/cluster"
)

// Nodes lists the Node objects.
func (c *Client) Nodes(ctx context.Context) ([]cluster.KubeNode, error) {
	list, err := c.api.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list nodes: %w", c.translate(err))
	}
	nodes := make([]cluster.KubeNode, 0, len(list.Items))
	for i := range list.Items {
		nodes = append(nodes, kubeNode(&list.Items[i]))
	}
	return nodes, nil
}

func kubeNode(n *corev1.Node) cluster.KubeNode {
	info := n.Status.NodeInfo
	node := cluster.KubeNode{
		Name: n.Name, UUID: strings.ToLower(info.SystemUUID), BootID: info.BootID,
		Unschedulable: n.Spec.Unschedulable, KubeletVersion: info.KubeletVersion,
		Ready: slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		}),
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
	return node
}

func (c *Client) node(ctx context.Context, name string) (*corev1.Node, error) {
	n, err := c.api.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, c.translate(err)
	}
	return n, nil
}

// Cordon makes the node unschedulable.
func (c *Client) Cordon(ctx context.Context, node string) error {
	if err := c.schedulable(ctx, node, false); err != nil {
		return fmt.Errorf("cordon node %s: %w", node, err)
	}
	return nil
}

// Uncordon makes the node schedulable again.
func (c *Client) Uncordon(ctx context.Context, node string) error {
	if err := c.schedulable(ctx, node, true); err != nil {
		return fmt.Errorf("uncordon node %s: %w", node, err)
	}
	return nil
}

func (c *Client) schedulable(ctx context.Context, name string, want bool) error {
	n, err := c.node(ctx, name)
	if err != nil || n.Spec.Unschedulable == !want {
		return err
	}
	patch := `{"spec":{"unschedulable":true}}`
	if want {
		patch = `{"spec":{"unschedulable":null}}`
	}
	_, err = c.api.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	return c.translate(err)
}

// AttachedVolumes lists the names of the node's VolumeAttachments, sorted.
func (c *Client) AttachedVolumes(ctx context.Context, node string) ([]string, error) {
	// The API can't select VolumeAttachments by node.
	list, err := c.api.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list volume attachments: %w", c.translate(err))
	}
	var names []string
	for _, a := range list.Items {
		if a.Spec.NodeName == node {
			names = append(names, a.Name)
		}
	}
	slices.Sort(names)
	return names, nil
}
