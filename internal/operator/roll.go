package operator

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/recast-sh/recast/api/v1alpha1"
	"github.com/recast-sh/recast/internal/operator/attempt"
	"github.com/recast-sh/recast/internal/operator/job"
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
		task.Results, task.PlanHash, task.Contents, task.Continue = job.ReportName(t.roll.Name), plan.Hash, plan.Contents, t.isContinued()
		spec.Plan, spec.Near = job.PlanName(t.roll.Name), plan.LastNode
	}
	if p := t.roll.Status.Progress; p != nil {
		task.Finished = p.Finished
	}
	spec.Task = task
	return t.createJob(ctx, t.roll, spec)
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

func problems(c *v1alpha1.Check) string {
	if len(c.Problems) == 0 {
		return fmt.Sprintf("recast ended with exit code %d: kubectl logs job/%s", c.ExitCode, c.Job)
	}
	return strings.Join(c.Problems, "\n")
}

// inSync says whether the newest check found every node as the files describe it, and is a check of what is wanted now.
func (l *look) inSync(wanted string) bool {
	c := l.cluster.Status.Check
	return c != nil && c.For == wanted && c.ExitCode == attempt.ExitDone && l.cluster.Status.Nodes != nil
}

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

// Reasons why an attempt ended.
const (
	attemptSucceeded   = "Succeeded"
	attemptFailed      = "Failed"
	attemptConfig      = "Configuration"
	attemptRefused     = "Refused"
	attemptClaimed     = "Claimed"
	attemptKilled      = "Killed"      // by a signal
	attemptInterrupted = "Interrupted" // it was asked to stop
	attemptLost        = "Lost"        // the node was lost, or someone deleted the Job
)

// current returns the attempt that has not ended; nil if none runs.
func (t *turn) current() *v1alpha1.Attempt {
	list := t.roll.Status.Attempts
	if len(list) == 0 || list[len(list)-1].Ended != nil {
		return nil
	}
	return &list[len(list)-1]
}

// watch looks at the Job of an attempt. If the Job has ended, watch records how.
func (t *turn) watch(ctx context.Context, a *v1alpha1.Attempt) (running bool, message string, err error) {
	var j batchv1.Job
	err = t.Client.Get(ctx, client.ObjectKey{Namespace: t.roll.Namespace, Name: a.Job}, &j)
	if apierrors.IsNotFound(err) {
		return t.missingJob(ctx, a)
	}
	if err != nil {
		return false, "", err
	}
	t.roll.Status.MadeJob = a.Job
	ended, succeeded := jobEnded(&j)
	if ended.IsZero() {
		return true, t.progress(ctx, &j), nil
	}
	a.Ended = new(metav1.NewTime(ended))
	if p := t.roll.Status.Progress; p != nil {
		a.Done = p.Done
	}
	a.ExitCode, err = t.exitCode(ctx, &j, succeeded)
	if err != nil {
		return false, "", err
	}
	a.Reason = attemptReason(a.ExitCode)
	return false, "", nil
}

// missingJob handles an attempt without a Job. If the Job was made before, the attempt is lost with it. If the
// operator was stopped before it made the Job, the attempt is forgotten.
func (t *turn) missingJob(ctx context.Context, a *v1alpha1.Attempt) (running bool, message string, err error) {
	// The cache may not have the Job yet.
	err = t.Live.Get(ctx, client.ObjectKey{Namespace: t.roll.Namespace, Name: a.Job}, &batchv1.Job{})
	if err == nil {
		t.roll.Status.MadeJob = a.Job
		return true, "Job " + a.Job, nil
	}
	if !apierrors.IsNotFound(err) {
		return false, "", err
	}
	if o := t.roll.Status.Outcome; t.roll.Status.MadeJob == a.Job || o != nil && o.Job == a.Job {
		a.Ended, a.Reason = new(metav1.NewTime(t.now)), attemptLost
		return false, "", nil
	}
	t.unbegin(a)
	return false, "", nil
}

// unbegin forgets an attempt whose Job was never made, so that the next look decides anew whether an attempt may
// begin: the window may have closed since, or a person may have changed their mind.
func (t *turn) unbegin(a *v1alpha1.Attempt) {
	s := &t.roll.Status
	if s.Started.Equal(a.Started) {
		s.Started = nil
	}
	s.Attempts = s.Attempts[:len(s.Attempts)-1]
	s.Begun--
}

// kind returns what the current or the next attempt does. An attempt that began before the roll started is a plan,
// even if the status has a plan already.
func (t *turn) kind() attempt.Kind {
	s := t.roll.Status
	switch {
	case s.Plan == nil || s.Started == nil && t.current() != nil:
		return attempt.Plan
	case t.roll.Spec.Action == v1alpha1.ActionKubernetes:
		return attempt.Kubernetes
	}
	return attempt.Roll
}

// learn draws the conclusion from an ended attempt: the roll is finished, or the next attempt begins some time later.
func (t *turn) learn(a v1alpha1.Attempt) (v1alpha1.RollPhase, verdict) {
	s := &t.roll.Status
	words := lastWords(*s)
	before := int32(0)
	if n := len(s.Attempts); n > 1 {
		before = s.Attempts[n-2].Done
	}
	if a.Done > before {
		s.Failures = 0
	}
	switch a.Reason {
	case attemptSucceeded:
		s.Failures, s.ClaimWaits = 0, 0
		if s.Started == nil { // the attempt made the plan
			return "", verdict{}
		}
		return v1alpha1.PhaseSucceeded, verdict{ready: true, reason: v1alpha1.ReasonSucceeded, message: words}
	case attemptConfig:
		return v1alpha1.PhaseFailed, stalled(v1alpha1.ReasonConfiguration, "%s", words)
	case attemptRefused:
		return v1alpha1.PhaseFailed, stalled(v1alpha1.ReasonRefused, "%s", words)
	case attemptClaimed:
		s.ClaimWaits++
		s.NotBefore = new(metav1.NewTime(a.Ended.Add(t.Pace.Claim)))
		if s.ClaimWaits > claimWaits {
			return v1alpha1.PhaseFailed, stalled(v1alpha1.ReasonRetriesExhausted, "%d attempts met another run: %s", s.ClaimWaits, words)
		}
		return "", verdict{}
	}
	s.ClaimWaits = 0
	s.Failures++
	if retries := max(1, t.cluster.Spec.Rolls.Retries); s.Failures > retries {
		return v1alpha1.PhaseFailed, stalled(v1alpha1.ReasonRetriesExhausted, "%d attempts in a row finished no node, the last one: %s", s.Failures, words)
	}
	pause := min(t.Pace.MaxRetry, t.Pace.FirstRetry<<min(s.Failures-1, 20))
	s.NotBefore = new(metav1.NewTime(a.Ended.Add(pause)))
	return "", verdict{}
}

// exitCode returns the exit code of an attempt's container: from the pod's status, else from the outcome that the
// attempt reported. nil: not known.
func (t *turn) exitCode(ctx context.Context, j *batchv1.Job, succeeded bool) (*int32, error) {
	if succeeded {
		return new(int32(attempt.ExitDone)), nil
	}
	pods, err := t.pods(ctx, j)
	if err != nil {
		return nil, err
	}
	for _, p := range pods {
		for _, c := range p.Status.ContainerStatuses {
			if c.State.Terminated != nil {
				return &c.State.Terminated.ExitCode, nil
			}
		}
	}
	if o := t.roll.Status.Outcome; o != nil && o.Job == j.Name {
		return &o.ExitCode, nil
	}
	return nil, nil
}

func attemptReason(code *int32) string {
	const signalled = 128
	switch {
	case code == nil:
		return attemptLost
	case *code == attempt.ExitDone:
		return attemptSucceeded
	case *code == attempt.ExitConfig:
		return attemptConfig
	case *code == attempt.ExitRefused:
		return attemptRefused
	case *code == attempt.ExitClaimed:
		return attemptClaimed
	case *code == signalled+2:
		return attemptInterrupted
	case *code > signalled:
		return attemptKilled
	}
	return attemptFailed
}

// pods lists the pods of a Job, newest first. It reads from the API server: pods are needed too seldom for a cache.
func (s *Shared) pods(ctx context.Context, j *batchv1.Job) ([]corev1.Pod, error) {
	var list corev1.PodList
	err := s.Live.List(ctx, &list, client.InNamespace(j.Namespace), client.MatchingLabels{batchv1.JobNameLabel: j.Name})
	slices.SortFunc(list.Items, func(a, b corev1.Pod) int { return b.CreationTimestamp.Compare(a.CreationTimestamp.Time) })
	return list.Items, err
}

// slowStart is how long a pod may take to run before its status says why it does not.
const slowStart = time.Minute

// progress says what a running attempt does, or why its pod does not run.
func (t *turn) progress(ctx context.Context, j *batchv1.Job) string {
	if p := t.roll.Status.Progress; p != nil && p.Message != "" && j.Status.Active > 0 && p.Updated != nil && !p.Updated.Time.Before(j.CreationTimestamp.Time) {
		return strings.TrimSuffix(fmt.Sprintf("%s nodes; %s: %s", p.Summary, p.Node, p.Message), ": ")
	}
	return t.slow(ctx, &t.agenda, j)
}

// slow returns the Job's name, and, if its pod should run by now, why the pod does not.
func (s *Shared) slow(ctx context.Context, a *agenda, j *batchv1.Job) string {
	message := "Job " + j.Name
	if j.Status.Ready != nil && *j.Status.Ready > 0 && j.DeletionTimestamp == nil {
		return message
	}
	if since := j.CreationTimestamp.Add(slowStart); a.now.Before(since) {
		a.lookAgain(since)
		return message
	}
	a.lookAgain(a.now.Add(slowStart))
	pods, err := s.pods(ctx, j)
	if err != nil || len(pods) == 0 {
		return message + " has no pod yet"
	}
	return message + ": " + podTrouble(&pods[0], a.now)
}

func podTrouble(p *corev1.Pod, now time.Time) string {
	if p.DeletionTimestamp != nil && p.DeletionTimestamp.Time.Before(now) {
		return fmt.Sprintf("pod %s does not end: kubectl get node %s shows whether its machine is there; if that is NotReady, and off for good: kubectl delete pod %s --force", p.Name, p.Spec.NodeName, p.Name)
	}
	for _, c := range p.Status.ContainerStatuses {
		if w := c.State.Waiting; w != nil {
			return fmt.Sprintf("pod %s: %s: %s", p.Name, w.Reason, w.Message)
		}
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status != corev1.ConditionTrue {
			return fmt.Sprintf("pod %s: %s: %s", p.Name, c.Reason, c.Message)
		}
	}
	return fmt.Sprintf("pod %s: %s", p.Name, p.Status.Phase)
}

// jobEnded returns when a Job ended, and whether it succeeded. A zero time means that the Job has not ended.
func jobEnded(j *batchv1.Job) (at time.Time, succeeded bool) {
	for _, c := range j.Status.Conditions {
		if c.Status == corev1.ConditionTrue && (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) {
			return c.LastTransitionTime.Time, c.Type == batchv1.JobComplete
		}
	}
	return time.Time{}, false
}

// createJob makes a Job. If owner has a Job of that name already, createJob leaves it.
func (s *Shared) createJob(ctx context.Context, owner client.Object, spec job.Spec) error {
	if err := s.forbids(spec.Cluster.Spec); err != nil {
		return err
	}
	spec.NodeLabel = s.NodeLabel
	j := job.New(spec)
	if err := controllerutil.SetControllerReference(owner, j, s.Scheme); err != nil {
		return err
	}
	err := s.Client.Create(ctx, j, client.FieldOwner(FieldOwner))
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	var there batchv1.Job
	if err := s.Live.Get(ctx, client.ObjectKeyFromObject(j), &there); err != nil {
		return err
	}
	if !metav1.IsControlledBy(&there, owner) {
		return fmt.Errorf("the Job %s is there, and belongs to something else: kubectl describe job %s shows to what", j.Name, j.Name)
	}
	return nil
}

// endJob deletes a Job with its pod, and returns whether both are gone.
func (s *Shared) endJob(ctx context.Context, namespace, name string) (gone bool, err error) {
	j := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	err = s.Live.Get(ctx, client.ObjectKeyFromObject(j), j)
	if apierrors.IsNotFound(err) {
		return true, nil
	}
	if err != nil || !j.DeletionTimestamp.IsZero() {
		return false, err
	}
	return false, client.IgnoreNotFound(s.Client.Delete(ctx, j, client.PropagationPolicy(metav1.DeletePropagationForeground)))
}

// forgetJob deletes an ended Job, if it still exists. Otherwise a cluster that is checked hourly would keep 24 Jobs
// with their pods until they expire.
func (s *Shared) forgetJob(ctx context.Context, namespace, name string) error {
	var j batchv1.Job
	err := s.Client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &j)
	if err == nil {
		err = s.Client.Delete(ctx, &j, client.PropagationPolicy(metav1.DeletePropagationBackground))
	}
	return client.IgnoreNotFound(err)
}

// Values of the annotations that end in -status.
const (
	statusIdle       = "idle"
	statusInProgress = "in-progress"
	statusCompleted  = "completed"
	statusFailed     = "failed"
	statusBlocked    = "blocked"
)

// annotations returns the annotations for tools that do not know the custom fields.
func (l *look) annotations(v verdict) map[string]string {
	s, out := l.cluster.Status, map[string]string{}
	put := func(key, value string) {
		if value != "" {
			out[key] = value
		}
	}
	if s.Talos != nil {
		put(v1alpha1.AnnotationTalosCurrent, s.Talos.Current)
		put(v1alpha1.AnnotationTalosAvailable, s.Talos.Available)
	}
	if s.Kubernetes != nil {
		put(v1alpha1.AnnotationKubernetesCurrent, s.Kubernetes.Current)
		put(v1alpha1.AnnotationKubernetesAvailable, s.Kubernetes.Available)
	}
	roll := l.rolls.Newest()
	talos := l.targetStatus(v, roll, v1alpha1.ActionNodes, l.cluster.Annotations[v1alpha1.AnnotationTalosTarget])
	kubernetes := l.targetStatus(v, roll, v1alpha1.ActionKubernetes, l.cluster.Annotations[v1alpha1.AnnotationKubernetesTarget])
	put(v1alpha1.AnnotationTalosStatus, talos)
	put(v1alpha1.AnnotationTalosMessage, v.message)
	if roll != nil && roll.Status.Progress != nil && roll.Spec.Action == v1alpha1.ActionNodes {
		put(v1alpha1.AnnotationTalosProgress, roll.Status.Progress.Summary)
	}
	put(v1alpha1.AnnotationKubernetesStatus, kubernetes)
	put(v1alpha1.AnnotationKubernetesMessage, v.message)
	return out
}

func (l *look) targetStatus(v verdict, roll *v1alpha1.ImageRoll, action v1alpha1.RollAction, target string) string {
	active := l.rolls.active()
	switch {
	case active != nil && active.Spec.Action == action:
		return statusInProgress
	case target == "":
		return statusIdle
	case v.ready && (action == v1alpha1.ActionNodes && l.cluster.Status.Talos.Is(target) || action == v1alpha1.ActionKubernetes && l.cluster.Status.Kubernetes.Is(target)):
		return statusCompleted
	case active != nil: // Talos goes before Kubernetes
		return statusBlocked
	case v.stalled && roll != nil && roll.Spec.Action == action && v.reason == v1alpha1.ReasonRollFailed && reasonOf(roll.Status.Conditions) == v1alpha1.ReasonRefused && action == v1alpha1.ActionKubernetes:
		return statusBlocked
	case v.stalled:
		return statusFailed
	}
	return statusInProgress
}

// annotate writes the annotations, if they have changed. It also lets a failed roll be made again once its target
// annotation is removed.
func (l *look) annotate(ctx context.Context, v verdict) error {
	if err := l.clear(ctx); err != nil {
		return err
	}
	wanted := l.annotations(v)
	before := l.cluster.DeepCopy()
	for _, key := range written {
		if value := wanted[key]; value != "" {
			metav1.SetMetaDataAnnotation(&l.cluster.ObjectMeta, key, value)
		} else {
			delete(l.cluster.Annotations, key)
		}
	}
	if maps.Equal(before.Annotations, l.cluster.Annotations) {
		return nil
	}
	return l.Client.Patch(ctx, l.cluster, client.MergeFrom(before))
}

// written are the annotations that the operator writes.
var written = []string{
	v1alpha1.AnnotationTalosCurrent, v1alpha1.AnnotationTalosAvailable, v1alpha1.AnnotationTalosStatus,
	v1alpha1.AnnotationTalosMessage, v1alpha1.AnnotationTalosProgress,
	v1alpha1.AnnotationKubernetesCurrent, v1alpha1.AnnotationKubernetesAvailable, v1alpha1.AnnotationKubernetesStatus,
	v1alpha1.AnnotationKubernetesMessage,
}

// clear marks the newest roll if the roll has failed and its target annotation has been changed or removed.
func (l *look) clear(ctx context.Context) error {
	r := l.rolls.Newest()
	if r == nil || r.Status.Phase != v1alpha1.PhaseFailed || r.Annotations[annotationFor] == "" || r.Annotations[annotationCleared] != "" {
		return nil
	}
	key := v1alpha1.AnnotationTalosTarget
	if r.Spec.Action == v1alpha1.ActionKubernetes {
		key = v1alpha1.AnnotationKubernetesTarget
	}
	if r.Annotations[key] == "" || l.cluster.Annotations[key] == r.Annotations[key] {
		return nil // the roll was for no annotation, or its annotation is unchanged
	}
	before := r.DeepCopy()
	r.Annotations[annotationCleared] = "true"
	return client.IgnoreNotFound(l.Client.Patch(ctx, r, client.MergeFrom(before)))
}

// History is a list of the ImageRolls of a cluster, oldest first.
type History []v1alpha1.ImageRoll

// RollsOf reads the ImageRolls of a cluster from the cache.
func RollsOf(ctx context.Context, c client.Reader, namespace, cluster string) (History, error) {
	var list v1alpha1.ImageRollList
	if err := c.List(ctx, &list, client.InNamespace(namespace), client.MatchingFields{indexCluster: cluster}); err != nil {
		return nil, err
	}
	h := History(list.Items)
	h.Sort()
	return h, nil
}

func (h History) Sort() {
	slices.SortFunc(h, func(a, b v1alpha1.ImageRoll) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(len(a.Name), len(b.Name)), cmp.Compare(a.Name, b.Name))
	})
}

// active returns the oldest ImageRoll that is not finished; nil if all are.
func (h History) active() *v1alpha1.ImageRoll {
	for i := range h {
		if !h[i].Status.Phase.Finished() {
			return &h[i]
		}
	}
	return nil
}

func (h History) rolling() bool {
	return slices.ContainsFunc(h, func(r v1alpha1.ImageRoll) bool { return !r.Status.Phase.Finished() && r.Status.Started != nil })
}

// Newest returns the active ImageRoll, else the last one; nil if there is none.
func (h History) Newest() *v1alpha1.ImageRoll {
	if active := h.active(); active != nil || len(h) == 0 {
		return active
	}
	return &h[len(h)-1]
}

// named returns the ImageRoll of that name; nil if there is none.
func (h History) named(name string) *v1alpha1.ImageRoll {
	if i := slices.IndexFunc(h, func(r v1alpha1.ImageRoll) bool { return r.Name == name }); i >= 0 {
		return &h[i]
	}
	return nil
}

// finished returns the name of the last finished ImageRoll; "" if there is none.
func (h History) finished() string {
	for _, r := range slices.Backward(h) {
		if r.Status.Phase.Finished() {
			return r.Name
		}
	}
	return ""
}
