package control

import (
	"context"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
)

// grantedFor is how long a granted eviction counts until its deletion must come.
const grantedFor = 2 * time.Minute

// syncBudgets updates the status of PodDisruptionBudgets, on which evictions are based.
func (m *Manager) syncBudgets(ctx context.Context) error {
	budgets, err := all[*policyv1.PodDisruptionBudget](ctx, m.store, store.Budgets())
	if err != nil {
		return err
	}
	for _, b := range budgets {
		fresh := *b
		if fresh.Status, err = m.budgetStatus(ctx, b); err != nil {
			return fmt.Errorf("pod disruption budget %s/%s: %w", b.Namespace, b.Name, err)
		}
		if err := m.writeStatus(ctx, store.Budgets(), &fresh, equality.Semantic.DeepEqual(b.Status, fresh.Status)); err != nil {
			return err
		}
	}
	return nil
}

func (m *Manager) budgetStatus(ctx context.Context, b *policyv1.PodDisruptionBudget) (policyv1.PodDisruptionBudgetStatus, error) {
	status := policyv1.PodDisruptionBudgetStatus{ObservedGeneration: b.Generation}
	selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
	if err != nil {
		return status, err
	}
	objects, _, err := m.store.List(ctx, store.Pods(), b.Namespace)
	if err != nil {
		return status, err
	}
	var pods []*corev1.Pod
	for _, o := range objects {
		if p := o.(*corev1.Pod); selector.Matches(labels.Set(p.Labels)) && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed {
			pods = append(pods, p)
		}
	}
	expected, err := m.expectedPods(ctx, pods)
	if err != nil {
		return status, err
	}
	desired, err := desiredHealthy(b.Spec, expected)
	if err != nil {
		return status, err
	}
	for _, p := range pods {
		at, disrupted := b.Status.DisruptedPods[p.Name]
		switch {
		case p.DeletionTimestamp != nil:
		case disrupted && time.Since(at.Time) < grantedFor:
			// Its eviction was granted; the deletion will follow.
			if status.DisruptedPods == nil {
				status.DisruptedPods = map[string]metav1.Time{}
			}
			status.DisruptedPods[p.Name] = at
		case podReady(p):
			status.CurrentHealthy++
		}
	}
	status.ExpectedPods, status.DesiredHealthy = int32(expected), int32(desired)
	status.DisruptionsAllowed = max(0, status.CurrentHealthy-status.DesiredHealthy)
	if expected == 0 {
		status.DisruptionsAllowed = 0
	}
	return status, nil
}

// expectedPods is the number of pods that the pods' workloads want, plus bare pods.
func (m *Manager) expectedPods(ctx context.Context, pods []*corev1.Pod) (int, error) {
	expected := 0
	counted := map[string]bool{}
	for _, p := range pods {
		ref := metav1.GetControllerOfNoCopy(p)
		if ref == nil {
			expected++
			continue
		}
		if counted[string(ref.UID)] {
			continue
		}
		counted[string(ref.UID)] = true
		switch ref.Kind {
		case "ReplicaSet":
			o, err := m.store.Get(ctx, store.ReplicaSets(), p.Namespace, ref.Name)
			if err != nil && !apierrors.IsNotFound(err) {
				return 0, err
			}
			if rs, ok := o.(*appsv1.ReplicaSet); ok {
				expected += wantedReplicas(rs.Spec.Replicas)
			}
		case "StatefulSet":
			o, err := m.store.Get(ctx, store.StatefulSets(), p.Namespace, ref.Name)
			if err != nil && !apierrors.IsNotFound(err) {
				return 0, err
			}
			if sts, ok := o.(*appsv1.StatefulSet); ok {
				expected += wantedReplicas(sts.Spec.Replicas)
			}
		}
	}
	return expected, nil
}

func desiredHealthy(s policyv1.PodDisruptionBudgetSpec, expected int) (int, error) {
	if s.MaxUnavailable != nil {
		n, err := intstr.GetScaledValueFromIntOrPercent(s.MaxUnavailable, expected, true)
		return max(0, expected-n), err
	}
	if s.MinAvailable != nil {
		return intstr.GetScaledValueFromIntOrPercent(s.MinAvailable, expected, true)
	}
	return 0, nil
}
