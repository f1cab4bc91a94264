package page

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/recast-sh/recast/api/v1alpha1"
	"github.com/recast-sh/recast/internal/operator/page/pagetest"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/web/frame/frametest"
)

const secret = "PVEAPIToken=recast@pve!ui=5ec0ffee-1ab0-4000-8000-000000000001"

// visit is a browser before the pages of some objects, at noon.
type visit struct {
	t    testing.TB
	site *Site
}

func browse(t testing.TB, objects client.Reader) visit {
	t.Helper()
	s := must.Get(New(objects, netip.AddrPort{}, "v0.0.0"))(t)
	s.Now = func() time.Time { return time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC) }
	return visit{t, s}
}

func example(t testing.TB) visit {
	t.Helper()
	text := must.Get(os.ReadFile("../../../testdata/fleet/objects.yaml"))(t)
	return browse(t, stored(t, text))
}

func stored(t testing.TB, text []byte) pagetest.Store {
	t.Helper()
	store, err := pagetest.New()
	if err == nil {
		err = store.Put(t.Context(), bytes.NewReader(text))
	}
	must.Do(t, err)
	return store
}

func (v visit) ask(method, host, path string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	r := httptest.NewRequest(method, "http://"+host+path, http.NoBody)
	v.site.Handler().ServeHTTP(w, r)
	return w
}

// page gets a page, which must be whole.
func (v visit) page(path string) string {
	v.t.Helper()
	w := v.ask(http.MethodGet, "localhost:9999", path)
	if w.Code != http.StatusOK {
		v.t.Fatalf("%s: %d %s", path, w.Code, w.Body)
	}
	frametest.RequireSound(v.t, w.Body.String(), "5ec0ffee")
	return w.Body.String()
}

// words is a page as a person reads it: without markup, and each gap one space.
func (v visit) words(path string) string {
	v.t.Helper()
	text := regexp.MustCompile(`<[^>]*>`).ReplaceAllString(v.page(path), " ")
	text = strings.NewReplacer("&#39;", "'", "&#34;", `"`, "&gt;", ">").Replace(text)
	return strings.Join(strings.Fields(text), " ")
}

// Each page says what its objects say, and where the rest is.
func TestPages(t *testing.T) {
	t.Parallel()
	v := example(t)
	for path, words := range map[string][]string{
		"/": {
			"clusters 12 in sync 5 in trouble 4 await approval 1 being rolled 1", "FleetRolls that are not finished", "winter clusters awaiting approval first 0 of 2 done",
			"autumn clusters abort threshold all 3 of 6 done, 2 failed", "oslo-1 clusters roll failed ImageRoll oslo-1-4: wait for wk1 to be healthy", "6, 4 stale v1.13.8 → v1.13.9 oslo-1-4 2/6 failed 42m ago opens 22:00",
			"trondheim-1 clusters check failed read https://pve1.trondheim.example:8006: connection refused 5, 5 unread", "bergen-2 clusters rolling 3/6 nodes; wk1: wait for wk1 to join", "always open", "tromso-1 clusters suspended spec.suspend: nothing is started",
			"ci-1 lab in sync 1 v1.13.9", "kirkenes-1 clusters roll failed node wk2 keeps the last healthy replica of volume pvc-88 of Longhorn: wait until it is rebuilt 6, 2 stale", "bergen-1 clusters awaiting approval plan 5c1f0a7e rolls 6 nodes 6, 6 stale",
		},
		"/clusters/clusters/oslo-1": {
			"nodes 6 in sync 2 stale 4 unread 0", "wk2: Talos v1.13.8 instead of v1.13.9", "checked 42m ago next check in 17m last in sync 2026-11-26 09:17, 2d2h ago maintenance window opens 22:00", "build of default 9f3ac1d27be8",
			"oslo-1-4 failed 7 attempts in a row finished no node", "nodes 2/6 8 2026-11-27 22:00, 13h ago 3h12m oslo-1-3 succeeded nodes 6/6 2", `kubectl -n clusters get configmap recast-cluster-oslo-1 -o jsonpath='{.data.drift\.json}'`,
			"kubectl -n clusters events --for taloscluster/oslo-1", `kubectl -n clusters annotate taloscluster oslo-1 recast.dev/check-requested="$(date)" --overwrite`,
		},
		"/clusters/clusters/trondheim-1": {"what the newest check could not read", "doctor: Proxmox answers: no: is pve1.trondheim.example on", "none is kept"},
		"/clusters/clusters/bergen-1":    {"Its roll: bergen-1-2 awaiting approval plan 5c1f0a7e rolls 6 nodes rolls nodes approval not approved", `kubectl -n clusters patch imageroll bergen-1-2 --type=merge -p '{"spec":{"approved":true}}'`},
		"/rolls/clusters/bergen-2-7":     {"rolling 3/6 3 of 6 nodes done; wk1: wait for wk1 to join: VM 201 boots (11:59, 4s ago)", "cp1: recreate, about 2m40s away: extension iscsi-tools", "bergen-2-7-roll-2 11:42, 18m ago 18m so far runs"},
		"/rolls/clusters/oslo-1-4": {
			"ImageRoll of oslo-1", "ended 01:12, 10h ago took 3h12m plan 5c1f0a7e", "oslo-1-4-roll-3 2026-11-27 22:21, 13h ago 16m 2 killed, exit code 137", "failed, exit code 1: failed: wait for wk1 to be healthy", "kubectl -n clusters delete imageroll oslo-1-4",
			`kubectl -n clusters get configmap recast-roll-oslo-1-4-plan -o jsonpath='{.data.plan\.json}'`, `kubectl -n clusters get configmap recast-roll-oslo-1-4-report -o jsonpath='{.data.report\.json}'`, "kubectl -n clusters logs --prefix --tail=-1 -l recast.dev/roll=oslo-1-4",
		},
		"/fleets": {"winter clusters awaiting approval", "autumn clusters abort threshold all 3 of 6 done, 2 failed 2026-11-26 22:00, 38h ago 27h"},
		"/fleets/clusters/autumn": {
			"nothing begins; find out why kirkenes-1, stavanger-2 failed", "done 3 failed 2 run 0 wait 1", "Stage canaries done 2 of 2 clusters done soak time 24h0m0s gates cluster.status.nodes.total >= 3", "Stage all abort threshold 1 of 4 clusters done approval approved",
			"kirkenes-1 north failed autumn-kirkenes-1 4/6 failed node wk2 keeps the last healthy replica", "Stage rest not begun 0 of 0", `-p '{"spec":{"abortThreshold":3}}'`,
		},
		"/fleets/clusters/winter": {"Stage first awaiting approval 0 of 2 clusters done approval not approved", `begin stage first: kubectl -n clusters patch fleetroll winter --type=merge -p '{"spec":{"approvedStages":["first"]}}'`},
		"/runbooks":               {"no-quorum"},
		"/runbooks/no-quorum":     {"What it means"},
	} {
		got := v.words(path)
		must.Contain(t, path, got, words...)
	}
}

// Those with trouble come first, then those that wait for a person, and those that are in sync last.
func TestOrder(t *testing.T) {
	t.Parallel()
	var order []string
	for _, m := range regexp.MustCompile(`<th scope="row"><a href="/clusters/[^/]*/([^"]*)"`).FindAllStringSubmatch(example(t).page("/"), -1) {
		order = append(order, m[1])
	}
	must.Equal(t, "order", "kirkenes-1 oslo-1 stavanger-2 trondheim-1 bergen-1 bergen-2 tromso-1 bodo-1 bodo-2 stavanger-1 stavanger-3 ci-1", strings.Join(order, " "))
}

// Every link of every page leads to a page.
func TestLinks(t *testing.T) {
	t.Parallel()
	v := example(t)
	seen := map[string]bool{}
	for todo := []string{"/"}; len(todo) > 0; todo = todo[1:] {
		for _, m := range regexp.MustCompile(`<a href="(/[^"]*)"`).FindAllStringSubmatch(v.page(todo[0]), -1) {
			if path := m[1]; !seen[path] && !strings.HasPrefix(path, "/runbooks/") {
				seen[path] = true
				todo = append(todo, path)
			}
		}
	}
	must.Hold(t, len(seen) >= 25, "only %d pages", len(seen))
}

// Nobody but a browser on this machine reads the pages, and nothing else is done with them.
func TestReadOnly(t *testing.T) {
	t.Parallel()
	v := example(t)
	for name, c := range map[string]struct {
		method, host, path string
		want               int
	}{
		"a read":            {http.MethodGet, "127.0.0.1:8082", "/", 200},
		"HEAD":              {http.MethodHead, "localhost:8082", "/fleets", 200},
		"the style":         {http.MethodGet, "localhost:8082", "/style.css", 200},
		"the script":        {http.MethodGet, "localhost:8082", "/live.js", 200},
		"DNS rebinding":     {http.MethodGet, "evil.example:8082", "/", 403},
		"the pod's address": {http.MethodGet, "10.0.0.7:8082", "/style.css", 403},
		"no such page":      {http.MethodGet, "localhost:8082", "/read", 404},
		"no such cluster":   {http.MethodGet, "localhost:8082", "/clusters/clusters/oslo-9", 404},
		"no such namespace": {http.MethodGet, "localhost:8082", "/rolls/lab/oslo-1-4", 404},
		"POST":              {http.MethodPost, "localhost:8082", "/", 405},
		"PUT":               {http.MethodPut, "localhost:8082", "/rolls/clusters/bergen-1-2", 405},
		"PATCH":             {http.MethodPatch, "localhost:8082", "/rolls/clusters/bergen-1-2", 405},
		"DELETE":            {http.MethodDelete, "localhost:8082", "/clusters/clusters/oslo-1", 405},
	} {
		w := v.ask(c.method, c.host, c.path)
		must.Equal(t, name, c.want, w.Code)
		if p := w.Header().Get("Content-Security-Policy"); !strings.HasPrefix(p, "default-src 'none'; style-src 'self'; script-src 'self'") {
			t.Errorf("%s: policy %q", name, p)
		}
		must.Hold(t, len(w.Result().Cookies()) == 0, "%s: cookies", name)
	}
}

// broken is a cache that can't be read.
type broken struct{ client.Reader }

func (broken) List(context.Context, client.ObjectList, ...client.ListOption) error {
	return errors.New("no cache: " + secret)
}

func (broken) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return errors.New("no cache: " + secret)
}

// What can't be read is said to be so.
func TestNotRead(t *testing.T) {
	t.Parallel()
	v := browse(t, broken{})
	for _, path := range []string{"/", "/fleets", "/clusters/a/b", "/rolls/a/b", "/fleets/a/b"} {
		w := v.ask(http.MethodGet, "localhost:1", path)
		if text := w.Body.String(); w.Code != http.StatusServiceUnavailable || !strings.Contains(text, "could not be read: no cache") || strings.Contains(text, "5ec0ffee") {
			t.Errorf("%s: %d %s", path, w.Code, text)
		}
	}
}

// The pages are served on their address until the operator ends, by each replica.
func TestStart(t *testing.T) {
	t.Parallel()
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	s := must.Get(New(stored(t, nil), netip.MustParseAddrPort(l.Addr().String()), "v0.0.0"))(t)
	if err := s.Start(t.Context()); err == nil || s.NeedLeaderElection() {
		t.Fatalf("the port is taken: %v", err)
	}
	l.Close()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Start(ctx) }()
	for began := time.Now(); ; {
		answer, err := http.Get("http://" + s.address.String())
		if err == nil {
			answer.Body.Close()
			must.Equal(t, "status", http.StatusOK, answer.StatusCode)
			break
		}
		must.Be(t, time.Since(began) <= 20*time.Second, "%v", err)
	}
	cancel()
	must.Pass(t, <-ended)
}

// noon is a look without objects.
func noon(t *testing.T) look {
	t.Helper()
	s := browse(t, nil).site
	return look{Site: s, at: s.Now()}
}

func ready(is bool, reason string) []metav1.Condition {
	status := map[bool]metav1.ConditionStatus{true: metav1.ConditionTrue, false: metav1.ConditionFalse}[is]
	return []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: status, Reason: reason, Message: "so"}}
}

// What a cluster's row says first, and how far up it stands.
func TestClusterLine(t *testing.T) {
	t.Parallel()
	l := noon(t)
	stalled := append(ready(false, v1alpha1.ReasonRefused), metav1.Condition{Type: v1alpha1.ConditionStalled, Status: metav1.ConditionTrue})
	roll := func(phase v1alpha1.RollPhase) *v1alpha1.ImageRoll {
		return &v1alpha1.ImageRoll{Status: v1alpha1.ImageRollStatus{Phase: phase, Conditions: ready(phase == v1alpha1.PhaseSucceeded, "Some")}}
	}
	checked := func(hours int) func(*v1alpha1.TalosCluster) {
		return func(c *v1alpha1.TalosCluster) {
			at := new(metav1.NewTime(l.at.Add(-time.Duration(hours) * time.Hour)))
			c.Spec.Drift.Schedule, c.Status.Check = "17 * * * *", &v1alpha1.Check{Started: at, Ended: at}
		}
	}
	cases := map[string]struct {
		conditions []metav1.Condition
		change     func(*v1alpha1.TalosCluster)
		roll       *v1alpha1.ImageRoll
		want       string
		rank       int
	}{
		"new":                    {want: "not looked at yet open", rank: rankOpen},
		"in sync":                {conditions: ready(true, "InSync"), want: "in sync good", rank: rankGood},
		"drifted":                {conditions: ready(false, "Drifted"), want: "drifted open", rank: rankOpen},
		"stalled":                {conditions: stalled, want: "refused bad", rank: rankTrouble},
		"suspended":              {conditions: ready(true, "Suspended"), want: "suspended open", rank: rankOpen},
		"unread":                 {conditions: ready(false, "Drifted"), change: func(c *v1alpha1.TalosCluster) { c.Status.Nodes = &v1alpha1.Nodes{Total: 3, Unread: 1} }, want: "drifted open", rank: rankTrouble},
		"awaiting approval":      {conditions: ready(false, "Rolling"), roll: roll(v1alpha1.PhaseAwaitingApproval), want: "awaiting approval open", rank: rankPerson},
		"rolling":                {conditions: ready(false, "Rolling"), roll: roll(v1alpha1.PhaseRolling), want: "rolling open", rank: rankOpen},
		"rolled":                 {conditions: ready(true, "InSync"), roll: roll(v1alpha1.PhaseSucceeded), want: "in sync good", rank: rankGood},
		"failed in a fleet":      {conditions: ready(false, "Drifted"), roll: roll(v1alpha1.PhaseFailed), want: "roll failed bad", rank: rankTrouble},
		"failed, in sync since":  {conditions: ready(true, "InSync"), roll: roll(v1alpha1.PhaseFailed), want: "in sync good", rank: rankGood},
		"checked":                {conditions: ready(true, "InSync"), change: checked(1), want: "in sync good", rank: rankGood},
		"overdue":                {conditions: ready(true, "InSync"), change: checked(14), want: "in sync good late", rank: rankTrouble},
		"overdue, but is rolled": {conditions: ready(false, "Rolling"), change: checked(14), roll: roll(v1alpha1.PhaseRolling), want: "rolling open", rank: rankOpen},
		"deleted":                {conditions: ready(true, "InSync"), change: func(c *v1alpha1.TalosCluster) { c.DeletionTimestamp = new(metav1.Now()) }, want: "being deleted open", rank: rankOpen},
	}
	for name, c := range cases {
		cluster := &v1alpha1.TalosCluster{Status: v1alpha1.TalosClusterStatus{Conditions: c.conditions}}
		if c.change != nil {
			c.change(cluster)
		}
		line := l.clusterLine(cluster, c.roll)
		got := line.State.Word + " " + line.State.Mood
		if line.Late {
			got += " late"
		}
		must.Hold(t, got == c.want && line.rank == c.rank,
			"%s: %s, rank %d, want %s, rank %d", name, got, line.rank, c.want, c.rank)
	}
}

func TestWindow(t *testing.T) {
	t.Parallel()
	l := noon(t)
	six := metav1.Duration{Duration: 6 * time.Hour}
	for want, windows := range map[string][]v1alpha1.Window{
		"always open":            nil,
		"open until 16:00":       {{Schedule: "0 10 * * *", Duration: six}},
		"opens 22:00":            {{Schedule: "0 22 * * *", Duration: six}},
		"opens 2026-11-29 04:00": {{Schedule: "0 4 * * *", Duration: six}},
		"can't be read":          {{Schedule: "daily at ten", Duration: six}},
		"opens 21:00":            {{Schedule: "0 22 * * 6", Duration: six, TimeZone: "Europe/Oslo"}, {Schedule: "0 1 1 1 *", Duration: six}},
	} {
		must.Equal(t, "value", want, l.window(v1alpha1.TalosClusterSpec{Windows: windows}))
	}
}

// The state of a wave is that of its FleetRoll while it is the one that runs.
func TestStages(t *testing.T) {
	t.Parallel()
	l := noon(t)
	member := func(stage string, phase v1alpha1.MemberPhase) v1alpha1.Member {
		return v1alpha1.Member{Cluster: stage, Stage: stage, Phase: phase}
	}
	began := new(metav1.NewTime(l.at))
	cases := map[string]struct {
		at     string
		reason string
		phases [2]v1alpha1.MemberPhase
		ended  bool
		want   string
	}{
		"rolling":   {"one", "Rolling", [2]v1alpha1.MemberPhase{v1alpha1.MemberRunning, v1alpha1.MemberWaiting}, false, "rolling open, not begun "},
		"soaking":   {"one", "Soaking", [2]v1alpha1.MemberPhase{v1alpha1.MemberDone, v1alpha1.MemberWaiting}, false, "soaking open, not begun "},
		"approval":  {"two", "AwaitingApproval", [2]v1alpha1.MemberPhase{v1alpha1.MemberDone, v1alpha1.MemberWaiting}, false, "done good, awaiting approval open"},
		"paused":    {"two", "Paused", [2]v1alpha1.MemberPhase{v1alpha1.MemberDone, v1alpha1.MemberRunning}, false, "done good, paused open"},
		"aborted":   {"two", "Aborted", [2]v1alpha1.MemberPhase{v1alpha1.MemberDone, v1alpha1.MemberFailed}, true, "done good, aborted open"},
		"succeeded": {"two", "Succeeded", [2]v1alpha1.MemberPhase{v1alpha1.MemberDone, v1alpha1.MemberDone}, true, "done good, done good"},
	}
	for name, c := range cases {
		f := &v1alpha1.FleetRoll{Spec: v1alpha1.FleetRollSpec{Stages: []v1alpha1.Stage{{Name: "one"}, {Name: "two"}}}}
		f.Status = v1alpha1.FleetRollStatus{Started: began, Stage: c.at, Conditions: ready(name == "succeeded", c.reason), Members: []v1alpha1.Member{member("one", c.phases[0]), member("two", c.phases[1])}}
		if c.ended {
			f.Status.Ended = began
		}
		var got []string
		for _, s := range f.Spec.Stages {
			v := l.stage(f, s, nil)
			got = append(got, v.Word+" "+v.Mood)
		}
		must.Equal(t, name, c.want, strings.Join(got, ", "))
	}
}

// A table shows the beginning of a message, and nothing of one that says that all is well.
func TestShort(t *testing.T) {
	t.Parallel()
	for s, want := range map[state]string{
		{Mood: bad, Why: "one\ntwo"}: "one", {Mood: good, Why: "one"}: "", {Mood: open}: "",
		{Mood: bad, Why: strings.Repeat("wörter ", 20)}: strings.TrimSpace(strings.Repeat("wörter ", 15)) + " …",
		{Mood: bad, Why: strings.Repeat("ö", 200)}:      strings.Repeat("ö", 110) + " …",
	} {
		must.Equal(t, s.Why, want, s.Short())
	}
}

const hostile = `"><script>alert(1)</script><img src=x onerror=alert(1)>';$(reboot) ` + "\x1b[31m\u202e " + secret

// fill puts hostile text into every string of a value, and one element into each list and pointer.
func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(hostile)
	case reflect.Int32, reflect.Int64:
		v.SetInt(3)
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0))
	case reflect.Struct:
		for _, field := range v.Fields() {
			if field.CanSet() && v.Type() != reflect.TypeFor[metav1.Time]() {
				fill(field)
			}
		}
	}
}

// filled puts three hostile objects, whose names alone are as Kubernetes wants them, into a store. conditions
// are those of v1alpha1 that have hostile reasons and messages.
func filled(t *testing.T, phase v1alpha1.RollPhase, ready string) pagetest.Store {
	t.Helper()
	conditions := []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: ready, Message: hostile + "\n" + hostile}}
	c, r, f := &v1alpha1.TalosCluster{}, &v1alpha1.ImageRoll{}, &v1alpha1.FleetRoll{}
	for _, part := range []any{&c.Spec, &c.Status, &r.Spec, &r.Status, &f.Spec, &f.Status} {
		fill(reflect.ValueOf(part).Elem())
	}
	c.Spec.Windows, c.Spec.Drift.Schedule, c.Spec.Drift.TimeZone = nil, "17 * * * *", ""
	c.Name, c.Status.Conditions = "a", conditions
	r.Name, r.Status.Conditions, r.Spec.ClusterName, r.Status.Phase = "a-1", conditions, "a", phase
	f.Name, f.Status.Conditions = "f", conditions
	r.Labels = map[string]string{v1alpha1.LabelFleet: "f", v1alpha1.LabelCluster: hostile}
	f.Spec.Stages[0].Name, f.Status.Stage, f.Status.Members[0].Stage, f.Status.Members[0].Roll = "all", "all", "all", "a-1"
	store := stored(t, nil)
	c.Namespace, r.Namespace, f.Namespace = "ns", "ns", "ns"
	for _, err := range []error{store.Create(t.Context(), c), store.Create(t.Context(), r), store.Create(t.Context(), f)} {
		must.Do(t, err)
	}
	return store
}

var all = []string{"/", "/clusters/ns/a", "/rolls/ns/a-1", "/fleets", "/fleets/ns/f"}

// Text of objects adds no markup, no control character and no secret to a page, and nothing to a command that
// a person copies.
func TestForeignText(t *testing.T) {
	t.Parallel()
	for _, phase := range []v1alpha1.RollPhase{v1alpha1.PhaseAwaitingApproval, v1alpha1.PhaseRolling, v1alpha1.PhaseFailed, hostile} {
		for _, reason := range []string{v1alpha1.ReasonAwaitingApproval, v1alpha1.ReasonStageFailed, v1alpha1.ReasonPaused, hostile} {
			v := browse(t, filled(t, phase, reason))
			for _, path := range all {
				page := v.page(path)
				for _, wrong := range []string{"<script>", "<img", "\x1b", "\u202e", "5ec0ffee"} {
					must.Hold(t, !strings.Contains(page, wrong), "%s has %q:\n%s", path, wrong, page)
				}
				must.Hold(t, path == "/fleets" || strings.Contains(page, "&lt;script&gt;"), "%s lacks the text", path)
				for _, command := range strings.Split(page, "<pre>kubectl ")[1:] {
					if line, _, _ := strings.Cut(command, "</pre>"); strings.Contains(line, "reboot") {
						t.Errorf("%s has the command kubectl %s", path, line)
					}
				}
			}
		}
	}
}

// Objects that the operator has not looked at yet have pages, too.
func TestNew(t *testing.T) {
	t.Parallel()
	v := browse(t, stored(t, []byte(`
apiVersion: recast.dev/v1alpha1
kind: TalosCluster
metadata: {namespace: ns, name: a}
---
apiVersion: recast.dev/v1alpha1
kind: ImageRoll
metadata: {namespace: ns, name: a-1}
spec: {clusterName: a}
---
apiVersion: recast.dev/v1alpha1
kind: FleetRoll
metadata: {namespace: ns, name: f}
spec: {stages: [{name: all, selector: {}}]}
`)))
	for path, want := range map[string]string{
		"/": "a ns not begun", "/clusters/ns/a": "no check has ended yet", "/rolls/ns/a-1": "not begun", "/fleets": "f ns not looked at yet 0 of 0 done", "/fleets/ns/f": "Stage all not begun 0 of 0 clusters done",
	} {
		must.Contain(t, path, v.words(path), want)
	}
	none := browse(t, stored(t, nil))
	for path, want := range map[string]string{"/": "there is no TalosCluster", "/fleets": "there is no FleetRoll"} {
		must.Contain(t, path, none.words(path), want)
	}
}

const (
	benchClusters = 100
	benchNodes    = 20
	benchRolls    = 10 // of a cluster: spec.rolls.keep
	maxPage       = time.Second
	maxPageMiB    = 10
)

// memory is objects as controller-runtime's cache has them: nothing of a list is copied but the structs.
type memory struct {
	client.Reader
	clusters []v1alpha1.TalosCluster
	rolls    []v1alpha1.ImageRoll
	fleets   []v1alpha1.FleetRoll
}

func (m *memory) List(_ context.Context, list client.ObjectList, opts ...client.ListOption) error {
	o := client.ListOptions{}
	o.ApplyOptions(opts)
	switch list := list.(type) {
	case *v1alpha1.TalosClusterList:
		list.Items = slices.Clone(m.clusters)
	case *v1alpha1.FleetRollList:
		list.Items = slices.Clone(m.fleets)
	case *v1alpha1.ImageRollList:
		for _, r := range m.rolls {
			if (o.LabelSelector == nil || o.LabelSelector.Matches(labels.Set(r.Labels))) && (o.FieldSelector == nil || o.FieldSelector.String() == "spec.clusterName="+r.Spec.ClusterName) {
				list.Items = append(list.Items, r)
			}
		}
	}
	return nil
}

func (m *memory) Get(_ context.Context, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	switch o := o.(type) {
	case *v1alpha1.TalosCluster:
		*o = *m.clusters[0].DeepCopy()
	case *v1alpha1.FleetRoll:
		*o = *m.fleets[0].DeepCopy()
	case *v1alpha1.ImageRoll:
		*o = *m.rolls[0].DeepCopy()
	}
	return nil
}

// large is a fleet whose clusters are all rolled by one FleetRoll, with long lists.
func large(b *testing.B) *memory {
	b.Helper()
	store := example(b).site.objects
	var c v1alpha1.TalosCluster
	var r v1alpha1.ImageRoll
	var f v1alpha1.FleetRoll
	for name, o := range map[string]client.Object{"oslo-1": &c, "oslo-1-4": &r, "autumn": &f} {
		must.Do(b, store.Get(b.Context(), client.ObjectKey{Namespace: "clusters", Name: name}, o))
	}
	for len(c.Status.Check.Reasons) < benchNodes {
		c.Status.Check.Reasons = append(c.Status.Check.Reasons, c.Status.Check.Reasons[0])
		r.Status.Plan.Lines = append(r.Status.Plan.Lines, r.Status.Plan.Lines[0])
		r.Status.Attempts = append(r.Status.Attempts, r.Status.Attempts[0])
	}
	m := &memory{}
	member := f.Status.Members[3]
	f.Status.Members = nil
	for i := range benchClusters {
		c.Name = fmt.Sprintf("c%d", i)
		m.clusters = append(m.clusters, *c.DeepCopy())
		for j := range benchRolls {
			r.Name, r.Spec.ClusterName, r.Labels = fmt.Sprintf("%s-%d", c.Name, j), c.Name, map[string]string{v1alpha1.LabelFleet: fmt.Sprintf("autumn%d", j)}
			m.rolls = append(m.rolls, *r.DeepCopy())
		}
		member.Cluster, member.Roll = c.Name, c.Name+"-0"
		f.Status.Members = append(f.Status.Members, member)
	}
	f.Name = "autumn0"
	m.fleets = []v1alpha1.FleetRoll{f}
	return m
}

// BenchmarkFleetPages draws each page of 100 clusters of 20 stale nodes, with all rolls that are kept.
func BenchmarkFleetPages(b *testing.B) {
	v := browse(b, large(b))
	for _, path := range []string{"/", "/clusters/clusters/c0", "/rolls/clusters/c0-0", "/fleets", "/fleets/clusters/autumn0"} {
		b.Run("page "+path, func(b *testing.B) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			size := 0
			for b.Loop() {
				w := v.ask(http.MethodGet, "localhost:1", path)
				if size = w.Body.Len(); w.Code != http.StatusOK {
					b.Fatal(w.Body)
				}
			}
			runtime.ReadMemStats(&after)
			took, mib := b.Elapsed()/time.Duration(b.N), float64(after.TotalAlloc-before.TotalAlloc)/float64(b.N)/(1<<20)
			b.ReportMetric(mib, "MiB")
			b.ReportMetric(float64(size)/1024, "KiB")
			must.Hold(b, took <= maxPage && mib <= maxPageMiB,
				"it took %s and allocated %.1f MiB, more than %s or %d", took, mib, maxPage, maxPageMiB)
		})
	}
}
