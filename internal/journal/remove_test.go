package journal_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/journal"
)

func TestRemove(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j := open(t, dir, journal.Options{})
	if err := j.PutSecret("wk1/machine-config", []byte("secret")); err != nil {
		t.Fatal(err)
	}
	if err := journal.Remove(dir, run); fault.KindOf(err) != fault.Claimed {
		t.Errorf("while it is open: %v", err)
	}
	closeNow(t, j)
	if err := journal.Remove(dir, run); err == nil || err.Error() != `remove run "20261121-0421-3f2a": it has not finished` {
		t.Errorf("before its end: %v", err)
	}
	j = open(t, dir, journal.Options{})
	if err := j.Finish("done"); err != nil {
		t.Fatal(err)
	}
	closeNow(t, j)
	// An interrupted removal may have left this.
	if err := os.MkdirAll(filepath.Join(dir, ".old-"+run, "half"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := journal.Remove(dir, run); err != nil {
		t.Fatal(err)
	}
	if files, err := os.ReadDir(dir); len(files) != 0 || err != nil {
		t.Errorf("left: %v, %v", files, err)
	}
	if err := journal.Remove(dir, "../"+run); err == nil {
		t.Error("it removes something that is not a run")
	}
	if err := journal.Remove(dir, run); err == nil {
		t.Error("what is not there was removed")
	}
}
