package sim

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/constants"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
)

// How often a drain retries.
const (
	evictionPause = 5 * time.Second // while a budget forbids the eviction
	deletionPause = time.Second     // until a pod is gone
)

// drain is what a Talos node does to itself before it goes down on its own: it marks
// the node as cordoned by Talos, evicts all its pods at once and waits until they are
// gone.
func (l *Lab) drain(ctx context.Context, node string) error {
	err := l.editNode(ctx, node, func(n *corev1.Node) bool {
		if n.Spec.Unschedulable {
			return false // already cordoned
		}
		n.Spec.Unschedulable = true
		if n.Annotations == nil {
			n.Annotations = map[string]string{}
		}
		n.Annotations[constants.AnnotationCordonedKey] = constants.AnnotationCordonedValue
		return true
	})
	if err != nil {
		return fmt.Errorf("cordon %s: %w", node, err)
	}
	pods, _, err := l.Kube.Store().List(ctx, store.Pods(), "")
	if err != nil {
		return fmt.Errorf("drain %s: %w", node, err)
	}
	errs := make([]error, len(pods))
	var evictions sync.WaitGroup
	for i, o := range pods {
		if p := o.(*corev1.Pod); p.Spec.NodeName == node && movable(p) {
			evictions.Go(func() {
				if err := l.evict(ctx, p); err != nil {
					errs[i] = fmt.Errorf("evict %s/%s: %w", p.Namespace, p.Name, err)
				}
			})
		}
	}
	evictions.Wait()
	return errors.Join(errs...)
}

// movable says whether a drain evicts a pod: not a static pod, one of a DaemonSet or
// one without a controller (Drain in Talos' kubernetes.go).
func movable(p *corev1.Pod) bool {
	owner := metav1.GetControllerOf(p)
	_, mirror := p.Annotations[corev1.MirrorPodAnnotationKey]
	return !mirror && p.DeletionTimestamp == nil && owner != nil && owner.Kind != "DaemonSet"
}

// evict evicts a pod as soon as its budget allows and waits until it is gone.
func (l *Lab) evict(ctx context.Context, p *corev1.Pod) error {
	for {
		err := l.Kube.Evict(ctx, p.Namespace, p.Name, metav1.DeleteOptions{})
		if err == nil {
			break
		}
		if apierrors.IsNotFound(err) {
			return nil
		}
		if !apierrors.IsTooManyRequests(err) {
			return err
		}
		if err := l.delay(ctx, evictionPause); err != nil {
			return err
		}
	}
	for {
		now, err := l.Kube.Store().Get(ctx, store.Pods(), p.Namespace, p.Name)
		if apierrors.IsNotFound(err) || err == nil && now.GetUID() != p.UID {
			return nil
		}
		if err != nil {
			return err
		}
		if err := l.delay(ctx, deletionPause); err != nil {
			return err
		}
	}
}

// uncordon removes the cordon if drain set it.
func (l *Lab) uncordon(ctx context.Context, node string) error {
	for {
		err := l.editNode(ctx, node, func(n *corev1.Node) bool {
			if n.Annotations[constants.AnnotationCordonedKey] != constants.AnnotationCordonedValue {
				return false
			}
			n.Spec.Unschedulable = false
			delete(n.Annotations, constants.AnnotationCordonedKey)
			return true
		})
		if !apierrors.IsNotFound(err) { // the kubelet may not have registered yet
			return err
		}
		if err := l.delay(ctx, deletionPause); err != nil {
			return err
		}
	}
}

// editNode applies change to a Node until it is stored; change returns false to leave
// it as it is.
func (l *Lab) editNode(ctx context.Context, name string, change func(*corev1.Node) bool) error {
	for {
		n, err := l.Kube.Node(ctx, name)
		if err != nil {
			return err
		}
		n.Annotations = maps.Clone(n.Annotations)
		if !change(n) {
			return nil
		}
		if _, err := l.Kube.Store().Update(ctx, store.Nodes(), n, store.Main); !apierrors.IsConflict(err) {
			return err
		}
	}
}
