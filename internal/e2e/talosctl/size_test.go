package talosctl

import (
	"flag"
	"os"
	"testing"
)

var strippedBinary = flag.String("stripped", "../../../bin/e2e/recast", "recast as a release is built; talosctl is built the same way")

// maxSize is the maximum size of recast relative to talosctl: docs/performance.md.
const maxSize = 1.2

// TestSizes compares the two binaries.
func TestSizes(t *testing.T) {
	ours, theirs := sizeOf(t, *strippedBinary), sizeOf(t, *talosctlBinary)
	ratio := ours / theirs
	t.Logf("recast %.1f MB, talosctl %.1f MB: %.2f", ours/1e6, theirs/1e6, ratio)
	if ratio > maxSize {
		t.Errorf("recast is %.2f times as large as talosctl, more than %.1f", ratio, maxSize)
	}
}

func sizeOf(t *testing.T, file string) float64 {
	t.Helper()
	info, err := os.Stat(file)
	if err != nil {
		t.Fatalf("%v: make e2e-talosctl builds it", err)
	}
	return float64(info.Size())
}
