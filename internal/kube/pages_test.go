package kube_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
)

// TestListThatExpires: a list whose revision etcd drops while it is read is
// restarted, without what was read of it; not for ever.
func TestListThatExpires(t *testing.T) {
	t.Parallel()
	const expired = `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Expired","code":410,"message":"too old"}`
	for name, tc := range map[string]struct {
		expires int // how often the second page does
		want    []string
		err     string
	}{
		"never":    {0, []string{"wk1", "wk2"}, ""},
		"once":     {1, []string{"wk1", "wk2"}, ""},
		"for ever": {99, nil, "list nodes: the list went out of date while it was read, 3 times in a row: too old"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			left := tc.expires
			c := serveEach(t, func(r *http.Request) (page, bool) {
				q := r.URL.Query()
				if q.Get("limit") != "500" {
					t.Errorf("asked for %s", r.URL)
				}
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
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestLocalDataAsksOnce: everything is listed once for all nodes, whatever storage
// systems there are.
func TestLocalDataAsksOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
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
		nodes, err := c.Nodes(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		from := len(l.calls.Calls())
		data, err := c.LocalData(t.Context(), nodes...)
		if err != nil {
			t.Fatal(err)
		}
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
		if diff := cmp.Diff(want, asked); diff != "" {
			t.Errorf("asked (-want +got):\n%s", diff)
		}
		for _, name := range names {
			what := []string{}
			for _, d := range data[name] {
				what = append(what, d.Name)
			}
			if diff := cmp.Diff([]string{"linstor/" + name, "longhorn/var/mnt/" + name}, what); diff != "" {
				t.Errorf("%s (-want +got):\n%s", name, diff)
			}
		}
		if one, err := c.LocalData(t.Context(), nodes[1]); err != nil || !cmp.Equal(one, map[string][]cluster.LocalData{"wk2": data["wk2"]}) {
			t.Errorf("alone: %+v, %v", one, err)
		}
	})
}
