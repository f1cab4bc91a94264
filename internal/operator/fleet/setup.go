package fleet

import (
	"context"
	"maps"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/recast-sh/recast/api/v1alpha1"
)

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// SetupWithManager adds the reconciler to a manager.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	r.Client, r.Live, r.Recorder = mgr.GetClient(), mgr.GetAPIReader(), mgr.GetEventRecorder(fieldOwner)
	return ctrl.NewControllerManagedBy(mgr).Named("fleetroll").
		For(&v1alpha1.FleetRoll{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Owns(&v1alpha1.ImageRoll{}, builder.MatchEveryOwner, builder.WithPredicates(rollEnds())).
		Watches(&v1alpha1.TalosCluster{}, handler.Funcs{CreateFunc: r.clusterCreated, UpdateFunc: r.clusterUpdated, DeleteFunc: r.clusterDeleted}).
		Complete(reconcile.Func(r.orAgain))
}

// orAgain reconciles again when the cache was outdated, which is expected and no error to be logged.
func (r *Reconciler) orAgain(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	result, err := r.Reconcile(ctx, req)
	if apierrors.IsConflict(err) {
		return reconcile.Result{RequeueAfter: cacheAgain}, nil
	}
	return result, err
}

// rollEnds lets through that an ImageRoll has finished or is gone. What it does meanwhile does
// not matter here.
func rollEnds() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc:  func(event.CreateEvent) bool { return false },
		GenericFunc: func(event.GenericEvent) bool { return false },
		UpdateFunc:  func(e event.UpdateEvent) bool { return finished(e.ObjectNew) && !finished(e.ObjectOld) },
	}
}

func finished(o client.Object) bool {
	roll, ok := o.(*v1alpha1.ImageRoll)
	return ok && roll.Status.Phase.Finished()
}

// clusterCreated: a FleetRoll that found no members may find some now.
func (r *Reconciler) clusterCreated(ctx context.Context, e event.CreateEvent, q queue) {
	r.enqueue(ctx, q, e.Object, func(f *v1alpha1.FleetRoll) bool { return f.Status.Started == nil })
}

// clusterUpdated: so may one whose labels or spec have changed, and a closed gate may open.
func (r *Reconciler) clusterUpdated(ctx context.Context, e event.UpdateEvent, q queue) {
	settles := e.ObjectNew.GetGeneration() != e.ObjectOld.GetGeneration() || !maps.Equal(e.ObjectNew.GetLabels(), e.ObjectOld.GetLabels())
	same := e.ObjectNew.GetResourceVersion() == e.ObjectOld.GetResourceVersion() // a resync of the cache
	r.enqueue(ctx, q, e.ObjectNew, func(f *v1alpha1.FleetRoll) bool {
		switch {
		case f.Status.Started == nil:
			return settles
		case reason(f.Status) == v1alpha1.ReasonGateClosed && !same:
			return slices.ContainsFunc(f.Status.Members, func(m v1alpha1.Member) bool {
				return m.Cluster == e.ObjectNew.GetName() && m.Stage == f.Status.Stage
			})
		}
		return false
	})
}

// clusterDeleted: a member that waits or runs fails, and a gate may open.
func (r *Reconciler) clusterDeleted(ctx context.Context, e event.DeleteEvent, q queue) {
	r.enqueue(ctx, q, e.Object, func(f *v1alpha1.FleetRoll) bool {
		return slices.ContainsFunc(f.Status.Members, func(m v1alpha1.Member) bool { return m.Cluster == e.Object.GetName() })
	})
}

// enqueue asks for the FleetRolls of an object's namespace that concern it.
func (r *Reconciler) enqueue(ctx context.Context, q queue, o client.Object, concerns func(*v1alpha1.FleetRoll) bool) {
	var list v1alpha1.FleetRollList
	if err := r.Client.List(ctx, &list, client.InNamespace(o.GetNamespace()), client.UnsafeDisableDeepCopy); err != nil {
		return // the cache has no other errors than that it was stopped
	}
	for i := range list.Items {
		f := &list.Items[i]
		if !over(f.Status) && concerns(f) {
			q.Add(reconcile.Request{NamespacedName: client.ObjectKeyFromObject(f)})
		}
	}
}
