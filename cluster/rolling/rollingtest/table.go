package rollingtest

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/recast-sh/recast/cluster/clustertest"
)

// Call is something that gates guard, on a node that Ready has prepared.
type Call struct {
	Do    func(*Scene, context.Context) error
	Ready func(*Scene)
	Done  string   // what it does if nothing is in the way
	Err   string   // "": it succeeds then
	Deaf  []string // calls that may fail: their answer is no reason to refuse, or they are repeated
}

// Row is a call that is refused, or not, after a change.
type Row struct {
	Do     string // the name of the call
	Change func(*Scene)
	Err    string // "": it is not refused
	Done   string // "": all of it, unless it is refused
	Took   time.Duration
}

// CheckCalls checks that each call succeeds if nothing is in the way, and stops if a port fails.
func CheckCalls(t *testing.T, calls map[string]Call) {
	t.Helper()
	for name, c := range calls {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, _, err := play(t, clustertest.Which{}, c.Do, c.Ready)
			if got := strings.Join(s.PX.Done, "\n"); (err == nil) != (c.Err == "") || err != nil && !strings.Contains(err.Error(), c.Err) || got != c.Done {
				t.Fatalf("%v, want %q, done:\n%s\nwant:\n%s", err, c.Err, got, c.Done)
			}
			for at, call := range s.PX.Made {
				if slices.Contains(c.Deaf, call) {
					continue
				}
				if _, _, err := play(t, s.PX.Which(at), c.Do, c.Ready); !errors.Is(err, clustertest.ErrBroken) {
					t.Errorf("call %d, %s, failed: %v", at+1, call, err)
				}
			}
		})
	}
}

// CheckRows checks that every condition of a gate refuses something that no other one refuses.
// failures are in errors that are no refusals (see [clustertest.CheckErr]).
func CheckRows(t *testing.T, calls map[string]Call, rows []Row, failures ...string) {
	t.Helper()
	for _, row := range rows {
		t.Run(row.Do+": "+cmp.Or(row.Err, "not refused"), func(t *testing.T) {
			t.Parallel()
			c := calls[row.Do]
			s, took, err := play(t, clustertest.Which{}, c.Do, c.Ready, row.Change)
			if row.Err == "" && row.Done == "" {
				row.Done = c.Done
			}
			if got := strings.Join(s.PX.Done, "\n"); got != strings.TrimSpace(row.Done) || took.Round(2*time.Second) != row.Took {
				t.Errorf("done after %s:\n%s\nwant after %s:\n%s", took, got, row.Took, row.Done)
			}
			clustertest.CheckErr(t, err, row.Err, failures...)
		})
	}
}

// play runs do with the row's change, or with one failing call.
func play(t *testing.T, fails clustertest.Which, do func(*Scene, context.Context) error, changes ...func(*Scene)) (s *Scene, took time.Duration, err error) {
	synctest.Test(t, func(t *testing.T) {
		s = NewScene()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s.Cancel = cancel
		for _, change := range changes {
			if change != nil {
				change(s)
			}
		}
		s.Ready()
		s.PX.Fails = fails
		began := time.Now()
		err = do(s, ctx)
		took = time.Since(began)
	})
	return s, took, err
}
