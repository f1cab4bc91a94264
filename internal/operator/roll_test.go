package operator

import (
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/recast-sh/recast/api/v1alpha1"
)

func keyOf(name string) client.ObjectKey { return client.ObjectKey{Namespace: namespace, Name: name} }

// TestExitCodes is what becomes of a roll by the exit codes of its attempts.
func TestExitCodes(t *testing.T) {
	t.Parallel()
	failures := func(n int, e ending) (list []ending) {
		for range n {
			list = append(list, e)
		}
		return list
	}
	cases := map[string]struct {
		attempts []ending
		within   time.Duration
		phase    v1alpha1.RollPhase
		reason   string
		begun    int // attempts, without the plan
	}{
		"done":                    {nil, time.Minute, v1alpha1.PhaseSucceeded, v1alpha1.ReasonSucceeded, 1},
		"configuration":           {[]ending{{code: 3, message: "talos.version"}}, time.Hour, v1alpha1.PhaseFailed, v1alpha1.ReasonConfiguration, 1},
		"refused":                 {[]ending{{code: 4, message: "no quorum"}}, time.Hour, v1alpha1.PhaseFailed, v1alpha1.ReasonRefused, 1},
		"claimed, then done":      {failures(3, ending{code: 5, message: "held by ci"}), 10 * time.Minute, v1alpha1.PhaseSucceeded, v1alpha1.ReasonSucceeded, 4},
		"claimed":                 {failures(3, ending{code: 5, message: "held by ci"}), time.Minute, v1alpha1.PhaseAwaitingClaim, v1alpha1.ReasonAwaitingClaim, 1},
		"killed five times":       {failures(5, ending{code: 137}), time.Hour, v1alpha1.PhaseSucceeded, v1alpha1.ReasonSucceeded, 6},
		"failed once":             {failures(1, ending{code: 1, message: "timeout"}), time.Second, v1alpha1.PhaseRetrying, v1alpha1.ReasonRetrying, 1},
		"always failed":           {failures(50, ending{code: 1, message: "timeout"}), 10 * time.Hour, v1alpha1.PhaseFailed, v1alpha1.ReasonRetriesExhausted, 7},
		"always failed, half-way": {append(failures(4, ending{code: 1}), failures(50, ending{code: 1, done: []string{"wk1"}})...), 10 * time.Hour, v1alpha1.PhaseFailed, v1alpha1.ReasonRetriesExhausted, 11},
		"interrupted":             {failures(1, ending{code: 130}), time.Minute, v1alpha1.PhaseSucceeded, v1alpha1.ReasonSucceeded, 2},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if testing.Short() && c.begun > 6 {
				t.Skip("long")
			}
			t.Parallel()
			s := newStage(t, (&bumped{attempts: c.attempts}).play)
			s.cluster(automatic)
			s.settle(c.within)
			r := s.roll("lab-1")
			if got := reasonOf(r.Status.Conditions); r.Status.Phase != c.phase || got != c.reason || int(r.Status.Begun) != c.begun+1 {
				t.Errorf("%s %s after %d attempts, want %s %s after %d: %s", r.Status.Phase, got, r.Status.Begun-1, c.phase, c.reason, c.begun, rollMessage(r))
			}
			if c.phase == v1alpha1.PhaseFailed && condition(s.theCluster().Status.Conditions, v1alpha1.ConditionStalled) != "True RollFailed" {
				t.Errorf("the cluster: %+v", s.theCluster().Status.Conditions)
			}
		})
	}
}

// TestFailedOnce: what has failed is not tried again before something changes.
func TestFailedOnce(t *testing.T) {
	t.Parallel()
	b := &bumped{attempts: []ending{{code: 4, message: "no quorum"}}}
	s := newStage(t, b.play)
	s.cluster(func(c *v1alpha1.TalosCluster) {
		automatic(c)
		c.Annotations = map[string]string{v1alpha1.AnnotationTalosTarget: "v1.13.9"}
	})
	s.settle(5 * time.Hour)
	c := s.theCluster()
	if c.Status.Rolls != 1 || c.Annotations[v1alpha1.AnnotationTalosStatus] != "failed" || !strings.Contains(c.Annotations[v1alpha1.AnnotationTalosMessage], "no quorum") {
		t.Fatalf("%d rolls, annotations %v", c.Status.Rolls, c.Annotations)
	}
	change(s, c, func(c *v1alpha1.TalosCluster) {
		delete(c.Annotations, v1alpha1.AnnotationTalosTarget)
		c.Spec.Rolls.Create = v1alpha1.CreateNever
	})
	s.settle(time.Minute)
	change(s, s.theCluster(), func(c *v1alpha1.TalosCluster) {
		c.Annotations[v1alpha1.AnnotationTalosTarget] = "v1.13.9"
		c.Spec.Rolls.Create = v1alpha1.CreateAutomatic
	})
	s.settle(time.Minute)
	c = s.theCluster()
	if c.Status.Rolls != 2 || c.Annotations[v1alpha1.AnnotationTalosStatus] != "completed" || c.Annotations[v1alpha1.AnnotationTalosProgress] != "2/2" {
		t.Errorf("%d rolls, annotations %v", c.Status.Rolls, c.Annotations)
	}
}

// TestWindows: a roll begins only in a window, and goes on after it has closed.
func TestWindows(t *testing.T) {
	t.Parallel()
	b := &bumped{attempts: []ending{{code: 1}, {runs: true}}}
	s := newStage(t, b.play)
	s.cluster(func(c *v1alpha1.TalosCluster) {
		automatic(c)
		c.Spec.Windows = []v1alpha1.Window{{Schedule: "0 22 * * *", Duration: metav1.Duration{Duration: time.Minute}}}
	})
	s.settle(time.Hour)
	if r := s.roll("lab-1"); r.Status.Phase != v1alpha1.PhaseAwaitingWindow || !strings.Contains(rollMessage(r), "2026-11-27T22:00:00Z") {
		t.Fatalf("%s: %s", r.Status.Phase, rollMessage(r))
	}
	if next := s.theCluster().Status.NextWindow; next == nil || next.Hour() != 22 {
		t.Errorf("the next window is at %v", next)
	}
	s.settle(9*time.Hour + time.Minute)
	r := s.roll("lab-1")
	if r.Status.Started == nil || r.Status.Started.Hour() != 22 || r.Status.Begun != 3 {
		t.Fatalf("it was begun at %v, and is at attempt %d", r.Status.Started, r.Status.Begun)
	}
	s.now = s.now.Add(time.Hour) // the window is closed, and the second attempt runs
	b.attempts = []ending{{code: 1}}
	s.settle(time.Minute)
	if r := s.roll("lab-1"); r.Status.Phase != v1alpha1.PhaseSucceeded || r.Status.Begun != 4 {
		t.Errorf("%s after %d attempts: %s", r.Status.Phase, r.Status.Begun, rollMessage(r))
	}
}

func TestKubernetesGoesLast(t *testing.T) {
	t.Parallel()
	s := newStage(t, (&bumped{kubernetes: true}).play)
	s.cluster(automatic)
	s.settle(time.Minute)
	if r := s.roll("lab-1"); r.Spec.Action != v1alpha1.ActionKubernetes || s.ran[2] != "kubernetes lab-1-k8s-2" {
		t.Errorf("%s: %v", r.Spec.Action, s.ran)
	}
}

// TestTurns: two rolls of one cluster go one after the other, the older one first.
func TestTurns(t *testing.T) {
	t.Parallel()
	b := &bumped{attempts: []ending{{runs: true}}}
	s := newStage(t, b.play)
	s.cluster(automatic)
	s.settle(time.Minute)
	s.create(&v1alpha1.ImageRoll{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "mine", CreationTimestamp: metav1.NewTime(s.now.Add(time.Hour))},
		Spec:       v1alpha1.ImageRollSpec{ClusterName: "lab", Action: v1alpha1.ActionNodes, Approved: true, Only: []string{"wk1"}},
	})
	s.settle(time.Minute)
	if r := s.roll("mine"); reasonOf(r.Status.Conditions) != v1alpha1.ReasonAwaitingTurn {
		t.Errorf("mine: %s", rollMessage(r))
	}
	b.attempts = nil
	s.settle(time.Minute)
	if r := s.roll("mine"); r.Status.Phase != v1alpha1.PhaseSucceeded {
		t.Errorf("mine: %s", rollMessage(r))
	}
}

// TestDeleted: a deleted roll is gone once its Job is.
func TestDeleted(t *testing.T) {
	t.Parallel()
	s := newStage(t, (&bumped{attempts: []ending{{runs: true}}}).play)
	s.cluster(automatic)
	s.settle(time.Minute)
	change(s, s.theCluster(), func(c *v1alpha1.TalosCluster) { c.Spec.Rolls.Create = v1alpha1.CreateNever })
	for _, o := range []client.Object{s.roll("lab-1"), s.theCluster()} {
		if err := s.api().Delete(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	s.settle(time.Minute)
	if err := s.api().Get(t.Context(), keyOf("lab-1-roll-2"), &batchv1.Job{}); !apierrors.IsNotFound(err) {
		t.Errorf("its Job: %v", err)
	}
	for _, o := range []client.Object{&v1alpha1.ImageRoll{}, &v1alpha1.TalosCluster{}} {
		name := "lab-1"
		if _, ok := o.(*v1alpha1.TalosCluster); ok {
			name = "lab"
		}
		if err := s.api().Get(t.Context(), keyOf(name), o); !apierrors.IsNotFound(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestNeverBegun: an attempt that was written down and whose Job could not be made asks again whether one
// may begin.
func TestNeverBegun(t *testing.T) {
	t.Parallel()
	s := newStage(t, (&bumped{attempts: []ending{{message: "done", done: []string{"wk1", "wk2"}}}}).play)
	s.cluster(func(c *v1alpha1.TalosCluster) {
		automatic(c)
		c.Spec.Windows = []v1alpha1.Window{{Schedule: "0 12 * * *", Duration: metav1.Duration{Duration: time.Hour}}}
	})
	s.settle(time.Minute) // within the window
	r := s.roll("lab-1")
	if r.Status.Phase != v1alpha1.PhaseSucceeded {
		t.Fatalf("%s: %s", r.Status.Phase, rollMessage(r))
	}
	r.Status.Phase, r.Status.Ended, r.Status.MadeJob, r.Status.Outcome = v1alpha1.PhaseRolling, nil, "", nil
	r.Status.Begun, r.Status.Started = 2, new(metav1.NewTime(s.now))
	r.Status.Attempts = []v1alpha1.Attempt{r.Status.Attempts[0], {Job: "lab-1-roll-9", Started: r.Status.Started}}
	if err := s.api().Status().Update(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	s.now = s.now.Add(2 * time.Hour)
	s.settle(time.Minute)
	if r := s.roll("lab-1"); r.Status.Phase != v1alpha1.PhaseAwaitingWindow || r.Status.Started != nil || r.Status.Begun != 1 {
		t.Errorf("%s, begun at %v, %d attempts: %s", r.Status.Phase, r.Status.Started, r.Status.Begun, rollMessage(r))
	}
}
