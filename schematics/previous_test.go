package schematics

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

func lockOf(t *testing.T, arg string) Lock {
	t.Helper()
	return resolve(t, request(map[string]string{"default": "customization: {extraKernelArgs: [" + arg + "=1]}\n"}), catalog())
}

func TestPrevious(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "locks")
	now := lockOf(t, "now")
	if _, found, err := Previous(dir, now); found || err != nil {
		t.Errorf("without a directory: %t, %v", found, err)
	}
	for i, name := range []string{"first", "second", "now"} {
		past := lockOf(t, name)
		if err := Archive(dir, past); err != nil {
			t.Fatal(err)
		}
		at := time.Date(2026, 1, 1+i, 0, 0, 0, 0, time.UTC)
		if err := os.Chtimes(filepath.Join(dir, past.Key()+".lock"), at, at); err != nil {
			t.Fatal(err)
		}
	}
	got, found, err := Previous(dir, now)
	if want := lockOf(t, "second").Key(); !found || got.Key() != want || err != nil {
		t.Errorf("%t, %v: not the second one", found, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "x.lock"), []byte("talos: ["), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, found, err := Previous(dir, now); found || err == nil {
		t.Errorf("with one that can't be read: %t, %v", found, err)
	}
}
