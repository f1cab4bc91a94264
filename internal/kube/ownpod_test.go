package kube_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/kube"
	"github.com/recast-sh/recast/internal/sim/kubeapi"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/sim/record"
)

// ownPod is a pod of a Job on wk1. Like those of the real Job controller it has a finalizer, so that it
// stays after its end until it was counted.
func (l *lab) ownPod(t *testing.T, owner string) cluster.OwnPod {
	t.Helper()
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: "roll-x", Namespace: "default", Labels: map[string]string{"app": "web"}, Finalizers: []string{"batch.kubernetes.io/job-tracking"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: owner, Name: "roll", UID: "job", Controller: new(true)}},
		},
		Spec: corev1.PodSpec{NodeName: "wk1", Containers: []corev1.Container{{Name: "recast", Image: "recast"}}},
	}
	l.put(t, store.Pods(), p)
	time.Sleep(5 * time.Second)
	o := must.Get(l.Store().Get(t.Context(), store.Pods(), "default", "roll-x"))(t)
	return cluster.OwnPod{Namespace: "default", Name: "roll-x", UID: string(o.GetUID())}
}

// in is a client that runs in a pod.
func (l *lab) in(t *testing.T, own cluster.OwnPod) *kube.Client {
	t.Helper()
	pair := l.ca.issue(t, "admin", []string{"system:masters"})
	kubeconfig, err := kubeapi.Kubeconfig("lab", "https://"+apiAddr, l.ca.cert, pair.cert, pair.key)
	must.Do(t, err)
	c := must.Get(kube.New(kubeconfig, kube.Options{Dial: l.net.Dialer().DialContext, Poll: 2 * time.Second, Own: own}))(t)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestOwnNode(t *testing.T) {
	type row struct {
		owner string
		change
		want string
		err  string
		kind fault.Kind
	}
	cases := map[string]row{
		"its pod":                  {want: "wk1"},
		"no pod":                   {change: func(_ *lab, p *cluster.OwnPod) { *p = cluster.OwnPod{} }},
		"another cluster's":        {change: func(_ *lab, p *cluster.OwnPod) { p.UID = "another" }},
		"another cluster's, by ns": {change: func(_ *lab, p *cluster.OwnPod) { p.Namespace = "another" }},
		"one that never leaves":    {owner: "DaemonSet", err: "a DaemonSet pod, which a drain leaves on its node", kind: fault.Refused},
		"no answer":                {change: func(l *lab, _ *cluster.OwnPod) { l.fails("connection reset by peer") }, err: "read pod default/roll-x: no answer from"},
	}
	must.Bubbles(t, cases, func(t *testing.T, c row) {
		l := newLab(t, "wk1")
		owner := "Job"
		if c.owner != "" {
			owner = c.owner
		}
		own := l.ownPod(t, owner)
		if c.change != nil {
			c.change(l, &own)
		}
		got, err := l.in(t, own).OwnNode(t.Context())
		if got != c.want || (err != nil) != (c.err != "") || err != nil && (!strings.Contains(err.Error(), c.err) || fault.KindOf(err) != c.kind) {
			t.Errorf("node %q, %v (kind %d); want %q, %q (kind %d)", got, err, fault.KindOf(err), c.want, c.err, c.kind)
		}
	})
}

type change func(*lab, *cluster.OwnPod)

func (l *lab) fails(why string) {
	l.calls.Hooks(func(record.Call) error { return errors.New(why) }, nil)
}

// TestDrainOfOwnNode: recast's own pod is evicted last, and the drain does not wait for its end.
func TestDrainOfOwnNode(t *testing.T) {
	type row struct {
		before, during func(*testing.T, *lab)
		of             func(*cluster.OwnPod) // what the environment says
		delete         bool
		kind           fault.Kind
		err            string
		last           string // of the pods that it evicts or deletes
		spared         bool   // it does not evict its own pod
		took           time.Duration
	}
	cases := map[string]row{
		"it goes last": {kind: fault.Interrupted, err: "this run's own pod was evicted from wk1; the roll goes on", last: "evicting pod default/roll-x", took: 10 * time.Second},
		"the name of a pod of another cluster": {
			of: func(p *cluster.OwnPod) { p.UID = "another" }, kind: fault.Failed, err: "roll-x (still terminating, waiting for finalizers", took: 70 * time.Second,
		},
		"someone else evicts it first": {
			before: stubbornWeb, during: evicts("roll-x"),
			kind: fault.Interrupted, err: "this run's own pod was evicted from wk1", spared: true, took: 15 * time.Second,
		},
		"others never leave": {
			before: guardedWeb, kind: fault.Failed, err: "default/roll-x (recast runs in it, so it goes last); default/web-", spared: true, took: 70 * time.Second,
		},
		"a budget forbids its eviction": {
			before: func(t *testing.T, l *lab) { l.put(t, store.Budgets(), budget(1)) }, kind: fault.Failed, err: "pods left: default/roll-x (PodDisruptionBudget default/web needs 1 healthy pods and has 1 currently)", took: 70 * time.Second,
		},
		"it is deleted in spite of its budget": {
			before: func(t *testing.T, l *lab) { l.put(t, store.Budgets(), budget(1)) }, delete: true,
			kind: fault.Interrupted, err: "this run's own pod was evicted from wk1", last: "deleting pod default/roll-x", took: 130 * time.Second,
		},
		"its object is deleted by force": {
			before: stubbornWeb, during: func(t *testing.T, l *lab) { l.forget(t, "roll-x") }, spared: true,
			kind: fault.Interrupted, err: "this run's own pod was evicted from wk1", took: 15 * time.Second,
		},
	}
	must.Bubbles(t, cases, func(t *testing.T, c row) {
		l := newLab(t, "wk1")
		if c.before == nil && c.of == nil {
			l.put(t, store.Deployments(), web(2))
		} else if c.before != nil {
			c.before(t, l)
		}
		own := l.ownPod(t, "Job")
		time.Sleep(20 * time.Second)
		if c.of != nil {
			c.of(&own)
		}
		client := l.in(t, own)
		must.Do(t, client.Cordon(t.Context(), "wk1", cluster.Mark{Run: "r1"}))
		if c.during != nil {
			time.AfterFunc(10*time.Second, func() { c.during(t, l) })
		}
		var said []string
		start := time.Now()
		err := client.Drain(t.Context(), "wk1", cluster.DrainOptions{Timeout: time.Minute, Delete: c.delete}, func(s string) { said = append(said, s) })
		must.FailAs(t, err, c.kind, c.err)
		must.Take(t, start, 0, c.took)
		evictions := slices.DeleteFunc(slices.Clone(said), func(s string) bool {
			return !strings.HasPrefix(s, "evicting pod ") && !strings.HasPrefix(s, "deleting pod ")
		})
		if len(evictions) < 2 || !strings.HasPrefix(evictions[len(evictions)-1], c.last) {
			t.Errorf("it says %q, want %q last", said, c.last)
		}
		if c.spared == slices.Contains(evictions, "evicting pod default/roll-x") {
			t.Errorf("it says %q; its own pod spared: want %t", said, c.spared)
		}
	})
}

// stubbornWeb has pods that live until their grace period of 30 s is over.
func stubbornWeb(t *testing.T, l *lab) {
	d := web(1)
	d.Spec.Template.Spec.Containers[0].Command = []string{"sleep", "infinity"}
	l.put(t, store.Deployments(), d)
}

// guardedWeb has a pod that never leaves.
func guardedWeb(t *testing.T, l *lab) {
	d := web(1)
	d.Spec.Template.Finalizers = []string{"example.com/guard"}
	l.put(t, store.Deployments(), d)
}

func evicts(pod string) func(*testing.T, *lab) {
	return func(t *testing.T, l *lab) {
		must.Pass(t, l.Evict(t.Context(), "default", pod, metav1.DeleteOptions{}))
	}
}

// forget deletes a pod's object at once, whatever its finalizers.
func (l *lab) forget(t *testing.T, pod string) {
	o, err := l.Store().Get(t.Context(), store.Pods(), "default", pod)
	if err == nil {
		fresh := o.(*corev1.Pod).DeepCopy()
		fresh.Finalizers = nil
		_, err = l.Store().Update(t.Context(), store.Pods(), fresh, store.Main)
	}
	if err == nil {
		_, err = l.Store().Delete(t.Context(), store.Pods(), "default", pod, metav1.DeleteOptions{GracePeriodSeconds: new(int64)})
	}
	if err != nil {
		t.Error(err)
	}
}
