package fault_test

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"syscall"
	"testing"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
)

// TestThisMachine: what this machine lacks takes the place of hints about servers, but not of what is
// unfinished.
func TestThisMachine(t *testing.T) {
	t.Parallel()
	for want, cause := range map[string]error{
		"this machine lets recast open too few files: ulimit -n 1024, then run the same command again":                                   syscall.EMFILE,
		"make room on this machine, where that file is (recast prune --only cache frees some), then run the same command again":          syscall.ENOSPC,
		"recast has to write there: make that file system writable, or work in a copy of the directory; then run the same command again": syscall.EROFS,
		"this user may not use .recast/cache, or its directory: ls -ld shows whose it is; change that, or run recast as that user":       &fs.PathError{Op: "mkdir", Path: ".recast/cache", Err: syscall.EACCES},
	} {
		err := fault.WithNext(fmt.Errorf("roll: %w", fault.WithHint(fault.LockStale.Of(fmt.Errorf("node wk1: %w", cause)), "look at its console")), "wk1 is unfinished")
		if got := fault.Hints(err); !slices.Equal(got, []string{want, "wk1 is unfinished"}) {
			t.Errorf("%v: %q", cause, got)
		}
		must.Equal(t, cause.Error(), fault.ThisMachine, fault.CodeOf(err))
	}
	for _, cause := range []error{errors.New("x"), &fs.PathError{Op: "fork/exec", Path: "hook.sh", Err: syscall.EACCES}, &fs.PathError{Op: "open", Path: "x", Err: syscall.ENOENT}} {
		other := fault.WithHint(fault.LockStale.Of(cause), "look at its console")
		if got := append(fault.Hints(other), string(fault.CodeOf(other))); !slices.Equal(got, []string{"look at its console", "lock-stale"}) {
			t.Errorf("%v: %q", cause, got)
		}
	}
}
