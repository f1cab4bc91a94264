package fleet

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/recast-sh/recast/api/v1alpha1"
	"github.com/recast-sh/recast/internal/sim/must"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

func TestPauseAndContinue(t *testing.T) {
	t.Parallel()
	f := newFleet("a")
	f.Spec.MaxConcurrent, f.Spec.State = 1, v1alpha1.FleetPaused
	l := newLab(t, f, newCluster("a1", "a", "x"), newCluster("a2", "a", "x"))
	l.run(nil)
	l.want(v1alpha1.ReasonPaused, "nothing was begun, and the members are not settled yet", "")
	l.must(l.store.Create(t.Context(), newCluster("a3", "a", "x")))

	l.change(func(s *v1alpha1.FleetRollSpec) { s.State = v1alpha1.FleetRunning })
	_, err := l.reconcile()
	l.must(err)
	l.want(v1alpha1.ReasonRolling, "stage a: 0 of 3 clusters done, 1 run", "Progressing")

	l.change(func(s *v1alpha1.FleetRollSpec) { s.State = v1alpha1.FleetPaused })
	_, err = l.reconcile()
	l.must(err)
	l.want(v1alpha1.ReasonPaused, "nothing begins; 0 of 3 clusters done, 1 run", "Progressing")
	l.run(nil)
	l.want(v1alpha1.ReasonPaused, "nothing begins; 1 of 3 clusters done", "")
	if s := l.fleet().Status; s.ObservedGeneration != 3 || s.Summary != "1/3" || s.Ended != nil {
		t.Errorf("generation %d, %s, ended %v", s.ObservedGeneration, s.Summary, s.Ended)
	}
	l.change(func(s *v1alpha1.FleetRollSpec) { s.State = v1alpha1.FleetRunning })
	l.run(nil)
	l.want(v1alpha1.ReasonSucceeded, "3 of 3", "Ready")
}

func TestAbort(t *testing.T) {
	t.Parallel()
	f := newFleet("a")
	f.Spec.MaxConcurrent = 1
	l := newLab(t, f, newCluster("a1", "a", "x"), newCluster("a2", "a", "x"))
	_, err := l.reconcile()
	l.must(err)
	l.change(func(s *v1alpha1.FleetRollSpec) { s.State = v1alpha1.FleetAborted })
	_, err = l.reconcile()
	l.must(err)
	l.want(v1alpha1.ReasonAborted, "0 of 2 clusters done, 1 run", "Progressing Stalled")
	l.run(nil)
	l.want(v1alpha1.ReasonAborted, "1 of 2 clusters done", "Stalled")
	l.wantEvent("Warning Aborted")
	if l.fleet().Status.Ended == nil || l.made["upgrade-a2"] != 0 {
		t.Errorf("ended %v, ImageRolls %v", l.fleet().Status.Ended, l.made)
	}
	l.change(func(s *v1alpha1.FleetRollSpec) { s.MaxConcurrent = 2 })
	_, err = l.reconcile()
	l.must(err)
	if s := l.fleet().Status; s.ObservedGeneration != 3 || s.Conditions[0].ObservedGeneration != 3 {
		t.Errorf("the generation that an ended fleet has seen is %d", s.ObservedGeneration)
	}
}

func TestAbortedBeforeItBegins(t *testing.T) {
	t.Parallel()
	f := newFleet("a")
	f.Spec.State = v1alpha1.FleetAborted
	l := newLab(t, f, newCluster("a1", "a", "x"))
	l.run(nil)
	l.want(v1alpha1.ReasonAborted, "before anything was begun", "Stalled")
}

func TestSoakGateAndApproval(t *testing.T) {
	t.Parallel()
	f := newFleet("a", "b")
	f.Spec.Stages[0].Soak = metav1.Duration{Duration: 2 * time.Hour}
	f.Spec.Stages[0].Gates = []string{`cluster.metadata.annotations["load"] == "low"`}
	f.Spec.Stages[1].Approval = v1alpha1.ApprovalManual
	l := newLab(t, f, newCluster("a1", "a", "x"), newCluster("b1", "b", "x"))
	l.unclean["a1"] = true
	reason := func(want string) func() bool {
		return func() bool { r, _, _ := l.ready(); return r == want }
	}
	l.run(reason(v1alpha1.ReasonSoaking))
	ended := l.fleet().Status.Members[0].Ended
	l.want(v1alpha1.ReasonSoaking, "stage a: 1 of 1 clusters done; watched until "+ended.Add(2*time.Hour).UTC().Format(time.RFC3339), "Progressing")

	l.run(reason(v1alpha1.ReasonGateClosed))
	l.want(v1alpha1.ReasonGateClosed, "stage a: the next stage waits: a1: 1 nodes stale, 0 unread", "Progressing")
	must.Equal(t, "the gate was asked after", 2*time.Hour, l.now.Sub(ended.Time))
	l.wantEvent("Normal GateClosed")

	l.unclean["a1"] = false
	l.check("a1")
	res, err := l.reconcile()
	l.must(err)
	l.want(v1alpha1.ReasonGateClosed, `a1: cluster.metadata.annotations["load"] == "low": no such key: annotations`, "Progressing")
	must.Equal(t, "again in", lookAgain, res.RequeueAfter)
	c := l.cluster("a1")
	c.Annotations = map[string]string{"load": "low"}
	l.must(l.store.Update(t.Context(), c))
	res, err = l.reconcile()
	l.must(err)
	l.want(v1alpha1.ReasonAwaitingApproval, "stage b: add it to spec.approvedStages", "Progressing")
	must.Equal(t, "again in", time.Duration(0), res.RequeueAfter)
	l.change(func(s *v1alpha1.FleetRollSpec) { s.ApprovedStages = []string{"b"} })
	l.run(nil)
	l.want(v1alpha1.ReasonSucceeded, "2 of 2", "Ready")
}

func TestInvalidSpec(t *testing.T) {
	t.Parallel()
	type spec = v1alpha1.FleetRollSpec
	cases := map[string]struct {
		change       func(*spec)
		reason, want string
	}{
		"selector": {func(s *spec) {
			s.Stages[0].Selector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Like", Values: []string{"b"}}}
		}, v1alpha1.ReasonInvalidSpec, `spec.stages[0].selector: "Like" is not a valid label selector operator: use matchLabels`},
		"CEL":                {func(s *spec) { s.Stages[1].Gates = []string{"true", "clustr.spec"} }, v1alpha1.ReasonInvalidSpec, "spec.stages[1].gates[1]: not a valid expression: 1:1: undeclared reference to 'clustr': write a CEL expression"},
		"CEL, a number":      {func(s *spec) { s.Stages[0].Gates = []string{"1 + 1"} }, v1alpha1.ReasonInvalidSpec, "spec.stages[0].gates[0]: its value is of type int, must be true or false: write"},
		"both":               {func(s *spec) { s.Stages[0].Gates, s.Stages[1].Gates = []string{"("}, []string{")"} }, v1alpha1.ReasonInvalidSpec, "spec.stages[1].gates[0]: "},
		"an empty stage":     {func(s *spec) { s.Stages[1].Selector.MatchLabels["stage"] = "c" }, v1alpha1.ReasonNoMembers, "spec.stages[1].selector: no TalosCluster in namespace clusters matches"},
		"nothing is left":    {func(s *spec) { s.Stages[0].Selector = metav1.LabelSelector{} }, v1alpha1.ReasonNoMembers, "that is not of an earlier stage: change the labels or the selector, or remove stage b"},
		"lock of the source": {func(s *spec) { s.TalosVersion = "v1.14.2" }, v1alpha1.ReasonInvalidSpec, "spec.talosVersion: needs spec.lock: Update of every TalosCluster, set it for a1"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFleet("a", "b")
			c.change(&f.Spec)
			locked := newCluster("a1", "a", "x")
			locked.Spec.Lock = v1alpha1.LockFromSource
			l := newLab(t, f, locked, newCluster("b1", "b", "x"))
			_, err := l.reconcile()
			l.must(err)
			l.want(c.reason, c.want, "Stalled")
			l.wantEvent("Warning " + c.reason)
			if len(l.made) != 0 || l.fleet().Status.Started != nil {
				t.Errorf("started %v, ImageRolls %v", l.fleet().Status.Started, l.made)
			}
		})
	}
}

func TestInvalidWhileItRuns(t *testing.T) {
	t.Parallel()
	l := newLab(t, newFleet("a", "b"), newCluster("a1", "a", "x"), newCluster("b1", "b", "x"))
	_, err := l.reconcile()
	l.must(err)
	l.change(func(s *v1alpha1.FleetRollSpec) { s.Stages[1].Name = "c" })
	_, err = l.reconcile()
	l.must(err)
	l.want(v1alpha1.ReasonInvalidSpec, "spec.stages: stage b is missing, which TalosCluster b1 belongs to", "Progressing Stalled")
	l.run(nil)
	l.want(v1alpha1.ReasonInvalidSpec, "put it back", "Stalled")
	if got := l.sorted(v1alpha1.MemberDone); len(got) != 1 {
		t.Errorf("done: %v, want a1", got)
	}
	l.change(func(s *v1alpha1.FleetRollSpec) { s.Stages[1].Name = "b" })
	l.run(nil)
	l.want(v1alpha1.ReasonSucceeded, "2 of 2", "Ready")
}

func TestDeletedWhileItRuns(t *testing.T) {
	t.Parallel()
	f := newFleet("a", "b")
	f.Spec.AbortThreshold = 4
	l := newLab(t, f, newCluster("a1", "a", "x"), newCluster("a2", "a", "x"), newCluster("a3", "a", "x"), newCluster("b1", "b", "x"), newCluster("b2", "b", "x"))
	_, err := l.reconcile()
	l.must(err)
	l.must(l.store.Delete(t.Context(), l.cluster("a1")))
	l.must(l.store.Delete(t.Context(), l.cluster("b1")))
	l.must(l.store.Delete(t.Context(), &v1alpha1.ImageRoll{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "upgrade-a2"}}))
	delete(l.ends, "upgrade-a1")
	delete(l.ends, "upgrade-a2")
	l.run(nil)
	l.want(v1alpha1.ReasonSucceeded, "2 of 5 clusters done, 3 failed", "Ready")
	l.wantEvent("Warning MemberFailed stage a: TalosCluster a1 was deleted")
	l.wantEvent("Warning MemberFailed stage a: ImageRoll upgrade-a2 was deleted before it was done")
	l.wantEvent("Warning MemberFailed stage b: TalosCluster b1 was deleted")
	if got := strings.Join(l.sorted(v1alpha1.MemberDone), " "); got != "a3 b2" || l.made["upgrade-b1"] != 0 {
		t.Errorf("done: %s, ImageRolls %v", got, l.made)
	}
}

func TestDeletedFleet(t *testing.T) {
	t.Parallel()
	f := newFleet("a")
	f.DeletionTimestamp, f.Finalizers = new(metav1.NewTime(start)), []string{"foregroundDeletion"}
	l := newLab(t, f, newCluster("a1", "a", "x"))
	l.run(nil)
	if len(l.made) != 0 || l.meter.writes != 0 {
		t.Errorf("%d writes, ImageRolls %v", l.meter.writes, l.made)
	}
	l = newLab(t, nil)
	l.run(nil)
}

// played runs a small fleet with everything in it to its end. The operator is killed at a call.
func played(t *testing.T, killAt int, late bool) (calls int, end []string) {
	t.Helper()
	f := newFleet("a", "b")
	f.Spec.MaxConcurrent, f.Spec.AbortThreshold, f.Spec.TalosVersion = 2, 2, "v1.14.2"
	f.Spec.Stages[0].Soak = metav1.Duration{Duration: time.Hour}
	f.Spec.Stages[0].Gates = []string{"cluster.status.nodes.total == 3"}
	l := newLab(t, f, newCluster("a1", "a", "x"), newCluster("a2", "a", "y"), newCluster("a3", "a", "x"), newCluster("b1", "b", "x"), newCluster("b2", "b", "y"))
	l.failing["a2"] = true
	l.meter.killAt, l.meter.late = killAt, late
	l.run(func() bool { l.checkLimits(); return false })
	for name, n := range l.made {
		if n != 1 {
			t.Errorf("killed at call %d (late: %v): ImageRoll %s was made %d times", killAt, late, name, n)
		}
	}
	s := l.fleet().Status
	for _, m := range s.Members {
		end = append(end, fmt.Sprintf("%s %s %s %s %s", m.Cluster, m.Stage, m.Site, m.Phase, m.Roll))
	}
	reason, message, is := l.ready()
	return l.meter.calls, append(end, reason, message, is, s.Summary, s.Stage)
}

// TestKilledAnywhere: whichever call the operator does not survive, whether it was carried out
// or not, the next operator comes to the same end, and no cluster gets a second ImageRoll.
func TestKilledAnywhere(t *testing.T) {
	t.Parallel()
	calls, want := played(t, 0, false)
	if len(want) < 10 || calls < 50 {
		t.Fatalf("%d calls, end %q: the fleet is too small to show anything", calls, want)
	}
	every := 1
	if testing.Short() {
		every = 7
	}
	for n := 1; n <= calls; n += every {
		for _, late := range []bool{false, true} {
			if _, end := played(t, n, late); !cmp.Equal(want, end) {
				t.Errorf("killed at call %d of %d (late: %v), end (-want +got):\n%s", n, calls, late, cmp.Diff(want, end))
			}
		}
	}
	t.Attr("calls", fmt.Sprint(calls))
}

// TestNothingToSay: a pass without news writes nothing, else its own write would be the next news.
func TestNothingToSay(t *testing.T) {
	t.Parallel()
	l := newLab(t, newFleet("a"), newCluster("a1", "a", "x"))
	for range 3 {
		_, err := l.reconcile()
		l.must(err)
	}
	writes, version := l.meter.writes, l.fleet().ResourceVersion
	_, err := l.reconcile()
	l.must(err)
	if l.meter.writes != writes || l.fleet().ResourceVersion != version {
		t.Errorf("%d writes without news", l.meter.writes-writes)
	}
}

// TestOutdatedCache: whoever decides by an old FleetRoll can't save, and begins nothing.
func TestOutdatedCache(t *testing.T) {
	t.Parallel()
	f := newFleet("a")
	f.Spec.MaxConcurrent = 1
	l := newLab(t, f, newCluster("a1", "a", "x"), newCluster("a2", "a", "x"))
	old := l.fleet()
	_, err := l.reconcile()
	l.must(err)
	moved := l.cluster("a1") // an outdated decision would be another one
	moved.Labels["stage"] = "b"
	l.must(l.store.Update(t.Context(), moved))
	l.r.Client = interceptor.NewClient(l.meter.wrap(l.store, false, l.made), interceptor.Funcs{Get: staleFleet(old)})
	if _, err := l.reconcile(); !apierrors.IsConflict(err) {
		t.Errorf("error %v, want a conflict", err)
	}
	if l.made["upgrade-a1"] != 1 || len(l.made) != 1 {
		t.Errorf("ImageRolls %v, want that of a1", l.made)
	}
}

// TestTargetBeforeRoll: the ImageRoll is made when the cache, by which it is planned, has the target.
func TestTargetBeforeRoll(t *testing.T) {
	t.Parallel()
	f := newFleet("a")
	f.Spec.TalosVersion = "v1.14.2"
	l := newLab(t, f, newCluster("a1", "a", "x"))
	cached := l.r.Client
	l.r.Client = interceptor.NewClient(l.meter.wrap(l.store, false, l.made), interceptor.Funcs{Get: staleCluster(l.cluster("a1"))})
	res, err := l.reconcile()
	l.must(err)
	if len(l.made) != 0 || res.RequeueAfter != cacheAgain || l.cluster("a1").Annotations[v1alpha1.AnnotationTalosTarget] != "v1.14.2" {
		t.Errorf("ImageRolls %v, again in %s, annotations %v; want the target only", l.made, res.RequeueAfter, l.cluster("a1").Annotations)
	}
	l.r.Client = cached
	_, err = l.reconcile()
	l.must(err)
	if l.made["upgrade-a1"] != 1 {
		t.Errorf("ImageRolls %v, want that of a1", l.made)
	}
}

// TestForeignRoll: an ImageRoll of that name which is not of the FleetRoll is left alone.
func TestForeignRoll(t *testing.T) {
	t.Parallel()
	l := newLab(t, newFleet("a"), newCluster("a1", "a", "x"))
	foreign := &v1alpha1.ImageRoll{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "upgrade-a1"}, Status: v1alpha1.ImageRollStatus{Phase: v1alpha1.PhaseSucceeded}}
	l.must(l.store.Create(t.Context(), foreign))
	res, err := l.reconcile()
	l.must(err)
	l.want(v1alpha1.ReasonRetrying, "TalosCluster a1 waits until ImageRoll upgrade-a1 is deleted", "Progressing")
	if res.RequeueAfter != startAgain || len(l.made) != 0 {
		t.Errorf("again in %s, ImageRolls made %v", res.RequeueAfter, l.made)
	}
	l.change(func(s *v1alpha1.FleetRollSpec) { s.State = v1alpha1.FleetPaused })
	_, err = l.reconcile()
	l.must(err)
	if l.phases()[v1alpha1.MemberWaiting] != 1 {
		t.Errorf("members %v, want a1 to wait again", l.phases())
	}
	l.change(func(s *v1alpha1.FleetRollSpec) { s.State = v1alpha1.FleetRunning })
	l.must(client.IgnoreNotFound(l.store.Delete(t.Context(), foreign)))
	l.run(nil)
	l.want(v1alpha1.ReasonSucceeded, "1 of 1", "Ready")
}

func TestRollName(t *testing.T) {
	t.Parallel()
	const fleet, cluster = "abcdefghijabcdefghijabcdefghij", "0123456789012345678901234567890123456789"
	must.Equal(t, "value", "upgrade-c1", rollName("upgrade", "c1"))
	if got, want := rollName(fleet, cluster[:19]), fleet+"-"+cluster[:19]; got != want || len(got) != 50 {
		t.Errorf("%s, want %s", got, want)
	}
	one, other := rollName(fleet, cluster[:20]), rollName(fleet, cluster)
	if len(one) != 50 || len(other) != 50 || one == other || one[:41] != other[:41] {
		t.Errorf("%s and %s, want two names of 50 characters", one, other)
	}
}
