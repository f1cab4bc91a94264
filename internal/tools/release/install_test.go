package release

import (
	"bytes"
	"crypto/sha256"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
)

// installation is the first shell block of docs/notes/release.md.
func installation(t *testing.T) string {
	t.Helper()
	page := must(os.ReadFile("../../../docs/notes/release.md"))(t)
	block := regexp.MustCompile("(?s)## Installing a binary\n\n```sh\n(.*?)```").FindSubmatch(page)
	if block == nil {
		t.Fatal("docs/notes/release.md does not say how to install a binary")
	}
	return string(block[1])
}

// TestInstall follows docs/notes/release.md with the archive, into a directory instead of /usr/local: recast runs, its
// completion is known to bash, and its pages to man. Another archive than that of checksums.txt is not installed.
func TestInstall(t *testing.T) {
	native(t)
	if runtime.GOOS+"_"+runtime.GOARCH != "linux_amd64" {
		t.Skip("docs/notes/release.md installs that of linux_amd64")
	}
	dir, prefix := t.TempDir(), filepath.Join(t.TempDir(), "usr local")
	archives, err := filepath.Glob(filepath.Join(*dist, "*_linux_amd64.tar.gz"))
	if err != nil || len(archives) != 1 {
		t.Fatalf("archives: %q, %v", archives, err)
	}
	file := filepath.Join(dir, filepath.Base(archives[0]))
	copyTo(t, archives[0], file, 0o644)
	copyTo(t, filepath.Join(*dist, "checksums.txt"), filepath.Join(dir, "checksums.txt"), 0o644)
	bash := func(script string) (string, error) {
		c := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", script)
		c.Dir, c.Env = dir, append(os.Environ(), "PREFIX="+prefix, "LC_ALL=C.UTF-8")
		out, err := c.CombinedOutput()
		return string(out), err
	}
	if out, err := bash(installation(t)); err != nil || !strings.Contains(out, "_linux_amd64.tar.gz: OK") {
		t.Fatalf("%v\n%s", err, out)
	}
	for script, want := range map[string]string{
		`"$PREFIX/bin/recast" version`: "recast v",
		`source "$PREFIX/share/bash-completion/completions/recast"; complete -p recast`: "complete -o default -F __start_recast recast",
		`ls "$PREFIX/share/man/man1"`: "recast-roll.1.gz",
		`! command -v man || MANPATH="$PREFIX/share/man" man --where recast-roll recast`: "",
	} {
		if out, err := bash(script); err != nil || !strings.Contains(out, want) {
			t.Errorf("%s: %v, want %q in\n%s", script, err, want, out)
		}
	}

	text := must(os.ReadFile(file))(t)
	text[len(text)-1]++
	mustDo(t, os.WriteFile(file, text, 0o644))
	if out, err := bash(installation(t)); err == nil {
		t.Errorf("a damaged archive was installed:\n%s", out)
	}
	t.Attr("installed", "1")
}

// TestReproducible links this machine's binary again: it is the same to the byte.
func TestReproducible(t *testing.T) {
	bin := native(t)
	about := must(exec.CommandContext(t.Context(), bin, "version").Output())(t)
	built := regexp.MustCompile(`^recast (v\S+) \(commit ([0-9a-f]+), (\S+), `).FindSubmatch(about)
	if built == nil {
		t.Fatalf("recast version: %s", about)
	}
	again := filepath.Join(t.TempDir(), "recast")
	c := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-tags", "grpcnotrace", "-o", again,
		"-ldflags", "-s -w -X main.version="+string(built[1])+" -X main.commit="+string(built[2])+" -X main.date="+string(built[3]), "./cmd/recast")
	c.Dir, c.Env = "../../..", append(os.Environ(), "CGO_ENABLED=0")
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var sums [2][]byte
	for i, file := range []string{bin, again} {
		text := must(os.ReadFile(file))(t)
		sum := sha256.Sum256(text)
		sums[i] = sum[:]
	}
	if !bytes.Equal(sums[0], sums[1]) {
		t.Errorf("%x is released, %x is what its sources make", sums[0], sums[1])
	}
}
