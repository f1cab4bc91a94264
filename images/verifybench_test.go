package images

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/recast-sh/recast/internal/heap"
	"github.com/recast-sh/recast/internal/sim/artefact"
	"github.com/recast-sh/recast/schematics"
)

const (
	largeBytes   = 300 << 20
	maxPeakMiB   = 128
	largeVar     = "RECAST_LARGE_IMAGES" // directory into which the process writes them
	largeTar     = "installer.tar"
	largeISO     = "boot.iso"
	largeExtFile = "extension.tar"
)

// BenchmarkVerify verifies an installer and an ISO of 300 MiB against an extension
// of that size, and fails if that takes too much memory. Another process makes them,
// to keep its garbage off the verifier's heap.
func BenchmarkVerify(b *testing.B) {
	if dir := os.Getenv(largeVar); dir != "" {
		makeLarge(b, dir)
		return
	}
	dir := b.TempDir()
	maker := exec.Command(os.Args[0], "-test.run=^$", "-test.bench=^BenchmarkVerify$", "-test.benchtime=1x")
	maker.Env = append(os.Environ(), largeVar+"="+dir)
	if out, err := maker.CombinedOutput(); err != nil {
		b.Fatalf("make the images: %v\n%s", err, out)
	}
	lock, id := largeLock(b)
	b.SetBytes(2 * largeBytes)
	for b.Loop() {
		v := NewVerifier(largeImages(dir), b.TempDir())
		peak := heap.Peak(b.Context(), func() { verifyLarge(b, v, lock, id, dir) })
		if err := v.Close(); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(peak)/(1<<20), "peak-MiB")
		if peak > maxPeakMiB<<20 {
			b.Fatalf("the heap has grown to %d MiB, %d are allowed", peak>>20, maxPeakMiB)
		}
	}
}

func verifyLarge(b *testing.B, v *Verifier, lock schematics.Lock, e schematics.Locked, dir string) {
	b.Helper()
	installer, err := os.Open(filepath.Join(dir, largeTar))
	if err != nil {
		b.Fatal(err)
	}
	defer installer.Close()
	boot, err := v.Installer(b.Context(), lock, e, installer, func(string) {})
	if err != nil {
		b.Fatal(err)
	}
	iso, err := os.Open(filepath.Join(dir, largeISO))
	if err != nil {
		b.Fatal(err)
	}
	defer iso.Close()
	info, err := iso.Stat()
	if err != nil {
		b.Fatal(err)
	}
	if err := v.ISO(b.Context(), lock, e, iso, info.Size(), boot, func(string) {}); err != nil {
		b.Fatal(err)
	}
}

func largeLock(b *testing.B) (schematics.Lock, schematics.Locked) {
	b.Helper()
	lock := lockOf(b)
	return lock, lock.Schematics["default"]
}

// makeLarge writes the images into a directory.
func makeLarge(b *testing.B, dir string) {
	b.Helper()
	_, e := largeLock(b)
	random := rand.NewChaCha8([32]byte{})
	files := map[string][]byte{}
	for i := range 3 {
		content := make([]byte, largeBytes/3)
		_, _ = random.Read(content) // it never fails
		files[fmt.Sprintf("/usr/local/lib/large-%d", i)] = content
	}
	f := newFactory()
	f.schematics[e.SchematicID] = e.Schematic
	f.files = files
	save := func(name string, from io.Reader) {
		out, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			b.Fatal(err)
		}
		if _, err := io.Copy(out, from); err != nil {
			b.Fatal(err)
		}
		if err := out.Close(); err != nil {
			b.Fatal(err)
		}
	}
	for name, ref := range map[string]string{
		largeTar: "factory.example/nocloud-installer/" + e.SchematicID + "@", largeExtFile: "ghcr.io/" + agent + "@" + digest("one"),
	} {
		content, err := f.Extract(b.Context(), ref, "amd64")
		if err != nil {
			b.Fatal(err)
		}
		save(name, content)
	}
	iso, err := artefact.ISO(f.image("iso", e.SchematicID, "v1.13.9", "amd64", "nocloud"))
	if err != nil {
		b.Fatal(err)
	}
	save(largeISO, strings.NewReader(string(iso)))
}

// largeImages is the registry of the one extension.
type largeImages string

func (dir largeImages) Extract(context.Context, string, string) (io.ReadCloser, error) {
	return os.Open(filepath.Join(string(dir), largeExtFile))
}

func (dir largeImages) Signatures(context.Context, string) ([]Signature, error) { return nil, nil }
