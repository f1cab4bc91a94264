package fleet

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/recast-sh/recast/api/v1alpha1"
	"github.com/recast-sh/recast/internal/sim/must"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
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
		if n != 1 {
			t.Errorf("ImageRoll %s was made %d times", name, n)
		}
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
	if l.meter.requests > 600 {
		t.Errorf("%d API requests, want at most 6 per cluster", l.meter.requests)
	}
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
	if len(l.made) != made {
		t.Errorf("%d more ImageRolls", len(l.made)-made)
	}
	l.change(func(s *v1alpha1.FleetRollSpec) { s.AbortThreshold = 3 })
	l.run(nil)
	l.want(v1alpha1.ReasonSucceeded, "98 of 100 clusters done, 2 failed", "Ready")
}

func TestMembersAreFrozen(t *testing.T) {
	t.Parallel()
	l := newLab(t, newFleet("a", "b"), newCluster("a1", "a", "x"), newCluster("b1", "b", "x"), newCluster("z", "other", "x"))
	_, err := l.reconcile()
	l.must(err)
	l.must(l.store.Create(t.Context(), newCluster("b2", "b", "x")))
	moved := l.cluster("b1")
	moved.Labels["stage"] = "other"
	l.must(l.store.Update(t.Context(), moved))
	l.run(nil)
	l.want(v1alpha1.ReasonSucceeded, "2 of 2 clusters done", "Ready")
	if l.made["upgrade-b1"] != 1 || len(l.made) != 2 {
		t.Errorf("ImageRolls %v, want those of a1 and b1", l.made)
	}
}

func TestFirstStageThatMatches(t *testing.T) {
	t.Parallel()
	f := newFleet("a", "all")
	f.Spec.Stages[1].Selector = metav1.LabelSelector{}
	l := newLab(t, f, newCluster("a1", "a", "x"), newCluster("b1", "b", ""))
	l.run(nil)
	for _, m := range l.fleet().Status.Members {
		if want := map[string]string{"a1": "a x", "b1": "all "}[m.Cluster]; m.Stage+" "+m.Site != want {
			t.Errorf("%s: stage and site %s %s, want %s", m.Cluster, m.Stage, m.Site, want)
		}
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
	cases := map[string]struct {
		cluster func(*v1alpha1.TalosCluster)
		gates   []string
		want    []string
	}{
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
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
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
