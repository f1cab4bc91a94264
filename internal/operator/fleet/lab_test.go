package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/recast-sh/recast/api/v1alpha1"
	"github.com/recast-sh/recast/internal/sim/must"
)

const namespace = "clusters"

var (
	start     = time.Date(2026, 1, 5, 8, 0, 0, 0, time.UTC)
	errKilled = errors.New("the operator was killed")
	fleetKey  = types.NamespacedName{Namespace: namespace, Name: "upgrade"}
)

// lab is a namespace with clusters in virtual time. ImageRolls last for a while and succeed, or
// fail; some time later a check says so.
type lab struct {
	t       *testing.T
	store   client.WithWatch // as the world writes it: not counted, never fails
	r       *Reconciler
	now     time.Time
	random  *rand.Rand
	failing map[string]bool // clusters whose rolls fail
	unclean map[string]bool // clusters that have a stale node after their roll
	ends    map[string]time.Time
	checks  map[string]time.Time
	events  []string
	meter   meter
	passes  int
	made    map[string]int // ImageRolls, by name
	most    int            // that ran at a time
}

func newLab(t *testing.T, fleet *v1alpha1.FleetRoll, clusters ...*v1alpha1.TalosCluster) *lab {
	t.Helper()
	scheme := runtime.NewScheme()
	must.Do(t, v1alpha1.AddToScheme(scheme))
	l := &lab{
		t: t, now: start, random: rand.New(rand.NewPCG(1, 2)), failing: map[string]bool{}, unclean: map[string]bool{},
		ends: map[string]time.Time{}, checks: map[string]time.Time{}, made: map[string]int{},
	}
	builder := fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&v1alpha1.FleetRoll{}, &v1alpha1.ImageRoll{}, &v1alpha1.TalosCluster{})
	if fleet != nil {
		builder = builder.WithObjects(fleet)
	}
	for _, c := range clusters {
		builder = builder.WithObjects(c)
	}
	l.store = builder.Build()
	l.restart()
	return l
}

// restart is a new operator.
func (l *lab) restart() {
	l.meter.dead = false
	l.r = &Reconciler{
		Client: l.meter.wrap(l.store, false, l.made), Live: l.meter.wrap(l.store, true, l.made),
		Recorder: l, Clock: func() time.Time { return l.now },
	}
}

func (l *lab) Eventf(_, _ runtime.Object, kind, reason, _, note string, args ...any) {
	l.events = append(l.events, kind+" "+reason+" "+fmt.Sprintf(note, args...))
}

func (l *lab) reconcile() (ctrl.Result, error) {
	l.passes++
	res, err := l.r.Reconcile(l.t.Context(), ctrl.Request{NamespacedName: fleetKey})
	l.adopt()
	return res, err
}

// once reconciles without an error.
func (l *lab) once() ctrl.Result {
	l.t.Helper()
	return must.Get(l.reconcile())(l.t)
}

// run reconciles whenever the operator would, until nothing happens any more or done says so.
func (l *lab) run(done func() bool) {
	l.t.Helper()
	for round := range 20000 {
		res, err := l.reconcile()
		switch {
		case errors.Is(err, errKilled):
			l.restart()
			continue
		case apierrors.IsConflict(err):
			continue
		case err != nil:
			l.t.Fatalf("round %d: %v", round, err)
		}
		if done != nil && done() || !l.pass(res.RequeueAfter) {
			return
		}
	}
	l.t.Fatal("no end")
}

// pass lets time go on to the next thing that happens.
func (l *lab) pass(again time.Duration) bool {
	var next time.Time
	earlier := func(t time.Time) {
		if next.IsZero() || t.Before(next) {
			next = t
		}
	}
	if again > 0 {
		earlier(l.now.Add(again))
	}
	for _, t := range l.ends {
		earlier(t)
	}
	for _, t := range l.checks {
		earlier(t)
	}
	if next.IsZero() {
		return false
	}
	l.now = next
	for name, t := range l.ends {
		if !t.After(l.now) {
			delete(l.ends, name)
			l.endRoll(name)
		}
	}
	for name, t := range l.checks {
		if !t.After(l.now) {
			delete(l.checks, name)
			l.check(name)
		}
	}
	return true
}

func (l *lab) adopt() {
	var rolls v1alpha1.ImageRollList
	l.must(l.store.List(l.t.Context(), &rolls, client.InNamespace(namespace)))
	running := 0
	for _, r := range rolls.Items {
		if r.Status.Phase == "" {
			r.Status.Phase = v1alpha1.PhaseRolling
			l.must(l.store.Status().Update(l.t.Context(), &r))
			l.ends[r.Name] = l.now.Add(time.Duration(5+l.random.IntN(40)) * time.Minute)
		}
		if !r.Status.Phase.Finished() {
			running++
		}
	}
	l.most = max(l.most, running)
}

func (l *lab) endRoll(name string) {
	var r v1alpha1.ImageRoll
	if err := l.store.Get(l.t.Context(), types.NamespacedName{Namespace: namespace, Name: name}, &r); apierrors.IsNotFound(err) {
		return
	}
	r.Status.Phase, r.Status.Ended = v1alpha1.PhaseSucceeded, l.stamp()
	if l.failing[r.Spec.ClusterName] {
		r.Status.Phase = v1alpha1.PhaseFailed
		r.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonRefused, Message: "storage is full", LastTransitionTime: *l.stamp()}}
	}
	l.must(l.store.Status().Update(l.t.Context(), &r))
	l.checks[r.Spec.ClusterName] = l.now.Add(3 * time.Minute)
}

func (l *lab) check(name string) {
	c := l.cluster(name)
	c.Status.Check = &v1alpha1.Check{Job: name + "-check", Started: l.stamp(), Ended: l.stamp()}
	c.Status.Nodes = &v1alpha1.Nodes{Total: 3, InSync: 3}
	if l.unclean[name] {
		c.Status.Nodes, c.Status.Check.ExitCode = &v1alpha1.Nodes{Total: 3, InSync: 2, Stale: 1}, 2
	}
	l.must(l.store.Status().Update(l.t.Context(), c))
}

func (l *lab) stamp() *metav1.Time { return new(metav1.NewTime(l.now)) }

func (l *lab) must(err error) {
	l.t.Helper()
	must.Do(l.t, err)
}

func (l *lab) fleet() *v1alpha1.FleetRoll {
	var f v1alpha1.FleetRoll
	l.must(l.store.Get(l.t.Context(), fleetKey, &f))
	return &f
}

func (l *lab) cluster(name string) *v1alpha1.TalosCluster {
	var c v1alpha1.TalosCluster
	l.must(l.store.Get(l.t.Context(), types.NamespacedName{Namespace: namespace, Name: name}, &c))
	return &c
}

// change edits the FleetRoll as a person does.
func (l *lab) change(edit func(*v1alpha1.FleetRollSpec)) {
	f := l.fleet()
	edit(&f.Spec)
	f.Generation++
	l.must(l.store.Update(l.t.Context(), f))
}

func (l *lab) ready() (reason, message, true_ string) {
	var is []string
	for _, c := range l.fleet().Status.Conditions {
		if c.Type == v1alpha1.ConditionReady {
			reason, message = c.Reason, c.Message
		}
		if c.Status == metav1.ConditionTrue {
			is = append(is, c.Type)
		}
	}
	return reason, message, strings.Join(is, " ")
}

// want checks the condition Ready, and which conditions are True.
func (l *lab) want(reason, message, is string) {
	l.t.Helper()
	r, m, i := l.ready()
	if r != reason || !strings.Contains(m, message) || i != is {
		l.t.Fatalf("%s, %q, true: %s; want %s, %q, %s", r, m, i, reason, message, is)
	}
}

func (l *lab) phases() map[v1alpha1.MemberPhase]int {
	count := map[v1alpha1.MemberPhase]int{}
	for _, m := range l.fleet().Status.Members {
		count[m.Phase]++
	}
	return count
}

// wantEvent checks that an Event was told exactly once.
func (l *lab) wantEvent(text string) {
	l.t.Helper()
	n := 0
	for _, e := range l.events {
		if strings.Contains(e, text) {
			n++
		}
	}
	if n != 1 {
		l.t.Errorf("%d Events with %q, want 1:\n%s", n, text, strings.Join(l.events, "\n"))
	}
}

func newCluster(name, stage, site string) *v1alpha1.TalosCluster {
	return &v1alpha1.TalosCluster{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, UID: types.UID("uid-" + name),
			Labels: map[string]string{"stage": stage, defaultSiteLabel: site},
		},
		Spec: v1alpha1.TalosClusterSpec{Lock: v1alpha1.LockUpdate},
	}
}

func newFleet(stages ...string) *v1alpha1.FleetRoll {
	f := &v1alpha1.FleetRoll{
		ObjectMeta: metav1.ObjectMeta{Namespace: fleetKey.Namespace, Name: fleetKey.Name, UID: "uid-fleet", Generation: 1},
		Spec:       v1alpha1.FleetRollSpec{MaxConcurrent: 10, MaxConcurrentPerSite: 10, AbortThreshold: 1, State: v1alpha1.FleetRunning},
	}
	for _, s := range stages {
		f.Spec.Stages = append(f.Spec.Stages, v1alpha1.Stage{Name: s, Selector: metav1.LabelSelector{MatchLabels: map[string]string{"stage": s}}})
	}
	return f
}

func (l *lab) sorted(phase v1alpha1.MemberPhase) []string {
	var names []string
	for _, m := range l.fleet().Status.Members {
		if m.Phase == phase {
			names = append(names, m.Cluster)
		}
	}
	slices.Sort(names)
	return names
}

// TestSetup: the manager takes the reconciler. Nothing is started, so no API server is needed.
func TestSetup(t *testing.T) {
	t.Parallel()
	scheme := runtime.NewScheme()
	must.Do(t, v1alpha1.AddToScheme(scheme))
	mgr := must.Get(ctrl.NewManager(&rest.Config{Host: "http://127.0.0.1:1"}, ctrl.Options{Scheme: scheme, Metrics: server.Options{BindAddress: "0"}}))(t)
	r := &Reconciler{Clock: time.Now}
	err := r.SetupWithManager(mgr)
	must.Hold(t, err == nil && r.Client != nil && r.Live != nil && r.Recorder != nil, "error %v, reconciler %+v", err, r)
}

// TestRollEnds: of an ImageRoll only its end is news.
func TestRollEnds(t *testing.T) {
	t.Parallel()
	roll := func(phase v1alpha1.RollPhase, message string) *v1alpha1.ImageRoll {
		return &v1alpha1.ImageRoll{Status: v1alpha1.ImageRollStatus{Phase: phase, Progress: &v1alpha1.Progress{Message: message}}}
	}
	cases := map[string]struct {
		before, after *v1alpha1.ImageRoll
		want          bool
	}{
		"progress":  {roll(v1alpha1.PhaseRolling, "1"), roll(v1alpha1.PhaseRolling, "2"), false},
		"a phase":   {roll(v1alpha1.PhasePlanning, ""), roll(v1alpha1.PhaseRolling, ""), false},
		"succeeded": {roll(v1alpha1.PhaseRolling, ""), roll(v1alpha1.PhaseSucceeded, ""), true},
		"failed":    {roll(v1alpha1.PhaseRetrying, ""), roll(v1alpha1.PhaseFailed, ""), true},
		"afterward": {roll(v1alpha1.PhaseFailed, "1"), roll(v1alpha1.PhaseFailed, "2"), false},
	}
	for name, c := range cases {
		must.Equal(t, name, c.want, rollEnds().Update(event.UpdateEvent{ObjectOld: c.before, ObjectNew: c.after}))
	}
	if made := roll(v1alpha1.PhasePending, ""); rollEnds().Create(event.CreateEvent{Object: made}) || !rollEnds().Delete(event.DeleteEvent{Object: made}) {
		t.Error("a new ImageRoll is news, or a deleted one is none")
	}
}

// TestWhomAClusterConcerns: a TalosCluster's events lead to the FleetRolls that wait for them.
func TestWhomAClusterConcerns(t *testing.T) {
	t.Parallel()
	l := newLab(t, nil)
	add := func(name, reason string, started, ended bool, phase v1alpha1.MemberPhase) {
		f := newFleet("a")
		f.Name, f.UID = name, "uid-of-a-fleet"
		l.must(l.store.Create(t.Context(), f))
		f.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: reason, LastTransitionTime: *l.stamp()}}
		f.Status.Stage, f.Status.Members = "a", []v1alpha1.Member{{Cluster: "c1", Stage: "a", Phase: phase}, {Cluster: "c2", Stage: "b", Phase: phase}}
		if started {
			f.Status.Started = l.stamp()
		} else {
			f.Status.Members = nil
		}
		if ended {
			f.Status.Ended = l.stamp()
		}
		l.must(l.store.Status().Update(t.Context(), f))
	}
	add("new", v1alpha1.ReasonNoMembers, false, false, "")
	add("rolling", v1alpha1.ReasonRolling, true, false, v1alpha1.MemberRunning)
	add("gated", v1alpha1.ReasonGateClosed, true, false, v1alpha1.MemberDone)
	add("stopped", v1alpha1.ReasonStageFailed, true, true, v1alpha1.MemberWaiting)
	add("done", v1alpha1.ReasonSucceeded, true, true, v1alpha1.MemberDone)
	c1 := newCluster("c1", "a", "x")
	changed := func(change func(*v1alpha1.TalosCluster)) event.UpdateEvent {
		after := c1.DeepCopy()
		after.ResourceVersion = "2"
		change(after)
		return event.UpdateEvent{ObjectOld: c1, ObjectNew: after}
	}
	cases := map[string]struct {
		send func(queue)
		want []string
	}{
		"created":  {func(q queue) { l.r.clusterCreated(t.Context(), event.CreateEvent{Object: c1}, q) }, []string{"new"}},
		"deleted":  {func(q queue) { l.r.clusterDeleted(t.Context(), event.DeleteEvent{Object: c1}, q) }, []string{"gated", "rolling", "stopped"}},
		"a status": {func(q queue) { l.r.clusterUpdated(t.Context(), changed(func(*v1alpha1.TalosCluster) {}), q) }, []string{"gated"}},
		"a label": {func(q queue) {
			l.r.clusterUpdated(t.Context(), changed(func(c *v1alpha1.TalosCluster) { c.Labels["stage"] = "b" }), q)
		}, []string{"gated", "new"}},
		"a spec": {func(q queue) {
			l.r.clusterUpdated(t.Context(), changed(func(c *v1alpha1.TalosCluster) { c.Generation++ }), q)
		}, []string{"gated", "new"}},
		"of later stages": {func(q queue) {
			l.r.clusterUpdated(t.Context(), changed(func(c *v1alpha1.TalosCluster) { c.Name = "c2" }), q)
		}, nil},
		"nothing": {func(q queue) { l.r.clusterUpdated(t.Context(), event.UpdateEvent{ObjectOld: c1, ObjectNew: c1}, q) }, nil},
	}
	for name, c := range cases {
		q := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
		c.send(q)
		var got []string
		for q.Len() > 0 {
			item, _ := q.Get()
			got = append(got, item.Name)
			q.Done(item)
		}
		q.ShutDown()
		slices.Sort(got)
		must.Equal(t, name, c.want, got)
	}
}

type meter struct {
	calls, requests int // all, and those that reach an API server: a cache answers the others
	writes          int
	killAt          int  // 0: never
	late            bool // the call is carried out, but the operator does not live to see it
	dead            bool
}

func (m *meter) do(request, write bool, call func() error) error {
	if m.dead {
		return errKilled
	}
	m.calls++
	if request {
		m.requests++
	}
	if write {
		m.writes++
	}
	if m.calls != m.killAt {
		return call()
	}
	m.dead = true
	if m.late {
		_ = call() // its outcome is lost
	}
	return errKilled
}

// wrap is a client whose calls are counted. A live one reads from the API server.
func (m *meter) wrap(c client.WithWatch, live bool, made map[string]int) client.WithWatch {
	return interceptor.NewClient(c, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			return m.do(live, false, func() error { return c.Get(ctx, key, o, opts...) })
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			return m.do(live, false, func() error { return c.List(ctx, list, opts...) })
		},
		Apply: func(ctx context.Context, c client.WithWatch, o runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
			return m.do(true, true, func() error {
				if kind, name := identity(o); kind == "ImageRoll" && c.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, &v1alpha1.ImageRoll{}) != nil {
					made[name]++
				}
				return c.Apply(ctx, o, opts...)
			})
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
			return m.do(true, true, func() error { return c.SubResource(sub).Patch(ctx, o, patch, opts...) })
		},
	})
}

func identity(o runtime.ApplyConfiguration) (kind, name string) {
	b, err := json.Marshal(o)
	if err != nil {
		return "", ""
	}
	var u unstructured.Unstructured
	if u.UnmarshalJSON(b) != nil {
		return "", ""
	}
	return u.GetKind(), u.GetName()
}

type getter = func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error

// stale reads objects of a type as they were.
func stale[T interface {
	client.Object
	DeepCopyInto(T)
}](old T) getter {
	return func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
		if o, ok := o.(T); ok {
			old.DeepCopyInto(o)
			return nil
		}
		return c.Get(ctx, key, o, opts...)
	}
}
