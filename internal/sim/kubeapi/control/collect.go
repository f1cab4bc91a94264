package control

import (
	"context"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
)

// collect deletes objects without their owners, and the pods of deleted Nodes.
func (m *Manager) collect(ctx context.Context) error {
	owners := map[string]bool{}
	for _, r := range watched() {
		objects, _, err := m.store.List(ctx, r, "")
		if err != nil {
			return err
		}
		for _, o := range objects {
			owners[string(o.GetUID())] = true
		}
	}
	for _, r := range []schema.GroupVersionResource{store.ReplicaSets(), store.Pods(), store.Leases()} {
		objects, _, err := m.store.List(ctx, r, "")
		if err != nil {
			return err
		}
		for _, o := range objects {
			if err := m.collectOne(ctx, r, o, owners); err != nil {
				return err
			}
		}
	}
	return nil
}

func (m *Manager) collectOne(ctx context.Context, r schema.GroupVersionResource, o store.Object, owners map[string]bool) error {
	if p, ok := o.(*corev1.Pod); ok && p.Spec.NodeName != "" {
		if _, err := m.store.Get(ctx, store.Nodes(), "", p.Spec.NodeName); apierrors.IsNotFound(err) {
			_, err := m.store.Delete(ctx, r, p.Namespace, p.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)})
			return err
		} else if err != nil {
			return err
		}
	}
	refs := o.GetOwnerReferences()
	if len(refs) == 0 || o.GetDeletionTimestamp() != nil ||
		slices.ContainsFunc(refs, func(ref metav1.OwnerReference) bool { return !collects(ref) || owners[string(ref.UID)] }) {
		return nil
	}
	_, err := m.store.Delete(ctx, r, o.GetNamespace(), o.GetName(), metav1.DeleteOptions{})
	return err
}

// collects says whether objects of that kind are known here, so that a missing one was
// really deleted. Kubernetes keeps objects whose owner's kind it can't map (apiResource in
// its controller/garbagecollector).
func collects(ref metav1.OwnerReference) bool {
	switch schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind).GroupKind() {
	case schema.GroupKind{Group: appsv1.GroupName, Kind: "DaemonSet"}, schema.GroupKind{Group: appsv1.GroupName, Kind: "Deployment"},
		schema.GroupKind{Group: appsv1.GroupName, Kind: "ReplicaSet"}, schema.GroupKind{Group: appsv1.GroupName, Kind: "StatefulSet"},
		schema.GroupKind{Kind: "Node"}:
		return true
	}
	return false
}
