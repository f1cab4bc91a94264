package operator

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"

	"github.com/recast-sh/recast/api/v1alpha1"
	"github.com/recast-sh/recast/internal/operator/attempt"
	"github.com/recast-sh/recast/internal/operator/job"
	"golang.org/x/mod/semver"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
)

// Clusters reconciles TalosClusters: it checks clusters, and makes ImageRolls for drift.
type Clusters struct{ *Shared }

type look struct {
	*Shared
	cluster *v1alpha1.TalosCluster
	saved   *v1alpha1.TalosCluster // as the API server has it
	plans   schedules
	rolls   History
	running bool   // the newest check runs
	trouble string // what is wrong with that check
	failed  bool   // that check ended without a report
	agenda
}

func (r *Clusters) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	return laterIfChanged(r.reconcile(ctx, req))
}

func (r *Clusters) reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var c v1alpha1.TalosCluster
	if err := r.Client.Get(ctx, req.NamespacedName, &c); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	l := &look{Shared: r.Shared, cluster: &c, saved: c.DeepCopy(), agenda: agenda{now: r.Now()}}
	var err error
	if l.rolls, err = RollsOf(ctx, r.Client, c.Namespace, c.Name); err != nil {
		return ctrl.Result{}, err
	}
	if !c.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, l.leave(ctx)
	}
	if controllerutil.AddFinalizer(&c, v1alpha1.Finalizer) {
		if err := r.Client.Patch(ctx, &c, client.MergeFromWithOptions(l.saved, client.MergeFromWithOptimisticLock{})); err != nil {
			return ctrl.Result{}, err
		}
		l.saved = c.DeepCopy()
	}
	v, err := l.step(ctx)
	if unusable(err) {
		v, err = stalled(v1alpha1.ReasonInvalidSpec, "%s", err), nil
		l.lookAgain(l.now.Add(l.Pace.MaxRetry))
	}
	if err != nil {
		return ctrl.Result{}, err
	}
	if err := l.tell(ctx, v); err != nil {
		return ctrl.Result{}, err
	}
	return l.result(), nil
}

func (l *look) step(ctx context.Context) (verdict, error) {
	var err error
	if l.plans, err = readSchedules(l.cluster.Spec); err != nil {
		return stalled(v1alpha1.ReasonInvalidSpec, "%s", err), nil
	}
	version, err := l.sourceVersion(ctx, l.cluster)
	if err != nil {
		return verdict{}, err
	}
	if version == "" {
		return stalled(v1alpha1.ReasonSourceUnavailable, "spec.source.configMap.name: the namespace %s has no ConfigMap %s: create it, with recast.yaml, recast.lock and the schematics",
			l.cluster.Namespace, l.cluster.Spec.Source.ConfigMap.Name), nil
	}
	l.nextWindow()
	wanted := l.wants(version)
	idle := !l.cluster.Spec.Suspend && !l.rolls.rolling()
	if err := l.watchCheck(ctx, idle); err != nil {
		return verdict{}, err
	}
	if idle && !l.running && l.due(wanted) {
		if err := l.beginCheck(ctx, wanted); err != nil {
			return verdict{}, err
		}
	}
	if err := l.dropOutdated(ctx, wanted); err != nil {
		return verdict{}, err
	}
	v := l.judge(wanted)
	if l.mayMakeRoll(wanted) {
		roll, err := l.makeRoll(ctx)
		if err != nil {
			return verdict{}, err
		}
		v = waiting(v1alpha1.ReasonRolling, "ImageRoll %s", roll.Name)
	}
	return v, l.forgetRolls(ctx)
}

// sourceVersion returns the version of the source's ConfigMap: "" if the ConfigMap does not exist, "-" for other
// sources.
func (s *Shared) sourceVersion(ctx context.Context, c *v1alpha1.TalosCluster) (string, error) {
	src := c.Spec.Source.ConfigMap
	if src == nil {
		return "-", nil
	}
	m := &metav1.PartialObjectMetadata{}
	m.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ConfigMap"))
	err := s.Client.Get(ctx, client.ObjectKey{Namespace: c.Namespace, Name: src.Name}, m)
	return m.ResourceVersion, client.IgnoreNotFound(err)
}

// wants returns a key for what the next check must look at: the source, the spec and the last roll. A check with
// another key is outdated.
func (l *look) wants(source string) string {
	c := l.cluster
	asked := hash(c.Spec.Source, c.Spec.Secrets, c.Spec.Lock, c.Spec.Job, job.TalosTarget(c), job.KubernetesTarget(c), c.Annotations[v1alpha1.AnnotationCheckRequested])
	return fmt.Sprintf("source=%s spec=%s after=%s", source, asked, l.rolls.finished())
}

// due says whether a check has to begin.
func (l *look) due(wanted string) bool {
	c := l.cluster.Status.Check
	if c == nil || c.For != wanted {
		return true
	}
	if c.ExitCode != attempt.ExitDone && c.ExitCode != attempt.ExitDrift {
		retry := c.Ended.Add(l.Pace.Recheck)
		l.lookAgain(retry)
		if !l.now.Before(retry) {
			return true
		}
	}
	due, next := l.plans.drift.Due(c.Started.Time, l.now)
	l.lookAgain(next)
	return due
}

// checkJob returns the name of the newest check's Job.
func (l *look) checkJob() string {
	return job.Name(l.cluster.Name, attempt.Check, l.cluster.Status.Checks)
}

// watchCheck finds out whether a check runs. If checks may begin, it repeats a check that ended without a report.
func (l *look) watchCheck(ctx context.Context, mayBegin bool) error {
	s := &l.cluster.Status
	if s.Checks == 0 || s.Check != nil && s.Check.Job == l.checkJob() {
		return nil
	}
	var j batchv1.Job
	err := l.Client.Get(ctx, client.ObjectKey{Namespace: l.cluster.Namespace, Name: l.checkJob()}, &j)
	if client.IgnoreNotFound(err) != nil {
		return err
	}
	if err != nil { // the operator was stopped before it made the Job, or the Job has expired
		if l.running = mayBegin; !mayBegin {
			return nil
		}
		return l.makeCheckJob(ctx, s.CheckFor)
	}
	ended, _ := jobEnded(&j)
	if ended.IsZero() {
		l.running, l.trouble = true, l.slow(ctx, &l.agenda, &j)
		return nil
	}
	l.trouble = fmt.Sprintf("the check ended without a word: kubectl logs job/%s", j.Name)
	l.failed = true
	retry := ended.Add(l.Pace.MaxRetry)
	if l.now.Before(retry) {
		l.running = true // as if: no other check begins until the retry
		l.lookAgain(retry)
		return nil
	}
	if !mayBegin {
		return nil
	}
	return l.beginCheck(ctx, s.CheckFor)
}

// beginCheck counts the check before it makes the Job, so that no two Jobs get the same number.
func (l *look) beginCheck(ctx context.Context, wanted string) error {
	l.cluster.Status.Checks++
	l.cluster.Status.CheckFor = wanted
	if err := l.save(ctx); err != nil {
		return err
	}
	l.running = true
	if err := l.makeCheckJob(ctx, wanted); err != nil {
		return err
	}
	const kept = 2 // the last Job stays for its log
	return l.forgetJob(ctx, l.cluster.Namespace, job.Name(l.cluster.Name, attempt.Check, l.cluster.Status.Checks-kept))
}

func (l *look) makeCheckJob(ctx context.Context, wanted string) error {
	for _, o := range job.OfCluster(l.cluster) {
		if err := l.apply(ctx, l.cluster, o); err != nil {
			return err
		}
	}
	task := job.Task(l.cluster, attempt.Check)
	task.Job, task.Results, task.For = l.checkJob(), job.Account(l.cluster.Name), wanted
	return l.createJob(ctx, l.cluster, job.New(job.Spec{Cluster: l.cluster, Task: task, Image: l.Image}))
}

// save writes the status if it has changed. It fails if someone else has written the object meanwhile.
func (l *look) save(ctx context.Context) error {
	if equality.Semantic.DeepEqual(l.cluster.Status, l.saved.Status) {
		return nil
	}
	if err := l.Client.Status().Patch(ctx, l.cluster, client.MergeFromWithOptions(l.saved, client.MergeFromWithOptimisticLock{})); err != nil {
		return err
	}
	l.saved = l.cluster.DeepCopy()
	return nil
}

// leave deletes the unfinished ImageRolls of a deleted cluster. The VMs and the nodes stay as they are.
func (l *look) leave(ctx context.Context) error {
	if !controllerutil.ContainsFinalizer(l.cluster, v1alpha1.Finalizer) {
		return nil
	}
	left := false
	for _, r := range l.rolls {
		if r.Status.Phase.Finished() {
			continue
		}
		left = true
		if r.DeletionTimestamp.IsZero() {
			if err := l.Client.Delete(ctx, &r); client.IgnoreNotFound(err) != nil {
				return err
			}
		}
	}
	if left {
		return l.tell(ctx, waiting(v1alpha1.ReasonTerminating, "its ImageRolls end first; no VM is deleted"))
	}
	controllerutil.RemoveFinalizer(l.cluster, v1alpha1.Finalizer)
	return l.Client.Patch(ctx, l.cluster, client.MergeFromWithOptions(l.saved, client.MergeFromWithOptimisticLock{}))
}

// annotationFor is an annotation of each ImageRoll that the operator makes: the key of what the ImageRoll is for.
const annotationFor = "recast.dev/for"

// annotationCleared is an annotation of a failed ImageRoll whose target a person has removed: the operator may try
// the same again.
const annotationCleared = "recast.dev/cleared"

// blocking returns the newest ImageRoll if it is finished, was for what the cluster wants now, and did not achieve
// it. The operator does not try the same again before something changes; otherwise it would roll in a circle, over
// and over.
func (l *look) blocking() *v1alpha1.ImageRoll {
	r := l.rolls.Newest()
	if r == nil || !r.Status.Phase.Finished() || r.Annotations[annotationFor] != l.rollKey() || r.Annotations[annotationCleared] != "" {
		return nil
	}
	if in := l.cluster.Status.LastInSync; in != nil && r.Status.Ended != nil && in.After(r.Status.Ended.Time) {
		return nil // the cluster was in sync after the roll, so this drift is new
	}
	return r
}

// rollKey returns the key of what an ImageRoll made now would be for.
func (l *look) rollKey() string {
	c := l.cluster.Status.Check
	return hash(cmp.Or(c.Files, c.Revision), c.Lock, job.TalosTarget(l.cluster), job.KubernetesTarget(l.cluster), l.action(), l.cluster.Annotations[v1alpha1.AnnotationCheckRequested])
}

// dropOutdated deletes an ImageRoll that the operator has made and that has not begun, once a check finds that
// something else is wanted by now.
func (l *look) dropOutdated(ctx context.Context, wanted string) error {
	r, c := l.rolls.active(), l.cluster.Status.Check
	if r == nil || r.Status.Started != nil || r.Annotations[annotationFor] == "" || c == nil || c.For != wanted ||
		c.ExitCode == attempt.ExitDrift && r.Annotations[annotationFor] == l.rollKey() || c.ExitCode != attempt.ExitDrift && c.ExitCode != attempt.ExitDone {
		return nil
	}
	s := fmt.Sprintf("ImageRoll %s had not begun, and is outdated", r.Name)
	l.event(l.cluster, verdict{reason: v1alpha1.ReasonDrifted, message: s}, "Check")
	return client.IgnoreNotFound(l.Client.Delete(ctx, r))
}

// action returns the action that removes the drift found by the newest check.
func (l *look) action() v1alpha1.RollAction {
	if l.cluster.Status.Check.OnlyKubernetes {
		return v1alpha1.ActionKubernetes
	}
	return v1alpha1.ActionNodes
}

// mayMakeRoll says whether to make an ImageRoll for the drift found by the newest check.
func (l *look) mayMakeRoll(wanted string) bool {
	c := l.cluster.Status.Check
	return !l.cluster.Spec.Suspend && l.cluster.Spec.Rolls.Create != v1alpha1.CreateNever &&
		c != nil && c.For == wanted && c.ExitCode == attempt.ExitDrift &&
		l.rolls.active() == nil && l.blocking() == nil
}

// makeRoll makes the next ImageRoll. It counts the ImageRoll first: an operator that is stopped in between makes that
// ImageRoll after its restart, and an outdated cache does not lead to a second one.
func (l *look) makeRoll(ctx context.Context) (*v1alpha1.ImageRoll, error) {
	name := func() string { return fmt.Sprintf("%s-%d", l.cluster.Name, l.cluster.Status.Rolls) }
	if s := l.cluster.Status; s.Rolls > 0 && s.MadeRoll != name() {
		var there v1alpha1.ImageRoll
		err := l.Live.Get(ctx, client.ObjectKey{Namespace: l.cluster.Namespace, Name: name()}, &there)
		if err == nil || !apierrors.IsNotFound(err) {
			return &there, err
		}
	} else {
		l.cluster.Status.Rolls++
		if err := l.save(ctx); err != nil {
			return nil, err
		}
	}
	annotations := map[string]string{annotationFor: l.rollKey()}
	for _, key := range []string{v1alpha1.AnnotationTalosTarget, v1alpha1.AnnotationKubernetesTarget} {
		if target := l.cluster.Annotations[key]; target != "" {
			annotations[key] = target
		}
	}
	r := &v1alpha1.ImageRoll{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: l.cluster.Namespace, Name: name(),
			Labels:      map[string]string{v1alpha1.LabelCluster: l.cluster.Name},
			Annotations: annotations,
			Finalizers:  []string{v1alpha1.Finalizer},
		},
		Spec: v1alpha1.ImageRollSpec{
			ClusterName: l.cluster.Name, Action: l.action(),
			Approved: l.cluster.Spec.Rolls.Approval == v1alpha1.ApprovalAutomatic && !downgrades(l.cluster),
		},
	}
	if err := controllerutil.SetOwnerReference(l.cluster, r, l.Scheme); err != nil {
		return nil, err
	}
	if err := l.Client.Create(ctx, r, client.FieldOwner(FieldOwner)); err != nil && !apierrors.IsAlreadyExists(err) {
		return nil, err
	}
	l.rolls = append(l.rolls, *r)
	return r, nil
}

// downgrades says whether the files want an older Talos than every node runs. Such a roll always needs a person's
// approval. Removing a target leads to such a roll.
func downgrades(c *v1alpha1.TalosCluster) bool {
	v := c.Status.Talos
	return v != nil && v.Current != "" && v.Wanted != "" && semver.Compare(v.Wanted, v.Current) < 0
}

// forgetRolls deletes the oldest finished ImageRolls that the operator has made, except for spec.rolls.keep of them.
func (l *look) forgetRolls(ctx context.Context) error {
	var finished []*v1alpha1.ImageRoll
	for i, r := range l.rolls {
		if r.Status.Phase.Finished() && r.DeletionTimestamp.IsZero() && r.Annotations[annotationFor] != "" {
			finished = append(finished, &l.rolls[i])
		}
	}
	keep := max(1, int(l.cluster.Spec.Rolls.Keep))
	for _, r := range finished[:max(0, len(finished)-keep)] {
		if err := l.Client.Delete(ctx, r); client.IgnoreNotFound(err) != nil {
			return err
		}
	}
	return nil
}

// nextWindow writes the start of the next window into the status; nothing while a window is open.
func (l *look) nextWindow() {
	l.cluster.Status.NextWindow = nil
	if open, _ := l.plans.windows.Open(l.now); open {
		return
	}
	next := l.plans.windows.Next(l.now)
	l.cluster.Status.NextWindow = new(metav1.NewTime(next))
	l.lookAgain(next)
}

// hash returns a short fingerprint of values.
func hash(values ...any) string {
	b, err := json.Marshal(values)
	if err != nil {
		return "" // impossible for plain data
	}
	return fmt.Sprintf("%x", sha256.Sum256(b))[:16]
}
