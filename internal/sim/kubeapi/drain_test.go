package kubeapi_test

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
)

// deploy creates a Deployment of the app through the API.
func deploy(t *testing.T, c kubernetes.Interface, app string, replicas int32, volumes ...corev1.Volume) {
	t.Helper()
	labels := map[string]string{"app": app}
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: app},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: app, Image: app}}, Volumes: volumes},
			},
		},
	}
	if _, err := c.AppsV1().Deployments("default").Create(t.Context(), d, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func protect(t *testing.T, c kubernetes.Interface, app string, minAvailable int) {
	t.Helper()
	b := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: app},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MinAvailable: new(intstr.FromInt(minAvailable)),
			Selector:     &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}},
		},
	}
	if _, err := c.PolicyV1().PodDisruptionBudgets("default").Create(t.Context(), b, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// podsOn lists the pods on a node, by name without the generated suffix.
func podsOn(t *testing.T, c kubernetes.Interface, node string) []string {
	t.Helper()
	pods, err := c.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
	if err != nil {
		t.Fatal(err)
	}
	names := []string{}
	for _, p := range pods.Items {
		name, _, _ := strings.Cut(p.Name, "-")
		if p.Namespace == "kube-system" {
			name = p.GenerateName
		}
		names = append(names, name)
	}
	return names
}
