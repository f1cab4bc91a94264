package fleet

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/recast-sh/recast/api/v1alpha1"
)

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
	if got, want := rollName("upgrade", "c1"), "upgrade-c1"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if got, want := rollName(fleet, cluster[:19]), fleet+"-"+cluster[:19]; got != want || len(got) != 50 {
		t.Errorf("%s, want %s", got, want)
	}
	one, other := rollName(fleet, cluster[:20]), rollName(fleet, cluster)
	if len(one) != 50 || len(other) != 50 || one == other || one[:41] != other[:41] {
		t.Errorf("%s and %s, want two names of 50 characters", one, other)
	}
}
