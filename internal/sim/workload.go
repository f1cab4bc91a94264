package sim

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
)

// addWorkload deploys a web server with two replicas for drains to move. Its budget allows
// one to be missing if there are several workers.
func addWorkload(ctx context.Context, s store.Store, workers int) error {
	labels := map[string]string{"app": "web"}
	web := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: metav1.NamespaceDefault, Labels: labels},
		Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(2)), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "registry.k8s.io/e2e-test-images/agnhost"}}},
			},
		},
	}
	if _, err := s.Create(ctx, store.Deployments(), web); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("make Deployment web: %w", err)
	}
	if workers < 2 {
		return nil
	}
	budget := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: metav1.NamespaceDefault},
		Spec:       policyv1.PodDisruptionBudgetSpec{MaxUnavailable: new(intstr.FromInt32(1)), Selector: &metav1.LabelSelector{MatchLabels: labels}},
	}
	if _, err := s.Create(ctx, store.Budgets(), budget); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("make PodDisruptionBudget web: %w", err)
	}
	return nil
}
