package fleet

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/recast-sh/recast/api/v1alpha1"
)

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
			plan, err := r.gates.plan(f.Spec)
			if err != nil {
				t.Fatal(err)
			}
			p := &pass{Reconciler: r, fleet: f, clusters: map[string]*v1alpha1.TalosCluster{
				"c1": cluster, "c2": newCluster("c2", "a", "x"), "c3": newCluster("c3", "b", "x"),
			}}
			got := p.gate(t.Context(), "a", plan.stages[0].gates)
			if len(c.want) == 1 && len(got) == 1 && strings.Contains(got[0], c.want[0]) {
				return
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("closed (-want +got):\n%s", diff)
			}
		})
	}
}

func TestExpressionsAreCompiledOnce(t *testing.T) {
	t.Parallel()
	var c programs
	one, err := c.compile("cluster.status.nodes.total >= 3")
	if err != nil {
		t.Fatal(err)
	}
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
	if got, want := lines(texts), "a; b; c; d; e; and 2 more"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got, want := some(texts), "a, b, c, d, e and 2 more"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := cut("aä", 2); got != "a" {
		t.Errorf("%q, want a", got)
	}
}
