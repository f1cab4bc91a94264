package operator

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"

	"golang.org/x/mod/semver"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/recast-sh/recast/api/v1alpha1"
	"github.com/recast-sh/recast/internal/operator/job"
)

// annotationFor is on an ImageRoll that the operator has made: what it was made for.
const annotationFor = "recast.dev/for"

// annotationCleared is on a failed ImageRoll whose target a person has removed: the same may be tried again.
const annotationCleared = "recast.dev/cleared"

// blocking is the newest ImageRoll if it was for what the cluster wants now and did not bring it about.
// The same is not tried again before something changes: not in a circle, and not over and over.
func (l *look) blocking() *v1alpha1.ImageRoll {
	r := l.rolls.Newest()
	if r == nil || !r.Status.Phase.Finished() || r.Annotations[annotationFor] != l.rollKey() || r.Annotations[annotationCleared] != "" {
		return nil
	}
	if in := l.cluster.Status.LastInSync; in != nil && r.Status.Ended != nil && in.After(r.Status.Ended.Time) {
		return nil // it was in sync after that, so this drift is a new one
	}
	return r
}

// rollKey says what an ImageRoll that is made now is for.
func (l *look) rollKey() string {
	c := l.cluster.Status.Check
	return hash(cmp.Or(c.Files, c.Revision), c.Lock, job.TalosTarget(l.cluster), job.KubernetesTarget(l.cluster), l.action(), l.cluster.Annotations[v1alpha1.AnnotationCheckRequested])
}

// dropOutdated deletes the ImageRoll that the operator has made and that has not begun, once a check has found
// that something else is wanted by now.
func (l *look) dropOutdated(ctx context.Context, wanted string) error {
	r, c := l.rolls.active(), l.cluster.Status.Check
	if r == nil || r.Status.Started != nil || r.Annotations[annotationFor] == "" || c == nil || c.For != wanted ||
		c.ExitCode == exitDrift && r.Annotations[annotationFor] == l.rollKey() || c.ExitCode != exitDrift && c.ExitCode != job.ExitDone {
		return nil
	}
	s := fmt.Sprintf("ImageRoll %s had not begun, and is outdated", r.Name)
	l.event(l.cluster, verdict{reason: v1alpha1.ReasonDrifted, message: s}, "Check")
	return client.IgnoreNotFound(l.Client.Delete(ctx, r))
}

// action is what removes the drift that the newest check has found.
func (l *look) action() v1alpha1.RollAction {
	if l.cluster.Status.Check.OnlyKubernetes {
		return v1alpha1.ActionKubernetes
	}
	return v1alpha1.ActionNodes
}

// mayMakeRoll says whether the drift of the newest check is to be removed.
func (l *look) mayMakeRoll(wanted string) bool {
	c := l.cluster.Status.Check
	return !l.cluster.Spec.Suspend && l.cluster.Spec.Rolls.Create != v1alpha1.CreateNever &&
		c != nil && c.For == wanted && c.ExitCode == exitDrift &&
		l.rolls.active() == nil && l.blocking() == nil
}

// makeRoll makes the next ImageRoll. It is counted first: who was ended in between makes that one, and a
// cache that is behind does not make another one.
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

// downgrades says whether the files want an older Talos than every node runs: such a roll needs a person's
// approval in any case. A target that is removed leads to one.
func downgrades(c *v1alpha1.TalosCluster) bool {
	v := c.Status.Talos
	return v != nil && v.Current != "" && v.Wanted != "" && semver.Compare(v.Wanted, v.Current) < 0
}

// forgetRolls deletes the oldest finished ImageRolls that the operator has made.
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

// nextWindow says in the status when a window opens.
func (l *look) nextWindow() {
	l.cluster.Status.NextWindow = nil
	if open, _ := l.plans.windows.Open(l.now); open {
		return
	}
	next := l.plans.windows.Next(l.now)
	l.cluster.Status.NextWindow = new(metav1.NewTime(next))
	l.lookAgain(next)
}

// hash is a short fingerprint of values.
func hash(values ...any) string {
	b, err := json.Marshal(values)
	if err != nil {
		return "" // impossible for plain data
	}
	return fmt.Sprintf("%x", sha256.Sum256(b))[:16]
}
