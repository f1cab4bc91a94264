package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestReadmeTour runs the two blocks of the README's tour, each in its own
// terminal, as they stand there.
func TestReadmeTour(t *testing.T) {
	if testing.Short() {
		t.Skip("long: make stories; the story of a roll does the same")
	}
	t.Parallel()
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	var blocks []string
	for _, part := range strings.Split(string(readme), "```sh\n")[1:] {
		block, _, _ := strings.Cut(part, "```")
		blocks = append(blocks, block)
	}
	if len(blocks) != 2 {
		t.Fatalf("the README has %d blocks of shell, the tour is two", len(blocks))
	}
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(dir, "bin")
	if err := os.MkdirAll(bin, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(bin, "recast"), []byte("#!/bin/sh\nRECAST_TEST_MAIN=1 exec '"+self+"' \"$@\"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	shell := func(script string) *exec.Cmd {
		c := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", script)
		c.Dir, c.Stdout, c.Stderr = dir, t.Output(), t.Output()
		c.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "GORACE="+noNap)
		c.Cancel = func() error { return c.Process.Signal(os.Interrupt) }
		return c
	}
	// Faster than a person would want it; nothing else differs.
	lab := shell("exec " + strings.TrimSpace(blocks[0]) + " --speed 40")
	if err := lab.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := lab.Process.Signal(os.Interrupt); err != nil {
			t.Error(err)
		}
		if err := lab.Wait(); err != nil {
			t.Errorf("the lab, interrupted: %v", err)
		}
	}()
	awaitFile(t, filepath.Join(dir, "lab", "lab.json"))
	if err := shell(blocks[1]).Run(); err != nil {
		t.Errorf("second terminal: %v", err)
	}
}

// awaitFile waits for another process to write a file.
func awaitFile(t testing.TB, path string) {
	t.Helper()
	for range 6000 {
		if _, err := os.Stat(path); err == nil {
			return
		}
		<-time.After(100 * time.Millisecond)
	}
	t.Fatalf("%s was never written", path)
}
