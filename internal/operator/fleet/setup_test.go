package fleet

import (
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/recast-sh/recast/api/v1alpha1"
)

// TestSetup: the manager takes the reconciler. Nothing is started, so no API server is needed.
func TestSetup(t *testing.T) {
	t.Parallel()
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	mgr, err := ctrl.NewManager(&rest.Config{Host: "http://127.0.0.1:1"}, ctrl.Options{Scheme: scheme, Metrics: server.Options{BindAddress: "0"}})
	if err != nil {
		t.Fatal(err)
	}
	r := &Reconciler{Clock: time.Now}
	if err := r.SetupWithManager(mgr); err != nil || r.Client == nil || r.Live == nil || r.Recorder == nil {
		t.Errorf("error %v, reconciler %+v", err, r)
	}
}

// TestRollEnds: of an ImageRoll only its end is news.
func TestRollEnds(t *testing.T) {
	t.Parallel()
	roll := func(phase v1alpha1.RollPhase, message string) *v1alpha1.ImageRoll {
		return &v1alpha1.ImageRoll{Status: v1alpha1.ImageRollStatus{Phase: phase, Progress: &v1alpha1.Progress{Message: message}}}
	}
	cases := map[string]struct {
		before, after *v1alpha1.ImageRoll
		want          bool
	}{
		"progress":  {roll(v1alpha1.PhaseRolling, "1"), roll(v1alpha1.PhaseRolling, "2"), false},
		"a phase":   {roll(v1alpha1.PhasePlanning, ""), roll(v1alpha1.PhaseRolling, ""), false},
		"succeeded": {roll(v1alpha1.PhaseRolling, ""), roll(v1alpha1.PhaseSucceeded, ""), true},
		"failed":    {roll(v1alpha1.PhaseRetrying, ""), roll(v1alpha1.PhaseFailed, ""), true},
		"afterward": {roll(v1alpha1.PhaseFailed, "1"), roll(v1alpha1.PhaseFailed, "2"), false},
	}
	for name, c := range cases {
		if got := rollEnds().Update(event.UpdateEvent{ObjectOld: c.before, ObjectNew: c.after}); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
	if made := roll(v1alpha1.PhasePending, ""); rollEnds().Create(event.CreateEvent{Object: made}) || !rollEnds().Delete(event.DeleteEvent{Object: made}) {
		t.Error("a new ImageRoll is news, or a deleted one is none")
	}
}

// TestWhomAClusterConcerns: a TalosCluster's events lead to the FleetRolls that wait for them.
func TestWhomAClusterConcerns(t *testing.T) {
	t.Parallel()
	l := newLab(t, nil)
	add := func(name, reason string, started, ended bool, phase v1alpha1.MemberPhase) {
		f := newFleet("a")
		f.Name, f.UID = name, "uid-of-a-fleet"
		l.must(l.store.Create(t.Context(), f))
		f.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: reason, LastTransitionTime: *l.stamp()}}
		f.Status.Stage, f.Status.Members = "a", []v1alpha1.Member{{Cluster: "c1", Stage: "a", Phase: phase}, {Cluster: "c2", Stage: "b", Phase: phase}}
		if started {
			f.Status.Started = l.stamp()
		} else {
			f.Status.Members = nil
		}
		if ended {
			f.Status.Ended = l.stamp()
		}
		l.must(l.store.Status().Update(t.Context(), f))
	}
	add("new", v1alpha1.ReasonNoMembers, false, false, "")
	add("rolling", v1alpha1.ReasonRolling, true, false, v1alpha1.MemberRunning)
	add("gated", v1alpha1.ReasonGateClosed, true, false, v1alpha1.MemberDone)
	add("stopped", v1alpha1.ReasonStageFailed, true, true, v1alpha1.MemberWaiting)
	add("done", v1alpha1.ReasonSucceeded, true, true, v1alpha1.MemberDone)
	c1 := newCluster("c1", "a", "x")
	changed := func(change func(*v1alpha1.TalosCluster)) event.UpdateEvent {
		after := c1.DeepCopy()
		after.ResourceVersion = "2"
		change(after)
		return event.UpdateEvent{ObjectOld: c1, ObjectNew: after}
	}
	cases := map[string]struct {
		send func(queue)
		want []string
	}{
		"created":  {func(q queue) { l.r.clusterCreated(t.Context(), event.CreateEvent{Object: c1}, q) }, []string{"new"}},
		"deleted":  {func(q queue) { l.r.clusterDeleted(t.Context(), event.DeleteEvent{Object: c1}, q) }, []string{"gated", "rolling", "stopped"}},
		"a status": {func(q queue) { l.r.clusterUpdated(t.Context(), changed(func(*v1alpha1.TalosCluster) {}), q) }, []string{"gated"}},
		"a label": {func(q queue) {
			l.r.clusterUpdated(t.Context(), changed(func(c *v1alpha1.TalosCluster) { c.Labels["stage"] = "b" }), q)
		}, []string{"gated", "new"}},
		"a spec": {func(q queue) {
			l.r.clusterUpdated(t.Context(), changed(func(c *v1alpha1.TalosCluster) { c.Generation++ }), q)
		}, []string{"gated", "new"}},
		"of later stages": {func(q queue) {
			l.r.clusterUpdated(t.Context(), changed(func(c *v1alpha1.TalosCluster) { c.Name = "c2" }), q)
		}, nil},
		"nothing": {func(q queue) { l.r.clusterUpdated(t.Context(), event.UpdateEvent{ObjectOld: c1, ObjectNew: c1}, q) }, nil},
	}
	for name, c := range cases {
		q := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
		c.send(q)
		var got []string
		for q.Len() > 0 {
			item, _ := q.Get()
			got = append(got, item.Name)
			q.Done(item)
		}
		q.ShutDown()
		if slices.Sort(got); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
