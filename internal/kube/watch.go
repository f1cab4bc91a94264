package kube

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
)

// errWatchEnded says that the API server, or something in between, ended a watch.
var errWatchEnded = errors.New("the watch has ended")

// WatchNode implements cluster.NodeReader.
func (c *Client) WatchNode(ctx context.Context, node string, tell func(look bool)) error {
	stream, err := c.streams.CoreV1().Nodes().Watch(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", node).String()})
	if err != nil {
		return fmt.Errorf("watch node %s: %w", node, c.translate(err))
	}
	last := ""
	return follow(ctx, stream, tell, func(e watch.Event) bool {
		was := last
		last = ""
		if n, ok := e.Object.(*corev1.Node); ok && e.Type != watch.Deleted && isReady(n) {
			last = string(n.UID) + n.Status.NodeInfo.BootID
		}
		return last != "" && last != was
	})
}

// WatchDetached implements cluster.VolumeReader.
func (c *Client) WatchDetached(ctx context.Context, node string, tell func(look bool)) error {
	stream, err := c.streams.StorageV1().VolumeAttachments().Watch(ctx, metav1.ListOptions{}) // the API cannot select them by node
	if err != nil {
		return fmt.Errorf("watch volume attachments: %w", c.translate(err))
	}
	return follow(ctx, stream, tell, func(e watch.Event) bool {
		a, ok := e.Object.(*storagev1.VolumeAttachment)
		return ok && e.Type == watch.Deleted && a.Spec.NodeName == node
	})
}

// watchPods reports pods that have left the node.
func (d *draining) watchPods(ctx context.Context, tell func(look bool)) error {
	stream, err := d.streams.CoreV1().Pods("").Watch(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", d.node).String()})
	if err != nil {
		return fmt.Errorf("watch pods of node %s: %w", d.node, d.translate(err))
	}
	return follow(ctx, stream, tell, func(e watch.Event) bool { return e.Type == watch.Deleted })
}

// watchBudgets reports budgets, in the namespaces of the pods, that allow a disruption again.
func (d *draining) watchBudgets(ctx context.Context, tell func(look bool)) error {
	stream, err := d.streams.PolicyV1().PodDisruptionBudgets("").Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("watch disruption budgets: %w", d.translate(err))
	}
	return follow(ctx, stream, tell, func(e watch.Event) bool {
		b, ok := e.Object.(*policyv1.PodDisruptionBudget)
		return ok && e.Type == watch.Modified && b.Status.DisruptionsAllowed > 0 && d.hadPodsIn(b.Namespace)
	})
}

// follow reports that the watch is in place, and then every event worth a look.
func follow(ctx context.Context, stream watch.Interface, tell func(look bool), worth func(watch.Event) bool) error {
	defer stream.Stop()
	tell(false)
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case e, open := <-stream.ResultChan():
			if !open || e.Type == watch.Error {
				return errWatchEnded
			}
			if worth(e) {
				tell(true)
			}
		}
	}
}
