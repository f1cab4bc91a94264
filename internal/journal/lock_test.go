package journal

import (
	"os"
	"syscall"
	"testing"
)

// TestUnlockBesideAProgramThatStarts: a forked process has all files open until its exec.
func TestUnlockBesideAProgramThatStarts(t *testing.T) {
	t.Parallel()
	root, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	f, err := lock(root, "run.lock")
	if err != nil {
		t.Fatal(err)
	}
	forked, err := syscall.Dup(int(f.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(forked)
	if err := unlock(f); err != nil {
		t.Fatal(err)
	}
	again, err := lock(root, "run.lock")
	if err != nil {
		t.Fatal(err)
	}
	if err := unlock(again); err != nil {
		t.Error(err)
	}
}
