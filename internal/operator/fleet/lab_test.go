package fleet

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/recast-sh/recast/api/v1alpha1"
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
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
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

// adopt begins the ImageRolls that are new.
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
	if err != nil {
		l.t.Fatal(err)
	}
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

// ready is the reason and the message of the condition Ready, and which conditions are True.
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

// sorted lists the keys of members in a phase.
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
