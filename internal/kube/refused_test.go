package kube_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/kube"
	"github.com/recast-sh/recast/internal/sim/must"
)

type page struct {
	code int
	body string
}

// serve answers each path with its page, and others as an API server does for unknown paths.
func serve(t *testing.T, pages map[string]page) *kube.Client {
	t.Helper()
	return serveEach(t, func(r *http.Request) (page, bool) {
		p, ok := pages[r.URL.Path]
		return p, ok
	})
}

// serveEach is serve with an answer to each request.
func serveEach(t *testing.T, answer func(*http.Request) (page, bool)) *kube.Client {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p, ok := answer(r)
		if !ok {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(p.code)
		_, _ = io.WriteString(w, p.body) // a client that is gone needs no answer
	}))
	t.Cleanup(srv.Close)
	kubeconfig := fmt.Sprintf("apiVersion: v1\nkind: Config\ncurrent-context: x\nclusters: [{name: x, cluster: {server: %q}}]\n"+
		"users: [{name: x, user: {token: t}}]\ncontexts: [{name: x, context: {cluster: x, user: x}}]\n", srv.URL)
	c := must.Get(kube.New([]byte(kubeconfig), kube.Options{}))(t)
	t.Cleanup(func() {
		must.Do(t, c.Close())
	})
	return c
}

// forbidden is the answer without any RBAC rights.
func forbidden(t *testing.T, resource, group string) page {
	t.Helper()
	b, err := json.Marshal(metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure,
		Reason: metav1.StatusReasonForbidden, Code: http.StatusForbidden,
		Message: fmt.Sprintf("%s is forbidden: User \"ci\" cannot list resource %q in API group %q at the cluster scope", resource, resource, group),
		Details: &metav1.StatusDetails{Group: group, Kind: resource},
	})
	must.Do(t, err)
	return page{http.StatusForbidden, string(b)}
}

// finePages are the answers of a server with everything installed and nothing in it.
func finePages() map[string]page {
	group := func(name, version string) string {
		return fmt.Sprintf(`{"name":%q,"versions":[{"groupVersion":"%s/%s","version":%q}],"preferredVersion":{"groupVersion":"%s/%s","version":%q}}`,
			name, name, version, version, name, version, version)
	}
	return map[string]page{
		"/api/v1/nodes/wk1":         {200, `{"kind":"Node","apiVersion":"v1","metadata":{"name":"wk1","labels":{"kubernetes.io/hostname":"wk1"}}}`},
		"/api/v1/persistentvolumes": {200, `{"kind":"PersistentVolumeList","apiVersion":"v1","items":[]}`},
		"/apis": {200, `{"kind":"APIGroupList","apiVersion":"v1","groups":[` + strings.Join([]string{
			group("longhorn.io", "v1beta2"), group("piraeus.io", "v1"), group("ceph.rook.io", "v1"), group("tuppr.home-operations.com", "v1alpha1"), group("upgrade.cattle.io", "v1"),
		}, ",") + `]}`},
		"/api/v1/pods":                                            {200, `{"kind":"PodList","apiVersion":"v1","items":[]}`},
		"/apis/piraeus.io/v1/linstorsatellites":                   {200, `{"items":[]}`},
		"/apis/longhorn.io/v1beta2/nodes":                         {200, `{"items":[]}`},
		"/apis/ceph.rook.io/v1/cephclusters":                      {200, `{"items":[]}`},
		"/apis/upgrade.cattle.io/v1/plans":                        {200, `{"items":[]}`},
		"/apis/tuppr.home-operations.com/v1alpha1":                {200, `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"x/v1","resources":[{"name":"talosupgrades","kind":"TalosUpgrade"},{"name":"talosupgrades/status","kind":"TalosUpgrade"}]}`},
		"/apis/certificates.k8s.io/v1/certificatesigningrequests": {200, `{"kind":"CertificateSigningRequestList","apiVersion":"certificates.k8s.io/v1","items":[]}`},
		"/apis/tuppr.home-operations.com/v1alpha1/talosupgrades":  {200, `{"items":[]}`},
	}
}

// What cannot be read must not count as missing.
func TestReadsFailClosed(t *testing.T) {
	t.Parallel()
	fine := finePages()
	data := func(c *kube.Client, t *testing.T) error {
		_, err := c.LocalData(t.Context(), cluster.KubeNode{Name: "wk1"})
		return err
	}
	owners := func(c *kube.Client, t *testing.T) error { _, err := c.OtherOwners(t.Context()); return err }
	certificates := func(c *kube.Client, t *testing.T) error {
		_, err := c.PendingCertificates(t.Context(), "wk1")
		return err
	}
	type row struct {
		read func(*kube.Client, *testing.T) error
		path string // "": no fault
		page page
		want string
		kind fault.Kind
	}
	cases := map[string]row{
		"local data":   {read: data},
		"owners":       {read: owners},
		"certificates": {read: certificates},
		"volumes forbidden": {
			data, "/api/v1/persistentvolumes", forbidden(t, "persistentvolumes", ""), `list persistent volumes: persistentvolumes is forbidden`, fault.Refused,
		},
		"pods forbidden": {data, "/api/v1/pods", forbidden(t, "pods", ""), "list pods: pods is forbidden", fault.Refused},
		"Piraeus forbidden": {
			data, "/apis/piraeus.io/v1/linstorsatellites", forbidden(t, "linstorsatellites", "piraeus.io"), "list linstorsatellites.piraeus.io: ", fault.Refused,
		},
		"Longhorn forbidden": {
			data, "/apis/longhorn.io/v1beta2/nodes", forbidden(t, "nodes", "longhorn.io"),
			`list nodes.longhorn.io: nodes is forbidden: User "ci" cannot list resource "nodes" in API group "longhorn.io"`, fault.Refused,
		},
		"Longhorn gone meanwhile": {data, "/apis/longhorn.io/v1beta2/nodes", page{404, "404 page not found"}, "list nodes.longhorn.io: ", fault.Failed},
		"no list":                 {data, "/apis/longhorn.io/v1beta2/nodes", page{200, `{"kind":"Other"}`}, "list nodes.longhorn.io: the answer is not a list", fault.Failed},
		"no JSON":                 {data, "/apis/longhorn.io/v1beta2/nodes", page{200, `<html>`}, "list nodes.longhorn.io: read the answer", fault.Failed},
		"Rook forbidden": {
			data, "/apis/ceph.rook.io/v1/cephclusters", forbidden(t, "cephclusters", "ceph.rook.io"), "list cephclusters.ceph.rook.io: ", fault.Refused,
		},
		"discovery forbidden":  {data, "/apis", forbidden(t, "", ""), "list API groups: ", fault.Refused},
		"discovery of a proxy": {owners, "/apis", page{404, "404 page not found"}, "list API groups: ", fault.Failed},
		"tuppr forbidden": {
			owners, "/apis/tuppr.home-operations.com/v1alpha1/talosupgrades", forbidden(t, "talosupgrades", "tuppr.home-operations.com"),
			"list talosupgrades.tuppr.home-operations.com: ", fault.Refused,
		},
		"plans forbidden": {owners, "/apis/upgrade.cattle.io/v1/plans", forbidden(t, "plans", "upgrade.cattle.io"), "list plans.upgrade.cattle.io: ", fault.Refused},
		"certificates forbidden": {
			certificates, "/apis/certificates.k8s.io/v1/certificatesigningrequests", forbidden(t, "certificatesigningrequests", "certificates.k8s.io"),
			"list certificate signing requests: ", fault.Refused,
		},
	}
	must.Each(t, cases, func(t *testing.T, tc row) {
		pages := maps.Clone(fine)
		if tc.path != "" {
			pages[tc.path] = tc.page
		}
		err := tc.read(serve(t, pages), t)
		if tc.path == "" {
			must.Do(t, err)
			return
		}
		if err == nil || !strings.Contains(err.Error(), tc.want) || errors.Is(err, cluster.ErrNotFound) {
			t.Fatalf("err = %v, want %q and not ErrNotFound", err, tc.want)
		}
		must.FailAs(t, err, tc.kind)
		if hints := fault.Hints(err); tc.kind == fault.Refused && len(hints) != 1 {
			t.Errorf("hints = %q", hints)
		}
	})
}

// Everything that Kubernetes and its objects say becomes one line without escape sequences.
func TestForeignTextIsOneLine(t *testing.T) {
	t.Parallel()
	quoted, err := json.Marshal("bad\x1b[31m\x1b]0;title\a\r\nfake line: \u202e\u2028\x7f")
	must.Do(t, err)
	evil := string(quoted)
	refusal := func(code, reason string) string {
		return `{"kind":"Status","apiVersion":"v1","status":"Failure","message":` + evil + `,"reason":"` + reason + `","code":` + code + `}`
	}
	owners := func(c *kube.Client) (string, error) { _, err := c.OtherOwners(t.Context()); return "", err }
	type row struct {
		path string
		page page
		ask  func(*kube.Client) (string, error)
	}
	must.Each(t, map[string]row{
		"forbidden":    {"/apis/upgrade.cattle.io/v1/plans", page{403, refusal("403", "Forbidden")}, owners},
		"unauthorized": {"/apis/upgrade.cattle.io/v1/plans", page{401, refusal("401", "Unauthorized")}, owners},
		"broken":       {"/apis/upgrade.cattle.io/v1/plans", page{400, refusal("400", "BadRequest")}, owners},
		"volume attachment": {
			"/apis/storage.k8s.io/v1/volumeattachments",
			page{200, `{"kind":"VolumeAttachmentList","apiVersion":"storage.k8s.io/v1","items":[{"metadata":{"name":"a"},"spec":{"attacher":"x","nodeName":"wk1","source":{}},"status":{"attached":true,"detachError":{"message":` + evil + `}}}]}`},
			func(c *kube.Client) (string, error) {
				volumes, err := c.AttachedVolumes(t.Context(), "wk1")
				return volumes[0].Trouble, err
			},
		},
		"gate": {
			"/api/v1/nodes",
			page{200, `{"kind":"NodeList","apiVersion":"v1","items":[{"metadata":{"name":` + evil + `,"annotations":{"note":` + evil + `}}}]}`},
			func(c *kube.Client) (string, error) {
				judged, err := c.Judge(t.Context(), cluster.ObjectGate{APIVersion: "v1", Kind: "Node", Expr: `metadata.annotations.note == "fine"`})
				if err != nil {
					return "", err
				}
				return judged.Failing[0].Name + ": " + judged.Failing[0].Why, nil
			},
		},
		"waiting container": {
			"/api/v1/namespaces/kube-system/pods",
			page{200, `{"kind":"PodList","apiVersion":"v1","items":[{"metadata":{"name":"p","annotations":{"kubernetes.io/config.mirror":"x"}},"spec":{"containers":[]},"status":{"containerStatuses":[{"state":{"waiting":{"reason":"CrashLoopBackOff","message":` + evil + `}}}]}}]}`},
			func(c *kube.Client) (string, error) {
				pods, err := c.StaticPods(t.Context())
				return pods[0].Why, err
			},
		},
	}, func(t *testing.T, c row) {
		pages := finePages()
		pages["/api/v1"] = page{200, `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"v1","resources":[{"name":"nodes","kind":"Node","verbs":["list"]}]}`}
		pages[c.path] = c.page
		text, err := c.ask(serve(t, pages))
		if err != nil {
			text = err.Error()
		}
		if !strings.Contains(text, "bad") || !strings.Contains(text, "fake line") || strings.ContainsAny(text, "\x1b\a\r\n\u202e\u2028\x7f") {
			t.Errorf("%q", text)
		}
	})
}

// TestListThatExpires: a list whose revision etcd drops while it is read is
// restarted, without what was read of it; not for ever.
func TestListThatExpires(t *testing.T) {
	t.Parallel()
	const expired = `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Expired","code":410,"message":"too old"}`
	type row struct {
		expires int // how often the second page does
		want    []string
		err     string
	}
	must.Each(t, map[string]row{
		"never":    {0, []string{"wk1", "wk2"}, ""},
		"once":     {1, []string{"wk1", "wk2"}, ""},
		"for ever": {99, nil, "list nodes: the list went out of date while it was read, 3 times in a row: too old"},
	}, func(t *testing.T, tc row) {
		left := tc.expires
		c := serveEach(t, func(r *http.Request) (page, bool) {
			q := r.URL.Query()
			must.Equal(t, "asked for", "500", q.Get("limit"))
			node, next := "wk1", "second"
			if q.Get("continue") != "" {
				node, next = "wk2", ""
				if left--; left >= 0 {
					return page{http.StatusGone, expired}, true
				}
			}
			return page{http.StatusOK, fmt.Sprintf(`{"kind":"NodeList","apiVersion":"v1","metadata":{"continue":%q},"items":[{"metadata":{"name":%q}}]}`, next, node)}, true
		})
		nodes, err := c.Nodes(t.Context())
		if err != nil && (tc.err == "" || !strings.Contains(err.Error(), tc.err)) || err == nil && tc.err != "" {
			t.Fatalf("err = %v, want %q", err, tc.err)
		}
		var got []string
		for _, n := range nodes {
			got = append(got, n.Name)
		}
		must.Equal(t, "got", tc.want, got)
	})
}

// TestLocalDataAsksOnce: everything is listed once for all nodes, whatever storage systems there are.
func TestLocalDataAsksOnce(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		names := []string{"wk1", "wk2", "wk3"}
		l := newLab(t, names...)
		time.Sleep(10 * time.Second)
		satellite := l.install(t, "piraeus.io", "v1", "linstorsatellites", "LinstorSatellite", false)
		longhorn := l.install(t, "longhorn.io", "v1beta2", "nodes", "Node", true)
		ceph := l.install(t, "ceph.rook.io", "v1", "cephclusters", "CephCluster", true)
		for _, name := range names {
			satellite("", name, map[string]any{"spec": map[string]any{"storagePools": []any{map[string]any{"name": name, "lvmPool": map[string]any{}}}}})
			longhorn("longhorn-system", name, longhornNode(map[string]any{"d": map[string]any{"diskType": "filesystem", "path": "/var/mnt/" + name}}, nil))
		}
		ceph("rook-ceph", "rook-ceph", map[string]any{"spec": map[string]any{"dataDirHostPath": "/var/lib/rook"}})
		c := l.client(t, "system:masters")
		nodes := must.Get(c.Nodes(t.Context()))(t)
		from := len(l.calls.Calls())
		data, err := c.LocalData(t.Context(), nodes...)
		must.Do(t, err)
		asked := map[string]int{}
		for _, call := range l.calls.Calls()[from:] {
			path, _, _ := strings.Cut(call.Path, "?")
			asked[path]++
		}
		want := map[string]int{}
		for _, path := range []string{
			"/apis", "/apis/piraeus.io/v1/linstorsatellites", "/apis/longhorn.io/v1beta2/nodes", "/apis/ceph.rook.io/v1/cephclusters",
			"/apis/apps/v1/namespaces/rook-ceph/deployments", "/api/v1/namespaces/rook-ceph/pods", "/api/v1/pods", "/api/v1/persistentvolumes",
		} {
			want[path] = 1
		}
		must.Equal(t, "asked", want, asked)
		for _, name := range names {
			what := []string{}
			for _, d := range data[name] {
				what = append(what, d.Name)
			}
			must.Equal(t, name, []string{"linstor/" + name, "longhorn/var/mnt/" + name}, what)
		}
		if one, err := c.LocalData(t.Context(), nodes[1]); err != nil || !cmp.Equal(one, map[string][]cluster.LocalData{"wk2": data["wk2"]}) {
			t.Errorf("alone: %+v, %v", one, err)
		}
	})
}
