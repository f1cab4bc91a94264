package fleet

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/api/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

const defaultSiteLabel = "topology.kubernetes.io/region"

// freeze settles which clusters are members. If the fleet can't begin, v says why.
func (p *pass) freeze(plan plan, invalid error) (v verdict, begins bool) {
	spec, status := p.fleet.Spec, &p.fleet.Status
	switch {
	case spec.State == v1alpha1.FleetAborted:
		status.Ended = p.stamp()
		return stalled(v1alpha1.ReasonAborted, "spec.state: Aborted before anything was begun"), false
	case invalid != nil:
		return stalled(v1alpha1.ReasonInvalidSpec, "%s", invalid), false
	case spec.State == v1alpha1.FleetPaused:
		return verdict{reason: v1alpha1.ReasonPaused, message: "spec.state: Paused: nothing was begun, and the members are not settled yet"}, false
	}
	var members []v1alpha1.Member
	var unlocked []string
	for name, c := range p.clusters {
		i := slices.IndexFunc(plan.stages, func(s stage) bool { return s.selector.Matches(labels.Set(c.Labels)) })
		if i < 0 || !c.DeletionTimestamp.IsZero() {
			continue
		}
		members = append(members, v1alpha1.Member{
			Cluster: name, Stage: spec.Stages[i].Name, Site: c.Labels[cmp.Or(spec.SiteLabel, defaultSiteLabel)], Phase: v1alpha1.MemberWaiting,
		})
		if spec.TalosVersion != "" && c.Spec.Lock != v1alpha1.LockUpdate {
			unlocked = append(unlocked, name)
		}
	}
	for i, s := range spec.Stages {
		if !slices.ContainsFunc(members, func(m v1alpha1.Member) bool { return m.Stage == s.Name }) {
			p.lookAgain(p.now.Add(lookAgain))
			return stalled(v1alpha1.ReasonNoMembers,
				"spec.stages[%d].selector: no TalosCluster in namespace %s matches that is not of an earlier stage: change the labels or the selector, or remove stage %s", i, p.fleet.Namespace, s.Name), false
		}
	}
	if len(unlocked) > 0 {
		p.lookAgain(p.now.Add(lookAgain))
		return stalled(v1alpha1.ReasonInvalidSpec, "spec.talosVersion: needs spec.lock: Update of every TalosCluster, set it for %s", some(unlocked)), false
	}
	slices.SortFunc(members, func(a, b v1alpha1.Member) int { return cmp.Compare(a.Cluster, b.Cluster) })
	status.Members, status.Started = members, p.stamp()
	return verdict{}, true
}

// lostStages returns an error if members belong to a stage that the spec no longer has.
func lostStages(f *v1alpha1.FleetRoll) error {
	for _, m := range f.Status.Members {
		if !slices.ContainsFunc(f.Spec.Stages, func(s v1alpha1.Stage) bool { return s.Name == m.Stage }) {
			return fmt.Errorf("spec.stages: stage %s is missing, which TalosCluster %s belongs to since the FleetRoll has begun: put it back", m.Stage, m.Cluster)
		}
	}
	return nil
}

// observe reads from their ImageRolls how far the running members are. If no member may begin, observe also calls
// withdraw.
func (p *pass) observe(ctx context.Context) error {
	for i := range p.fleet.Status.Members {
		m := &p.fleet.Status.Members[i]
		if m.Phase != v1alpha1.MemberRunning {
			continue
		}
		if err := p.observeMember(ctx, m); err != nil {
			return err
		}
	}
	if p.fleet.Spec.State != v1alpha1.FleetPaused && p.fleet.Spec.State != v1alpha1.FleetAborted && len(failed(p.fleet.Status.Members)) < threshold(p.fleet.Spec) {
		return nil
	}
	return p.withdraw(ctx)
}

func threshold(spec v1alpha1.FleetRollSpec) int { return max(1, int(spec.AbortThreshold)) }

// withdraw puts running members without an ImageRoll back to waiting, when no member may begin.
func (p *pass) withdraw(ctx context.Context) error {
	for i := range p.fleet.Status.Members {
		m := &p.fleet.Status.Members[i]
		if m.Phase != v1alpha1.MemberRunning || m.Roll != "" {
			continue
		}
		name := rollName(p.fleet.Name, m.Cluster)
		roll, err := p.roll(ctx, name)
		if err != nil {
			return err
		}
		if roll == nil {
			m.Phase = v1alpha1.MemberWaiting
			continue
		}
		m.Roll = name
		if err := p.observeMember(ctx, m); err != nil {
			return err
		}
	}
	return nil
}

func (p *pass) observeMember(ctx context.Context, m *v1alpha1.Member) error {
	if m.Roll != "" {
		roll, err := p.roll(ctx, m.Roll)
		switch {
		case err != nil:
			return err
		case roll == nil:
			p.fail(m, "ImageRoll "+m.Roll+" was deleted before it was done")
			return nil
		case roll.Status.Phase == v1alpha1.PhaseSucceeded:
			m.Phase, m.Ended = v1alpha1.MemberDone, p.endOf(roll)
			return nil
		case roll.Status.Phase == v1alpha1.PhaseFailed:
			p.fail(m, "ImageRoll "+m.Roll+" failed: "+message(roll))
			m.Ended = p.endOf(roll)
			return nil
		}
	}
	missing, err := p.missing(ctx, m.Cluster)
	if missing {
		p.fail(m, "TalosCluster "+m.Cluster+" was deleted")
	}
	return err
}

// roll returns an ImageRoll of this FleetRoll; nil if none has that name. The cache may not have a new ImageRoll yet,
// so roll also asks the API server.
func (p *pass) roll(ctx context.Context, name string) (*v1alpha1.ImageRoll, error) {
	if roll := p.rolls[name]; roll != nil {
		return roll, nil
	}
	var roll v1alpha1.ImageRoll
	err := p.Live.Get(ctx, client.ObjectKey{Namespace: p.fleet.Namespace, Name: name}, &roll)
	if apierrors.IsNotFound(err) || err == nil && !owns(p.fleet, &roll) {
		return nil, nil
	}
	return &roll, err
}

// missing says whether the API server has no TalosCluster of that name.
func (p *pass) missing(ctx context.Context, name string) (bool, error) {
	if p.clusters[name] != nil {
		return false, nil
	}
	var c v1alpha1.TalosCluster
	err := p.Live.Get(ctx, client.ObjectKey{Namespace: p.fleet.Namespace, Name: name}, &c)
	if err == nil {
		p.clusters[name] = &c
	}
	return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
}

func (p *pass) fail(m *v1alpha1.Member, why string) {
	m.Phase, m.Ended = v1alpha1.MemberFailed, p.stamp()
	p.events = append(p.events, note{warning: true, reason: reasonMemberFailed, text: fmt.Sprintf("stage %s: %s", m.Stage, why)})
}

func (p *pass) endOf(roll *v1alpha1.ImageRoll) *metav1.Time {
	if roll.Status.Ended != nil {
		return roll.Status.Ended.DeepCopy()
	}
	return p.stamp()
}

func member(list []v1alpha1.Member, cluster string) *v1alpha1.Member {
	return &list[slices.IndexFunc(list, func(m v1alpha1.Member) bool { return m.Cluster == cluster })]
}

// owns says whether an ImageRoll belongs to this FleetRoll, not to an earlier FleetRoll of the same name.
func owns(f *v1alpha1.FleetRoll, roll *v1alpha1.ImageRoll) bool {
	return slices.ContainsFunc(roll.OwnerReferences, func(o metav1.OwnerReference) bool { return o.UID == f.UID })
}

func message(roll *v1alpha1.ImageRoll) string {
	if c := meta.FindStatusCondition(roll.Status.Conditions, v1alpha1.ConditionReady); c != nil {
		return c.Message
	}
	return "no message"
}

func some(names []string) string { return few(slices.Sorted(slices.Values(names)), ", ", " and") }

func few(texts []string, between, and string) string {
	const most = 5
	if more := len(texts) - most; more > 0 {
		return fmt.Sprintf("%s%s %d more", strings.Join(texts[:most], between), and, more)
	}
	return strings.Join(texts, between)
}

// reasonMemberFailed is the reason of the Event of a failed cluster.
const reasonMemberFailed = "MemberFailed"

type verdict struct {
	ready, progressing, stalled bool
	reason, message             string
}

func stalled(reason, format string, args ...any) verdict {
	return verdict{stalled: true, reason: reason, message: fmt.Sprintf(format, args...)}
}

type note struct {
	warning      bool
	reason, text string
}

type tally struct{ total, running, done, failed int32 }

// count counts the members of a stage. Stage "" stands for all stages.
func (p *pass) count(stage string) tally {
	n := func(phases ...v1alpha1.MemberPhase) int32 {
		return int32(wave{members: p.fleet.Status.Members}.count(stage, phases...))
	}
	running, done, failed := n(v1alpha1.MemberRunning), n(v1alpha1.MemberDone), n(v1alpha1.MemberFailed)
	return tally{n(v1alpha1.MemberWaiting) + running + done + failed, running, done, failed}
}

func (t tally) String() string {
	text := fmt.Sprintf("%d of %d clusters done", t.done, t.total)
	if t.failed > 0 {
		text += fmt.Sprintf(", %d failed", t.failed)
	}
	if t.running > 0 {
		text += fmt.Sprintf(", %d run", t.running)
	}
	return text
}

func (p *pass) verdict(d decision) verdict {
	fleet, stage := p.count(""), p.count(d.Stage)
	waits := func(reason, format string, args ...any) verdict {
		return verdict{progressing: true, reason: reason, message: fmt.Sprintf("stage %s: ", d.Stage) + fmt.Sprintf(format, args...)}
	}
	switch d.Reason {
	case v1alpha1.ReasonSoaking:
		return waits(d.Reason, "%s; watched until %s", stage, d.Again.UTC().Format(time.RFC3339))
	case v1alpha1.ReasonGateClosed:
		return waits(d.Reason, "the next stage waits: %s", lines(d.Closed))
	case v1alpha1.ReasonAwaitingApproval:
		return waits(d.Reason, "add it to spec.approvedStages, and it begins")
	case v1alpha1.ReasonPaused:
		return verdict{progressing: fleet.running > 0, reason: d.Reason, message: fmt.Sprintf("spec.state: Paused: nothing begins; %s", fleet)}
	case v1alpha1.ReasonAborted:
		return stalled(d.Reason, "spec.state: Aborted: nothing begins any more; %s", fleet)
	case v1alpha1.ReasonStageFailed:
		return stalled(d.Reason, "%s, and spec.abortThreshold is %d: nothing begins; find out why %s failed, then raise spec.abortThreshold or make another FleetRoll", fleet, threshold(p.fleet.Spec), some(failed(p.fleet.Status.Members)))
	case v1alpha1.ReasonSucceeded:
		return verdict{ready: true, reason: d.Reason, message: fleet.String()}
	}
	if len(p.blocked) > 0 {
		return waits(v1alpha1.ReasonRetrying, "%s; %s", stage, lines(p.blocked))
	}
	return waits(v1alpha1.ReasonRolling, "%s", stage)
}

func failed(members []v1alpha1.Member) []string {
	var names []string
	for _, m := range members {
		if m.Phase == v1alpha1.MemberFailed {
			names = append(names, m.Cluster)
		}
	}
	return names
}

func lines(texts []string) string { return few(texts, "; ", "; and") }

// tell sets the conditions and counts, saves them, and records an Event of a transition.
func (p *pass) tell(ctx context.Context, v verdict) error {
	s, t := &p.fleet.Status, p.count("")
	v.progressing = v.progressing || v.stalled && t.running > 0
	s.ObservedGeneration = p.fleet.Generation
	s.Done, s.Failed, s.Running, s.Summary = t.done, t.failed, t.running, ""
	if t.total > 0 {
		s.Summary = fmt.Sprintf("%d/%d", t.done, t.total)
	}
	p.condition(v1alpha1.ConditionReady, v.ready, v)
	p.condition(v1alpha1.ConditionProgressing, v.progressing, v)
	p.condition(v1alpha1.ConditionStalled, v.stalled, v)
	before := p.saved.Status
	if reason(before) != v.reason || before.Stage != s.Stage {
		p.events = append(p.events, note{warning: v.stalled, reason: v.reason, text: v.message})
	}
	return p.save(ctx)
}

func (p *pass) condition(kind string, is bool, v verdict) {
	const most = 32768 // bytes; the API's limit
	status := metav1.ConditionFalse
	if is {
		status = metav1.ConditionTrue
	}
	meta.SetStatusCondition(&p.fleet.Status.Conditions, metav1.Condition{
		Type: kind, Status: status, Reason: v.reason, Message: cut(v.message, most),
		ObservedGeneration: p.fleet.Generation, LastTransitionTime: *p.stamp(),
	})
}

// save writes the status, if it has changed, and then sends the Events. It fails with a conflict if the FleetRoll has
// changed since it was read.
func (p *pass) save(ctx context.Context) error {
	if !equality.Semantic.DeepEqual(p.fleet.Status, p.saved.Status) {
		if err := p.Client.Status().Patch(ctx, p.fleet, client.MergeFromWithOptions(p.saved, client.MergeFromWithOptimisticLock{})); err != nil {
			return err
		}
		p.saved = p.fleet.DeepCopy()
	}
	const most = 1000 // bytes; Events have a limit
	for _, n := range p.events {
		kind := corev1.EventTypeNormal
		if n.warning {
			kind = corev1.EventTypeWarning
		}
		p.Recorder.Eventf(p.fleet, nil, kind, n.reason, "Roll", "%s", cut(n.text, most))
	}
	p.events = nil
	return nil
}

// over says whether a fleet has ended for good. A fleet that its threshold stopped has not: it continues when the
// threshold is raised.
func over(s v1alpha1.FleetRollStatus) bool {
	return s.Ended != nil && (reason(s) == v1alpha1.ReasonSucceeded || reason(s) == v1alpha1.ReasonAborted)
}

// confirm acknowledges a newer spec of a fleet that is over.
func (p *pass) confirm(ctx context.Context) error {
	s := &p.fleet.Status
	s.ObservedGeneration = p.fleet.Generation
	for i := range s.Conditions {
		s.Conditions[i].ObservedGeneration = p.fleet.Generation
	}
	return p.save(ctx)
}

func reason(s v1alpha1.FleetRollStatus) string {
	if c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionReady); c != nil {
		return c.Reason
	}
	return ""
}

func cut(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "")
}

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	r.Client, r.Live, r.Recorder = mgr.GetClient(), mgr.GetAPIReader(), mgr.GetEventRecorder(fieldOwner)
	return ctrl.NewControllerManagedBy(mgr).Named("fleetroll").
		For(&v1alpha1.FleetRoll{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Owns(&v1alpha1.ImageRoll{}, builder.MatchEveryOwner, builder.WithPredicates(rollEnds())).
		Watches(&v1alpha1.TalosCluster{}, handler.Funcs{CreateFunc: r.clusterCreated, UpdateFunc: r.clusterUpdated, DeleteFunc: r.clusterDeleted}).
		Complete(reconcile.Func(r.orAgain))
}

// orAgain reconciles. If the cache was outdated, it reconciles again soon: that is expected, and no error to be
// logged.
func (r *Reconciler) orAgain(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	result, err := r.Reconcile(ctx, req)
	if apierrors.IsConflict(err) {
		return reconcile.Result{RequeueAfter: cacheAgain}, nil
	}
	return result, err
}

// rollEnds passes the events that an ImageRoll has finished or is gone, and no others.
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

// clusterCreated enqueues FleetRolls that have no members yet: the new cluster may be one.
func (r *Reconciler) clusterCreated(ctx context.Context, e event.CreateEvent, q queue) {
	r.enqueue(ctx, q, e.Object, func(f *v1alpha1.FleetRoll) bool { return f.Status.Started == nil })
}

// clusterUpdated enqueues FleetRolls without members if the cluster's labels or spec have changed, and FleetRolls
// whose closed gate this cluster may open.
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

// clusterDeleted enqueues the FleetRolls of which the cluster is a member: the member fails if it waits or runs, and
// a gate may open.
func (r *Reconciler) clusterDeleted(ctx context.Context, e event.DeleteEvent, q queue) {
	r.enqueue(ctx, q, e.Object, func(f *v1alpha1.FleetRoll) bool {
		return slices.ContainsFunc(f.Status.Members, func(m v1alpha1.Member) bool { return m.Cluster == e.Object.GetName() })
	})
}

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
