package pve

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/recast-sh/recast/internal/pve/api"
)

// TestRemember: a client with a memory reads lasting answers once, however many
// concurrent callers there are. Errors are not kept, and VMs are read each time.
func TestRemember(t *testing.T) {
	t.Parallel()
	const path = "GET /access/permissions?path=%2Fvms"
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		pve1 := s.Node(t, "pve1")
		pve1.On(path, after(10*time.Millisecond, raw("403 Permission check failed", "")), after(10*time.Millisecond, data(`{"/vms":{"VM.Audit":1}}`)), data(`{}`))
		pve1.On(listPath, data(`[]`))
		asked := func(path string, want int) {
			t.Helper()
			same(t, path, want, len(slices.DeleteFunc(pve1.Requests(), func(r string) bool { return r != path })))
		}
		c := s.client(t, "pve1")
		c.Remember()
		if e, is := errors.AsType[*api.Error](func() error { _, err := c.Permissions(t.Context(), "/vms"); return err }()); !is || e.Status != 403 {
			t.Errorf("error is %v", e)
		}
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				held, err := c.Permissions(t.Context(), "/vms")
				if err != nil || !held["VM.Audit"] {
					t.Errorf("%v, %v", held, err)
				}
			})
		}
		all.Wait()
		asked(path, 2)
		for range 2 {
			if _, err := c.Listed(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		asked(listPath, 2)
	})
}
