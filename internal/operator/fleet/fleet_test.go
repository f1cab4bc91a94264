package fleet

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/recast-sh/recast/api/v1alpha1"
	"github.com/recast-sh/recast/internal/sim/must"
)

// hundred is a fleet of 100 clusters in 10 sites: 5 canaries, 35 early ones, and the rest.
func hundred() (*v1alpha1.FleetRoll, []*v1alpha1.TalosCluster) {
	var clusters []*v1alpha1.TalosCluster
	for i := range 100 {
		stage := "rest"
		switch {
		case i%20 == 0:
			stage = "canary"
		case i%20 <= 7:
			stage = "early"
		}
		clusters = append(clusters, newCluster(fmt.Sprintf("c%03d", i), stage, fmt.Sprintf("site%d", i%10)))
	}
	f := newFleet("canary", "early", "rest")
	f.Spec.MaxConcurrent, f.Spec.MaxConcurrentPerSite, f.Spec.TalosVersion = 12, 2, "v1.14.2"
	f.Spec.Stages[0].MaxConcurrent, f.Spec.Stages[0].Soak = 3, metav1.Duration{Duration: time.Hour}
	f.Spec.Stages[2].Selector = metav1.LabelSelector{}
	return f, clusters
}

func TestHundredClusters(t *testing.T) {
	if testing.Short() {
		t.Skip("long")
	}
	t.Parallel()
	f, clusters := hundred()
	l := newLab(t, f, clusters...)
	l.run(func() bool { l.checkLimits(); return false })
	l.want(v1alpha1.ReasonSucceeded, "100 of 100 clusters done", "Ready")
	for name, n := range l.made {
		must.Equal(t, name+" was made", 1, n)
	}
	if s := l.fleet().Status; len(l.made) != 100 || s.Summary != "100/100" || s.Done != 100 || s.Running != 0 || s.Ended == nil {
		t.Errorf("%d ImageRolls; status %s, %d done, %d run, ended %v", len(l.made), s.Summary, s.Done, s.Running, s.Ended)
	}
	for _, e := range []string{"Rolling stage canary: ", "Soaking stage canary: ", "Rolling stage early: ", "GateClosed stage early: ", "Rolling stage rest: ", "Succeeded 100 of 100"} {
		l.wantEvent(e)
	}
	per := func(n int) string { return strconv.FormatFloat(float64(n)/100, 'f', 1, 64) }
	t.Attr("reconciles-per-member", per(l.passes))
	t.Attr("api-requests-per-member", per(l.meter.requests))
	t.Attr("events", strconv.Itoa(len(l.events)))
	t.Logf("100 clusters in 10 sites: %s of virtual time, at most %d at a time, %s reconciles, %s API requests (%s of them writes) per cluster",
		l.now.Sub(start), l.most, per(l.passes), per(l.meter.requests), per(l.meter.writes))
	must.Hold(t, l.meter.requests <= 600, "%d API requests, want at most 6 per cluster", l.meter.requests)
}

// checkLimits looks at the ImageRolls, not at what the status says of them.
func (l *lab) checkLimits() {
	l.t.Helper()
	f := l.fleet()
	var rolls v1alpha1.ImageRollList
	l.must(l.store.List(l.t.Context(), &rolls, client.InNamespace(namespace)))
	open, sites, stages, begun := 0, map[string]int{}, map[string]int{}, map[string]int{}
	stage := map[string]v1alpha1.Member{} // by cluster
	for _, m := range f.Status.Members {
		stage[m.Cluster] = m
	}
	var clusters v1alpha1.TalosClusterList
	l.must(l.store.List(l.t.Context(), &clusters, client.InNamespace(namespace)))
	target := map[string]string{}
	for _, c := range clusters.Items {
		target[c.Name] = c.Annotations[v1alpha1.AnnotationTalosTarget]
	}
	for _, r := range rolls.Items {
		m := stage[r.Spec.ClusterName]
		begun[m.Stage]++
		if !r.Status.Phase.Finished() {
			open++
			sites[m.Site]++
			stages[m.Stage]++
		}
		if !r.Spec.Approved || r.Labels[v1alpha1.LabelFleet] != f.Name || len(r.OwnerReferences) != 1 || r.OwnerReferences[0].BlockOwnerDeletion != nil {
			l.t.Fatalf("ImageRoll %+v", r.ObjectMeta)
		}
		if want := f.Spec.TalosVersion; target[r.Spec.ClusterName] != want {
			l.t.Fatalf("cluster %s has an ImageRoll, but not the target %s", r.Spec.ClusterName, want)
		}
	}
	for site, n := range sites {
		if n > int(f.Spec.MaxConcurrentPerSite) {
			l.t.Fatalf("%d rolls at a time in %s", n, site)
		}
	}
	if open > int(f.Spec.MaxConcurrent) {
		l.t.Fatalf("%d rolls at a time", open)
	}
	for i, s := range f.Spec.Stages {
		if s.MaxConcurrent > 0 && stages[s.Name] > int(s.MaxConcurrent) {
			l.t.Fatalf("%d rolls at a time in stage %s", stages[s.Name], s.Name)
		}
		if i > 0 && begun[s.Name] > 0 && stages[f.Spec.Stages[i-1].Name] > 0 {
			l.t.Fatalf("stage %s has begun while %s runs", s.Name, f.Spec.Stages[i-1].Name)
		}
	}
}

func TestThresholdStopsTheSecondStage(t *testing.T) {
	if testing.Short() {
		t.Skip("long")
	}
	t.Parallel()
	f, clusters := hundred()
	f.Spec.AbortThreshold = 2
	l := newLab(t, f, clusters...)
	l.failing["c001"], l.failing["c022"] = true, true
	l.run(nil)
	l.want(v1alpha1.ReasonStageFailed, "2 failed, and spec.abortThreshold is 2: nothing begins; find out why c001, c022 failed", "Stalled")
	l.wantEvent("Warning MemberFailed stage early: ImageRoll upgrade-c001 failed: storage is full")
	l.wantEvent("Warning AbortThreshold")
	count := l.phases()
	if count[v1alpha1.MemberFailed] != 2 || count[v1alpha1.MemberRunning] != 0 || count[v1alpha1.MemberWaiting] < 60 || l.fleet().Status.Stage != "early" {
		t.Errorf("members %v in stage %s: want 2 failed, none running, the last stage waiting", count, l.fleet().Status.Stage)
	}
	made := len(l.made)
	l.run(nil)
	must.Equal(t, "number of ImageRolls", made, len(l.made))
	l.change(func(s *v1alpha1.FleetRollSpec) { s.AbortThreshold = 3 })
	l.run(nil)
	l.want(v1alpha1.ReasonSucceeded, "98 of 100 clusters done, 2 failed", "Ready")
}

func TestMembersAreFrozen(t *testing.T) {
	t.Parallel()
	l := newLab(t, newFleet("a", "b"), newCluster("a1", "a", "x"), newCluster("b1", "b", "x"), newCluster("z", "other", "x"))
	l.once()
	l.must(l.store.Create(t.Context(), newCluster("b2", "b", "x")))
	moved := l.cluster("b1")
	moved.Labels["stage"] = "other"
	l.must(l.store.Update(t.Context(), moved))
	l.run(nil)
	l.want(v1alpha1.ReasonSucceeded, "2 of 2 clusters done", "Ready")
	must.Equal(t, "ImageRolls", map[string]int{"upgrade-a1": 1, "upgrade-b1": 1}, l.made)
}

func TestFirstStageThatMatches(t *testing.T) {
	t.Parallel()
	f := newFleet("a", "all")
	f.Spec.Stages[1].Selector = metav1.LabelSelector{}
	l := newLab(t, f, newCluster("a1", "a", "x"), newCluster("b1", "b", ""))
	l.run(nil)
	for _, m := range l.fleet().Status.Members {
		want := map[string]string{"a1": "a x", "b1": "all "}[m.Cluster]
		must.Hold(t, m.Stage+" "+m.Site == want, "%s: stage and site %s %s, want %s", m.Cluster, m.Stage, m.Site, want)
	}
}

func TestGate(t *testing.T) {
	t.Parallel()
	minutes := func(n int) *metav1.Time { return new(metav1.NewTime(start.Add(time.Duration(n) * time.Minute))) }
	checked := func(begun, ended *metav1.Time, code int32, nodes v1alpha1.Nodes) func(*v1alpha1.TalosCluster) {
		return func(c *v1alpha1.TalosCluster) {
			c.Status.Check = &v1alpha1.Check{Started: begun, Ended: ended, ExitCode: code, Problems: []string{"no route to host"}}
			c.Status.Nodes = &nodes
		}
	}
	fine := checked(minutes(11), minutes(12), 0, v1alpha1.Nodes{Total: 3, InSync: 3})
	const outdated = "c1: no check has ended that was begun after its roll"
	type example struct {
		cluster func(*v1alpha1.TalosCluster)
		gates   []string
		want    []string
	}
	cases := map[string]example{
		"in sync":               {fine, nil, nil},
		"no check":              {func(*v1alpha1.TalosCluster) {}, nil, []string{outdated}},
		"an older check":        {checked(minutes(8), minutes(9), 0, v1alpha1.Nodes{}), nil, []string{outdated}},
		"begun before the end":  {checked(minutes(9), minutes(11), 0, v1alpha1.Nodes{}), nil, []string{outdated}},
		"only the end is known": {checked(nil, minutes(11), 0, v1alpha1.Nodes{}), nil, nil},
		"the check failed":      {checked(minutes(11), minutes(12), 1, v1alpha1.Nodes{}), nil, []string{"c1: its check failed with exit code 1: no route to host"}},
		"stale":                 {checked(minutes(11), minutes(12), 2, v1alpha1.Nodes{Stale: 2}), nil, []string{"c1: 2 nodes stale, 0 unread"}},
		"unread":                {checked(minutes(11), minutes(12), 2, v1alpha1.Nodes{Unread: 1}), nil, []string{"c1: 0 nodes stale, 1 unread"}},
		"Kubernetes drifts":     {checked(minutes(11), minutes(12), 2, v1alpha1.Nodes{Total: 3}), nil, nil},
		"CEL, true":             {fine, []string{"cluster.status.nodes.total >= 3", "cluster.kind == 'TalosCluster' && cluster.metadata.labels.stage == 'a'"}, nil},
		"CEL, false":            {fine, []string{"cluster.status.nodes.total > 3"}, []string{"c1: cluster.status.nodes.total > 3: is not true"}},
		"CEL, a missing field":  {fine, []string{"cluster.status.talos.current == 'v1'"}, []string{"c1: cluster.status.talos.current == 'v1': no such key: talos"}},
		"CEL, optional":         {fine, []string{"cluster.?status.?talos.?current.orValue('v1') == 'v1'"}, nil},
		"CEL, not true or false": {fine, []string{"cluster.metadata.name"}, []string{
			"c1: cluster.metadata.name: its value is of type string, not true or false",
		}},
		"CEL, too much": {fine, []string{"[0,1,2,3,4,5,6,7,8,9].all(a, [0,1,2,3,4,5,6,7,8,9].all(b, [0,1,2,3,4,5,6,7,8,9].all(c, [0,1,2,3,4,5,6,7,8,9].all(d, [0,1,2,3,4,5,6,7,8,9].all(e, [0,1,2,3,4,5,6,7,8,9].all(f, a+b+c+d+e+f >= 0))))))"}, []string{
			"operation cancelled: actual cost limit exceeded",
		}},
	}
	must.Each(t, cases, func(t *testing.T, c example) {
		cluster := newCluster("c1", "a", "x")
		c.cluster(cluster)
		f := newFleet("a")
		f.Spec.Stages[0].Gates = c.gates
		f.Status.Members = []v1alpha1.Member{
			{Cluster: "c1", Stage: "a", Phase: v1alpha1.MemberDone, Ended: minutes(10)},
			{Cluster: "c2", Stage: "a", Phase: v1alpha1.MemberFailed, Ended: minutes(10)},
			{Cluster: "deleted", Stage: "a", Phase: v1alpha1.MemberDone, Ended: minutes(10)},
			{Cluster: "c3", Stage: "b", Phase: v1alpha1.MemberDone, Ended: minutes(10)},
		}
		r := &Reconciler{}
		plan := must.Get(r.gates.plan(f.Spec))(t)
		p := &pass{Reconciler: r, fleet: f, clusters: map[string]*v1alpha1.TalosCluster{
			"c1": cluster, "c2": newCluster("c2", "a", "x"), "c3": newCluster("c3", "b", "x"),
		}}
		got := p.gate(t.Context(), "a", plan.stages[0].gates)
		if len(c.want) == 1 && len(got) == 1 && strings.Contains(got[0], c.want[0]) {
			return
		}
		must.Equal(t, "closed", c.want, got)
	})
}

func TestExpressionsAreCompiledOnce(t *testing.T) {
	t.Parallel()
	var c programs
	one := must.Get(c.compile("cluster.status.nodes.total >= 3"))(t)
	if other, err := c.compile("cluster.status.nodes.total >= 3"); err != nil || one != other || len(c.kept) != 1 {
		t.Errorf("%d programs, error %v", len(c.kept), err)
	}
	if _, err := c.compile("("); err == nil || len(c.kept) != 1 {
		t.Errorf("%d programs, error %v; an invalid one is not kept", len(c.kept), err)
	}
}

func TestTextsAreShort(t *testing.T) {
	t.Parallel()
	texts := strings.Split("a b c d e f g", " ")
	must.Equal(t, "value", "a; b; c; d; e; and 2 more", lines(texts))
	must.Equal(t, "value", "a, b, c, d, e and 2 more", some(texts))
	must.Equal(t, "value", "a", cut("aä", 2))
}

func TestPauseAndContinue(t *testing.T) {
	t.Parallel()
	f := newFleet("a")
	f.Spec.MaxConcurrent, f.Spec.State = 1, v1alpha1.FleetPaused
	l := newLab(t, f, newCluster("a1", "a", "x"), newCluster("a2", "a", "x"))
	l.run(nil)
	l.want(v1alpha1.ReasonPaused, "nothing was begun, and the members are not settled yet", "")
	l.must(l.store.Create(t.Context(), newCluster("a3", "a", "x")))

	l.change(func(s *v1alpha1.FleetRollSpec) { s.State = v1alpha1.FleetRunning })
	l.once()
	l.want(v1alpha1.ReasonRolling, "stage a: 0 of 3 clusters done, 1 run", "Progressing")

	l.change(func(s *v1alpha1.FleetRollSpec) { s.State = v1alpha1.FleetPaused })
	l.once()
	l.want(v1alpha1.ReasonPaused, "nothing begins; 0 of 3 clusters done, 1 run", "Progressing")
	l.run(nil)
	l.want(v1alpha1.ReasonPaused, "nothing begins; 1 of 3 clusters done", "")
	if s := l.fleet().Status; s.ObservedGeneration != 3 || s.Summary != "1/3" || s.Ended != nil {
		t.Errorf("generation %d, %s, ended %v", s.ObservedGeneration, s.Summary, s.Ended)
	}
	l.change(func(s *v1alpha1.FleetRollSpec) { s.State = v1alpha1.FleetRunning })
	l.run(nil)
	l.want(v1alpha1.ReasonSucceeded, "3 of 3", "Ready")
}

func TestAbort(t *testing.T) {
	t.Parallel()
	f := newFleet("a")
	f.Spec.MaxConcurrent = 1
	l := newLab(t, f, newCluster("a1", "a", "x"), newCluster("a2", "a", "x"))
	l.once()
	l.change(func(s *v1alpha1.FleetRollSpec) { s.State = v1alpha1.FleetAborted })
	l.once()
	l.want(v1alpha1.ReasonAborted, "0 of 2 clusters done, 1 run", "Progressing Stalled")
	l.run(nil)
	l.want(v1alpha1.ReasonAborted, "1 of 2 clusters done", "Stalled")
	l.wantEvent("Warning Aborted")
	if l.fleet().Status.Ended == nil || l.made["upgrade-a2"] != 0 {
		t.Errorf("ended %v, ImageRolls %v", l.fleet().Status.Ended, l.made)
	}
	l.change(func(s *v1alpha1.FleetRollSpec) { s.MaxConcurrent = 2 })
	l.once()
	if s := l.fleet().Status; s.ObservedGeneration != 3 || s.Conditions[0].ObservedGeneration != 3 {
		t.Errorf("the generation that an ended fleet has seen is %d", s.ObservedGeneration)
	}
}

func TestAbortedBeforeItBegins(t *testing.T) {
	t.Parallel()
	f := newFleet("a")
	f.Spec.State = v1alpha1.FleetAborted
	l := newLab(t, f, newCluster("a1", "a", "x"))
	l.run(nil)
	l.want(v1alpha1.ReasonAborted, "before anything was begun", "Stalled")
}

func TestSoakGateAndApproval(t *testing.T) {
	t.Parallel()
	f := newFleet("a", "b")
	f.Spec.Stages[0].Soak = metav1.Duration{Duration: 2 * time.Hour}
	f.Spec.Stages[0].Gates = []string{`cluster.metadata.annotations["load"] == "low"`}
	f.Spec.Stages[1].Approval = v1alpha1.ApprovalManual
	l := newLab(t, f, newCluster("a1", "a", "x"), newCluster("b1", "b", "x"))
	l.unclean["a1"] = true
	reason := func(want string) func() bool {
		return func() bool { r, _, _ := l.ready(); return r == want }
	}
	l.run(reason(v1alpha1.ReasonSoaking))
	ended := l.fleet().Status.Members[0].Ended
	l.want(v1alpha1.ReasonSoaking, "stage a: 1 of 1 clusters done; watched until "+ended.Add(2*time.Hour).UTC().Format(time.RFC3339), "Progressing")

	l.run(reason(v1alpha1.ReasonGateClosed))
	l.want(v1alpha1.ReasonGateClosed, "stage a: the next stage waits: a1: 1 nodes stale, 0 unread", "Progressing")
	must.Equal(t, "the gate was asked after", 2*time.Hour, l.now.Sub(ended.Time))
	l.wantEvent("Normal GateClosed")

	l.unclean["a1"] = false
	l.check("a1")
	res := l.once()
	l.want(v1alpha1.ReasonGateClosed, `a1: cluster.metadata.annotations["load"] == "low": no such key: annotations`, "Progressing")
	must.Equal(t, "again in", lookAgain, res.RequeueAfter)
	c := l.cluster("a1")
	c.Annotations = map[string]string{"load": "low"}
	l.must(l.store.Update(t.Context(), c))
	res = l.once()
	l.want(v1alpha1.ReasonAwaitingApproval, "stage b: add it to spec.approvedStages", "Progressing")
	must.Equal(t, "again in", time.Duration(0), res.RequeueAfter)
	l.change(func(s *v1alpha1.FleetRollSpec) { s.ApprovedStages = []string{"b"} })
	l.run(nil)
	l.want(v1alpha1.ReasonSucceeded, "2 of 2", "Ready")
}

func TestInvalidSpec(t *testing.T) {
	t.Parallel()
	type spec = v1alpha1.FleetRollSpec
	type example struct {
		change       func(*spec)
		reason, want string
	}
	cases := map[string]example{
		"selector": {func(s *spec) {
			s.Stages[0].Selector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Like", Values: []string{"b"}}}
		}, v1alpha1.ReasonInvalidSpec, `spec.stages[0].selector: "Like" is not a valid label selector operator: use matchLabels`},
		"CEL":                {func(s *spec) { s.Stages[1].Gates = []string{"true", "clustr.spec"} }, v1alpha1.ReasonInvalidSpec, "spec.stages[1].gates[1]: not a valid expression: 1:1: undeclared reference to 'clustr': write a CEL expression"},
		"CEL, a number":      {func(s *spec) { s.Stages[0].Gates = []string{"1 + 1"} }, v1alpha1.ReasonInvalidSpec, "spec.stages[0].gates[0]: its value is of type int, must be true or false: write"},
		"both":               {func(s *spec) { s.Stages[0].Gates, s.Stages[1].Gates = []string{"("}, []string{")"} }, v1alpha1.ReasonInvalidSpec, "spec.stages[1].gates[0]: "},
		"an empty stage":     {func(s *spec) { s.Stages[1].Selector.MatchLabels["stage"] = "c" }, v1alpha1.ReasonNoMembers, "spec.stages[1].selector: no TalosCluster in namespace clusters matches"},
		"nothing is left":    {func(s *spec) { s.Stages[0].Selector = metav1.LabelSelector{} }, v1alpha1.ReasonNoMembers, "that is not of an earlier stage: change the labels or the selector, or remove stage b"},
		"lock of the source": {func(s *spec) { s.TalosVersion = "v1.14.2" }, v1alpha1.ReasonInvalidSpec, "spec.talosVersion: needs spec.lock: Update of every TalosCluster, set it for a1"},
	}
	must.Each(t, cases, func(t *testing.T, c example) {
		f := newFleet("a", "b")
		c.change(&f.Spec)
		locked := newCluster("a1", "a", "x")
		locked.Spec.Lock = v1alpha1.LockFromSource
		l := newLab(t, f, locked, newCluster("b1", "b", "x"))
		l.once()
		l.want(c.reason, c.want, "Stalled")
		l.wantEvent("Warning " + c.reason)
		if len(l.made) != 0 || l.fleet().Status.Started != nil {
			t.Errorf("started %v, ImageRolls %v", l.fleet().Status.Started, l.made)
		}
	})
}

func TestInvalidWhileItRuns(t *testing.T) {
	t.Parallel()
	l := newLab(t, newFleet("a", "b"), newCluster("a1", "a", "x"), newCluster("b1", "b", "x"))
	l.once()
	l.change(func(s *v1alpha1.FleetRollSpec) { s.Stages[1].Name = "c" })
	l.once()
	l.want(v1alpha1.ReasonInvalidSpec, "spec.stages: stage b is missing, which TalosCluster b1 belongs to", "Progressing Stalled")
	l.run(nil)
	l.want(v1alpha1.ReasonInvalidSpec, "put it back", "Stalled")
	must.Equal(t, "done", []string{"a1"}, l.sorted(v1alpha1.MemberDone))
	l.change(func(s *v1alpha1.FleetRollSpec) { s.Stages[1].Name = "b" })
	l.run(nil)
	l.want(v1alpha1.ReasonSucceeded, "2 of 2", "Ready")
}

func TestDeletedWhileItRuns(t *testing.T) {
	t.Parallel()
	f := newFleet("a", "b")
	f.Spec.AbortThreshold = 4
	l := newLab(t, f, newCluster("a1", "a", "x"), newCluster("a2", "a", "x"), newCluster("a3", "a", "x"), newCluster("b1", "b", "x"), newCluster("b2", "b", "x"))
	l.once()
	l.must(l.store.Delete(t.Context(), l.cluster("a1")))
	l.must(l.store.Delete(t.Context(), l.cluster("b1")))
	l.must(l.store.Delete(t.Context(), &v1alpha1.ImageRoll{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "upgrade-a2"}}))
	delete(l.ends, "upgrade-a1")
	delete(l.ends, "upgrade-a2")
	l.run(nil)
	l.want(v1alpha1.ReasonSucceeded, "2 of 5 clusters done, 3 failed", "Ready")
	l.wantEvent("Warning MemberFailed stage a: TalosCluster a1 was deleted")
	l.wantEvent("Warning MemberFailed stage a: ImageRoll upgrade-a2 was deleted before it was done")
	l.wantEvent("Warning MemberFailed stage b: TalosCluster b1 was deleted")
	got := strings.Join(l.sorted(v1alpha1.MemberDone), " ")
	must.Hold(t, got == "a3 b2" && l.made["upgrade-b1"] == 0, "done: %s, ImageRolls %v", got, l.made)
}

func TestDeletedFleet(t *testing.T) {
	t.Parallel()
	f := newFleet("a")
	f.DeletionTimestamp, f.Finalizers = new(metav1.NewTime(start)), []string{"foregroundDeletion"}
	l := newLab(t, f, newCluster("a1", "a", "x"))
	l.run(nil)
	must.Hold(t, len(l.made) == 0 && l.meter.writes == 0, "%d writes, ImageRolls %v", l.meter.writes, l.made)
	l = newLab(t, nil)
	l.run(nil)
}

// played runs a small fleet with everything in it to its end. The operator is killed at a call.
func played(t *testing.T, killAt int, late bool) (calls int, end []string) {
	t.Helper()
	f := newFleet("a", "b")
	f.Spec.MaxConcurrent, f.Spec.AbortThreshold, f.Spec.TalosVersion = 2, 2, "v1.14.2"
	f.Spec.Stages[0].Soak = metav1.Duration{Duration: time.Hour}
	f.Spec.Stages[0].Gates = []string{"cluster.status.nodes.total == 3"}
	l := newLab(t, f, newCluster("a1", "a", "x"), newCluster("a2", "a", "y"), newCluster("a3", "a", "x"), newCluster("b1", "b", "x"), newCluster("b2", "b", "y"))
	l.failing["a2"] = true
	l.meter.killAt, l.meter.late = killAt, late
	l.run(func() bool { l.checkLimits(); return false })
	for name, n := range l.made {
		must.Equal(t, fmt.Sprintf("%s, killed at call %d (late: %v), was made", name, killAt, late), 1, n)
	}
	s := l.fleet().Status
	for _, m := range s.Members {
		end = append(end, fmt.Sprintf("%s %s %s %s %s", m.Cluster, m.Stage, m.Site, m.Phase, m.Roll))
	}
	reason, message, is := l.ready()
	return l.meter.calls, append(end, reason, message, is, s.Summary, s.Stage)
}

// TestKilledAnywhere: whichever call the operator does not survive, whether it was carried out
// or not, the next operator comes to the same end, and no cluster gets a second ImageRoll.
func TestKilledAnywhere(t *testing.T) {
	t.Parallel()
	calls, want := played(t, 0, false)
	must.Be(t, len(want) >= 10 && calls >= 50, "%d calls, end %q: the fleet is too small to show anything", calls, want)
	every := 1
	if testing.Short() {
		every = 7
	}
	for n := 1; n <= calls; n += every {
		for _, late := range []bool{false, true} {
			if _, end := played(t, n, late); !cmp.Equal(want, end) {
				t.Errorf("killed at call %d of %d (late: %v), end (-want +got):\n%s", n, calls, late, cmp.Diff(want, end))
			}
		}
	}
	t.Attr("calls", fmt.Sprint(calls))
}

// TestNothingToSay: a pass without news writes nothing, else its own write would be the next news.
func TestNothingToSay(t *testing.T) {
	t.Parallel()
	l := newLab(t, newFleet("a"), newCluster("a1", "a", "x"))
	for range 3 {
		l.once()
	}
	writes, version := l.meter.writes, l.fleet().ResourceVersion
	l.once()
	must.Hold(t, l.meter.writes == writes && l.fleet().ResourceVersion == version,
		"%d writes without news", l.meter.writes-writes)
}

// TestOutdatedCache: whoever decides by an old FleetRoll can't save, and begins nothing.
func TestOutdatedCache(t *testing.T) {
	t.Parallel()
	f := newFleet("a")
	f.Spec.MaxConcurrent = 1
	l := newLab(t, f, newCluster("a1", "a", "x"), newCluster("a2", "a", "x"))
	old := l.fleet()
	l.once()
	moved := l.cluster("a1") // an outdated decision would be another one
	moved.Labels["stage"] = "b"
	l.must(l.store.Update(t.Context(), moved))
	l.r.Client = interceptor.NewClient(l.meter.wrap(l.store, false, l.made), interceptor.Funcs{Get: stale(old)})
	if _, err := l.reconcile(); !apierrors.IsConflict(err) {
		t.Errorf("error %v, want a conflict", err)
	}
	must.Equal(t, "ImageRolls", map[string]int{"upgrade-a1": 1}, l.made)
}

// TestTargetBeforeRoll: the ImageRoll is made when the cache, by which it is planned, has the target.
func TestTargetBeforeRoll(t *testing.T) {
	t.Parallel()
	f := newFleet("a")
	f.Spec.TalosVersion = "v1.14.2"
	l := newLab(t, f, newCluster("a1", "a", "x"))
	cached := l.r.Client
	l.r.Client = interceptor.NewClient(l.meter.wrap(l.store, false, l.made), interceptor.Funcs{Get: stale(l.cluster("a1"))})
	res := l.once()
	if len(l.made) != 0 || res.RequeueAfter != cacheAgain || l.cluster("a1").Annotations[v1alpha1.AnnotationTalosTarget] != "v1.14.2" {
		t.Errorf("ImageRolls %v, again in %s, annotations %v; want the target only", l.made, res.RequeueAfter, l.cluster("a1").Annotations)
	}
	l.r.Client = cached
	l.once()
	must.Equal(t, "ImageRolls of a1", 1, l.made["upgrade-a1"])
}

// TestForeignRoll: an ImageRoll of that name which is not of the FleetRoll is left alone.
func TestForeignRoll(t *testing.T) {
	t.Parallel()
	l := newLab(t, newFleet("a"), newCluster("a1", "a", "x"))
	foreign := &v1alpha1.ImageRoll{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "upgrade-a1"}, Status: v1alpha1.ImageRollStatus{Phase: v1alpha1.PhaseSucceeded}}
	l.must(l.store.Create(t.Context(), foreign))
	res := l.once()
	l.want(v1alpha1.ReasonRetrying, "TalosCluster a1 waits until ImageRoll upgrade-a1 is deleted", "Progressing")
	must.Hold(t, res.RequeueAfter == startAgain && len(l.made) == 0,
		"again in %s, ImageRolls made %v", res.RequeueAfter, l.made)
	l.change(func(s *v1alpha1.FleetRollSpec) { s.State = v1alpha1.FleetPaused })
	l.once()
	must.Equal(t, "members that wait", 1, l.phases()[v1alpha1.MemberWaiting])
	l.change(func(s *v1alpha1.FleetRollSpec) { s.State = v1alpha1.FleetRunning })
	l.must(client.IgnoreNotFound(l.store.Delete(t.Context(), foreign)))
	l.run(nil)
	l.want(v1alpha1.ReasonSucceeded, "1 of 1", "Ready")
}

func TestRollName(t *testing.T) {
	t.Parallel()
	const fleet, cluster = "abcdefghijabcdefghijabcdefghij", "0123456789012345678901234567890123456789"
	must.Equal(t, "value", "upgrade-c1", rollName("upgrade", "c1"))
	if got, want := rollName(fleet, cluster[:19]), fleet+"-"+cluster[:19]; got != want || len(got) != 50 {
		t.Errorf("%s, want %s", got, want)
	}
	one, other := rollName(fleet, cluster[:20]), rollName(fleet, cluster)
	must.Hold(t, len(one) == 50 && len(other) == 50 && one != other && one[:41] == other[:41],
		"%s and %s, want two names of 50 characters", one, other)
}

// members reads "a1@oslo:done b1@oslo"; a member's first letter is its stage. Those that ended did so at start.
func members(text string) []v1alpha1.Member {
	phases := map[string]v1alpha1.MemberPhase{
		"": v1alpha1.MemberWaiting, "running": v1alpha1.MemberRunning, "done": v1alpha1.MemberDone, "failed": v1alpha1.MemberFailed,
	}
	var all []v1alpha1.Member
	for field := range strings.FieldsSeq(text) {
		who, phase, _ := strings.Cut(field, ":")
		name, site, _ := strings.Cut(who, "@")
		m := v1alpha1.Member{Cluster: name, Stage: name[:1], Site: site, Phase: phases[phase]}
		if m.Phase == v1alpha1.MemberDone || m.Phase == v1alpha1.MemberFailed {
			m.Ended = new(metav1.NewTime(start))
		}
		all = append(all, m)
	}
	return all
}

type decisionCase struct {
	members string
	change  func(*v1alpha1.FleetRollSpec)
	gate    func() []string
	now     time.Duration
	want    decision
}

func decisionCases() map[string]decisionCase {
	type spec = v1alpha1.FleetRollSpec
	rolling := func(stage string, begin ...string) decision {
		return decision{Stage: stage, Reason: v1alpha1.ReasonRolling, Begin: begin}
	}
	return map[string]decisionCase{
		"the first stage":              {members: "a2 a1 b1", want: rolling("a", "a1", "a2")},
		"the fleet's limit":            {members: "a1 a2 a3:running a4", change: func(f *spec) { f.MaxConcurrent = 2 }, want: rolling("a", "a1")},
		"the fleet's limit is reached": {members: "a1 a2:running a3:running", change: func(f *spec) { f.MaxConcurrent = 2 }, want: rolling("a")},
		"the stage's limit":            {members: "a1 a2 a3 a4", change: func(f *spec) { f.Stages[0].MaxConcurrent = 3 }, want: rolling("a", "a1", "a2", "a3")},
		"a larger limit of the stage":  {members: "a1 a2 a3", change: func(f *spec) { f.MaxConcurrent, f.Stages[0].MaxConcurrent = 2, 9 }, want: rolling("a", "a1", "a2")},
		"a site's limit":               {members: "a1@x a2@x a3@y a4@y:running a5@z", change: func(f *spec) { f.MaxConcurrentPerSite = 1 }, want: rolling("a", "a1", "a5")},
		"no site is a site":            {members: "a1 a2 a3@y", change: func(f *spec) { f.MaxConcurrentPerSite = 1 }, want: rolling("a", "a1", "a3")},
		"a limit of 0 is 1":            {members: "a1 a2", change: func(f *spec) { f.MaxConcurrent = 0 }, want: rolling("a", "a1")},
		"some of another stage run":    {members: "a1:running b1@x:running b2@x a2", change: func(f *spec) { f.MaxConcurrent = 3; f.MaxConcurrentPerSite = 9 }, want: rolling("a", "a2")},
		"not before the last ended":    {members: "a1:done a2:running b1", want: rolling("a")},
		"the next stage":               {members: "a1:done a2:done b1 b2", want: rolling("b", "b1", "b2")},
		"failed ones are over, too":    {members: "a1:failed a2:done b1", change: func(f *spec) { f.AbortThreshold = 2 }, want: rolling("b", "b1")},
		"soaking":                      {members: "a1:done b1", change: func(f *spec) { f.Stages[0].Soak.Duration = time.Hour }, now: 59 * time.Minute, want: decision{Stage: "a", Reason: v1alpha1.ReasonSoaking, Again: start.Add(time.Hour)}},
		"soaked":                       {members: "a1:done b1", change: func(f *spec) { f.Stages[0].Soak.Duration = time.Hour }, now: time.Hour, want: rolling("b", "b1")},
		"the last stage does not soak": {members: "a1:done b1:done", change: func(f *spec) { f.Stages[1].Soak.Duration = time.Hour }, want: decision{Stage: "b", Reason: v1alpha1.ReasonSucceeded, Over: true}},
		"gate":                         {members: "a1:done b1", gate: func() []string { return []string{"a1: 1 stale"} }, want: decision{Stage: "a", Reason: v1alpha1.ReasonGateClosed, Closed: []string{"a1: 1 stale"}}},
		"an open gate":                 {members: "a1:done b1", gate: func() []string { return nil }, want: rolling("b", "b1")},
		"no gate once the next begun":  {members: "a1:done b1:running b2", gate: func() []string { panic("asked") }, want: rolling("b", "b2")},
		"no gate before the soak":      {members: "a1:done b1", change: func(f *spec) { f.Stages[0].Soak.Duration = time.Hour }, gate: func() []string { panic("asked") }, want: decision{Stage: "a", Reason: v1alpha1.ReasonSoaking, Again: start.Add(time.Hour)}},
		"unapproved":                   {members: "a1:done b1", change: func(f *spec) { f.Stages[1].Approval = v1alpha1.ApprovalManual }, want: decision{Stage: "b", Reason: v1alpha1.ReasonAwaitingApproval}},
		"the first unapproved":         {members: "a1 b1", change: func(f *spec) { f.Stages[0].Approval = v1alpha1.ApprovalManual }, want: decision{Stage: "a", Reason: v1alpha1.ReasonAwaitingApproval}},
		"approved":                     {members: "a1 b1", change: func(f *spec) { f.Stages[0].Approval, f.ApprovedStages = v1alpha1.ApprovalManual, []string{"a"} }, want: rolling("a", "a1")},
		"approval withdrawn too late":  {members: "a1:running a2", change: func(f *spec) { f.Stages[0].Approval = v1alpha1.ApprovalManual }, want: rolling("a", "a2")},
		"paused":                       {members: "a1:running a2", change: func(f *spec) { f.State = v1alpha1.FleetPaused }, want: decision{Stage: "a", Reason: v1alpha1.ReasonPaused}},
		"paused, all ended":            {members: "a1:done", change: func(f *spec) { f.State = v1alpha1.FleetPaused }, want: decision{Stage: "a", Reason: v1alpha1.ReasonSucceeded, Over: true}},
		"aborted, one runs":            {members: "a1:running a2", change: func(f *spec) { f.State = v1alpha1.FleetAborted }, want: decision{Stage: "a", Reason: v1alpha1.ReasonAborted}},
		"aborted":                      {members: "a1:done a2", change: func(f *spec) { f.State = v1alpha1.FleetAborted }, want: decision{Stage: "a", Reason: v1alpha1.ReasonAborted, Over: true}},
		"threshold, one runs":          {members: "a1:failed a2:running a3", want: decision{Stage: "a", Reason: v1alpha1.ReasonStageFailed}},
		"threshold":                    {members: "a1:failed a2:done b1", want: decision{Stage: "b", Reason: v1alpha1.ReasonStageFailed, Over: true}},
		"threshold at the very end":    {members: "a1:failed", want: decision{Stage: "a", Reason: v1alpha1.ReasonStageFailed, Over: true}},
		"below it at the very end":     {members: "a1:failed b1:done", change: func(f *spec) { f.AbortThreshold = 2 }, want: decision{Stage: "b", Reason: v1alpha1.ReasonSucceeded, Over: true}},
		"a stage without members":      {members: "a1:done c1", change: func(f *spec) { f.Stages[0].Soak.Duration = time.Hour }, want: decision{Stage: "a", Reason: v1alpha1.ReasonSoaking, Again: start.Add(time.Hour)}},
		"nobody":                       {want: decision{Reason: v1alpha1.ReasonSucceeded, Over: true}},
	}
}

func TestDecide(t *testing.T) {
	t.Parallel()
	must.Each(t, decisionCases(), func(t *testing.T, c decisionCase) {
		f := newFleet("a", "b", "c")
		f.Spec.MaxConcurrent, f.Spec.MaxConcurrentPerSite = 100, 100
		if c.change != nil {
			c.change(&f.Spec)
		}
		w := wave{f.Spec, members(c.members), func(i int) []string {
			if i > 0 || c.gate == nil {
				return nil
			}
			return c.gate()
		}}
		must.Equal(t, "decision", c.want, w.decide(start.Add(c.now)))
	})
}

// simulation plays a fleet in virtual time. Rolls last random times and some fail, gates open
// late, and a person approves, pauses, continues and perhaps aborts.
type simulation struct {
	r        *rand.Rand
	fleet    wave
	now      time.Time
	ends     []time.Time // of each member that runs
	opens    []time.Time // of each stage's gate
	failing  float64
	approves bool
}

func newSimulation(seed uint64) *simulation {
	r := rand.New(rand.NewPCG(seed, 2))
	s := &simulation{r: r, now: start, failing: []float64{0, 0.05, 0.5}[r.IntN(3)], approves: r.IntN(5) > 0}
	s.fleet.MaxConcurrent, s.fleet.MaxConcurrentPerSite, s.fleet.AbortThreshold = r.Int32N(8), r.Int32N(4), r.Int32N(6)
	for i := range 1 + r.IntN(4) {
		stage := v1alpha1.Stage{Name: string(rune('a' + i)), MaxConcurrent: r.Int32N(5)}
		stage.Soak.Duration = time.Duration(r.IntN(3)) * time.Hour
		if r.IntN(4) == 0 {
			stage.Approval = v1alpha1.ApprovalManual
		}
		s.fleet.Stages = append(s.fleet.Stages, stage)
	}
	s.opens = make([]time.Time, len(s.fleet.Stages))
	s.fleet.gate = func(i int) []string {
		if s.opens[i].IsZero() {
			s.opens[i] = s.now.Add(time.Duration(r.IntN(90)) * time.Minute)
		}
		if s.now.Before(s.opens[i]) {
			return []string{"closed"}
		}
		return nil
	}
	for i := range r.IntN(40) {
		stage := s.fleet.Stages[r.IntN(len(s.fleet.Stages))].Name
		site := string(rune('x' + r.IntN(3)))
		s.fleet.members = append(s.fleet.members, v1alpha1.Member{Cluster: fmt.Sprintf("m%02d", i), Stage: stage, Site: site, Phase: v1alpha1.MemberWaiting})
	}
	s.ends = make([]time.Time, len(s.fleet.members))
	return s
}

// begin carries a decision out, and checks that it could be made.
func (s *simulation) begin(d decision) error {
	failed := s.fleet.count("", v1alpha1.MemberFailed)
	if len(d.Begin) > 0 && (s.fleet.State != "" || failed >= threshold(s.fleet.FleetRollSpec) || d.Reason != v1alpha1.ReasonRolling) {
		return fmt.Errorf("%v begin, though the state is %v, %d failed and the reason is %v", d.Begin, s.fleet.State, failed, d.Reason)
	}
	for _, name := range d.Begin {
		for i := range s.fleet.members {
			m := &s.fleet.members[i]
			if m.Cluster != name {
				continue
			}
			if err := s.mayBegin(*m); err != nil {
				return err
			}
			m.Phase, s.ends[i] = v1alpha1.MemberRunning, s.now.Add(time.Duration(1+s.r.IntN(200))*time.Minute)
		}
	}
	return s.limits()
}

func (s *simulation) mayBegin(m v1alpha1.Member) error {
	if m.Phase != v1alpha1.MemberWaiting {
		return fmt.Errorf("%s begins again", m.Cluster)
	}
	before := "" // the newest stage before that has members
	for i, stage := range s.fleet.Stages {
		if stage.Name == m.Stage {
			if !s.fleet.begun(m.Stage) && s.fleet.unapproved(stage) {
				return fmt.Errorf("%s begins without approval of %s", m.Cluster, stage.Name)
			}
			return nil
		}
		if s.fleet.count(stage.Name, v1alpha1.MemberWaiting, v1alpha1.MemberRunning) > 0 {
			return fmt.Errorf("%s of %s begins before %s is over", m.Cluster, m.Stage, stage.Name)
		}
		next := i+1 < len(s.fleet.Stages) && s.fleet.Stages[i+1].Name == m.Stage
		if s.fleet.count(stage.Name, v1alpha1.MemberDone, v1alpha1.MemberFailed) > 0 {
			before = stage.Name
		}
		if before == stage.Name && next && (s.now.Before(s.fleet.lastEnd(before).Add(stage.Soak.Duration)) || s.opens[i].IsZero() || s.now.Before(s.opens[i])) {
			return fmt.Errorf("%s begins before %s has soaked or its gate is open", m.Cluster, stage.Name)
		}
	}
	return fmt.Errorf("%s has no stage", m.Cluster)
}

func (s *simulation) limits() error {
	count := map[string]int{}
	for _, m := range s.fleet.members {
		if m.Phase == v1alpha1.MemberRunning {
			count["fleet"]++
			count["site "+m.Site]++
			count["stage "+m.Stage]++
		}
	}
	for what, n := range count {
		most := max(1, int(s.fleet.MaxConcurrent))
		switch what[:5] {
		case "site ":
			most = max(1, int(s.fleet.MaxConcurrentPerSite))
		case "stage":
			if limit := s.fleet.Stages[what[6]-'a'].MaxConcurrent; limit > 0 {
				most = int(limit)
			}
		}
		if n > most {
			return fmt.Errorf("%s: %d at a time, the limit is %d", what, n, most)
		}
	}
	return nil
}

// pass lets time go on to the next thing that happens, and reports whether there is any.
func (s *simulation) pass(d decision) bool {
	next := d.Again
	earlier := func(t time.Time) {
		if t.After(s.now) && (next.IsZero() || t.Before(next)) {
			next = t
		}
	}
	for i, m := range s.fleet.members {
		if m.Phase == v1alpha1.MemberRunning {
			earlier(s.ends[i])
		}
	}
	for _, opens := range s.opens {
		earlier(opens)
	}
	if d.Reason == v1alpha1.ReasonAwaitingApproval && s.approves || d.Reason == v1alpha1.ReasonPaused {
		earlier(s.now.Add(time.Hour))
	}
	if next.IsZero() {
		return false
	}
	s.now = next
	for i := range s.fleet.members {
		if m := &s.fleet.members[i]; m.Phase == v1alpha1.MemberRunning && !s.ends[i].After(s.now) {
			m.Phase, m.Ended = v1alpha1.MemberDone, new(metav1.NewTime(s.now))
			if s.r.Float64() < s.failing {
				m.Phase = v1alpha1.MemberFailed
			}
		}
	}
	s.person(d)
	return true
}

// person changes what people change.
func (s *simulation) person(d decision) {
	if s.approves && d.Reason == v1alpha1.ReasonAwaitingApproval {
		s.fleet.ApprovedStages = append(s.fleet.ApprovedStages, d.Stage)
	}
	switch {
	case s.fleet.State == v1alpha1.FleetPaused && s.r.IntN(2) == 0:
		s.fleet.State = ""
	case s.fleet.State == "" && s.r.IntN(30) == 0:
		s.fleet.State = v1alpha1.FleetPaused
	case s.fleet.State == "" && s.r.IntN(200) == 0:
		s.fleet.State = v1alpha1.FleetAborted
	}
}

// TestSimulation: whatever a fleet looks like, limits, order and threshold are kept, and it ends or waits for a person.
func TestSimulation(t *testing.T) {
	t.Parallel()
	ends := map[string]int{}
	for seed := range uint64(2000) {
		s := newSimulation(seed)
		var d decision
		for round := 0; ; round++ {
			d = s.fleet.decide(s.now)
			if err := s.begin(d); err != nil {
				t.Fatalf("seed %d: at %s: %v", seed, s.now.Sub(start), err)
			}
			if d.Over != (s.fleet.count("", v1alpha1.MemberRunning) == 0 && (d.Reason == v1alpha1.ReasonSucceeded || d.Reason == v1alpha1.ReasonAborted || d.Reason == v1alpha1.ReasonStageFailed)) {
				t.Fatalf("seed %d: over is %v with reason %v", seed, d.Over, d.Reason)
			}
			if d.Over || !s.pass(d) {
				break
			}
			must.Be(t, round <= 1000, "seed %d: no end", seed)
		}
		must.Be(t, d.Over || d.Reason == v1alpha1.ReasonAwaitingApproval && !s.approves, "seed %d: stuck with %+v", seed, d)
		if d.Reason == v1alpha1.ReasonSucceeded && s.fleet.count("", v1alpha1.MemberWaiting) > 0 {
			t.Fatalf("seed %d: succeeded with %d members that wait", seed, s.fleet.count("", v1alpha1.MemberWaiting))
		}
		ends[d.Reason]++
	}
	t.Log("ends by reason:", ends)
	for _, reason := range []string{v1alpha1.ReasonSucceeded, v1alpha1.ReasonAborted, v1alpha1.ReasonStageFailed, v1alpha1.ReasonAwaitingApproval} {
		must.Hold(t, ends[reason] != 0, "no fleet ended with reason %s, so the test does not show what it should", reason)
	}
}
