// Package operator keeps TalosClusters as their files describe them. It checks clusters by schedule and when
// something changes, makes ImageRolls for drift, and runs ImageRolls as Jobs, one attempt after the other. The
// operator keeps no state of its own: everything is in the objects.
package operator

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/mod/semver"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
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

	"github.com/recast-sh/recast/api/v1alpha1"
	"github.com/recast-sh/recast/internal/operator/attempt"
	"github.com/recast-sh/recast/internal/operator/job"
	"github.com/recast-sh/recast/internal/operator/source"
	"github.com/recast-sh/recast/internal/operator/window"
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
	// NodeLabel is what nodes have that run Jobs: see job.Spec.
	NodeLabel string
	// Forbidden has keys of forbiddable.
	Forbidden []string
}

// forbiddable has the fields of TalosClusters that an installation can forbid, and whether a spec uses them.
var forbiddable = map[string]func(v1alpha1.TalosClusterSpec) bool{
	"spec.job.image":       func(s v1alpha1.TalosClusterSpec) bool { return s.Job.Image != "" },
	"spec.secrets.envFrom": func(s v1alpha1.TalosClusterSpec) bool { return s.Secrets.EnvFrom != "" },
}

var errForbidden = errors.New("is forbidden by this operator's --forbid")

// forbids returns an error if a spec uses a forbidden field.
func (s *Shared) forbids(spec v1alpha1.TalosClusterSpec) error {
	for _, field := range s.Forbidden {
		if forbiddable[field](spec) {
			return fmt.Errorf("%s: %w: remove the field", field, errForbidden)
		}
	}
	return nil
}

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
// quota, a policy or a webhook denies. A field that --forbid names is refused in the same way.
func unusable(err error) bool {
	return errors.Is(err, errForbidden) || apierrors.IsInvalid(err) || apierrors.IsForbidden(err) || apierrors.IsBadRequest(err)
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
	for _, field := range s.Forbidden {
		if forbiddable[field] == nil {
			return fmt.Errorf("--forbid: %q is not one of %s", field, strings.Join(slices.Sorted(maps.Keys(forbiddable)), ", "))
		}
	}
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

// stripConfigMap keeps the name and the version of a ConfigMap. A namespace has many ConfigMaps that are not recast's.
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
	if err := source.Check(l.cluster.Spec.Source); err != nil {
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
	return l.createJob(ctx, l.cluster, job.Spec{Cluster: l.cluster, Task: task, Image: l.Image})
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

func hash(values ...any) string {
	b, err := json.Marshal(values)
	if err != nil {
		return "" // impossible for plain data
	}
	return fmt.Sprintf("%x", sha256.Sum256(b))[:16]
}
