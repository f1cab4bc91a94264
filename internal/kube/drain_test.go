package kube_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/kube"
	"github.com/recast-sh/recast/internal/sim/kubeapi"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/sim/record"
)

// web is a Deployment with that many pods and an emptyDir in each.
func web(replicas int32) *appsv1.Deployment {
	labels := map[string]string{"app": "web"}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default"},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					Containers: []corev1.Container{{Name: "web", Image: "web"}},
					Volumes:    []corev1.Volume{{Name: "tmp", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}},
				},
			},
		},
	}
}

// bare is a pod on wk1 that no controller would bring back.
func bare(command ...string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "bare", Namespace: "default"},
		Spec:       corev1.PodSpec{NodeName: "wk1", Containers: []corev1.Container{{Name: "bare", Command: command}}},
	}
}

func budget(minAvailable int) *policyv1.PodDisruptionBudget {
	return &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default"},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MinAvailable: new(intstr.FromInt(minAvailable)),
			Selector:     &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
		},
	}
}

// podsOn lists the pods on a node without the generated ends of their names.
func (l *lab) podsOn(t *testing.T, node string) []string {
	t.Helper()
	objects, _, err := l.Store().List(t.Context(), store.Pods(), "")
	must.Do(t, err)
	names := []string{}
	for _, o := range objects {
		if p := o.(*corev1.Pod); p.Spec.NodeName == node {
			names = append(names, strings.TrimSuffix(p.Name, "-"+p.Name[strings.LastIndex(p.Name, "-")+1:]))
		}
	}
	return names
}

// loaded is a lab whose nodes run these objects, and a client whose run has cordoned wk1.
func loaded(t *testing.T, nodes []string, objects ...store.Object) (*lab, *kube.Client) {
	t.Helper()
	l := newLab(t, nodes...)
	for _, o := range objects {
		l.put(t, map[string]schema.GroupVersionResource{
			"*v1.Deployment": store.Deployments(), "*v1.PodDisruptionBudget": store.Budgets(),
			"*v1.Pod": store.Pods(), "*v1.StatefulSet": store.StatefulSets(),
		}[fmt.Sprintf("%T", o)], o)
	}
	time.Sleep(20 * time.Second)
	return l, l.cordoned(t)
}

// cordoned is a client whose run has cordoned wk1.
func (l *lab) cordoned(t *testing.T) *kube.Client {
	t.Helper()
	c := l.client(t, "system:masters")
	must.Do(t, c.Cordon(t.Context(), "wk1", cluster.Mark{Run: "r1"}))
	return c
}

func TestDrainEvictsAllButTheNodesOwnPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, c := loaded(t, []string{"wk1", "wk2"}, web(3), budget(2))
		var said []string
		err := c.Drain(t.Context(), "wk1", cluster.DrainOptions{Timeout: time.Minute}, func(s string) { said = append(said, s) })
		must.Do(t, err)
		must.Equal(t, "pods left on wk1", []string{"kube-flannel", "kube-proxy"}, l.podsOn(t, "wk1"))
		gone := slices.IndexFunc(said, func(s string) bool {
			return strings.HasPrefix(s, "pod default/web-") && strings.HasSuffix(s, " is gone")
		})
		if gone < 0 {
			t.Errorf("no line about a pod of web: %q", said)
		}
	})
}

func TestDrainNamesTheBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c := loaded(t, []string{"wk1"}, web(1), budget(1))
		start := time.Now()
		var said []string
		err := c.Drain(t.Context(), "wk1", cluster.DrainOptions{Timeout: 30 * time.Second}, func(s string) { said = append(said, s) })
		must.Fail(t, err, "PodDisruptionBudget default/web needs 1 healthy pods and has 1 currently)")
		must.Take(t, start, 30*time.Second, 35*time.Second)
		must.Equal(t, "hints", 1, len(fault.Hints(err)))
		refusals := slices.DeleteFunc(said, func(s string) bool { return !strings.Contains(s, "violate the pod's disruption budget") })
		must.Equal(t, "refusals said", 1, len(refusals))
	})
}

func TestDrainRefusesToLosePods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, c := loaded(t, []string{"wk1"}, web(1), bare())
		before := l.podsOn(t, "wk1")
		err := c.Drain(t.Context(), "wk1", cluster.DrainOptions{Timeout: time.Minute}, func(string) {})
		must.FailAs(t, err, fault.Refused, "default/bare")
		must.Equal(t, "pods changed", before, l.podsOn(t, "wk1"))
		must.Do(t, c.Drain(t.Context(), "wk1", cluster.DrainOptions{Timeout: time.Minute, Force: true}, func(string) {}))
	})
}

func TestDrainEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c := loaded(t, []string{"wk1"}, web(1), budget(1))
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(10*time.Second, cancel)
		err := c.Drain(ctx, "wk1", cluster.DrainOptions{Timeout: time.Hour}, func(string) {})
		if err == nil || ctx.Err() == nil || !strings.Contains(err.Error(), context.Canceled.Error()) {
			t.Fatalf("err = %v", err)
		}
	})
}

func TestAttachedVolumesFollowTheirPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, "wk1", "wk2")
		l.put(t, store.Volumes(), &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: "pv1"},
			Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: corev1.PersistentVolumeSource{
				CSI: &corev1.CSIPersistentVolumeSource{Driver: "csi.proxmox.sinextra.dev", VolumeHandle: "vm-9999-pv1"},
			}},
		})
		l.put(t, store.Claims(), &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Name: "data", Namespace: "default"},
			Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: "pv1"},
		})
		d := web(1)
		d.Spec.Template.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
		}}}
		l.put(t, store.Deployments(), d)
		time.Sleep(20 * time.Second)
		c := l.client(t, "system:masters")
		attached := func(node string) int {
			names := must.Get(c.AttachedVolumes(t.Context(), node))(t)
			return len(names)
		}
		from, to := "wk1", "wk2"
		if attached(from) == 0 {
			from, to = to, from
		}
		must.Do(t, c.Cordon(t.Context(), from, cluster.Mark{Run: "r1"}))
		must.Do(t, c.Drain(t.Context(), from, cluster.DrainOptions{Timeout: time.Minute}, func(string) {}))
		must.Equal(t, "volumes attached right after the drain", 1, attached(from))
		time.Sleep(5 * time.Second)
		must.Equal(t, "volumes attached to the old and new node", []int{0, 1}, []int{attached(from), attached(to)})
	})
}

func (l *lab) pod(t *testing.T, name string) *corev1.Pod {
	t.Helper()
	o := must.Get(l.Store().Get(t.Context(), store.Pods(), "default", name))(t)
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
		c := l.cordoned(t)
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
		must.Do(t, c.Drain(t.Context(), "wk1", cluster.DrainOptions{Timeout: time.Minute}, func(string) {}))
		time.Sleep(5 * time.Second)
		if p := l.pod(t, "db-0"); p.UID != next.UID || p.DeletionTimestamp != nil || p.Spec.NodeName != "wk2" {
			t.Errorf("db-0 is %s on %s, deleted at %v; the next one was %s on %s", p.UID, p.Spec.NodeName, p.DeletionTimestamp, next.UID, next.Spec.NodeName)
		}
	})
}

// TestDrainRespectsRequestedPause: a requested pause is respected, but never beyond the deadline.
func TestDrainRespectsRequestedPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, c := loaded(t, []string{"wk1"}, web(1))
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
		must.Do(t, c.Drain(t.Context(), "wk1", cluster.DrainOptions{Timeout: 2 * time.Minute}, func(string) {}))
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
		c := l.cordoned(t)
		start := time.Now()
		var told []string
		err := c.Drain(t.Context(), "wk1", cluster.DrainOptions{Timeout: time.Minute, Delete: true}, func(s string) {
			if strings.HasPrefix(s, "deleting pod ") {
				told = append(told, s)
			}
		})
		must.Do(t, err)
		must.Take(t, start, 90*time.Second, 100*time.Second)
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

// TestDrainWaitsForTerminatingBarePod: no controller would recreate it, but someone has deleted it.
func TestDrainWaitsForTerminatingBarePod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, c := loaded(t, []string{"wk1"}, bare("sleep"))
		must.Get(l.Store().Delete(t.Context(), store.Pods(), "default", "bare", metav1.DeleteOptions{}))(t)
		start := time.Now()
		must.Do(t, c.Drain(t.Context(), "wk1", cluster.DrainOptions{Timeout: time.Minute}, func(string) {}))
		must.Take(t, start, 28*time.Second, time.Hour)
	})
}

func TestDrainOfANodeThatTakesPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := upLab(t, "wk1")
		err := l.client(t, "system:masters").Drain(t.Context(), "wk1", cluster.DrainOptions{Timeout: time.Minute}, func(string) {})
		must.FailAs(t, err, fault.Refused, "node wk1 is schedulable")
	})
}

// TestDrainTellsHowLongItWasRefused: a busy API refuses nothing.
func TestDrainTellsHowLongItWasRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, c := loaded(t, []string{"wk1"}, web(1))
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
		options := cluster.DrainOptions{Timeout: time.Minute, Delete: true}
		must.Do(t, c.Drain(t.Context(), "wk1", options, func(s string) { told = append(told, s) }))
		must.Contain(t, "said", strings.Join(told, "\n"), "which was refused for 40s (roll.drain.onTimeout: delete)")
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
		must.Do(t, c.Cordon(t.Context(), "wk1", cluster.Mark{Run: "r1"}))
		start := time.Now()
		err := c.Drain(t.Context(), "wk1", cluster.DrainOptions{Timeout: time.Minute}, func(string) {})
		must.FailAs(t, err, fault.Failed, "(This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.)")
		must.Take(t, start, time.Minute, time.Hour)
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
			must.Do(t, c.Cordon(t.Context(), "wk1", cluster.Mark{Run: "r1"}))
			must.Do(t, c.Drain(t.Context(), "wk1", cluster.DrainOptions{Timeout: time.Minute, Force: force}, func(string) {}))
			must.Equal(t, "pods left on wk1, force", []string{"agent", "kube-flannel", "kube-proxy"}, l.podsOn(t, "wk1"))
		}
	})
}
