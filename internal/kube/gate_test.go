package kube_test

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/kube"
	"github.com/recast-sh/recast/internal/sim/must"
)

// volumes is a gate that volumes pass only with that robustness.
func volumes(edit func(*cluster.ObjectGate)) cluster.ObjectGate {
	g := cluster.ObjectGate{APIVersion: "longhorn.io/v1beta2", Kind: "Volume", Expr: "status.robustness == 'healthy'"}
	if edit != nil {
		edit(&g)
	}
	return g
}

func TestJudge(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		l := newLab(t, "wk1")
		add := l.install(t, "longhorn.io", "v1beta2", "volumes", "Volume", true)
		for _, v := range []struct{ namespace, name, tier, robustness string }{
			{"a", "pvc-1", "gold", "healthy"}, {"a", "pvc-2", "iron", "degraded"}, {"b", "pvc-1", "gold", "faulted"},
		} {
			u := &unstructured.Unstructured{Object: map[string]any{"status": map[string]any{"robustness": v.robustness}}}
			u.SetName(v.name)
			u.SetLabels(map[string]string{"tier": v.tier})
			add(v.namespace, v.name, u.Object)
		}
		c := l.client(t, "system:masters")
		time.Sleep(time.Minute) // until the node is there
		degraded := cluster.FailingObject{Name: "a/pvc-2", Why: "status.robustness=degraded"}
		faulted := cluster.FailingObject{Name: "b/pvc-1", Why: "status.robustness=faulted"}
		cases := map[string]struct {
			gate cluster.ObjectGate
			want cluster.Judged
		}{
			"all":            {volumes(nil), cluster.Judged{Objects: 3, Failing: []cluster.FailingObject{degraded, faulted}}},
			"of a namespace": {volumes(func(g *cluster.ObjectGate) { g.Namespace = "a" }), cluster.Judged{Objects: 2, Failing: []cluster.FailingObject{degraded}}},
			"by a label":     {volumes(func(g *cluster.ObjectGate) { g.Labels = "tier in (gold)" }), cluster.Judged{Objects: 2, Failing: []cluster.FailingObject{faulted}}},
			"one":            {volumes(func(g *cluster.ObjectGate) { g.Namespace, g.Name = "a", "pvc-1" }), cluster.Judged{Objects: 1}},
			"one, not there": {volumes(func(g *cluster.ObjectGate) { g.Namespace, g.Name = "a", "pvc-9" }), cluster.Judged{}},
			"of the core": {
				cluster.ObjectGate{APIVersion: "v1", Kind: "Node", Name: "wk1", Expr: "spec.unschedulable"},
				cluster.Judged{Objects: 1, Failing: []cluster.FailingObject{{Name: "wk1", Why: "spec.unschedulable=(none): no such key: unschedulable"}}},
			},
			"of apps": {
				cluster.ObjectGate{APIVersion: "apps/v1", Kind: "Deployment", Namespace: "kube-system", Expr: "spec.replicas == 2"}, cluster.Judged{Objects: 1},
			},
			"no such group":   {volumes(func(g *cluster.ObjectGate) { g.APIVersion = "ceph.rook.io/v1" }), cluster.Judged{Unserved: "ceph.rook.io is not installed: the API has no group of that name"}},
			"no such version": {volumes(func(g *cluster.ObjectGate) { g.APIVersion = "longhorn.io/v1" }), cluster.Judged{Unserved: "longhorn.io is served as v1beta2, not as v1"}},
			"no such kind":    {volumes(func(g *cluster.ObjectGate) { g.Kind = "Volumes" }), cluster.Judged{Unserved: "longhorn.io/v1beta2 has no kind Volumes, only Volume"}},
		}
		for name, tc := range cases {
			got := must.Get(c.Judge(t.Context(), tc.gate))(t)
			must.Equal(t, name, tc.want, got)
		}
	})
}

// More objects than fit into one answer are all evaluated.
func TestJudgePages(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		l := newLab(t)
		add := l.install(t, "longhorn.io", "v1beta2", "volumes", "Volume", true)
		for i := range 1201 {
			robustness := "healthy"
			if i%400 == 0 {
				robustness = "degraded"
			}
			add("a", fmt.Sprintf("pvc-%04d", i), map[string]any{"status": map[string]any{"robustness": robustness}})
		}
		got, err := l.client(t, "system:masters").Judge(t.Context(), volumes(nil))
		if err != nil || got.Objects != 1201 || len(got.Failing) != 4 || got.Failing[3].Name != "a/pvc-1200" {
			t.Errorf("%d objects, %d fail: %v", got.Objects, len(got.Failing), err)
		}
		lists := 0
		for _, call := range l.calls.Calls() {
			if strings.Contains(fmt.Sprint(call), "/apis/longhorn.io/v1beta2/volumes") {
				lists++
			}
		}
		must.Equal(t, "requests", 3, lists)
	})
}

// What cannot be read is an error with its cause; missing rights are refused.
func TestJudgeErrors(t *testing.T) {
	t.Parallel()
	resources := page{200, `{"kind":"APIResourceList","groupVersion":"longhorn.io/v1beta2","resources":[` +
		`{"name":"volumes","kind":"Volume","namespaced":true,"verbs":["get","list"]},{"name":"volumes/status","kind":"Volume","verbs":["get"]},` +
		`{"name":"reviews","kind":"Review","verbs":["create"]}]}`}
	groups := page{200, `{"kind":"APIGroupList","apiVersion":"v1","groups":[{"name":"longhorn.io","versions":[{"groupVersion":"longhorn.io/v1beta2","version":"v1beta2"}]}]}`}
	const list = "/apis/longhorn.io/v1beta2/volumes"
	type row struct {
		gate  cluster.ObjectGate
		pages map[string]page
		want  string
		kind  fault.Kind
	}
	cases := map[string]row{
		"forbidden":     {volumes(nil), map[string]page{list: forbidden(t, "volumes", "longhorn.io")}, "volumes: ", fault.Refused},
		"no list":       {volumes(nil), map[string]page{list: {200, `{"kind":"Volume"}`}}, "read volumes: the answer is not a list", fault.Failed},
		"not JSON":      {volumes(nil), map[string]page{list: {200, `<html>`}}, "read volumes: read the answer: ", fault.Failed},
		"out of date":   {volumes(nil), map[string]page{list: {410, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Expired","code":410,"message":"too old"}`}}, "read volumes: the list went out of date while it was read, 3 times in a row: too old", fault.Failed},
		"no discovery":  {volumes(nil), map[string]page{"/apis": {503, "upgrading"}}, "list API groups: ", fault.Failed},
		"a review":      {volumes(func(g *cluster.ObjectGate) { g.Kind = "Review" }), nil, "", fault.Failed},
		"no namespace":  {volumes(func(g *cluster.ObjectGate) { g.Name = "a" }), nil, "longhorn.io/v1beta2 Volume is in a namespace, and the gate names none", fault.Refused},
		"no expression": {volumes(func(g *cluster.ObjectGate) { g.Expr = "statu" }), nil, `expression "statu": not a valid expression: 1:1: undeclared reference to 'statu'`, fault.Config},
	}
	must.Each(t, cases, func(t *testing.T, tc row) {
		pages := map[string]page{"/apis": groups, "/apis/longhorn.io/v1beta2": resources}
		maps.Copy(pages, tc.pages)
		got, err := serve(t, pages).Judge(t.Context(), tc.gate)
		if tc.want == "" {
			if err != nil || !strings.Contains(got.Unserved, "has no kind Review, only ") {
				t.Errorf("%+v, %v", got, err)
			}
			return
		}
		must.FailAs(t, err, tc.kind, tc.want)
	})
}

func TestParseSelector(t *testing.T) {
	t.Parallel()
	has := map[string]string{"zone": "a", "tier": "web"}
	for text, want := range map[string]bool{
		"zone=a": true, "zone==a,tier!=db": true, "tier in (web, db)": true, "zone,!gpu": true,
		"zone=b": false, "gpu": false, "tier notin (web)": false,
	} {
		s, err := kube.ParseSelector(text)
		if err != nil || s.Text != text || s.Matches(has) != want {
			t.Errorf("%s: %v, want %v; %v", text, !want, want, err)
		}
	}
	for _, text := range []string{"", " ", "zone in a", "zone=a b", "a=b=c"} {
		if _, err := kube.ParseSelector(text); fault.KindOf(err) != fault.Config || !strings.HasPrefix(err.Error(), "selector ") {
			t.Errorf("%q: %v", text, err)
		}
	}
}
