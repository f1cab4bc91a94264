package operator

import (
	"context"
	"maps"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/recast-sh/recast/api/v1alpha1"
)

// Values of the annotations that end in -status.
const (
	statusIdle       = "idle"
	statusInProgress = "in-progress"
	statusCompleted  = "completed"
	statusFailed     = "failed"
	statusBlocked    = "blocked"
)

// annotations are what tools read that know no custom fields.
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

// targetStatus is the status of what one -target annotation asks for.
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

// annotate writes the annotations, if they have changed, and lets a failed roll be made again once its
// target was removed.
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

// clear marks the newest roll if it has failed for a target that is no longer there.
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
		return nil // it was for no annotation, or that is still there
	}
	before := r.DeepCopy()
	r.Annotations[annotationCleared] = "true"
	return client.IgnoreNotFound(l.Client.Patch(ctx, r, client.MergeFrom(before)))
}
