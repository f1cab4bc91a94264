package pve

import (
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestSharedAnswers: of the whole cluster is asked once for all VMs that are looked
// at together, and again for whoever comes later, at once, or was not answered.
func TestSharedAnswers(t *testing.T) {
	t.Parallel()
	const path = "GET /cluster/backup"
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		pve1 := s.node(t, "pve1")
		ok := data(`[{"id":"b1"}]`)
		pve1.on(path, after(10*time.Millisecond, ok), raw("403 Permission check failed", ""), ok)
		c := s.client(t, "pve1")
		ask := func() error {
			var rows []struct{ ID string }
			err := c.getShared(t.Context(), "/cluster/backup", &rows)
			if err == nil && (len(rows) != 1 || rows[0].ID != "b1") {
				t.Errorf("read %v", rows)
			}
			return err
		}
		asked := func(want int) {
			t.Helper()
			if got := len(slices.DeleteFunc(pve1.requests(), func(r string) bool { return r != path })); got != want {
				t.Errorf("asked %d times, want %d", got, want)
			}
		}
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				if err := ask(); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		asked(1)
		if e, is := errors.AsType[*Error](ask()); !is || e.Status != 403 {
			t.Errorf("error is %v", e)
		}
		if err := ask(); err != nil { // the refusal was the other's
			t.Error(err)
		}
		asked(3)
	})
}

// TestSharedAnswersAreCopies: what one does with an answer is not seen by another.
func TestSharedAnswersAreCopies(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		pve1 := s.node(t, "pve1")
		untied(pve1)
		pve1.on("GET /cluster/options", data(`{"allowed-tags":["a","b"]}`))
		c := s.client(t, "pve1")
		vm := tied101
		vm.Config = map[string]string{"tags": "a;b;c"}
		for range 2 {
			ties, err := c.Ties(t.Context(), vm)
			if err != nil || !slices.Equal(ties.Tags, []string{"c"}) {
				t.Errorf("tags %v, error %v", ties.Tags, err)
			}
		}
		var raw json.RawMessage
		if err := c.getShared(t.Context(), "/cluster/options", &raw); err != nil || len(raw) == 0 {
			t.Errorf("%s, %v", raw, err)
		}
	})
}
