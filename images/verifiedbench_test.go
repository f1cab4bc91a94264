package images

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/recast-sh/recast/images/verify"
	"github.com/recast-sh/recast/internal/heap"
	"github.com/recast-sh/recast/internal/sim/artefact"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/schematics"
)

const (
	largeBytes   = 300 << 20
	maxPeakMiB   = 128
	largeVar     = "RECAST_LARGE_IMAGES" // directory into which the process writes them
	largeTar     = "installer.tar"
	largeISO     = "boot.iso"
	largeDisk    = "disk.qcow2"
	largeExtFile = "extension.tar"
)

// BenchmarkVerify verifies an installer and an ISO of 300 MiB against an extension
// of that size, and fails if that takes too much memory. Another process makes them,
// to keep its garbage off the verifier's heap.
func BenchmarkVerify(b *testing.B) { benchmarkVerify(b, verifyLargeISO) }

// BenchmarkVerifyDisk is BenchmarkVerify with a disk image instead of the ISO.
func BenchmarkVerifyDisk(b *testing.B) { benchmarkVerify(b, verifyLargeDisk) }

// verifyLarge verifies the ISO or the disk image in a directory.
type verifyLarge func(b *testing.B, v *verify.Verifier, dir string, boot verify.Boot)

func benchmarkVerify(b *testing.B, large verifyLarge) {
	b.Helper()
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
		v := verify.New(largeImages(dir), b.TempDir())
		peak := heap.Peak(b.Context(), func() { large(b, v, dir, verifyLargeInstaller(b, v, lock, id, dir)) })
		must.Do(b, v.Close())
		b.ReportMetric(float64(peak)/(1<<20), "peak-MiB")
		if peak > maxPeakMiB<<20 {
			b.Fatalf("the heap has grown to %d MiB, %d are allowed", peak>>20, maxPeakMiB)
		}
	}
}

func verifyLargeInstaller(b *testing.B, v *verify.Verifier, lock schematics.Lock, e schematics.Locked, dir string) verify.Boot {
	b.Helper()
	installer := must.Get(os.Open(filepath.Join(dir, largeTar)))(b)
	defer installer.Close()
	return must.Get(v.Installer(b.Context(), lock, e, installer, func(string) {}))(b)
}

func verifyLargeISO(b *testing.B, v *verify.Verifier, dir string, boot verify.Boot) {
	b.Helper()
	lock, e := largeLock(b)
	iso, size := openLarge(b, dir, largeISO)
	must.Do(b, v.ISO(b.Context(), lock, e, iso, size, boot, func(string) {}))
}

func verifyLargeDisk(b *testing.B, v *verify.Verifier, dir string, boot verify.Boot) {
	b.Helper()
	lock, e := largeLock(b)
	disk, size := openLarge(b, dir, largeDisk)
	must.Get(v.Disk(b.Context(), lock, e, disk, size, boot, func(string) {}))(b)
}

func openLarge(b *testing.B, dir, name string) (*os.File, int64) {
	b.Helper()
	f := must.Get(os.Open(filepath.Join(dir, name)))(b)
	b.Cleanup(func() { _ = f.Close() }) // it was only read
	info := must.Get(f.Stat())(b)
	return f, info.Size()
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
		out := must.Get(os.Create(filepath.Join(dir, name)))(b)
		must.Get(io.Copy(out, from))(b)
		must.Do(b, out.Close())
	}
	for name, ref := range map[string]string{
		largeTar: "factory.example/nocloud-installer/" + e.SchematicID + "@", largeExtFile: "ghcr.io/" + agent + "@" + digest("one"),
	} {
		content := must.Get(f.Extract(b.Context(), ref, "amd64"))(b)
		save(name, content)
	}
	iso := must.Get(artefact.ISO(f.image("iso", e.SchematicID, "v1.13.9", "amd64", "nocloud")))(b)
	save(largeISO, bytes.NewReader(iso))
	disk := must.Get(artefact.DiskImage(f.image("disk", e.SchematicID, "v1.13.9", "amd64", "nocloud"), artefact.DiskForm{}))(b)
	save(largeDisk, bytes.NewReader(disk))
}

// largeImages is the registry of the one extension.
type largeImages string

func (dir largeImages) Extract(context.Context, string, string) (io.ReadCloser, error) {
	return os.Open(filepath.Join(string(dir), largeExtFile))
}

func (dir largeImages) Signatures(context.Context, string) ([]Signature, error) { return nil, nil }
