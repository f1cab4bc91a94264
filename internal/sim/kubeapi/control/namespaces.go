package control

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
)

// terminateAfter is the namespace controller's delay, in which others can notice
// (namespaceDeletionGracePeriod in Kubernetes).
const terminateAfter = 5 * time.Second

// terminateNamespaces deletes the content of terminating namespaces, and then the
// namespaces.
func (m *Manager) terminateNamespaces(ctx context.Context) error {
	namespaces, err := all[*corev1.Namespace](ctx, m.store, store.Namespaces())
	if err != nil {
		return err
	}
	for _, ns := range namespaces {
		if ns.DeletionTimestamp == nil || !m.timers.due("terminate/"+string(ns.UID), terminateAfter) {
			continue
		}
		left, err := m.emptyNamespace(ctx, ns.Name)
		if err != nil {
			return err
		}
		if left > 0 {
			continue
		}
		fresh := ns.DeepCopy()
		fresh.Spec.Finalizers = nil
		if _, err := m.store.Update(ctx, store.Namespaces(), fresh, store.Main); err != nil {
			return err
		}
		if _, err := m.store.Delete(ctx, store.Namespaces(), "", ns.Name, metav1.DeleteOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// emptyNamespace returns how many objects are left.
func (m *Manager) emptyNamespace(ctx context.Context, name string) (left int, err error) {
	for _, r := range store.Resources() {
		if !r.Namespaced {
			continue
		}
		objects, _, err := m.store.List(ctx, r.GroupVersionResource, name)
		if err != nil {
			return 0, err
		}
		left += len(objects)
		for _, o := range objects {
			if o.GetDeletionTimestamp() != nil {
				continue
			}
			if _, err := m.store.Delete(ctx, r.GroupVersionResource, name, o.GetName(), metav1.DeleteOptions{}); err != nil {
				return 0, err
			}
		}
	}
	return left, nil
}

// terminating says whether a namespace refuses new objects.
func (m *Manager) terminating(ctx context.Context, name string) bool {
	ns, err := m.store.Get(ctx, store.Namespaces(), "", name)
	return err == nil && ns.GetDeletionTimestamp() != nil
}
