package kubeapi_test

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/kubectl/pkg/drain"
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

func TestDrainWaitsForItsBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, "wk1", "wk2")
		c := l.client(t, "system:masters")
		deploy(t, c, "web", 2)
		time.Sleep(20 * time.Second)
		protect(t, c, "web", 2)
		time.Sleep(time.Second)

		n, err := c.CoreV1().Nodes().Get(t.Context(), "wk1", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		var out, errs bytes.Buffer
		h := &drain.Helper{
			Ctx: t.Context(), Client: c, GracePeriodSeconds: -1, IgnoreAllDaemonSets: true, DeleteEmptyDirData: true,
			EvictErrorRetryDelay: 5 * time.Second, Timeout: 30 * time.Second, Out: &out, ErrOut: &errs,
		}
		if err := drain.RunCordonOrUncordon(h, n, true); err != nil {
			t.Fatal(err)
		}
		if err := drain.RunNodeDrain(h, "wk1"); err == nil || !strings.Contains(err.Error(), "global timeout reached: 30s") {
			t.Fatalf("drain with a budget of 2 of 2: err = %v", err)
		}
		if want := "Cannot evict pod as it would violate the pod's disruption budget."; !strings.Contains(errs.String(), want) {
			t.Errorf("stderr = %s, want %q", &errs, want)
		}

		scale, err := c.AppsV1().Deployments("default").Get(t.Context(), "web", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		scale.Spec.Replicas = new(int32(3))
		if _, err := c.AppsV1().Deployments("default").Update(t.Context(), scale, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		if err := drain.RunNodeDrain(h, "wk1"); err != nil {
			t.Fatalf("drain with a spare pod: %v\n%s", err, &errs)
		}
		if got, want := podsOn(t, c, "wk1"), []string{"kube-flannel-", "kube-proxy-"}; !slices.Equal(got, want) {
			t.Errorf("pods left on wk1: %v, want %v", got, want)
		}
		time.Sleep(5 * time.Second)
		b, err := c.PolicyV1().PodDisruptionBudgets("default").Get(t.Context(), "web", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if b.Status.CurrentHealthy != 3 || b.Status.DisruptionsAllowed != 1 {
			t.Errorf("budget after the drain: %+v", b.Status)
		}
	})
}
