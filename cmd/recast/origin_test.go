package main

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestGitThatHangs: what git has started, such as ssh, may outlive it.
func TestGitThatHangs(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "git"), []byte("#!/bin/sh\nsleep 20 &\nwait\n"), 0o700); err != nil { //nolint:gosec // it is a program
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	began := time.Now()
	if _, err := askedGit(ctx, dir, "", "log"); err == nil || time.Since(began) > 10*time.Second {
		t.Errorf("%v after %s", err, time.Since(began))
	}
}
