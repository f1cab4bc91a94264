package operator

import (
	"context"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/recast-sh/recast/api/v1alpha1"
	"github.com/recast-sh/recast/internal/operator/job"
)

// Names of the indexes of the cache.
const (
	indexCluster = "spec.clusterName"           // of ImageRolls
	indexSource  = "spec.source.configMap.name" // of TalosClusters
	indexEvents  = "recast-operator"            // reportingController of Events
)

// Setup adds the reconcilers of TalosClusters and ImageRolls to a manager.
func Setup(ctx context.Context, mgr ctrl.Manager, s *Shared) error {
	s.Client, s.Live, s.Scheme, s.Events = mgr.GetClient(), mgr.GetAPIReader(), mgr.GetScheme(), mgr.GetEventRecorder(indexEvents)
	index := mgr.GetFieldIndexer()
	if err := index.IndexField(ctx, &v1alpha1.ImageRoll{}, indexCluster, func(o client.Object) []string {
		return []string{o.(*v1alpha1.ImageRoll).Spec.ClusterName}
	}); err != nil {
		return err
	}
	if err := index.IndexField(ctx, &v1alpha1.TalosCluster{}, indexSource, func(o client.Object) []string {
		if m := o.(*v1alpha1.TalosCluster).Spec.Source.ConfigMap; m != nil {
			return []string{m.Name}
		}
		return nil
	}); err != nil {
		return err
	}
	configMap := &metav1.PartialObjectMetadata{}
	configMap.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ConfigMap"))
	if err := ctrl.NewControllerManagedBy(mgr).For(&v1alpha1.TalosCluster{}).Named("taloscluster").
		Owns(&batchv1.Job{}).
		Watches(&v1alpha1.ImageRoll{}, handler.EnqueueRequestsFromMapFunc(clusterOfRoll), builder.WithPredicates(important())).
		WatchesMetadata(configMap, handler.EnqueueRequestsFromMapFunc(s.clustersOfSource)).
		Complete(&Clusters{s}); err != nil {
		return err
	}
	return ctrl.NewControllerManagedBy(mgr).For(&v1alpha1.ImageRoll{}).Named("imageroll").
		Owns(&batchv1.Job{}).
		Watches(&v1alpha1.TalosCluster{}, handler.EnqueueRequestsFromMapFunc(s.rollsOfCluster), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&v1alpha1.ImageRoll{}, handler.EnqueueRequestsFromMapFunc(s.laterRolls), builder.WithPredicates(important())).
		Complete(&Rolls{s})
}

// important lets changes through that matter to others: not the progress within a phase.
func important() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, ok := e.ObjectOld.(*v1alpha1.ImageRoll)
		after, ok2 := e.ObjectNew.(*v1alpha1.ImageRoll)
		if !ok || !ok2 {
			return true
		}
		return before.Status.Phase != after.Status.Phase || before.Generation != after.Generation ||
			before.DeletionTimestamp.IsZero() != after.DeletionTimestamp.IsZero() ||
			summary(before) != summary(after)
	}}
}

// summary is "2/5" of a roll.
func summary(r *v1alpha1.ImageRoll) string {
	if r.Status.Progress == nil {
		return ""
	}
	return r.Status.Progress.Summary
}

func clusterOfRoll(_ context.Context, o client.Object) []reconcile.Request {
	r, ok := o.(*v1alpha1.ImageRoll)
	if !ok {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: r.Namespace, Name: r.Spec.ClusterName}}}
}

func (s *Shared) clustersOfSource(ctx context.Context, o client.Object) []reconcile.Request {
	var list v1alpha1.TalosClusterList
	if err := s.Client.List(ctx, &list, client.InNamespace(o.GetNamespace()), client.MatchingFields{indexSource: o.GetName()}); err != nil {
		return nil // the cache has no other errors than that it was stopped
	}
	var requests []reconcile.Request
	for _, c := range list.Items {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&c)})
	}
	return requests
}

// rollsOfCluster are the ImageRolls that wait for something of a cluster.
func (s *Shared) rollsOfCluster(ctx context.Context, o client.Object) []reconcile.Request {
	return s.unfinished(ctx, o.GetNamespace(), o.GetName())
}

// laterRolls are the ImageRolls that may have waited for this one.
func (s *Shared) laterRolls(ctx context.Context, o client.Object) []reconcile.Request {
	r, ok := o.(*v1alpha1.ImageRoll)
	if !ok || !r.Status.Phase.Finished() && r.DeletionTimestamp.IsZero() {
		return nil
	}
	return s.unfinished(ctx, r.Namespace, r.Spec.ClusterName)
}

func (s *Shared) unfinished(ctx context.Context, namespace, cluster string) []reconcile.Request {
	rolls, err := RollsOf(ctx, s.Client, namespace, cluster)
	if err != nil {
		return nil // the cache has no other errors than that it was stopped
	}
	var requests []reconcile.Request
	for _, r := range rolls {
		if !r.Status.Phase.Finished() {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&r)})
		}
	}
	return requests
}

// Cached says what the operator keeps in memory, as little as it needs: of Jobs only those that it has made, without
// their pods' templates, and of ConfigMaps only their versions. Secrets and pods are not cached at all.
func Cached() cache.Options {
	return cache.Options{
		DefaultTransform: strip,
		ByObject: map[client.Object]cache.ByObject{
			&batchv1.Job{}:      {Label: labels.SelectorFromSet(job.Made()), Transform: stripJob},
			&corev1.ConfigMap{}: {Transform: stripConfigMap},
		},
	}
}

// strip removes from an object what says only who has written it, and kubectl's copy of it.
func strip(o any) (any, error) {
	m, err := meta.Accessor(o)
	if err != nil {
		return o, nil // a tombstone has no metadata
	}
	m.SetManagedFields(nil)
	if a := m.GetAnnotations(); a[corev1.LastAppliedConfigAnnotation] != "" {
		delete(a, corev1.LastAppliedConfigAnnotation)
	}
	return o, nil
}

// stripJob leaves how a Job is doing.
func stripJob(o any) (any, error) {
	if j, ok := o.(*batchv1.Job); ok {
		j.Spec = batchv1.JobSpec{}
	}
	return strip(o)
}

// stripConfigMap leaves the name and the version of a ConfigMap. There are many that are not recast's.
func stripConfigMap(o any) (any, error) {
	if m, ok := o.(*metav1.PartialObjectMetadata); ok {
		m.Labels, m.Annotations, m.OwnerReferences = nil, nil, nil
	}
	return strip(o)
}
