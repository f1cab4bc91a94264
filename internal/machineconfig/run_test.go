package machineconfig

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// A program that is interrupted leaves nothing, and is run again by who asks next.
func TestInterrupted(t *testing.T) {
	w := newWorld(t).written(`echo secret > "$1/c1-wk1.yaml"; [ -e again ] || { touch again; sleep 60; }`)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		for {
			if _, err := os.Stat(filepath.Join(w.options.Base, "again")); err == nil {
				cancel()
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
	}()
	s := w.open()
	if _, _, err := s.Config(ctx, "wk1"); !errors.Is(err, context.Canceled) {
		t.Errorf("err = %v", err)
	}
	requireNoOutput(t)
	if text, _, err := s.Config(t.Context(), "wk1"); string(text) != "secret\n" {
		t.Errorf("%q, %v", text, err)
	}
	requireNoOutput(t)
}

// The directory of a process that was killed is removed by the next one, that of one that
// runs is not.
func TestLeftBehind(t *testing.T) {
	newWorld(t)
	running, err := newOutputDir()
	if err != nil {
		t.Fatal(err)
	}
	killed, err := newOutputDir()
	if err != nil {
		t.Fatal(err)
	}
	if err := killed.lock.Close(); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{running.path, killed.path} {
		if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%s: %v, %v", dir, info, err)
		}
		old := time.Now().Add(-time.Hour)
		if err := os.Chtimes(dir, old, old); err != nil {
			t.Fatal(err)
		}
	}
	fresh, err := newOutputDir()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(killed.path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is still there: %v", killed.path, err)
	}
	for _, dir := range []outputDir{running, fresh} {
		if err := dir.remove(); err != nil {
			t.Error(err)
		}
	}
	requireNoOutput(t)
}
