package kubeapi_test

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/recast-sh/recast/internal/sim/kubeapi"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
)

// Load restores exactly the dumped objects; a new cluster has the bootstrap objects.
func TestDumpAndLoad(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, "wk1")
		ctx, s, r := t.Context(), l.Store(), widgets(false)
		l.Define(r)
		if _, err := s.Create(ctx, r.GroupVersionResource, widget("kept", 3)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		values := func() map[string]string {
			t.Helper()
			all, err := l.Dump(ctx)
			if err != nil {
				t.Fatal(err)
			}
			out, revisions := map[string]string{}, []uint64{}
			for _, kv := range all {
				if strings.HasPrefix(kv.Key, "/registry/leases/kube-node-lease/") {
					kv.Value = nil // the kubelet renews it
				}
				out[kv.Key], revisions = string(kv.Value), append(revisions, kv.Revision)
			}
			slices.Sort(revisions)
			if len(slices.Compact(revisions)) != len(all) {
				t.Error("two objects were written at the same revision")
			}
			return out
		}
		before := values()
		for _, key := range []string{"/registry/minions/wk1", "/registry/example.org/widgets/default/kept", "/registry/deployments/kube-system/coredns"} {
			if before[key] == "" {
				t.Errorf("there is no %s", key)
			}
		}
		dump, err := l.Dump(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Delete(ctx, r.GroupVersionResource, "default", "kept", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Create(ctx, r.GroupVersionResource, widget("later", 4)); err != nil {
			t.Fatal(err)
		}
		if err := l.Load(dump); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if diff := cmp.Diff(before, values()); diff != "" {
			t.Errorf("(-before +after):\n%s", diff)
		}

		if err := l.Renew(ctx, nil); err != nil {
			t.Fatal(err)
		}
		fresh := values()
		if fresh["/registry/namespaces/kube-system"] == "" || fresh["/registry/example.org/widgets/default/kept"] != "" {
			t.Errorf("a new cluster has %d objects", len(fresh))
		}
		if err := l.Load([]kubeapi.Stored{{Key: "/registry/pods/default/web", Value: []byte("k8s\x00what")}}); err == nil {
			t.Error("no error for something that is not an object")
		}
		if _, err := s.Get(ctx, store.Nodes(), "", "wk1"); err == nil {
			t.Error("what could not be read has changed something")
		}
	})
}
