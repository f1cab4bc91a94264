package kube_test

import (
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/kubeapi"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
	"github.com/recast-sh/recast/internal/sim/record"
)

func (l *lab) pod(t *testing.T, name string) *corev1.Pod {
	t.Helper()
	o, err := l.Store().Get(t.Context(), store.Pods(), "default", name)
	if err != nil {
		t.Fatal(err)
	}
	return o.(*corev1.Pod)
}

// TestDrainSparesNextPodOfSameName: between our look and our eviction someone
// deletes a StatefulSet's pod, and the next one of its name starts elsewhere.
func TestDrainSparesNextPodOfSameName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, "wk1")
		l.put(t, store.StatefulSets(), &appsv1.StatefulSet{
			ObjectMeta: metav1.ObjectMeta{Name: "db", Namespace: "default"},
			Spec: appsv1.StatefulSetSpec{
				Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}}, Template: web(1).Spec.Template,
			},
		})
		time.Sleep(20 * time.Second)
		c := l.client(t, "system:masters")
		if err := c.Cordon(t.Context(), "wk1", cluster.Mark{Run: "r1"}); err != nil {
			t.Fatal(err)
		}
		l.NodeUp(node("wk2", 1))
		time.Sleep(20 * time.Second)
		next := &corev1.Pod{}
		l.calls.Hooks(func(c record.Call) error {
			if !strings.Contains(c.Path, "/db-0/eviction") {
				return nil
			}
			l.calls.Hooks(nil, nil)
			_, err := l.Store().Delete(t.Context(), store.Pods(), "default", "db-0", metav1.DeleteOptions{GracePeriodSeconds: new(int64)})
			time.Sleep(5 * time.Second)
			next = l.pod(t, "db-0")
			return err
		}, nil)
		if err := c.Drain(t.Context(), "wk1", cluster.DrainOptions{Timeout: time.Minute}, func(string) {}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		if p := l.pod(t, "db-0"); p.UID != next.UID || p.DeletionTimestamp != nil || p.Spec.NodeName != "wk2" {
			t.Errorf("db-0 is %s on %s, deleted at %v; the next one was %s on %s", p.UID, p.Spec.NodeName, p.DeletionTimestamp, next.UID, next.Spec.NodeName)
		}
	})
}

// TestDrainRespectsRequestedPause: a requested pause is respected, but never beyond the
// deadline.
func TestDrainRespectsRequestedPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, "wk1")
		l.put(t, store.Deployments(), web(1))
		time.Sleep(20 * time.Second)
		c := l.client(t, "system:masters")
		if err := c.Cordon(t.Context(), "wk1", cluster.Mark{Run: "r1"}); err != nil {
			t.Fatal(err)
		}
		var asked []time.Duration
		start := time.Now()
		l.SetWebhook("busy.example.com", func(r kubeapi.Request) *metav1.Status {
			if r.Resource != "pods/eviction" || r.Namespace != "default" {
				return nil
			}
			asked = append(asked, time.Since(start).Round(time.Second))
			seconds := map[int]int32{1: 8, 2: 3600}[len(asked)]
			if seconds == 0 {
				return nil
			}
			return &metav1.Status{
				Code: http.StatusTooManyRequests, Reason: metav1.StatusReasonTooManyRequests, Message: "slowly",
				Details: &metav1.StatusDetails{RetryAfterSeconds: seconds},
			}
		})
		if err := c.Drain(t.Context(), "wk1", cluster.DrainOptions{Timeout: 2 * time.Minute}, func(string) {}); err != nil {
			t.Fatal(err)
		}
		if len(asked) != 3 || asked[1]-asked[0] < 8*time.Second || asked[1]-asked[0] > 12*time.Second || asked[2]-asked[1] > 34*time.Second {
			t.Errorf("asked at %v", asked)
		}
	})
}

// TestDrainDeletesOnlyWhatWasRefused: a pod that is merely slow is not deleted.
func TestDrainDeletesOnlyWhatWasRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, "wk1")
		l.put(t, store.Deployments(), web(1))
		l.put(t, store.Budgets(), budget(1))
		slow := web(1)
		slow.Name, slow.Spec.Selector.MatchLabels = "slow", map[string]string{"app": "slow"}
		slow.Spec.Template.Labels = map[string]string{"app": "slow"}
		slow.Spec.Template.Spec.Containers[0].Command = []string{"sleep", "infinity"}
		slow.Spec.Template.Spec.TerminationGracePeriodSeconds = new(int64(90))
		l.put(t, store.Deployments(), slow)
		time.Sleep(20 * time.Second)
		c := l.client(t, "system:masters")
		if err := c.Cordon(t.Context(), "wk1", cluster.Mark{Run: "r1"}); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		var told []string
		err := c.Drain(t.Context(), "wk1", cluster.DrainOptions{Timeout: time.Minute, Delete: true}, func(s string) {
			if strings.HasPrefix(s, "deleting pod ") {
				told = append(told, s)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took < 90*time.Second || took > 100*time.Second {
			t.Errorf("took %s", took)
		}
		var deleted []string
		for _, call := range l.calls.Calls() {
			if call.Method == http.MethodDelete {
				deleted = append(deleted, call.Path)
			}
		}
		if len(deleted) != 1 || len(told) != 1 || !strings.HasPrefix(deleted[0], "/api/v1/namespaces/default/pods/web-") {
			t.Errorf("deleted %q, told %q", deleted, told)
		}
	})
}

// TestDrainWaitsForTerminatingBarePod: no controller would recreate it, but someone
// has deleted it.
func TestDrainWaitsForTerminatingBarePod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, "wk1")
		l.put(t, store.Pods(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "bare", Namespace: "default"},
			Spec:       corev1.PodSpec{NodeName: "wk1", Containers: []corev1.Container{{Name: "bare", Command: []string{"sleep"}}}},
		})
		time.Sleep(20 * time.Second)
		c := l.client(t, "system:masters")
		if err := c.Cordon(t.Context(), "wk1", cluster.Mark{Run: "r1"}); err != nil {
			t.Fatal(err)
		}
		if _, err := l.Store().Delete(t.Context(), store.Pods(), "default", "bare", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if err := c.Drain(t.Context(), "wk1", cluster.DrainOptions{Timeout: time.Minute}, func(string) {}); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took < 28*time.Second {
			t.Errorf("took %s: it did not wait for the pod", took)
		}
	})
}

func TestDrainOfANodeThatTakesPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, "wk1")
		time.Sleep(10 * time.Second)
		err := l.client(t, "system:masters").Drain(t.Context(), "wk1", cluster.DrainOptions{Timeout: time.Minute}, func(string) {})
		if fault.KindOf(err) != fault.Refused || !strings.Contains(err.Error(), "node wk1 is schedulable") {
			t.Errorf("err = %v", err)
		}
	})
}
