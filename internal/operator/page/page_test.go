package page

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/recast-sh/recast/internal/operator/page/pagetest"
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
	s, err := New(objects, netip.AddrPort{}, "v0.0.0")
	if err != nil {
		t.Fatal(err)
	}
	s.Now = func() time.Time { return time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC) }
	return visit{t, s}
}

// example is the fleet of testdata.
func example(t testing.TB) visit {
	t.Helper()
	text, err := os.ReadFile("../../../testdata/fleet/objects.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return browse(t, stored(t, text))
}

func stored(t testing.TB, text []byte) pagetest.Store {
	t.Helper()
	store, err := pagetest.New()
	if err == nil {
		err = store.Put(t.Context(), bytes.NewReader(text))
	}
	if err != nil {
		t.Fatal(err)
	}
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
			"clusters 12 in sync 5 in trouble 4 await approval 1 being rolled 1", "FleetRolls that are not over", "winter clusters awaiting approval first 0 of 2 done",
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
		for _, want := range words {
			if !strings.Contains(got, want) {
				t.Errorf("%s without %q:\n%s", path, want, got)
			}
		}
	}
}

// Those with trouble come first, then those that wait for a person, and those that are in sync last.
func TestOrder(t *testing.T) {
	t.Parallel()
	var order []string
	for _, m := range regexp.MustCompile(`<th scope="row"><a href="/clusters/[^/]*/([^"]*)"`).FindAllStringSubmatch(example(t).page("/"), -1) {
		order = append(order, m[1])
	}
	if got, want := strings.Join(order, " "), "kirkenes-1 oslo-1 stavanger-2 trondheim-1 bergen-1 bergen-2 tromso-1 bodo-1 bodo-2 stavanger-1 stavanger-3 ci-1"; got != want {
		t.Errorf("order %s", got)
	}
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
	if len(seen) < 25 {
		t.Errorf("only %d pages", len(seen))
	}
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
		if w.Code != c.want {
			t.Errorf("%s: %d, want %d: %s", name, w.Code, c.want, w.Body)
		}
		if p := w.Header().Get("Content-Security-Policy"); !strings.HasPrefix(p, "default-src 'none'; style-src 'self'; script-src 'self'") {
			t.Errorf("%s: policy %q", name, p)
		}
		if len(w.Result().Cookies()) > 0 {
			t.Errorf("%s: cookies", name)
		}
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
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(stored(t, nil), netip.MustParseAddrPort(l.Addr().String()), "v0.0.0")
	if err != nil {
		t.Fatal(err)
	}
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
			if answer.StatusCode != http.StatusOK {
				t.Error(answer.Status)
			}
			break
		}
		if time.Since(began) > 20*time.Second {
			t.Fatal(err)
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
