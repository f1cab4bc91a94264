package registry

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/heap"
	"github.com/recast-sh/recast/schematics"
)

// BenchmarkArchives pushes an installer of 300 MiB from a tarball, and an ISO of 300
// MiB beside it, and fails if that takes too much memory.
func BenchmarkArchives(b *testing.B) {
	dir, host := b.TempDir(), serveDisk(b, b.TempDir())
	base := check(random.Image(512, 1))(b)
	config := check(base.ConfigFile())(b).DeepCopy()
	config.Architecture, config.OS = "amd64", "linux"
	base = check(mutate.ConfigFile(base, config))(b)
	ref := check(name.NewRepository(host + "/installer-base"))(b).Digest(check(base.Digest())(b).String())
	noError(b, remote.Write(ref, base))
	layer, _ := fileOfNoise(b, filepath.Join(dir, "layer.tar.gz"), true)
	img := check(mutate.AppendLayers(base, check(tarball.LayerFromFile(layer))(b)))(b)
	archive := filepath.Join(dir, "installer-amd64.tar")
	noError(b, tarball.WriteToFile(archive, ref, img))
	file, iso := fileOfNoise(b, filepath.Join(dir, "nocloud-amd64.iso"), false)
	for b.Loop() {
		c := check(New(Options{Keychain: authn.NewMultiKeychain()}))(b)
		to := serveDisk(b, b.TempDir())
		peak := heap.Peak(b.Context(), func() {
			digest, err := c.PushArchive(b.Context(), images.ArchivePush{File: archive, Repository: to + "/talos", Arch: "amd64", Base: ref.String()})
			if err == nil {
				err = c.Attach(b.Context(), to+"/talos@"+digest, file, images.BootISO, iso, nil)
			}
			noError(b, err)
		})
		noError(b, c.Close())
		b.ReportMetric(float64(peak)/(1<<20), "peak-MiB")
		if peak > maxPeakMiB<<20 {
			b.Fatalf("the heap has grown to %d MiB, %d are allowed", peak>>20, maxPeakMiB)
		}
	}
}

func check[T any](v T, err error) func(*testing.B) T {
	return func(b *testing.B) T {
		b.Helper()
		noError(b, err)
		return v
	}
}

// fileOfNoise writes 300 MiB: raw, or packed as the layer of an installer.
func fileOfNoise(b *testing.B, path string, packed bool) (string, schematics.BootFile) {
	b.Helper()
	const size = 300 << 20
	f := check(os.Create(path))(b)
	defer f.Close()
	sum := sha256.New()
	to := io.MultiWriter(f, sum)
	noise := io.LimitReader(rand.NewChaCha8([32]byte{1}), size)
	if packed {
		z := check(gzip.NewWriterLevel(to, gzip.NoCompression))(b)
		t := tar.NewWriter(z)
		err := t.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "usr/install/amd64/vmlinuz.efi", Mode: 0o644, Size: size})
		check(io.Copy(t, noise))(b)
		noError(b, errors.Join(err, t.Close(), z.Close()))
	} else {
		check(io.Copy(to, noise))(b)
	}
	return path, schematics.BootFile{Name: filepath.Base(path), SHA256: hex.EncodeToString(sum.Sum(nil)), SizeBytes: size}
}
