// Package fleet rolls many TalosClusters: it has the reconciler of FleetRolls. The reconciler makes an ImageRoll for
// each cluster in turn. It keeps its state in the status of the FleetRoll, so the operator may be killed at any point.
package fleet

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/ext"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/recast-sh/recast/api/v1alpha1"
	"github.com/recast-sh/recast/internal/expression"
)

const (
	// lookAgain is when to look at a closed gate or missing clusters again, if no event comes.
	lookAgain = time.Minute
	// startAgain is when to try again to make the ImageRoll of a cluster.
	startAgain = 10 * time.Second
	// cacheAgain is how long the cache may take to see what was just written.
	cacheAgain = time.Second
)

type Reconciler struct {
	Client   client.Client
	Live     client.Reader // reads from the API server, not from the cache
	Recorder events.EventRecorder
	Clock    func() time.Time

	gates programs
}

type pass struct {
	*Reconciler
	fleet    *v1alpha1.FleetRoll
	saved    *v1alpha1.FleetRoll // as the API server has it
	now      time.Time
	again    time.Time // zero: when something changes
	clusters map[string]*v1alpha1.TalosCluster
	rolls    map[string]*v1alpha1.ImageRoll // of this FleetRoll
	blocked  []string                       // why members that should run have no ImageRoll yet
	events   []note                         // sent when the status is saved
}

func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var f v1alpha1.FleetRoll
	if err := r.Client.Get(ctx, req.NamespacedName, &f); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !f.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, nil // Kubernetes deletes the ImageRolls with the FleetRoll, after their Jobs have ended
	}
	p := &pass{Reconciler: r, fleet: &f, saved: f.DeepCopy(), now: r.Clock()}
	if over(f.Status) {
		return ctrl.Result{}, p.confirm(ctx)
	}
	if err := p.read(ctx); err != nil {
		return ctrl.Result{}, err
	}
	err := p.step(ctx)
	if err != nil || p.again.IsZero() {
		return ctrl.Result{}, err
	}
	return ctrl.Result{RequeueAfter: max(100*time.Millisecond, p.again.Sub(p.now))}, nil
}

// read lists the clusters and the ImageRolls of the fleet. The objects belong to the cache.
func (p *pass) read(ctx context.Context) error {
	var clusters v1alpha1.TalosClusterList
	if err := p.Client.List(ctx, &clusters, client.InNamespace(p.fleet.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return err
	}
	var rolls v1alpha1.ImageRollList
	if err := p.Client.List(ctx, &rolls, client.InNamespace(p.fleet.Namespace), client.MatchingLabels{v1alpha1.LabelFleet: p.fleet.Name}, client.UnsafeDisableDeepCopy); err != nil {
		return err
	}
	p.clusters, p.rolls = map[string]*v1alpha1.TalosCluster{}, map[string]*v1alpha1.ImageRoll{}
	for i := range clusters.Items {
		p.clusters[clusters.Items[i].Name] = &clusters.Items[i]
	}
	for i := range rolls.Items {
		if owns(p.fleet, &rolls.Items[i]) {
			p.rolls[rolls.Items[i].Name] = &rolls.Items[i]
		}
	}
	return nil
}

func (p *pass) step(ctx context.Context) error {
	plan, invalid := p.gates.plan(p.fleet.Spec)
	if p.fleet.Status.Started == nil {
		if v, begins := p.freeze(plan, invalid); !begins {
			return p.tell(ctx, v)
		}
	}
	if err := p.observe(ctx); err != nil {
		return err
	}
	if invalid = errors.Join(invalid, lostStages(p.fleet)); invalid != nil {
		return p.tell(ctx, stalled(v1alpha1.ReasonInvalidSpec, "%s", invalid))
	}
	d, err := p.decide(ctx, plan)
	if err != nil {
		return err
	}
	// The status with the running members is saved before their ImageRolls are made: after a kill the next operator
	// makes the missing ones. A decision from an outdated cache fails here, with a conflict.
	if len(d.Begin) > 0 {
		if err := p.tell(ctx, p.verdict(d)); err != nil {
			return err
		}
	}
	unstarted := p.start(ctx)
	return errors.Join(unstarted, p.tell(ctx, p.verdict(d)))
}

// decide makes a decision, and starts the members that may begin. A member whose TalosCluster is gone fails.
func (p *pass) decide(ctx context.Context, plan plan) (decision, error) {
	gate := func(i int) []string { return p.gate(ctx, p.fleet.Spec.Stages[i].Name, plan.stages[i].gates) }
	for {
		d := wave{p.fleet.Spec, p.fleet.Status.Members, gate}.decide(p.now)
		gone := false
		for _, name := range d.Begin {
			missing, err := p.missing(ctx, name)
			if err != nil {
				return d, err
			}
			if missing {
				p.fail(member(p.fleet.Status.Members, name), "TalosCluster "+name+" was deleted")
				gone = true
			}
		}
		if gone {
			continue
		}
		for _, name := range d.Begin {
			member(p.fleet.Status.Members, name).Phase = v1alpha1.MemberRunning
		}
		p.lookAgain(d.Again)
		if d.Reason == v1alpha1.ReasonGateClosed {
			p.lookAgain(p.now.Add(lookAgain))
		}
		p.fleet.Status.Stage = d.Stage
		p.fleet.Status.Ended = nil
		if d.Over {
			p.fleet.Status.Ended = p.lastEnd()
		}
		return d, nil
	}
}

// lookAgain makes sure that the next look is no later than t. A zero t changes nothing.
func (p *pass) lookAgain(t time.Time) {
	if !t.IsZero() && (p.again.IsZero() || t.Before(p.again)) {
		p.again = t
	}
}

// stamp returns the current time, as an object stores it.
func (p *pass) stamp() *metav1.Time { return new(metav1.NewTime(p.now.Truncate(time.Second))) }

func (p *pass) lastEnd() *metav1.Time {
	var last *metav1.Time
	for _, m := range p.fleet.Status.Members {
		if m.Ended != nil && (last == nil || last.Before(m.Ended)) {
			last = m.Ended
		}
	}
	if last == nil {
		return p.stamp()
	}
	return last.DeepCopy()
}

const exprKept = 1000

type plan struct{ stages []stage }

type stage struct {
	selector labels.Selector
	gates    []gate
}

type gate struct {
	expr    string
	program cel.Program
}

type programs struct {
	mu   sync.Mutex
	kept map[string]cel.Program
}

var gateEnv = sync.OnceValues(func() (*cel.Env, error) {
	return cel.NewEnv(cel.OptionalTypes(), ext.Strings(), cel.Variable("cluster", cel.DynType))
})

// plan parses the selectors and gates of a spec. The error names every wrong field.
func (c *programs) plan(spec v1alpha1.FleetRollSpec) (plan, error) {
	var p plan
	var problems []error
	for i, s := range spec.Stages {
		selector, err := metav1.LabelSelectorAsSelector(&s.Selector)
		if err != nil {
			problems = append(problems, fmt.Errorf("spec.stages[%d].selector: %w: use matchLabels, or matchExpressions with In, NotIn, Exists or DoesNotExist", i, err))
		}
		read := stage{selector: selector}
		for j, expr := range s.Gates {
			program, err := c.compile(expr)
			if err != nil {
				problems = append(problems, fmt.Errorf("spec.stages[%d].gates[%d]: %w: write a CEL expression that is true or false, for example cluster.status.nodes.total >= 3", i, j, err))
			}
			read.gates = append(read.gates, gate{expr, program})
		}
		p.stages = append(p.stages, read)
	}
	return p, errors.Join(problems...)
}

func (c *programs) compile(expr string) (cel.Program, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if program := c.kept[expr]; program != nil {
		return program, nil
	}
	program, _, err := expression.Program(gateEnv, expr)
	if err != nil {
		return nil, err
	}
	if c.kept == nil || len(c.kept) >= exprKept {
		c.kept = map[string]cel.Program{}
	}
	c.kept[expr] = program
	return program, nil
}

// gate returns why the gate behind a stage is closed, a line for each cluster. A cluster that was deleted meanwhile
// does not close the gate.
func (p *pass) gate(ctx context.Context, stage string, gates []gate) []string {
	var closed []string
	for _, m := range p.fleet.Status.Members {
		c := p.clusters[m.Cluster]
		if m.Stage != stage || m.Phase != v1alpha1.MemberDone || c == nil {
			continue
		}
		if why := unchecked(c, m); why != "" {
			closed = append(closed, m.Cluster+": "+why)
			continue
		}
		for _, g := range gates {
			if why := g.closed(ctx, c); why != "" {
				closed = append(closed, fmt.Sprintf("%s: %s: %s", m.Cluster, g.expr, why))
			}
		}
	}
	return closed
}

// unchecked returns why no check after the cluster's roll shows that every node runs what the files say; "" if one
// does.
func unchecked(c *v1alpha1.TalosCluster, m v1alpha1.Member) string {
	const exitDone, exitDrift = 0, 2
	check, nodes := c.Status.Check, c.Status.Nodes
	switch {
	case check == nil || check.Ended == nil || nodes == nil || m.Ended != nil && cmp.Or(check.Started, check.Ended).Before(m.Ended):
		return "no check has ended that was begun after its roll"
	case check.ExitCode != exitDone && check.ExitCode != exitDrift:
		return strings.TrimSuffix(fmt.Sprintf("its check failed with exit code %d: %s", check.ExitCode, strings.Join(check.Problems, "; ")), ": ")
	case nodes.Stale > 0 || nodes.Unread > 0:
		return fmt.Sprintf("%d nodes stale, %d unread", nodes.Stale, nodes.Unread)
	}
	return ""
}

// closed returns why an expression is not true of a cluster; "" if it is true.
func (g gate) closed(ctx context.Context, c *v1alpha1.TalosCluster) string {
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(c)
	if err != nil {
		return err.Error()
	}
	object["apiVersion"], object["kind"] = v1alpha1.GroupVersion.String(), "TalosCluster"
	out, _, err := g.program.ContextEval(ctx, map[string]any{"cluster": object})
	if err != nil {
		return err.Error()
	}
	if holds, ok := out.Value().(bool); !ok {
		return fmt.Sprintf("its value is of type %s, not true or false", out.Type().TypeName())
	} else if !holds {
		return "is not true"
	}
	return ""
}

// Field owners of server-side apply. The annotation of a TalosCluster has its own owner: apply replaces everything
// that the same owner has set before.
const (
	fieldOwner       = "recast-operator"
	targetFieldOwner = "recast-operator-fleet"
)

func (p *pass) start(ctx context.Context) error {
	var problems []error
	for i := range p.fleet.Status.Members {
		m := &p.fleet.Status.Members[i]
		if m.Phase != v1alpha1.MemberRunning || m.Roll != "" {
			continue
		}
		if err := p.startMember(ctx, m); err != nil {
			problems = append(problems, fmt.Errorf("begin the roll of TalosCluster %s: %w", m.Cluster, err))
		}
	}
	return errors.Join(problems...)
}

// startMember sets the target of a cluster, then makes its ImageRoll, whose plan uses that target. It may be repeated
// after any failure: it makes only what is missing.
func (p *pass) startMember(ctx context.Context, m *v1alpha1.Member) error {
	name := rollName(p.fleet.Name, m.Cluster)
	made := p.rolls[name]
	if made == nil {
		var roll v1alpha1.ImageRoll
		err := p.Live.Get(ctx, client.ObjectKey{Namespace: p.fleet.Namespace, Name: name}, &roll)
		switch {
		case err == nil && !owns(p.fleet, &roll):
			p.blocked = append(p.blocked, fmt.Sprintf("TalosCluster %s waits until ImageRoll %s is deleted, which is not of this FleetRoll", m.Cluster, name))
			p.lookAgain(p.now.Add(startAgain))
			return nil
		case err == nil:
			made = &roll
		case !apierrors.IsNotFound(err):
			return err
		}
	}
	if made == nil {
		ready, err := p.setTarget(ctx, m.Cluster)
		if err != nil || !ready {
			return err
		}
		if err := p.makeRoll(ctx, name, m.Cluster); err != nil {
			return err
		}
	}
	m.Roll = name
	return nil
}

// setTarget sets the annotation with the version on a TalosCluster. ready means that the cache has the annotation:
// the reconciler of ImageRolls reads the target from the same cache.
func (p *pass) setTarget(ctx context.Context, cluster string) (ready bool, err error) {
	want, c := p.fleet.Spec.TalosVersion, p.clusters[cluster]
	if want == "" || c.Annotations[v1alpha1.AnnotationTalosTarget] == want {
		return true, nil
	}
	o := object("TalosCluster", p.fleet.Namespace, cluster, map[string]any{
		"uid":         string(c.UID), // without a UID, apply would create a cluster that was just deleted
		"annotations": map[string]any{v1alpha1.AnnotationTalosTarget: want},
	})
	if err := p.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(o), client.FieldOwner(targetFieldOwner), client.ForceOwnership); err != nil {
		return false, err
	}
	var cached v1alpha1.TalosCluster
	if err := p.Client.Get(ctx, client.ObjectKey{Namespace: p.fleet.Namespace, Name: cluster}, &cached); err != nil {
		return false, err
	}
	if cached.Annotations[v1alpha1.AnnotationTalosTarget] == want {
		return true, nil
	}
	p.lookAgain(p.now.Add(cacheAgain))
	return false, nil
}

func (p *pass) makeRoll(ctx context.Context, name, cluster string) error {
	o := object("ImageRoll", p.fleet.Namespace, name, map[string]any{
		"labels": map[string]any{v1alpha1.LabelFleet: p.fleet.Name, v1alpha1.LabelCluster: cluster},
		"ownerReferences": []any{map[string]any{
			"apiVersion": v1alpha1.GroupVersion.String(), "kind": "FleetRoll", "name": p.fleet.Name, "uid": string(p.fleet.UID),
		}},
	})
	o.Object["spec"] = map[string]any{"clusterName": cluster, "action": string(v1alpha1.ActionNodes), "approved": true}
	return p.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(o), client.FieldOwner(fieldOwner), client.ForceOwnership)
}

func object(kind, namespace, name string, metadata map[string]any) *unstructured.Unstructured {
	metadata["namespace"], metadata["name"] = namespace, name
	o := &unstructured.Unstructured{Object: map[string]any{"metadata": metadata}}
	o.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(kind))
	return o
}

// rollName returns the name of a cluster's ImageRoll, at most 50 characters.
func rollName(fleet, cluster string) string {
	const most, kept = 50, 41
	name := fleet + "-" + cluster
	if len(name) <= most {
		return name
	}
	return fmt.Sprintf("%s-%.4x", name[:kept], sha256.Sum256([]byte(name)))
}

// wave decides which clusters of a fleet are rolled next. It only computes, and reads no clock.
//
// Stages run strictly one after the other. A stage is over when all of its members are done or failed. The next stage
// begins when the soak time since the last end has passed, the gate is open and the stage is approved. Failed members
// count against the abort threshold. A stage without members does not count.
type wave struct {
	v1alpha1.FleetRollSpec // limits less than 1 count as 1, but a stage's limit of 0 is that of the fleet
	members                []v1alpha1.Member
	// gate returns why the stage after the i-th may not begin yet. gate is called only when all members of the i-th
	// stage have ended and none of the next stage has begun.
	gate func(i int) []string
}

type decision struct {
	Begin  []string  // members to begin, by name
	Stage  string    // the stage that runs or soaks, or whose gate or approval is missing
	Reason string    // what the fleet waits for, or why it is over
	Closed []string  // the result of the gate, if Reason is ReasonGateClosed
	Again  time.Time // when to decide again even if nothing changes; zero: never
	Over   bool      // nothing runs and nothing will begin
}

func (w wave) decide(now time.Time) decision {
	d := w.next(now)
	stopped := []string{v1alpha1.ReasonSucceeded, v1alpha1.ReasonAborted, v1alpha1.ReasonStageFailed}
	d.Over = slices.Contains(stopped, d.Reason) && w.count("", v1alpha1.MemberRunning) == 0
	return d
}

func (w wave) next(now time.Time) decision {
	i := slices.IndexFunc(w.Stages, func(s v1alpha1.Stage) bool {
		return w.count(s.Name, v1alpha1.MemberWaiting, v1alpha1.MemberRunning) > 0
	})
	ended := i < 0
	if ended {
		i = len(w.Stages)
	}
	before := i - 1 // the last stage that has ended; -1: none
	for before >= 0 && w.count(w.Stages[before].Name, v1alpha1.MemberDone, v1alpha1.MemberFailed) == 0 {
		before--
	}
	var stage, last v1alpha1.Stage
	if before >= 0 {
		last = w.Stages[before]
	}
	if stage = last; !ended {
		stage = w.Stages[i]
	}
	switch soaked := w.lastEnd(last.Name).Add(last.Soak.Duration); {
	case !ended && w.State == v1alpha1.FleetAborted:
		return decision{Stage: stage.Name, Reason: v1alpha1.ReasonAborted}
	case w.count("", v1alpha1.MemberFailed) >= threshold(w.FleetRollSpec):
		return decision{Stage: stage.Name, Reason: v1alpha1.ReasonStageFailed}
	case ended:
		return decision{Stage: stage.Name, Reason: v1alpha1.ReasonSucceeded}
	case w.State == v1alpha1.FleetPaused:
		return decision{Stage: stage.Name, Reason: v1alpha1.ReasonPaused}
	case w.begun(stage.Name):
		return decision{Stage: stage.Name, Reason: v1alpha1.ReasonRolling, Begin: w.begin(stage)}
	case before >= 0 && now.Before(soaked):
		return decision{Stage: last.Name, Reason: v1alpha1.ReasonSoaking, Again: soaked}
	}
	if before >= 0 {
		if closed := w.gate(before); len(closed) > 0 {
			return decision{Stage: last.Name, Reason: v1alpha1.ReasonGateClosed, Closed: closed}
		}
	}
	if w.unapproved(stage) {
		return decision{Stage: stage.Name, Reason: v1alpha1.ReasonAwaitingApproval}
	}
	return decision{Stage: stage.Name, Reason: v1alpha1.ReasonRolling, Begin: w.begin(stage)}
}

func (w wave) begun(stage string) bool {
	return w.count(stage, v1alpha1.MemberRunning, v1alpha1.MemberDone, v1alpha1.MemberFailed) > 0
}

func (w wave) unapproved(stage v1alpha1.Stage) bool {
	return stage.Approval == v1alpha1.ApprovalManual && !slices.Contains(w.ApprovedStages, stage.Name)
}

// begin lists the waiting members of a stage that there is room for, in the order of their names. A full site does
// not hold up members of other sites.
func (w wave) begin(stage v1alpha1.Stage) []string {
	room := max(1, int(w.MaxConcurrent)) - w.count("", v1alpha1.MemberRunning)
	if stage.MaxConcurrent > 0 {
		room = min(room, int(stage.MaxConcurrent)-w.count(stage.Name, v1alpha1.MemberRunning))
	}
	sites := map[string]int32{}
	for _, m := range w.members {
		if m.Phase == v1alpha1.MemberRunning {
			sites[m.Site]++
		}
	}
	var names []string
	byName := func(a, b v1alpha1.Member) int { return cmp.Compare(a.Cluster, b.Cluster) }
	for _, m := range slices.SortedFunc(slices.Values(w.members), byName) {
		if len(names) >= room {
			break
		}
		if m.Stage == stage.Name && m.Phase == v1alpha1.MemberWaiting && sites[m.Site] < max(1, w.MaxConcurrentPerSite) {
			sites[m.Site]++
			names = append(names, m.Cluster)
		}
	}
	return names
}

// count returns how many members of a stage are in one of the phases. Stage "" stands for all stages.
func (w wave) count(stage string, phases ...v1alpha1.MemberPhase) (n int) {
	for _, m := range w.members {
		if (stage == "" || m.Stage == stage) && slices.Contains(phases, m.Phase) {
			n++
		}
	}
	return n
}

func (w wave) lastEnd(stage string) time.Time {
	var last time.Time
	for _, m := range w.members {
		if m.Stage == stage && m.Ended != nil && m.Ended.After(last) {
			last = m.Ended.Time
		}
	}
	return last
}

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

// orAgain reconciles. If the cache was outdated, it reconciles again soon: that is expected, and no error to be logged.
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
