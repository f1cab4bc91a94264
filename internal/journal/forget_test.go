package journal_test

import (
	"errors"
	"path/filepath"
	"slices"
	"testing"

	"github.com/recast-sh/recast/internal/journal"
)

// TestForget: secrets are deleted from all runs except one that is open.
func TestForget(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(run string) *journal.Journal {
		j := open(t, dir, journal.Options{Run: run})
		if err := errors.Join(j.PutSecret("wk1/machine-config", []byte("x")), j.PutSecret("wk2/machine-config", []byte("x")), j.Put("wk1/memory", 1)); err != nil {
			t.Fatal(err)
		}
		return j
	}
	closeNow(t, write("older"))
	held := write("held")
	var points []string
	if err := journal.Forget(dir, []string{"wk1/machine-config"}, func(p string) error { points = append(points, p); return nil }); err != nil {
		t.Fatal(err)
	}
	closeNow(t, held)
	files, err := filepath.Glob(filepath.Join(dir, "*", "wk1*"))
	if err != nil {
		t.Fatal(err)
	}
	for i, f := range files {
		files[i], _ = filepath.Rel(dir, f)
	}
	want := []string{"held/wk1~machine-config.secret", "held/wk1~memory.json", "older/wk1~memory.json"}
	if !slices.Equal(files, want) || !slices.Equal(points, []string{"delete wk1/machine-config", "deleted wk1/machine-config"}) {
		t.Errorf("%q; %q", files, points)
	}
	if err := journal.Forget(filepath.Join(dir, "none"), []string{"wk1/machine-config"}, nil); err != nil {
		t.Errorf("where no run was: %v", err)
	}
}
