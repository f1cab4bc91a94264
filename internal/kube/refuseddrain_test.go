package kube_test

import (
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/kubeapi"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
)

// TestDrainTellsHowLongItWasRefused: a busy API refuses nothing.
func TestDrainTellsHowLongItWasRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, "wk1")
		l.put(t, store.Deployments(), web(1))
		time.Sleep(20 * time.Second)
		c := l.client(t, "system:masters")
		if err := c.Cordon(t.Context(), "wk1", cluster.Mark{Run: "r1"}); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		l.SetWebhook("hours.example.com", func(r kubeapi.Request) *metav1.Status {
			switch {
			case r.Resource != "pods/eviction":
				return nil
			case time.Since(start) < 19*time.Second:
				return &metav1.Status{Code: http.StatusTooManyRequests, Reason: metav1.StatusReasonTooManyRequests, Message: "slowly"}
			}
			return &metav1.Status{Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden, Message: "not during trading hours"}
		})
		var told []string
		if err := c.Drain(t.Context(), "wk1", cluster.DrainOptions{Timeout: time.Minute, Delete: true}, func(s string) { told = append(told, s) }); err != nil {
			t.Fatal(err)
		}
		if said := strings.Join(told, "\n"); !strings.Contains(said, "which was refused for 40s (roll.drain.onTimeout: delete)") {
			t.Errorf("said:\n%s", said)
		}
	})
}

// TestDrainWithoutTheRightToReadBudgets: budgets only improve messages.
func TestDrainWithoutTheRightToReadBudgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, "wk1")
		l.put(t, store.Deployments(), web(1))
		one, other := budget(1), budget(1)
		other.Name = "web-too"
		l.put(t, store.Budgets(), one)
		l.put(t, store.Budgets(), other)
		time.Sleep(20 * time.Second)
		l.Grant("recast", func(r kubeapi.Request) bool { return r.Resource != "poddisruptionbudgets" })
		c := l.client(t, "recast")
		if err := c.Cordon(t.Context(), "wk1", cluster.Mark{Run: "r1"}); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		err := c.Drain(t.Context(), "wk1", cluster.DrainOptions{Timeout: time.Minute}, func(string) {})
		if err == nil || !strings.Contains(err.Error(), "(This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.)") || fault.KindOf(err) != fault.Failed {
			t.Errorf("err = %v", err)
		}
		if took := time.Since(start); took < time.Minute {
			t.Errorf("gave up after %s", took)
		}
	})
}

// TestDrainLeavesForeignDaemonSets: another group's kind of that name recreates its
// pods on a cordoned node as Kubernetes' own does.
func TestDrainLeavesForeignDaemonSets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, "wk1")
		pod := func(name string, phase corev1.PodPhase) {
			l.put(t, store.Pods(), &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", OwnerReferences: []metav1.OwnerReference{
					{APIVersion: "apps.kruise.io/v1alpha1", Kind: "DaemonSet", Name: "agent", UID: "ads-1", Controller: new(true)},
				}},
				Spec:   corev1.PodSpec{NodeName: "wk1", Containers: []corev1.Container{{Name: "agent", Image: "agent"}}},
				Status: corev1.PodStatus{Phase: phase},
			})
		}
		pod("agent-x", corev1.PodRunning)
		time.Sleep(20 * time.Second)
		pod("agent-y", corev1.PodFailed)
		c := l.client(t, "system:masters")
		for _, force := range []bool{false, true} {
			if err := c.Cordon(t.Context(), "wk1", cluster.Mark{Run: "r1"}); err != nil {
				t.Fatal(err)
			}
			if err := c.Drain(t.Context(), "wk1", cluster.DrainOptions{Timeout: time.Minute, Force: force}, func(string) {}); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]string{"agent", "kube-flannel", "kube-proxy"}, l.podsOn(t, "wk1")); diff != "" {
				t.Errorf("pods left on wk1, force %t (-want +got):\n%s", force, diff)
			}
		}
	})
}
