package operator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/recast-sh/recast/api/v1alpha1"
	"github.com/recast-sh/recast/deploy"
	"github.com/recast-sh/recast/internal/operator/attempt"
	"github.com/recast-sh/recast/internal/operator/job"
	"github.com/recast-sh/recast/internal/sim/must"
)

// bumped plays a cluster of two nodes whose files were changed: both are stale until a roll is done.
type bumped struct {
	rolled     bool
	kubernetes bool // the drift is one of Kubernetes
	attempts   []ending
	checks     []ending // before the normal ones
}

func (b *bumped) play(task attempt.Task) ending {
	switch task.Kind {
	case attempt.Check:
		if len(b.checks) > 0 {
			e := b.checks[0]
			b.checks = b.checks[1:]
			return e
		}
		if b.rolled {
			return ending{check: &v1alpha1.Check{Revision: "new"}, nodes: &v1alpha1.Nodes{Total: 2, InSync: 2}}
		}
		return ending{check: &v1alpha1.Check{Revision: "new", ExitCode: 2, Reasons: []string{"wk1: Talos v1.13.8 → v1.13.9"}, OnlyKubernetes: b.kubernetes}, nodes: &v1alpha1.Nodes{Total: 2, Stale: 2}}
	case attempt.Plan:
		return ending{plan: &v1alpha1.Plan{Hash: "1234", ConfigMap: task.Results, Nodes: 2, LastNode: "wk2"}}
	}
	if len(b.attempts) > 0 {
		e := b.attempts[0]
		if e.runs {
			return e
		}
		b.attempts = b.attempts[1:]
		return e
	}
	b.rolled = true
	return ending{message: "done", done: []string{"wk1", "wk2"}}
}

func approve(s *stage, name string) {
	s.t.Helper()
	change(s, s.roll(name), func(r *v1alpha1.ImageRoll) { r.Spec.Approved = true })
}

func automatic(c *v1alpha1.TalosCluster) { c.Spec.Rolls.Approval = v1alpha1.ApprovalAutomatic }

func TestDriftBecomesARoll(t *testing.T) {
	t.Parallel()
	s := newStage(t, (&bumped{}).play)
	s.cluster(nil)
	s.settle(time.Minute)
	r := s.roll("lab-1")
	if r.Status.Phase != v1alpha1.PhaseAwaitingApproval || r.Status.Plan.Hash != "1234" || r.Spec.Action != v1alpha1.ActionNodes {
		t.Fatalf("the roll is %s, with plan %+v", r.Status.Phase, r.Status.Plan)
	}
	c := s.theCluster()
	for kind, want := range map[string]string{
		v1alpha1.ConditionReady: "False Rolling", v1alpha1.ConditionProgressing: "True Rolling",
		v1alpha1.ConditionStalled: "False Rolling", v1alpha1.ConditionDrifted: "True Drifted",
	} {
		must.Equal(t, kind, want, condition(c.Status.Conditions, kind))
	}
	s.settle(10 * time.Minute) // nobody approves it, and no other is made
	approve(s, "lab-1")
	s.settle(time.Minute)
	if r := s.roll("lab-1"); r.Status.Phase != v1alpha1.PhaseSucceeded || condition(r.Status.Conditions, v1alpha1.ConditionReady) != "True Succeeded" {
		t.Errorf("the roll is %s: %+v", r.Status.Phase, r.Status.Conditions)
	}
	c = s.theCluster()
	must.Equal(t, "the cluster", "True InSync, False InSync", condition(c.Status.Conditions, v1alpha1.ConditionReady)+", "+condition(c.Status.Conditions, v1alpha1.ConditionDrifted))
	want := []string{"check lab-check-1", "plan lab-1-plan-1", "roll lab-1-roll-2", "check lab-check-2"}
	must.Equal(t, "Jobs", want, s.ran)
}

// TestOperatorKilled ends the operator within each write that it does, and lets another one go on: the
// same Jobs are made, each once. With -short, within every nineteenth write.
func TestOperatorKilled(t *testing.T) {
	t.Parallel()
	play := func(t *testing.T, killAt int) *stage {
		s := newStage(t, (&bumped{attempts: []ending{{code: 137, done: []string{"wk1"}}}}).play)
		s.killAt = killAt
		s.cluster(automatic)
		s.settle(10 * time.Minute)
		return s
	}
	undisturbed := play(t, 0)
	must.Be(t, len(undisturbed.ran) == 5 && undisturbed.calls >= 20,
		"%d writes, Jobs: %v", undisturbed.calls, undisturbed.ran)
	every := 1
	if testing.Short() {
		every = 19
	}
	for n := 1; n <= undisturbed.calls; n += every {
		t.Run(strconv.Itoa(n), func(t *testing.T) {
			t.Parallel()
			s := play(t, n)
			var ran []string
			for _, job := range s.ran { // a number may be left out
				ran = append(ran, strings.ReplaceAll(job, " lab-2-", " lab-1-"))
			}
			must.Equal(t, "Jobs", undisturbed.ran, ran)
			must.Equal(t, "the cluster", "True InSync", condition(s.theCluster().Status.Conditions, v1alpha1.ConditionReady))
		})
	}
}

func TestCheckAgain(t *testing.T) {
	t.Parallel()
	b := &bumped{rolled: true}
	s := newStage(t, b.play)
	s.cluster(nil)
	s.settle(3 * time.Hour) // 12:00 to 15:00, at :17
	must.Equal(t, "number of checks in three hours", 4, len(s.ran))
	if jobs := s.jobs(); !slices.Equal(jobs, []string{"lab-check-3", "lab-check-4"}) {
		t.Errorf("Jobs %v are there, want those of the last two checks", jobs)
	}
	var m corev1.ConfigMap
	must.Do(t, s.api().Get(t.Context(), keyOf("files"), &m))
	change(s, &m, func(m *corev1.ConfigMap) { m.Data["recast.yaml"] = "version: 1 # changed" })
	s.settle(time.Minute)
	change(s, s.theCluster(), func(c *v1alpha1.TalosCluster) {
		c.Annotations[v1alpha1.AnnotationCheckRequested] = "now"
	})
	s.settle(time.Minute)
	change(s, s.theCluster(), func(c *v1alpha1.TalosCluster) { c.Spec.TalosVersion, c.Spec.Lock = "v1.14.0", v1alpha1.LockUpdate })
	s.settle(time.Minute)
	must.Equal(t, "number of checks", 7, len(s.ran))
	change(s, s.theCluster(), func(c *v1alpha1.TalosCluster) { c.Spec.Suspend = true })
	s.settle(5 * time.Hour)
	must.Equal(t, "number of checks of a suspended cluster", 7, len(s.ran))
	must.Equal(t, "a suspended cluster", "True Suspended", condition(s.theCluster().Status.Conditions, v1alpha1.ConditionReady))
}

func TestStalled(t *testing.T) {
	t.Parallel()
	type example struct {
		change func(*v1alpha1.TalosCluster)
		check  ending
		reason string
		says   string
		jobs   int
	}
	cases := map[string]example{
		"invalid schedule": {
			change: func(c *v1alpha1.TalosCluster) { c.Spec.Drift.Schedule = "every day" },
			reason: v1alpha1.ReasonInvalidSpec, says: "spec.drift.schedule:",
		},
		"invalid window": {
			change: func(c *v1alpha1.TalosCluster) {
				c.Spec.Windows = []v1alpha1.Window{{Schedule: "0 22 * * 6", Duration: metav1.Duration{Duration: time.Hour}, TimeZone: "Europe/Olso"}}
			},
			reason: v1alpha1.ReasonInvalidSpec, says: "spec.windows[0].timeZone:",
		},
		"a source by http": { // as the CRD of an older version lets it be
			change: func(c *v1alpha1.TalosCluster) {
				c.Spec.Source = v1alpha1.Source{Git: &v1alpha1.GitSource{URL: "http://git.example/a", Ref: "main"}}
			},
			reason: v1alpha1.ReasonInvalidSpec, says: "spec.source.git.url: is without TLS",
		},
		"no ConfigMap": {
			change: func(c *v1alpha1.TalosCluster) { c.Spec.Source.ConfigMap.Name = "other" },
			reason: v1alpha1.ReasonSourceUnavailable, says: "spec.source.configMap.name: the namespace clusters has no ConfigMap other",
		},
		"no Secret": {
			check:  ending{check: &v1alpha1.Check{ExitCode: 3, Problems: []string{"spec.secrets.proxmoxToken: the Secret lab has no key token"}}},
			reason: v1alpha1.ReasonConfiguration, says: "spec.secrets.proxmoxToken", jobs: 1,
		},
		"no privileges": {
			check:  ending{check: &v1alpha1.Check{ExitCode: 1, Problems: []string{"doctor: VM.Allocate on /vms: missing"}}},
			reason: v1alpha1.ReasonCheckFailed, says: "doctor: VM.Allocate", jobs: 1,
		},
	}
	must.Each(t, cases, func(t *testing.T, c example) {
		s := newStage(t, (&bumped{checks: []ending{c.check}}).play)
		s.cluster(c.change)
		s.settle(time.Minute)
		status := s.theCluster().Status
		must.Equal(t, "Stalled", "True "+c.reason, condition(status.Conditions, v1alpha1.ConditionStalled))
		must.Equal(t, "Ready", "False "+c.reason, condition(status.Conditions, v1alpha1.ConditionReady))
		i := slices.IndexFunc(status.Conditions, func(m metav1.Condition) bool { return strings.Contains(m.Message, c.says) })
		must.Hold(t, i >= 0, "no condition says %q: %+v", c.says, status.Conditions)
		must.Equal(t, "number of Jobs", c.jobs, len(s.ran))
	})
}

// TestCheckWithoutAWord: the pod of a check was lost before it could say anything.
func TestCheckWithoutAWord(t *testing.T) {
	t.Parallel()
	s := newStage(t, (&bumped{rolled: true, checks: []ending{{code: 137}}}).play)
	s.cluster(nil)
	s.settle(time.Minute)
	must.Equal(t, "number of Jobs at once", 1, len(s.ran))
	s.settle(6 * time.Minute)
	got := condition(s.theCluster().Status.Conditions, v1alpha1.ConditionReady)
	must.Hold(t, got == "True InSync" && len(s.ran) == 2, "Ready is %s after %v", got, s.ran)
}

// TestOutdatedRoll: a roll that waits does not keep its cluster from being checked, and goes when something
// else is wanted.
func TestOutdatedRoll(t *testing.T) {
	t.Parallel()
	b := &bumped{}
	s := newStage(t, b.play)
	s.cluster(nil)
	s.settle(2 * time.Hour)
	if n := len(s.ran); n != 4 || s.roll("lab-1").Status.Phase != v1alpha1.PhaseAwaitingApproval {
		t.Fatalf("lab-1 is %s, after %v", s.roll("lab-1").Status.Phase, s.ran)
	}
	change(s, s.theCluster(), func(c *v1alpha1.TalosCluster) {
		c.Annotations[v1alpha1.AnnotationTalosTarget] = "v1.13.10"
	})
	s.settle(time.Minute)
	if c := s.theCluster(); c.Status.Rolls != 2 || c.Status.Roll.Name != "lab-2" {
		t.Errorf("%d rolls, the newest is %+v", c.Status.Rolls, c.Status.Roll)
	}
	err := s.api().Get(t.Context(), keyOf("lab-1"), &v1alpha1.ImageRoll{})
	must.Hold(t, apierrors.IsNotFound(err), "lab-1: %v", err)
}

// TestDowngrade: older files are not rolled without a person.
func TestDowngrade(t *testing.T) {
	t.Parallel()
	c := &v1alpha1.TalosCluster{Status: v1alpha1.TalosClusterStatus{Talos: &v1alpha1.Versions{Current: "v1.13.10", Wanted: "v1.13.9"}}}
	must.Equal(t, "v1.13.9 is older than v1.13.10", true, downgrades(c))
	c.Status.Talos.Current = "v1.13.8"
	must.Equal(t, "v1.13.9 is older than v1.13.8", false, downgrades(c))
}

// TestStaleCache: an ImageRoll that the cache does not show yet is not made twice.
func TestStaleCache(t *testing.T) {
	t.Parallel()
	s := newStage(t, (&bumped{}).play)
	s.cluster(nil)
	s.settle(time.Minute)
	c := s.theCluster()
	c.Status.MadeRoll = ""
	l := &look{Shared: s.shared, cluster: c, saved: c.DeepCopy()}
	r, err := l.makeRoll(t.Context())
	must.Hold(t, err == nil && r.Name == "lab-1" && c.Status.Rolls == 1,
		"it makes %+v, %d in all: %v", r, c.Status.Rolls, err)
}

// TestDeniedJob: what a policy of the cluster denies is in the condition, and tried again.
func TestDeniedJob(t *testing.T) {
	t.Parallel()
	s := newStage(t, (&bumped{}).play)
	s.cluster(nil)
	s.deny = apierrors.NewForbidden(batchv1.Resource("jobs"), "lab-check-1", errors.New("denied by policy"))
	s.settle(time.Minute)
	c := s.theCluster()
	if got := condition(c.Status.Conditions, v1alpha1.ConditionStalled); got != "True "+v1alpha1.ReasonInvalidSpec || !strings.Contains(c.Status.Conditions[0].Message, "denied by policy") {
		t.Errorf("Stalled is %s: %s", got, c.Status.Conditions[0].Message)
	}
	s.deny = nil
	s.settle(10 * time.Minute)
	if s.theCluster().Status.Roll == nil {
		t.Errorf("it does not go on: %v", s.ran)
	}
}

// TestForbidden: whoever may write a TalosCluster, but not make pods, wants another program to run beside its Secrets.
func TestForbidden(t *testing.T) {
	t.Parallel()
	for field, c := range map[string]func(*v1alpha1.TalosCluster){
		"spec.job.image":       func(c *v1alpha1.TalosCluster) { c.Spec.Job.Image = "registry.example/attacker" },
		"spec.secrets.envFrom": func(c *v1alpha1.TalosCluster) { c.Spec.Secrets.EnvFrom = "another-secret" },
	} {
		t.Run(field, func(t *testing.T) {
			t.Parallel()
			s := newStage(t, (&bumped{}).play)
			s.shared.Forbidden = []string{"spec.job.image", "spec.secrets.envFrom"}
			s.cluster(nil)
			s.settle(0) // a check, and the plan of a roll that awaits its approval
			change(s, s.theCluster(), c)
			s.settle(time.Hour)
			got := s.theCluster().Status.Conditions[0]
			must.Equal(t, "Ready", "False "+v1alpha1.ReasonInvalidSpec, string(got.Status)+" "+got.Reason)
			must.Contain(t, "message", got.Message, field+": is forbidden by this operator's --forbid")
			approve(s, "lab-1")
			s.settle(time.Hour)
			must.Equal(t, "Stalled, of the roll", "True "+v1alpha1.ReasonInvalidSpec, condition(s.roll("lab-1").Status.Conditions, v1alpha1.ConditionStalled))
			must.Equal(t, "Jobs made", 2, len(s.ran))
		})
	}
	err := Setup(t.Context(), nil, &Shared{Forbidden: []string{"spec.job.images"}})
	must.Contain(t, "error", fmt.Sprint(err), `--forbid: "spec.job.images" is not one of spec.job.image, spec.secrets.envFrom`)
}

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
	next := s.theCluster().Status.NextWindow
	must.Hold(t, next != nil && next.Hour() == 22, "the next window is at %v", next)
	s.settle(9*time.Hour + time.Minute)
	r := s.roll("lab-1")
	must.Be(t, r.Status.Started != nil && r.Status.Started.Hour() == 22 && r.Status.Begun == 3,
		"it was begun at %v, and is at attempt %d", r.Status.Started, r.Status.Begun)
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
	must.Equal(t, "mine", v1alpha1.ReasonAwaitingTurn, reasonOf(s.roll("mine").Status.Conditions))
	b.attempts = nil
	s.settle(time.Minute)
	must.Equal(t, "mine", v1alpha1.PhaseSucceeded, s.roll("mine").Status.Phase)
}

// TestDeleted: a deleted roll is gone once its Job is.
func TestDeleted(t *testing.T) {
	t.Parallel()
	s := newStage(t, (&bumped{attempts: []ending{{runs: true}}}).play)
	s.cluster(automatic)
	s.settle(time.Minute)
	change(s, s.theCluster(), func(c *v1alpha1.TalosCluster) { c.Spec.Rolls.Create = v1alpha1.CreateNever })
	for _, o := range []client.Object{s.roll("lab-1"), s.theCluster()} {
		must.Do(t, s.api().Delete(t.Context(), o))
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

// TestNeverBegun: an attempt that was written down and whose Job could not be made asks again whether one may begin.
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
	must.Do(t, s.api().Status().Update(t.Context(), r))
	s.now = s.now.Add(2 * time.Hour)
	s.settle(time.Minute)
	if r := s.roll("lab-1"); r.Status.Phase != v1alpha1.PhaseAwaitingWindow || r.Status.Started != nil || r.Status.Begun != 1 {
		t.Errorf("%s, begun at %v, %d attempts: %s", r.Status.Phase, r.Status.Started, r.Status.Begun, rollMessage(r))
	}
}

// stage is a Kubernetes API in memory, on which the test plays the Jobs.
type stage struct {
	t      *testing.T
	shared *Shared
	now    time.Time
	calls  int   // of the operator that change something
	deny   error // what the API server says to a Job
	killAt int   // the call in which the operator is killed; 0: none
	// play says how a Job ends, and what its pod has written before.
	play func(attempt.Task) ending
	ran  []string // kinds of Jobs that were begun, with the name of the Job
}

// ending is how a Job ends.
type ending struct {
	code    int32
	check   *v1alpha1.Check
	nodes   *v1alpha1.Nodes
	plan    *v1alpha1.Plan
	message string
	done    []string
	runs    bool // not yet
}

var errKilled = errors.New("the operator is killed")

const namespace = "clusters"

func newStage(t *testing.T, play func(attempt.Task) ending) *stage {
	t.Helper()
	s := &stage{t: t, now: time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC), play: play}
	sch := runtime.NewScheme() // of few kinds: the fake builds a REST mapper of all of them for each write
	must.Do(t, errors.Join(corev1.AddToScheme(sch), batchv1.AddToScheme(sch), v1alpha1.AddToScheme(sch)))
	api := fake.NewClientBuilder().WithScheme(sch).WithTypeConverters(managedfields.NewDeducedTypeConverter()).
		WithStatusSubresource(&v1alpha1.TalosCluster{}, &v1alpha1.ImageRoll{}, &batchv1.Job{}).
		WithIndex(&v1alpha1.ImageRoll{}, indexCluster, func(o client.Object) []string { return []string{o.(*v1alpha1.ImageRoll).Spec.ClusterName} }).
		Build()
	s.shared = &Shared{
		Client: interceptor.NewClient(api, s.killing()), Live: api, Scheme: sch,
		Events: events.NewFakeRecorder(1000), Now: func() time.Time { return s.now }, Pace: DefaultPace, Image: "recast:test",
	}
	return s
}

// killing counts the operator's writes, and ends it within one: before or after the API server has
// carried it out, by turns.
func (s *stage) killing() interceptor.Funcs {
	count := func(write func() error) error {
		s.calls++
		if s.killAt == 0 || s.calls < s.killAt {
			return write()
		}
		if s.calls == s.killAt && s.killAt%2 == 0 {
			return errors.Join(write(), errKilled)
		}
		return errKilled
	}
	return interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			if _, ok := o.(*batchv1.Job); ok && s.deny != nil {
				return s.deny
			}
			return count(func() error { return c.Create(ctx, o, opts...) })
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			return count(func() error { return c.Delete(ctx, o, opts...) })
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			return count(func() error { return c.Patch(ctx, o, p, opts...) })
		},
		Apply: func(ctx context.Context, c client.WithWatch, o runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
			return count(func() error { return c.Apply(ctx, o, opts...) })
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
			return count(func() error { return c.SubResource(sub).Patch(ctx, o, p, opts...) })
		},
	}
}

// api is the API server without the operator's accidents.
func (s *stage) api() client.WithWatch { return s.shared.Live.(client.WithWatch) }

func (s *stage) create(o client.Object) {
	s.t.Helper()
	must.Do(s.t, s.api().Create(s.t.Context(), o))
}

// cluster creates a TalosCluster with the defaults that the API server sets.
func (s *stage) cluster(change func(*v1alpha1.TalosCluster)) {
	s.t.Helper()
	c := &v1alpha1.TalosCluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "lab", Generation: 1},
		Spec: v1alpha1.TalosClusterSpec{
			Source: v1alpha1.Source{ConfigMap: &v1alpha1.ConfigMapSource{Name: "files"}},
			Secrets: v1alpha1.Secrets{
				ProxmoxToken: v1alpha1.SecretKey{Name: "lab"}, Talosconfig: v1alpha1.SecretKey{Name: "lab"}, Kubeconfig: v1alpha1.SecretKey{Name: "lab"},
			},
			Lock:  v1alpha1.LockFromSource,
			Drift: v1alpha1.DriftSchedule{Schedule: "17 * * * *"},
			Rolls: v1alpha1.RollPolicy{Create: v1alpha1.CreateAutomatic, Approval: v1alpha1.ApprovalManual, Retries: 6, Keep: 10},
			Job:   v1alpha1.JobSettings{TerminationGracePeriodSeconds: 3600},
		},
	}
	if change != nil {
		change(c)
	}
	s.create(c)
	s.create(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "files"}, Data: map[string]string{"recast.yaml": "version: 1"}})
}

func (s *stage) theCluster() *v1alpha1.TalosCluster {
	s.t.Helper()
	var c v1alpha1.TalosCluster
	must.Do(s.t, s.api().Get(s.t.Context(), client.ObjectKey{Namespace: namespace, Name: "lab"}, &c))
	return &c
}

func (s *stage) roll(name string) *v1alpha1.ImageRoll {
	s.t.Helper()
	var r v1alpha1.ImageRoll
	must.Do(s.t, s.api().Get(s.t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, &r))
	return &r
}

func (s *stage) jobs() (names []string) {
	s.t.Helper()
	var list batchv1.JobList
	must.Do(s.t, s.api().List(s.t.Context(), &list))
	for _, j := range list.Items {
		names = append(names, j.Name)
	}
	return names
}

// change changes an object as a person does.
func change[T client.Object](s *stage, o T, edit func(T)) {
	s.t.Helper()
	edit(o)
	must.Do(s.t, s.api().Update(s.t.Context(), o))
}

// settle reconciles everything and plays Jobs until nothing happens before that much time is over.
func (s *stage) settle(within time.Duration) {
	s.t.Helper()
	until := s.now.Add(within)
	for range 2000 {
		next, changed := s.round()
		if changed {
			continue
		}
		if next.IsZero() || next.After(until) {
			s.now = until
			return
		}
		s.now = next
	}
	s.t.Fatal("it does not settle")
}

// round is one reconcile of every object. It says when one of them wants to be looked at again.
func (s *stage) round() (next time.Time, changed bool) {
	s.t.Helper()
	before := s.version()
	var clusters v1alpha1.TalosClusterList
	var rolls v1alpha1.ImageRollList
	must.Do(s.t, errors.Join(s.api().List(s.t.Context(), &clusters), s.api().List(s.t.Context(), &rolls)))
	look := func(r ctrl.Result, err error) {
		if errors.Is(err, errKilled) {
			s.killAt, changed = 0, true // another one takes over
			return
		}
		must.Do(s.t, err)
		if at := s.now.Add(r.RequeueAfter); r.RequeueAfter > 0 && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	for _, c := range clusters.Items {
		look((&Clusters{s.shared}).Reconcile(s.t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(&c)}))
	}
	for _, r := range rolls.Items {
		look((&Rolls{s.shared}).Reconcile(s.t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(&r)}))
	}
	s.playJobs()
	return next, changed || s.version() != before
}

// version is that of all objects together.
func (s *stage) version() (text string) {
	s.t.Helper()
	for _, list := range []client.ObjectList{&v1alpha1.TalosClusterList{}, &v1alpha1.ImageRollList{}, &batchv1.JobList{}} {
		must.Do(s.t, s.api().List(s.t.Context(), list))
		must.Do(s.t, meta.EachListItem(list, func(o runtime.Object) error {
			text += o.(client.Object).GetName() + o.(client.Object).GetResourceVersion() + " "
			return nil
		}))
	}
	return text
}

func (s *stage) playJobs() {
	s.t.Helper()
	var jobs batchv1.JobList
	must.Do(s.t, s.api().List(s.t.Context(), &jobs))
	for _, j := range jobs.Items {
		if len(j.Status.Conditions) > 0 {
			continue
		}
		task := must.Get(attempt.ReadTask(j.Spec.Template.Spec.Containers[0].Env[0].Value))(s.t)
		known := false
		for _, name := range s.ran {
			known = known || name == string(task.Kind)+" "+j.Name
		}
		if !known {
			s.ran = append(s.ran, string(task.Kind)+" "+j.Name)
		}
		if e := s.play(task); !e.runs {
			s.end(&j, task, e)
		}
	}
}

func (s *stage) end(j *batchv1.Job, task attempt.Task, e ending) {
	s.t.Helper()
	ctx := s.t.Context()
	now := metav1.NewTime(s.now)
	if task.Kind == attempt.Check && e.check != nil {
		c := s.theCluster()
		e.check.Job, e.check.For, e.check.Started, e.check.Ended = task.Job, task.For, &now, &now
		c.Status.Check, c.Status.Nodes = e.check, e.nodes
		c.Status.Talos = &v1alpha1.Versions{Wanted: task.TalosVersion}
		must.Do(s.t, s.api().Status().Update(ctx, c))
	}
	if task.Roll != "" {
		r := s.roll(task.Roll)
		if e.plan != nil {
			r.Status.Plan = e.plan
		}
		if e.message != "" {
			r.Status.Outcome = &v1alpha1.Outcome{Job: task.Job, ExitCode: e.code, Message: e.message}
		}
		if e.done != nil {
			r.Status.Progress = &v1alpha1.Progress{Done: int32(len(e.done)), Total: 2, Summary: fmt.Sprintf("%d/2", len(e.done)), Finished: e.done}
		}
		must.Do(s.t, s.api().Status().Update(ctx, r))
	}
	condition := batchv1.JobCondition{Type: batchv1.JobComplete, Status: corev1.ConditionTrue, LastTransitionTime: now}
	if e.code != 0 {
		condition.Type = batchv1.JobFailed
		s.create(&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: j.Name + "-x", Labels: map[string]string{batchv1.JobNameLabel: j.Name}},
			Status:     corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: e.code}}}}},
		})
	}
	j.Status.Conditions = append(j.Status.Conditions, condition)
	must.Do(s.t, s.api().Status().Update(ctx, j))
}

// condition is "True Reason" of an object's condition.
func condition(list []metav1.Condition, kind string) string {
	for _, c := range list {
		if c.Type == kind {
			return string(c.Status) + " " + c.Reason
		}
	}
	return ""
}

// TestCached: the cache has what the reconcilers read, and little else.
func TestCached(t *testing.T) {
	t.Parallel()
	kept := metav1.ObjectMeta{Namespace: "a", Name: "b", UID: "c", ResourceVersion: "7", Annotations: map[string]string{"recast.dev/talos-target": "v1.13.9"}}
	full := kept.DeepCopy()
	full.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubectl"}}
	full.Annotations[corev1.LastAppliedConfigAnnotation] = "{}"
	status := batchv1.JobStatus{Active: 1}
	options := Cached()
	byKind := func(o client.Object) cache.ByObject {
		for known, by := range options.ByObject {
			if cmp.Equal(known, o) {
				return by
			}
		}
		t.Fatalf("nothing is said of %T", o)
		return cache.ByObject{}
	}
	for name, c := range map[string]struct {
		strip      func(any) (any, error)
		full, kept client.Object
	}{
		"cluster": {options.DefaultTransform, &v1alpha1.TalosCluster{ObjectMeta: *full.DeepCopy()}, &v1alpha1.TalosCluster{ObjectMeta: kept}},
		"job": {
			byKind(&batchv1.Job{}).Transform,
			&batchv1.Job{ObjectMeta: *full.DeepCopy(), Spec: batchv1.JobSpec{Parallelism: new(int32(1))}, Status: status}, &batchv1.Job{ObjectMeta: kept, Status: status},
		},
		"ConfigMap": {
			byKind(&corev1.ConfigMap{}).Transform,
			&metav1.PartialObjectMetadata{ObjectMeta: *full.DeepCopy()},
			&metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b", UID: "c", ResourceVersion: "7"}},
		},
	} {
		got, err := c.strip(c.full)
		diff := cmp.Diff(any(c.kept), got)
		must.Hold(t, diff == "" && err == nil, "%s (-want +got): %v\n%s", name, err, diff)
	}
	made := job.New(job.Spec{Cluster: &v1alpha1.TalosCluster{ObjectMeta: kept}, Task: attempt.Task{Kind: attempt.Check}})
	must.Hold(t, byKind(&batchv1.Job{}).Label.Matches(labels.Set(made.Labels)), "a Job with %v is not cached", made.Labels)
}

// TestMetrics: what is scraped is what deploy's alerts and dashboard are made of.
func TestMetrics(t *testing.T) {
	t.Parallel()
	s := newStage(t, (&bumped{}).play)
	s.cluster(automatic)
	s.settle(time.Minute)
	registry := prometheus.NewPedanticRegistry()
	must.Do(t, registry.Register(Metrics{Objects: s.api(), Context: t.Context()}))
	families := must.Get(registry.Gather())(t)
	known := map[string][]string{}
	for _, m := range deploy.Metrics {
		if m.Help != "" { // others are not ours
			known[m.Name] = slices.Sorted(slices.Values(m.Labels))
		}
	}
	delete(known, "recast_fleetroll_members") // there is no fleet
	got := map[string][]string{}
	for _, f := range families {
		var labels []string
		for _, l := range f.Metric[0].Label {
			labels = append(labels, l.GetName())
		}
		got[f.GetName()] = labels
	}
	must.Equal(t, "metrics", known, got)
}
