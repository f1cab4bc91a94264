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

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/kube"
)

// page is one answer of a server.
type page struct {
	code int
	body string
}

// serve answers each path with its page, and others as an API server does for
// unknown paths.
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
	c, err := kube.New([]byte(kubeconfig), kube.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
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
	if err != nil {
		t.Fatal(err)
	}
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
	cases := map[string]struct {
		read func(*kube.Client, *testing.T) error
		path string // "": no fault
		page page
		want string
		kind fault.Kind
	}{
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
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pages := maps.Clone(fine)
			if tc.path != "" {
				pages[tc.path] = tc.page
			}
			err := tc.read(serve(t, pages), t)
			if tc.path == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tc.want) || errors.Is(err, cluster.ErrNotFound) {
				t.Fatalf("err = %v, want %q and not ErrNotFound", err, tc.want)
			}
			if fault.KindOf(err) != tc.kind {
				t.Errorf("kind %v of %v, want %v", fault.KindOf(err), err, tc.kind)
			}
			if hints := fault.Hints(err); tc.kind == fault.Refused && len(hints) != 1 {
				t.Errorf("hints = %q", hints)
			}
		})
	}
}
