// Package operator keeps TalosClusters as their files describe them. It checks clusters by schedule and when
// something changes, makes ImageRolls for drift, and runs ImageRolls as Jobs, one attempt after the other. The
// operator keeps no state of its own: everything is in the objects.
package operator

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/recast-sh/recast/api/v1alpha1"
	"github.com/recast-sh/recast/internal/operator/job"
	"github.com/recast-sh/recast/internal/operator/window"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// FieldOwner is the operator's name in server-side apply.
const FieldOwner = "recast-operator"

// Pace says how long the operator waits before it tries again.
type Pace struct {
	FirstRetry time.Duration // before the second attempt; the wait doubles with each further attempt
	MaxRetry   time.Duration
	Claim      time.Duration // before the next attempt while another run holds the claim
	Recheck    time.Duration // before it repeats a check that could not read its cluster
}

// DefaultPace is for real clusters.
var DefaultPace = Pace{FirstRetry: 10 * time.Second, MaxRetry: 5 * time.Minute, Claim: 2 * time.Minute, Recheck: 10 * time.Minute}

type Shared struct {
	Client client.Client
	// Live reads from the API server, not from the cache.
	Live   client.Reader
	Scheme *runtime.Scheme
	Events events.EventRecorder
	Now    func() time.Time
	Pace   Pace
	Image  string // of Jobs
}

// apply creates or updates an object by server-side apply, with owner as its owner.
func (s *Shared) apply(ctx context.Context, owner, o client.Object) error {
	if err := controllerutil.SetOwnerReference(owner, o, s.Scheme); err != nil {
		return err
	}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		return err
	}
	delete(fields, "status")
	if m, ok := fields["metadata"].(map[string]any); ok {
		delete(m, "creationTimestamp")
	}
	return s.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(&unstructured.Unstructured{Object: fields}), client.FieldOwner(FieldOwner), client.ForceOwnership)
}

// conditions sets conditions in an object's status. generation is the generation of the object's spec.
type conditions struct {
	list       *[]metav1.Condition
	generation int64
}

func (c conditions) set(kind string, status bool, reason, message string) {
	value := metav1.ConditionFalse
	if status {
		value = metav1.ConditionTrue
	}
	c.setStatus(kind, value, reason, message)
}

func (c conditions) setStatus(kind string, status metav1.ConditionStatus, reason, message string) {
	const most = 32768 // characters; the API's limit
	meta.SetStatusCondition(c.list, metav1.Condition{
		Type: kind, Status: status, Reason: reason, Message: message[:min(len(message), most)], ObservedGeneration: c.generation,
	})
}

// verdict is what the conditions Ready, Progressing and Stalled say together.
type verdict struct {
	ready, progressing, stalled bool
	reason, message             string
}

// tell sets the conditions Ready, Progressing and Stalled.
func (c conditions) tell(v verdict) {
	c.set(v1alpha1.ConditionReady, v.ready, v.reason, v.message)
	c.set(v1alpha1.ConditionProgressing, v.progressing, v.reason, v.message)
	c.set(v1alpha1.ConditionStalled, v.stalled, v.reason, v.message)
}

func stalled(reason, format string, args ...any) verdict {
	return verdict{stalled: true, reason: reason, message: fmt.Sprintf(format, args...)}
}

func waiting(reason, format string, args ...any) verdict {
	return verdict{progressing: true, reason: reason, message: fmt.Sprintf(format, args...)}
}

// laterIfChanged turns a conflict into another look soon: someone else has written the object meanwhile (the pod of a
// Job, a person), or the cache was behind.
func laterIfChanged(r ctrl.Result, err error) (ctrl.Result, error) {
	if apierrors.IsConflict(err) {
		return ctrl.Result{RequeueAfter: soon}, nil
	}
	return r, err
}

// unusable says whether the API server refuses an object that a spec leads to: a Job that is invalid, or that a
// quota, a policy or a webhook denies.
func unusable(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsForbidden(err) || apierrors.IsBadRequest(err)
}

// soon is how long the cache may take to see what was just written.
const soon = 100 * time.Millisecond

// agenda says when to look at an object again.
type agenda struct {
	now   time.Time
	again time.Time // zero: when something changes
}

// lookAgain makes sure that the next look is no later than t. A zero t changes nothing.
func (a *agenda) lookAgain(t time.Time) {
	if !t.IsZero() && (a.again.IsZero() || t.Before(a.again)) {
		a.again = t
	}
}

func (a *agenda) result() ctrl.Result {
	if a.again.IsZero() {
		return ctrl.Result{}
	}
	return ctrl.Result{RequeueAfter: max(soon, a.again.Sub(a.now))}
}

// schedules holds the schedules of a spec, parsed.
type schedules struct {
	drift   window.Schedule
	windows window.Set
}

// readSchedules parses the schedules of a spec. The error names the field.
func readSchedules(spec v1alpha1.TalosClusterSpec) (schedules, error) {
	var s schedules
	var err error
	if s.drift, err = window.ParseSchedule(spec.Drift.Schedule, spec.Drift.TimeZone); err != nil {
		return s, fmt.Errorf("spec.drift.%w", err)
	}
	for i, w := range spec.Windows {
		parsed, err := window.Parse(w.Schedule, w.TimeZone, w.Duration.Duration)
		if err != nil {
			return s, fmt.Errorf("spec.windows[%d].%w", i, err)
		}
		s.windows = append(s.windows, parsed)
	}
	return s, nil
}

// Windows returns the maintenance windows of a cluster.
func Windows(spec v1alpha1.TalosClusterSpec) (window.Set, error) {
	plans, err := readSchedules(spec)
	return plans.windows, err
}

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

// important passes the changes of an ImageRoll that matter to other objects, such as its phase. It drops the progress
// within a phase.
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

// summary returns the progress of a roll, such as "2/5".
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

// rollsOfCluster lists the unfinished ImageRolls of a cluster, which may wait for something of the cluster.
func (s *Shared) rollsOfCluster(ctx context.Context, o client.Object) []reconcile.Request {
	return s.unfinished(ctx, o.GetNamespace(), o.GetName())
}

// laterRolls lists the ImageRolls that may have waited for this ImageRoll to end.
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

// Cached returns the options of the operator's cache, which keeps as little as possible: only the operator's own
// Jobs, without their pods' templates, and only the versions of ConfigMaps. Secrets and pods are not cached.
func Cached() cache.Options {
	return cache.Options{
		DefaultTransform: strip,
		ByObject: map[client.Object]cache.ByObject{
			&batchv1.Job{}:      {Label: labels.SelectorFromSet(job.Made()), Transform: stripJob},
			&corev1.ConfigMap{}: {Transform: stripConfigMap},
		},
	}
}

// strip removes the managed fields and kubectl's copy of an object.
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

// stripJob keeps the status of a Job, and drops its spec.
func stripJob(o any) (any, error) {
	if j, ok := o.(*batchv1.Job); ok {
		j.Spec = batchv1.JobSpec{}
	}
	return strip(o)
}

// stripConfigMap keeps the name and the version of a ConfigMap. A namespace has many ConfigMaps that are not
// recast's.
func stripConfigMap(o any) (any, error) {
	if m, ok := o.(*metav1.PartialObjectMetadata); ok {
		m.Labels, m.Annotations, m.OwnerReferences = nil, nil, nil
	}
	return strip(o)
}

// Metrics computes metrics from the objects in the cache at each scrape, so that every replica has the same.
type Metrics struct {
	Objects client.Reader
	// Context ends the reads of the cache: Prometheus passes no context.
	Context context.Context
}

// scrapeTime limits the time of a scrape.
const scrapeTime = 10 * time.Second

var (
	conditionMetric = prometheus.NewDesc("recast_cluster_condition", "1 for the status that a condition of a TalosCluster has.", []string{"namespace", "cluster", "type", "status"}, nil)
	nodesMetric     = prometheus.NewDesc("recast_cluster_nodes", "Nodes of a TalosCluster.", []string{"namespace", "cluster", "state"}, nil)
	checkMetric     = prometheus.NewDesc("recast_cluster_check_timestamp_seconds", "When the newest check of a TalosCluster ended.", []string{"namespace", "cluster"}, nil)
	dueMetric       = prometheus.NewDesc("recast_cluster_check_due_timestamp_seconds", "When the check after the newest one of a TalosCluster is due; none if it is suspended or has no schedule.", []string{"namespace", "cluster"}, nil)
	phaseMetric     = prometheus.NewDesc("recast_imageroll_phase", "1 for the phase of an ImageRoll that is not finished, or is the newest of its cluster.", []string{"namespace", "roll", "cluster", "phase"}, nil)
	membersMetric   = prometheus.NewDesc("recast_fleetroll_members", "Clusters of a FleetRoll.", []string{"namespace", "fleet", "phase"}, nil)
)

func (m Metrics) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{conditionMetric, nodesMetric, checkMetric, dueMetric, phaseMetric, membersMetric} {
		to <- d
	}
}

// Collect implements prometheus.Collector. It collects nothing while the cache is not ready. Collect reads the
// cache's own objects without a copy: copies at each scrape would be most of what the operator allocates.
func (m Metrics) Collect(to chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(m.Context, scrapeTime)
	defer cancel()
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	var clusters v1alpha1.TalosClusterList
	if m.Objects.List(ctx, &clusters, client.UnsafeDisableDeepCopy) == nil {
		for _, c := range clusters.Items {
			collectCluster(gauge, c)
		}
	}
	var rolls v1alpha1.ImageRollList
	if m.Objects.List(ctx, &rolls, client.UnsafeDisableDeepCopy) == nil {
		newest := map[client.ObjectKey]v1alpha1.ImageRoll{}
		for _, r := range rolls.Items {
			key := client.ObjectKey{Namespace: r.Namespace, Name: r.Spec.ClusterName}
			if last, ok := newest[key]; !ok || last.CreationTimestamp.Before(&r.CreationTimestamp) {
				newest[key] = r
			}
			if !r.Status.Phase.Finished() {
				gauge(phaseMetric, 1, r.Namespace, r.Name, r.Spec.ClusterName, string(r.Status.Phase))
			}
		}
		for _, r := range newest {
			if r.Status.Phase.Finished() {
				gauge(phaseMetric, 1, r.Namespace, r.Name, r.Spec.ClusterName, string(r.Status.Phase))
			}
		}
	}
	var fleets v1alpha1.FleetRollList
	if m.Objects.List(ctx, &fleets, client.UnsafeDisableDeepCopy) == nil {
		for _, f := range fleets.Items {
			members := map[v1alpha1.MemberPhase]float64{v1alpha1.MemberWaiting: 0, v1alpha1.MemberRunning: 0, v1alpha1.MemberDone: 0, v1alpha1.MemberFailed: 0}
			for _, member := range f.Status.Members {
				members[member.Phase]++
			}
			for phase, n := range members {
				gauge(membersMetric, n, f.Namespace, f.Name, string(phase))
			}
		}
	}
}

func collectCluster(gauge func(*prometheus.Desc, float64, ...string), c v1alpha1.TalosCluster) {
	for _, k := range c.Status.Conditions {
		gauge(conditionMetric, 1, c.Namespace, c.Name, k.Type, string(k.Status))
	}
	if n := c.Status.Nodes; n != nil {
		for state, count := range map[string]int32{"total": n.Total, "in-sync": n.InSync, "stale": n.Stale, "unread": n.Unread} {
			gauge(nodesMetric, float64(count), c.Namespace, c.Name, state)
		}
	}
	if k := c.Status.Check; k != nil && k.Ended != nil {
		gauge(checkMetric, float64(k.Ended.Unix()), c.Namespace, c.Name)
	}
	if due := NextCheck(&c); !due.IsZero() {
		gauge(dueMetric, float64(due.Unix()), c.Namespace, c.Name)
	}
}

// NextCheck returns when the check after the newest one is due; zero: never.
func NextCheck(c *v1alpha1.TalosCluster) time.Time {
	plans, err := readSchedules(c.Spec)
	switch {
	case err != nil || c.Spec.Suspend:
		return time.Time{} // the cluster's conditions say why
	case c.Status.Check == nil || c.Status.Check.Started == nil:
		return c.CreationTimestamp.Time
	}
	return plans.drift.Next(c.Status.Check.Started.Time)
}
