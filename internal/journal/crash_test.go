package journal_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/internal/journal"
)

var errKilled = errors.New("killed")

// killAt succeeds n times and then fails.
func killAt(n int) func(string) error {
	return func(string) error {
		if n == 0 {
			return errKilled
		}
		n--
		return nil
	}
}

// life is everything that a run does in this test.
func life(dir string, sync func(string) error) error {
	j, err := journal.Open(dir, journal.Options{Run: run, Sync: sync})
	if err != nil {
		return err
	}
	for _, do := range []func() error{
		func() error { return j.Put("a", 1) },
		func() error { return j.Put("a", 2) },
		func() error { return j.PutSecret("b", []byte("secret")) },
		func() error { return j.Delete("a") },
		func() error { return j.Finish("done") },
	} {
		if err := do(); err != nil {
			return errors.Join(err, j.Close())
		}
	}
	return j.Close()
}

// state is what a later process reads.
type state struct {
	A        int
	B        string
	Finished bool
	Runs     int
}

func read(t *testing.T, dir string) state {
	t.Helper()
	runs, err := journal.Runs(dir)
	if err != nil {
		t.Fatal(err)
	}
	s := state{Runs: len(runs)}
	j := open(t, dir, journal.Options{})
	defer closeNow(t, j)
	_, errA := j.Get("a", &s.A)
	b, _, errB := j.Secret("b")
	info, errInfo := j.Info()
	if err := errors.Join(errA, errB, errInfo); err != nil {
		t.Fatal(err)
	}
	s.B, s.Finished = string(b), !info.Unfinished()
	return s
}

func TestCrashAtEverySyncPoint(t *testing.T) {
	t.Parallel()
	var points []string
	if err := life(t.TempDir(), func(p string) error { points = append(points, p); return nil }); err != nil {
		t.Fatal(err)
	}
	wantPoints := []string{
		"write start", "written start", "write a", "written a", "write a", "written a",
		"write b", "written b", "delete a", "deleted a", "write finish", "written finish",
	}
	if diff := cmp.Diff(wantPoints, points); diff != "" {
		t.Fatalf("points (-want +got):\n%s", diff)
	}
	after := []state{ // killed before and after each commit
		{},
		{Runs: 1},
		{Runs: 1},
		{Runs: 1, A: 1},
		{Runs: 1, A: 1},
		{Runs: 1, A: 2},
		{Runs: 1, A: 2},
		{Runs: 1, A: 2, B: "secret"},
		{Runs: 1, A: 2, B: "secret"},
		{Runs: 1, B: "secret"},
		{Runs: 1, B: "secret"},
		{Runs: 1, B: "secret", Finished: true},
	}
	for n, want := range after {
		dir := t.TempDir()
		if err := life(dir, killAt(n)); !errors.Is(err, errKilled) {
			t.Fatalf("killed at %d (%s): err = %v", n, points[n], err)
		}
		if diff := cmp.Diff(want, read(t, dir)); diff != "" {
			t.Errorf("killed at %d (%s) (-want +got):\n%s", n, points[n], diff)
		}
	}
}

// A killed process leaves half-written files; the next process removes them.
func TestLeftoversAreRemoved(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	half := filepath.Join(dir, ".new-"+run, "half")
	if err := os.MkdirAll(half, 0o700); err != nil {
		t.Fatal(err)
	}
	if runs, err := journal.Runs(dir); runs != nil || err != nil {
		t.Errorf("Runs = %v, %v", runs, err)
	}
	closeNow(t, open(t, dir, journal.Options{}))
	if err := os.WriteFile(filepath.Join(dir, run, ".tmp-1"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	j := open(t, dir, journal.Options{})
	if err := j.Put("a", 1); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, d := range []string{dir, filepath.Join(dir, run)} {
		entries, err := os.ReadDir(d)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			names = append(names, e.Name())
		}
	}
	want := []string{run, run + ".lock", "RUN", "a.json"}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}
