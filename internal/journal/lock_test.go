package journal

import (
	"os"
	"syscall"
	"testing"

	"github.com/recast-sh/recast/internal/sim/must"
)

// TestUnlockBesideAProgramThatStarts: a forked process has all files open until its exec.
func TestUnlockBesideAProgramThatStarts(t *testing.T) {
	t.Parallel()
	root := must.Get(os.OpenRoot(t.TempDir()))(t)
	defer root.Close()
	f := must.Get(lock(root, "run.lock"))(t)
	forked := must.Get(syscall.Dup(int(f.Fd())))(t)
	defer syscall.Close(forked)
	must.Do(t, unlock(f))
	again := must.Get(lock(root, "run.lock"))(t)
	must.Do(t, unlock(again))
}
