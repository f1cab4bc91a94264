package factory

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

var (
	recastBinary = flag.String("recast", "../../../bin/recast", "the recast to drive")
	diskBinary   = flag.String("disk", "../../../bin/e2e/disk", "what is built of internal/e2e/disk: recast's verification of disk images")
	realBinary   = flag.String("real", "../../../bin/e2e/real", "what is built of ./real: the Image Factory and the imager")
)

// program is the Image Factory or the imager.
func program(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	return exec.Command(absolute(t, *realBinary), args...)
}

// absolute is the path of a program that make has built.
func absolute(t *testing.T, path string) string {
	t.Helper()
	path = must(filepath.Abs(path))(t)
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%v: make e2e builds it", err)
	}
	return path
}

// needed are the programs that imager runs, and those that build a Talos for it and sign it.
var needed = []string{"mksquashfs", "unsquashfs", "cpio", "zstd", "mkfs.vfat", "mcopy", "mattrib", "xorrisofs", "grub-mkrescue", "depmod", "qemu-img", "sfdisk", "osslsigncode"}

// programs is a directory for the front of PATH: mksquashfs before 4.6, in some
// distributions, lacks imager's option to leave extended attributes out.
func programs(t *testing.T) string {
	t.Helper()
	for _, name := range needed {
		if _, err := exec.LookPath(name); err != nil {
			t.Fatalf("%v: make e2e-deps", err)
		}
	}
	bin := t.TempDir()
	help, _ := exec.CommandContext(t.Context(), "mksquashfs", "-help").CombinedOutput() // exits 1
	if strings.Contains(string(help), "-xattrs-exclude") {
		return bin
	}
	path := must(exec.LookPath("mksquashfs"))(t)
	shim := fmt.Sprintf(`#!/bin/sh
skip=
for arg do
	shift
	if [ -n "$skip" ]; then skip=; continue; fi
	if [ "$arg" = -xattrs-exclude ]; then skip=1; continue; fi
	set -- "$@" "$arg"
done
exec %s "$@"
`, path)
	mustDo(t, os.WriteFile(filepath.Join(bin, "mksquashfs"), []byte(shim), 0o755))
	return bin
}

// must is the value of a call, whose error ends the test: must(os.ReadFile(name))(t).
func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		mustDo(t, err)
		return v
	}
}

func mustDo(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
