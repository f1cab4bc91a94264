package pipeline

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/recast-sh/recast/internal/config"
	"github.com/recast-sh/recast/internal/journal"
)

func projectOf(t *testing.T) Project {
	return Project{Config: &config.Config{Dir: t.TempDir(), Cluster: "c1"}}
}

// runWith creates the journal of a run; with "" as the outcome it has no end.
func runWith(t *testing.T, p Project, id, outcome string, facts map[string]any) {
	t.Helper()
	j, err := journal.Open(p.Runs().Dir, journal.Options{Run: id})
	if err != nil {
		t.Fatal(err)
	}
	for key, v := range facts {
		err = errors.Join(err, j.Put(key, v))
	}
	if outcome != "" {
		err = errors.Join(err, j.Finish(outcome))
	}
	if err := errors.Join(err, j.Close()); err != nil {
		t.Fatal(err)
	}
}

// TestOldRunsGo removes the oldest finished runs, unless a parking VM refers to them.
func TestOldRunsGo(t *testing.T) {
	t.Parallel()
	p := projectOf(t)
	made := func(n int) string { return fmt.Sprintf("20260101-0000-%04d", n) }
	for n := range keepRuns + 5 {
		outcome := "done"
		if n == 1 {
			outcome = ""
		}
		runWith(t, p, made(n), outcome, nil)
		// Their order is that of their beginning.
		info := fmt.Sprintf(`{"started":%q%s}`, time.Date(2026, 1, 1, 0, 0, n, 0, time.UTC).Format(time.RFC3339),
			map[bool]string{true: `,"finished":"2026-01-02T00:00:00Z","outcome":"done"`}[outcome != ""])
		if err := os.WriteFile(filepath.Join(p.Runs().Dir, made(n), "RUN"), []byte(info), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Dir(p.Page(made(0))), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p.Page(made(0)), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	away := fmt.Errorf("pve2 does not answer")
	if err := forgetRuns(p, func() (map[string]bool, error) { return nil, away }); !errors.Is(err, away) {
		t.Errorf("with a host away: %v", err)
	}
	if err := forgetRuns(p, func() (map[string]bool, error) { return map[string]bool{made(2): true}, nil }); err != nil {
		t.Fatal(err)
	}
	gone := map[string]bool{made(0): true, made(3): true, made(4): true} // 1 has no end, 2 is needed
	for n := range 6 {
		if here := p.Runs().Has(made(n)); here == gone[made(n)] {
			t.Errorf("%s is here: %t", made(n), here)
		}
	}
	if _, err := os.Stat(p.Page(made(0))); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its report: %v", err)
	}
	if err := forgetRuns(p, func() (map[string]bool, error) { return map[string]bool{made(2): true}, nil }); err != nil {
		t.Errorf("once more: %v", err)
	}
}
