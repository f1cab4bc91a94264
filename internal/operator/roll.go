package operator

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/api/v1alpha1"
	"github.com/recast-sh/recast/internal/operator/attempt"
	"github.com/recast-sh/recast/internal/operator/job"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
)

// Rolls reconciles ImageRolls: it makes a plan, waits for approval and window, and runs one Job after the other until
// one succeeds.
type Rolls struct{ *Shared }

type turn struct {
	*Shared
	roll    *v1alpha1.ImageRoll
	saved   *v1alpha1.ImageRoll    // as the API server has it
	cluster *v1alpha1.TalosCluster // nil: there is none
	agenda
}

// claimWaits is how many attempts in a row may find the claim held by another run. With the default pace they take a
// day.
const claimWaits = 720

func (r *Rolls) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	return laterIfChanged(r.reconcile(ctx, req))
}

func (r *Rolls) reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var roll v1alpha1.ImageRoll
	if err := r.Client.Get(ctx, req.NamespacedName, &roll); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	t := &turn{Shared: r.Shared, roll: &roll, saved: roll.DeepCopy(), agenda: agenda{now: r.Now()}}
	if !roll.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, t.leave(ctx)
	}
	if roll.Status.Phase.Finished() {
		return ctrl.Result{}, nil
	}
	if controllerutil.AddFinalizer(&roll, v1alpha1.Finalizer) {
		if err := r.Client.Patch(ctx, &roll, client.MergeFromWithOptions(t.saved, client.MergeFromWithOptimisticLock{})); err != nil {
			return ctrl.Result{}, err
		}
		t.saved = roll.DeepCopy()
	}
	var c v1alpha1.TalosCluster
	err := r.Client.Get(ctx, client.ObjectKey{Namespace: roll.Namespace, Name: roll.Spec.ClusterName}, &c)
	if client.IgnoreNotFound(err) != nil {
		return ctrl.Result{}, err
	}
	if err == nil {
		t.cluster = &c
	}
	phase, v, err := t.step(ctx)
	if unusable(err) {
		phase, v, err = cmp.Or(roll.Status.Phase, v1alpha1.PhasePending), stalled(v1alpha1.ReasonInvalidSpec, "%s", err), nil
		t.lookAgain(t.now.Add(t.Pace.MaxRetry))
	}
	if err != nil {
		return ctrl.Result{}, err
	}
	if err := t.tell(ctx, phase, v); err != nil {
		return ctrl.Result{}, err
	}
	return t.result(), nil
}

func (t *turn) step(ctx context.Context) (v1alpha1.RollPhase, verdict, error) {
	if t.cluster == nil {
		return v1alpha1.PhasePending, stalled(v1alpha1.ReasonClusterNotFound, "spec.clusterName: the namespace %s has no TalosCluster %s", t.roll.Namespace, t.roll.Spec.ClusterName), nil
	}
	if a := t.current(); a != nil {
		running, message, err := t.watch(ctx, a)
		if err != nil {
			return "", verdict{}, err
		}
		if running {
			phase, reason := t.running()
			return phase, waiting(reason, "%s", message), nil
		}
		if a.Ended != nil { // nil: the attempt was forgotten, because its Job was never made
			if phase, v := t.learn(*a); phase.Finished() {
				return phase, v, nil
			}
		}
	}
	return t.next(ctx)
}

// running returns phase and reason while an attempt runs.
func (t *turn) running() (v1alpha1.RollPhase, string) {
	if t.kind() == attempt.Plan {
		return v1alpha1.PhasePlanning, v1alpha1.ReasonPlanning
	}
	return v1alpha1.PhaseRolling, v1alpha1.ReasonRolling
}

// next begins the next attempt, or returns what the attempt waits for.
func (t *turn) next(ctx context.Context) (v1alpha1.RollPhase, verdict, error) {
	if plan := t.roll.Status.Plan; plan != nil {
		switch {
		case len(plan.Refused) > 0:
			return v1alpha1.PhaseFailed, stalled(v1alpha1.ReasonPlanRefused, "%s", strings.Join(plan.Refused, "\n")), nil
		case plan.Nodes == 0:
			return v1alpha1.PhaseSucceeded, verdict{ready: true, reason: v1alpha1.ReasonNothingToDo, message: "no node is stale"}, nil
		}
	}
	plans, err := readSchedules(t.cluster.Spec)
	if err != nil {
		return v1alpha1.PhasePending, stalled(v1alpha1.ReasonInvalidSpec, "TalosCluster %s: %s", t.cluster.Name, err), nil
	}
	if t.roll.Spec.Suspend || t.cluster.Spec.Suspend {
		return v1alpha1.PhasePending, verdict{reason: v1alpha1.ReasonSuspended, message: "spec.suspend: no attempt is begun"}, nil
	}
	if phase, v, waits, err := t.waits(ctx, plans); waits || err != nil {
		return phase, v, err
	}
	name, err := t.begin(ctx)
	if err != nil {
		return "", verdict{}, err
	}
	phase, reason := t.running()
	return phase, waiting(reason, "Job %s", name), nil
}

// waits returns what keeps the next attempt from beginning.
func (t *turn) waits(ctx context.Context, plans schedules) (v1alpha1.RollPhase, verdict, bool, error) {
	s := t.roll.Status
	if s.NotBefore != nil && t.now.Before(s.NotBefore.Time) {
		t.lookAgain(s.NotBefore.Time)
		last := s.Attempts[len(s.Attempts)-1]
		if last.ExitCode != nil && *last.ExitCode == attempt.ExitClaimed {
			return v1alpha1.PhaseAwaitingClaim, waiting(v1alpha1.ReasonAwaitingClaim, "%s; tried again at %s", lastWords(s), clock(s.NotBefore)), true, nil
		}
		return v1alpha1.PhaseRetrying, waiting(v1alpha1.ReasonRetrying, "attempt %d ended: %s; the next one begins at %s", s.Begun, lastWords(s), clock(s.NotBefore)), true, nil
	}
	others, err := RollsOf(ctx, t.Client, t.roll.Namespace, t.roll.Spec.ClusterName)
	if err != nil {
		return "", verdict{}, false, err
	}
	for _, o := range others {
		if o.Name == t.roll.Name {
			break
		}
		if !o.Status.Phase.Finished() {
			return v1alpha1.PhasePending, waiting(v1alpha1.ReasonAwaitingTurn, "ImageRoll %s of the same cluster comes first", o.Name), true, nil
		}
	}
	if s.Plan != nil && !t.roll.Spec.Approved {
		return v1alpha1.PhaseAwaitingApproval, waiting(v1alpha1.ReasonAwaitingApproval,
			"plan %s rolls %d nodes: read it in status.plan, then kubectl patch imageroll %s --type=merge -p '{\"spec\":{\"approved\":true}}'; kubectl delete imageroll %s has another one made", s.Plan.Hash, s.Plan.Nodes, t.roll.Name, t.roll.Name), true, nil
	}
	// An approved roll is planned only within its window, since a plan gets old.
	if open, _ := plans.windows.Open(t.now); !open && s.Started == nil && t.roll.Spec.Approved {
		next := plans.windows.Next(t.now)
		t.lookAgain(next)
		return v1alpha1.PhaseAwaitingWindow, waiting(v1alpha1.ReasonAwaitingWindow, "the next maintenance window opens at %s", next.UTC().Format(time.RFC3339)), true, nil
	}
	return "", verdict{}, false, nil
}

// begin records the attempt before it makes the Job, so that no two Jobs get the same number.
func (t *turn) begin(ctx context.Context) (string, error) {
	s, kind := &t.roll.Status, t.kind()
	s.Begun++
	a := v1alpha1.Attempt{Job: job.Name(t.roll.Name, kind, int64(s.Begun)), Started: new(metav1.NewTime(t.now))}
	const listed = 20
	s.Attempts = append(s.Attempts, a)
	s.Attempts = s.Attempts[max(0, len(s.Attempts)-listed):]
	s.NotBefore = nil
	if kind != attempt.Plan && s.Started == nil {
		s.Started = a.Started
	}
	if err := t.save(ctx); err != nil {
		return "", err
	}
	return a.Job, t.makeJob(ctx, kind, a.Job)
}

func (t *turn) makeJob(ctx context.Context, kind attempt.Kind, name string) error {
	for _, o := range job.OfCluster(t.cluster) {
		if err := t.apply(ctx, t.cluster, o); err != nil {
			return err
		}
	}
	for _, o := range job.OfRoll(t.roll) {
		if err := t.apply(ctx, t.roll, o); err != nil {
			return err
		}
	}
	task := job.Task(t.cluster, kind)
	task.Job, task.Roll, task.Only = name, t.roll.Name, t.roll.Spec.Only
	task.KubernetesRoll = t.roll.Spec.Action == v1alpha1.ActionKubernetes
	spec := job.Spec{Cluster: t.cluster, Image: t.Image}
	task.Results = job.PlanName(t.roll.Name)
	if plan := t.roll.Status.Plan; kind != attempt.Plan {
		task.Results, task.PlanHash, task.Continue = job.ReportName(t.roll.Name), plan.Hash, t.isContinued()
		spec.Plan, spec.Near = job.PlanName(t.roll.Name), plan.LastNode
	}
	if p := t.roll.Status.Progress; p != nil {
		task.Finished = p.Finished
	}
	spec.Task = task
	return t.createJob(ctx, t.roll, job.New(spec))
}

// isContinued says whether an attempt before the newest one has begun to roll.
func (t *turn) isContinued() bool {
	s := t.roll.Status
	return slices.ContainsFunc(s.Attempts[:len(s.Attempts)-1], func(a v1alpha1.Attempt) bool {
		return s.Started != nil && !a.Started.Before(s.Started) && a.Reason != attemptClaimed // an attempt without the claim touched nothing
	}) || int(s.Begun) > len(s.Attempts)
}

// save writes the status if it has changed. It fails if someone else has written the object meanwhile.
func (t *turn) save(ctx context.Context) error {
	if equality.Semantic.DeepEqual(t.roll.Status, t.saved.Status) {
		return nil
	}
	if err := t.Client.Status().Patch(ctx, t.roll, client.MergeFromWithOptions(t.saved, client.MergeFromWithOptimisticLock{})); err != nil {
		return err
	}
	t.saved = t.roll.DeepCopy()
	return nil
}

// tell writes the status, and an Event if the reason has changed.
func (t *turn) tell(ctx context.Context, phase v1alpha1.RollPhase, v verdict) error {
	s := &t.roll.Status
	before := reasonOf(t.saved.Status.Conditions)
	s.Phase, s.ObservedGeneration = phase, t.roll.Generation
	if phase.Finished() && s.Ended == nil {
		s.Ended = new(metav1.NewTime(t.now))
	}
	conditions{&s.Conditions, t.roll.Generation}.tell(v)
	if err := t.save(ctx); err != nil {
		return err
	}
	if v.reason != before {
		t.event(t.roll, v, "Roll")
	}
	return nil
}

// leave ends the Job of a deleted roll: recast finishes the node in progress first. No VM is deleted.
func (t *turn) leave(ctx context.Context) error {
	if !controllerutil.ContainsFinalizer(t.roll, v1alpha1.Finalizer) {
		return nil
	}
	if a := t.current(); a != nil {
		ended, err := t.endJob(ctx, t.roll.Namespace, a.Job)
		if err != nil {
			return err
		}
		if !ended {
			return t.tell(ctx, t.roll.Status.Phase, waiting(v1alpha1.ReasonTerminating, "Job %s finishes the node in progress and ends; no VM is deleted", a.Job))
		}
	}
	controllerutil.RemoveFinalizer(t.roll, v1alpha1.Finalizer)
	err := t.Client.Patch(ctx, t.roll, client.MergeFromWithOptions(t.saved, client.MergeFromWithOptimisticLock{}))
	return client.IgnoreNotFound(err)
}

func clock(t *metav1.Time) string { return t.UTC().Format(time.RFC3339) }

// lastWords returns the message of the newest attempt; without a message, its reason and exit code.
func lastWords(s v1alpha1.ImageRollStatus) string {
	last := s.Attempts[len(s.Attempts)-1]
	if s.Outcome != nil && s.Outcome.Job == last.Job && s.Outcome.Message != "" {
		return s.Outcome.Message
	}
	if last.ExitCode != nil {
		return fmt.Sprintf("%s, exit code %d", last.Reason, *last.ExitCode)
	}
	return last.Reason
}

func rollMessage(r *v1alpha1.ImageRoll) string {
	if c := meta.FindStatusCondition(r.Status.Conditions, v1alpha1.ConditionReady); c != nil {
		return c.Message
	}
	return "not begun"
}

// judge returns the verdict on a cluster.
func (l *look) judge(wanted string) verdict {
	s := l.cluster.Status
	roll := l.rolls.active()
	switch {
	case roll != nil:
		return waiting(v1alpha1.ReasonRolling, "ImageRoll %s: %s", roll.Name, rollMessage(roll))
	case l.cluster.Spec.Suspend:
		return verdict{ready: l.inSync(wanted), reason: v1alpha1.ReasonSuspended, message: "spec.suspend: nothing is started"}
	case l.failed:
		return stalled(v1alpha1.ReasonCheckFailed, "%s", l.trouble)
	case s.Check == nil:
		return waiting(v1alpha1.ReasonChecking, "the first check runs: %s", cmp.Or(l.trouble, "Job "+l.checkJob()))
	case l.running && s.Check.For != wanted:
		return waiting(v1alpha1.ReasonChecking, "something has changed: %s", cmp.Or(l.trouble, "Job "+l.checkJob()))
	case l.inSync(wanted):
		return verdict{ready: true, progressing: l.running, reason: v1alpha1.ReasonInSync, message: fmt.Sprintf("%d nodes run what the files say", s.Nodes.Total)}
	case s.Check.ExitCode == attempt.ExitConfig:
		return stalled(v1alpha1.ReasonConfiguration, "%s", problems(s.Check))
	case s.Check.ExitCode == attempt.ExitRefused:
		return stalled(v1alpha1.ReasonRefused, "%s", problems(s.Check))
	case s.Check.ExitCode != attempt.ExitDrift:
		return stalled(v1alpha1.ReasonCheckFailed, "%s", problems(s.Check))
	}
	if failed := l.blocking(); failed != nil {
		return stalled(v1alpha1.ReasonRollFailed, "ImageRoll %s: %s; correct that, then change the files, or delete the ImageRoll to try the same again", failed.Name, rollMessage(failed))
	}
	v := verdict{reason: v1alpha1.ReasonDrifted, message: strings.Join(s.Check.Reasons, "; ")}
	if l.cluster.Spec.Rolls.Create == v1alpha1.CreateNever {
		v.message += "; spec.rolls.create: Never, so make an ImageRoll or a FleetRoll"
	}
	return v
}

// problems describes why a check failed.
func problems(c *v1alpha1.Check) string {
	if len(c.Problems) == 0 {
		return fmt.Sprintf("recast ended with exit code %d: kubectl logs job/%s", c.ExitCode, c.Job)
	}
	return strings.Join(c.Problems, "\n")
}

// inSync says whether the newest check found every node as the files describe it, and is a check of what is wanted
// now.
func (l *look) inSync(wanted string) bool {
	c := l.cluster.Status.Check
	return c != nil && c.For == wanted && c.ExitCode == attempt.ExitDone && l.cluster.Status.Nodes != nil
}

// drifted sets the condition Drifted.
func (l *look) drifted(c conditions) {
	s := l.cluster.Status
	switch {
	case s.Check == nil || s.Nodes == nil:
		c.setStatus(v1alpha1.ConditionDrifted, metav1.ConditionUnknown, v1alpha1.ReasonChecking, "no check has ended yet")
	case s.Nodes.Stale > 0:
		c.set(v1alpha1.ConditionDrifted, true, v1alpha1.ReasonDrifted, strings.Join(s.Check.Reasons, "; "))
	case s.Check.ExitCode != attempt.ExitDone:
		c.setStatus(v1alpha1.ConditionDrifted, metav1.ConditionUnknown, v1alpha1.ReasonUnread, problems(s.Check))
	default:
		c.set(v1alpha1.ConditionDrifted, false, v1alpha1.ReasonInSync, "")
	}
}

// tell writes the status and the annotations, and an Event if the reason has changed.
func (l *look) tell(ctx context.Context, v verdict) error {
	s := &l.cluster.Status
	before := reasonOf(l.saved.Status.Conditions)
	s.ObservedGeneration = l.cluster.Generation
	c := conditions{&s.Conditions, l.cluster.Generation}
	c.tell(v)
	l.drifted(c)
	if s.Check != nil && s.Check.ExitCode == attempt.ExitDone {
		s.LastInSync = s.Check.Ended
	}
	s.Roll = nil
	if made := l.rolls.named(fmt.Sprintf("%s-%d", l.cluster.Name, s.Rolls)); made != nil {
		s.MadeRoll = made.Name
	}
	if newest := l.rolls.Newest(); newest != nil {
		s.Roll = &v1alpha1.RollSummary{Name: newest.Name, Phase: newest.Status.Phase}
	}
	if err := l.save(ctx); err != nil {
		return err
	}
	if v.reason != before {
		l.event(l.cluster, v, "Check")
	}
	return l.annotate(ctx, v)
}

// event records an Event of the object, for people who look at it.
func (s *Shared) event(o client.Object, v verdict, action string) {
	kind := corev1.EventTypeNormal
	if v.stalled {
		kind = corev1.EventTypeWarning
	}
	const most = 1000 // characters; Events have a limit
	s.Events.Eventf(o, nil, kind, v.reason, action, "%s", v.message[:min(len(v.message), most)])
}

func reasonOf(list []metav1.Condition) string {
	if c := meta.FindStatusCondition(list, v1alpha1.ConditionReady); c != nil {
		return c.Reason
	}
	return ""
}
