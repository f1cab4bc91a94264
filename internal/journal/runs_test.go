package journal_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/journal"
	"github.com/recast-sh/recast/internal/sim/must"
)

func TestRuns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		start := time.Now().UTC() // the bubble's
		dir := t.TempDir()
		for _, id := range []string{"b", "a"} {
			j := open(t, dir, journal.Options{Run: id})
			time.Sleep(time.Minute)
			if id == "b" {
				must.Do(t, j.Finish("done"))
			}
			closeNow(t, j)
		}
		runs := must.Get(journal.Runs(dir))(t)
		killed := journal.RunInfo{ID: "a", Started: start.Add(time.Minute)}
		done := journal.RunInfo{ID: "b", Started: start, Finished: start.Add(time.Minute), Outcome: "done"}
		must.Equal(t, "Runs", []journal.RunInfo{killed, done}, runs)
		unfinished, err := journal.Unfinished(dir)
		if diff := cmp.Diff([]journal.RunInfo{killed}, unfinished); diff != "" || err != nil {
			t.Errorf("Unfinished: %v (-want +got):\n%s", err, diff)
		}
	})
}

func TestRunsOfAMissingDirectory(t *testing.T) {
	t.Parallel()
	if runs, err := journal.Runs(filepath.Join(t.TempDir(), "none")); runs != nil || err != nil {
		t.Errorf("Runs = %v, %v", runs, err)
	}
}

func TestRunsNamesEveryDamagedRun(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	closeNow(t, open(t, dir, journal.Options{Run: "good"}))
	for id, content := range map[string]string{"cut": `{"started`, "old": "{}"} {
		must.Do(t, errors.Join(
			os.Mkdir(filepath.Join(dir, id), 0o700),
			os.WriteFile(filepath.Join(dir, id, "RUN"), []byte(content), 0o600),
		))
	}
	must.Do(t, os.Mkdir(filepath.Join(dir, "empty"), 0o700))
	runs, err := journal.Runs(dir)
	if len(runs) != 1 || runs[0].ID != "good" {
		t.Errorf("Runs = %v", runs)
	}
	want := strings.Join([]string{
		`run "cut": ` + filepath.Join(dir, "cut", "RUN") + ": unexpected EOF",
		`run "empty": ` + filepath.Join(dir, "empty", "RUN") + ": no such file or directory",
		`run "old": ` + filepath.Join(dir, "old", "RUN") + ": no start time",
	}, "\n")
	must.Equal(t, "error", want, fmt.Sprint(err))
	if _, err := journal.Open(dir, journal.Options{Run: "cut"}); err == nil {
		t.Error("a damaged run was opened")
	}
}

func TestOpenRefusesBadIDs(t *testing.T) {
	t.Parallel()
	for _, id := range []string{"", ".", "..", "a/b", "../a", "A", ".new-a", strings.Repeat("a", 201)} {
		dir := t.TempDir()
		if _, err := journal.Open(dir, journal.Options{Run: id}); err == nil {
			t.Errorf("Open of run %q succeeded", id)
		}
		if entries, err := os.ReadDir(dir); len(entries) != 0 || err != nil {
			t.Errorf("Open of run %q made %v, %v", id, entries, err)
		}
	}
}

func TestNewRunID(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 21, 5, 21, 7, 0, time.FixedZone("CET", 3600))
	id, err := journal.NewRunID(now, bytes.NewReader([]byte{0x3f, 0x2a}))
	if id != run || err != nil {
		t.Errorf("NewRunID = %q, %v", id, err)
	}
	if _, err := journal.NewRunID(now, bytes.NewReader([]byte{1})); err == nil {
		t.Error("an ID without randomness")
	}
}

func TestRunBegan(t *testing.T) {
	t.Parallel()
	for id, want := range map[string]time.Time{
		run:                   time.Date(2026, 11, 21, 4, 21, 0, 0, time.UTC),
		"20261321-0421-3f2a":  {},
		"20261121":            {},
		"":                    {},
		"a-run-of-my-own-who": {},
	} {
		if got := journal.RunBegan(id); !got.Equal(want) {
			t.Errorf("RunBegan(%q) = %s, want %s", id, got, want)
		}
	}
}

func TestRemove(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j := open(t, dir, journal.Options{})
	must.Do(t, j.PutSecret("wk1/machine-config", []byte("secret")))
	must.Equal(t, "kind of the error while it is open", fault.Claimed, fault.KindOf(journal.Remove(dir, run)))
	closeNow(t, j)
	must.Equal(t, "error", `remove run "20261121-0421-3f2a": it has not finished`, fmt.Sprint(journal.Remove(dir, run)))
	j = open(t, dir, journal.Options{})
	must.Do(t, j.Finish("done"))
	closeNow(t, j)
	// An interrupted removal may have left this.
	must.Do(t, os.MkdirAll(filepath.Join(dir, ".old-"+run, "half"), 0o700))
	must.Do(t, journal.Remove(dir, run))
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

// TestForget: secrets are deleted from all runs except one that is open.
func TestForget(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(run string) *journal.Journal {
		j := open(t, dir, journal.Options{Run: run})
		must.Do(t, errors.Join(j.PutSecret("wk1/machine-config", []byte("x")), j.PutSecret("wk2/machine-config", []byte("x")), j.Put("wk1/memory", 1)))
		return j
	}
	closeNow(t, write("older"))
	held := write("held")
	var points []string
	must.Do(t, journal.Forget(dir, []string{"wk1/machine-config"}, func(p string) error { points = append(points, p); return nil }))
	closeNow(t, held)
	files := must.Get(filepath.Glob(filepath.Join(dir, "*", "wk1*")))(t)
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
