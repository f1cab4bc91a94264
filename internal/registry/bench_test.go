package registry

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	ggcr "github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/heap"
	"github.com/recast-sh/recast/schematics"
)

const maxPeakMiB = 128

// BenchmarkCopy copies an image of 300 MiB between two registries that keep blobs in
// files, all in one process, and fails if that takes too much memory.
func BenchmarkCopy(b *testing.B) {
	from, digest := largeImage(b, 3, 100<<20)
	for b.Loop() {
		to := serveDisk(b, b.TempDir())
		c := must(New(Options{Keychain: authn.NewMultiKeychain()}))(b)
		peak := heap.Peak(b.Context(), func() {
			noError(b, c.Copy(b.Context(), from+"/installer@"+digest, to+"/talos", func(int64, int64) {}))
		})
		noError(b, c.Close())
		b.ReportMetric(float64(peak)/(1<<20), "peak-MiB")
		if peak > maxPeakMiB<<20 {
			b.Fatalf("the heap has grown to %d MiB, %d are allowed", peak>>20, maxPeakMiB)
		}
	}
}

// largeImage is an image of that many layers in its own registry.
func largeImage(b *testing.B, layers int, layerBytes int64) (host, digest string) {
	b.Helper()
	dir := b.TempDir()
	host = serveDisk(b, dir)
	random := rand.NewChaCha8([32]byte{})
	blob := func(content io.Reader, mediaType types.MediaType) v1.Descriptor {
		sum := sha256.New()
		file := filepath.Join(b.TempDir(), "blob")
		out := must(os.Create(file))(b)
		size := must(io.Copy(io.MultiWriter(out, sum), content))(b)
		d := v1.Descriptor{MediaType: mediaType, Size: size, Digest: v1.Hash{Algorithm: "sha256", Hex: fmt.Sprintf("%x", sum.Sum(nil))}}
		noError(b, os.MkdirAll(filepath.Join(dir, "sha256"), 0o700))
		noError(b, os.Rename(file, filepath.Join(dir, "sha256", d.Digest.Hex)))
		return d
	}
	m := v1.Manifest{SchemaVersion: 2, MediaType: types.OCIManifestSchema1, Config: blob(strings.NewReader("{}"), types.OCIConfigJSON)}
	for range layers {
		m.Layers = append(m.Layers, blob(io.LimitReader(random, layerBytes), types.OCILayer))
	}
	raw := must(json.Marshal(m))(b)
	digest = fmt.Sprintf("sha256:%x", sha256.Sum256(raw))
	req := must(http.NewRequestWithContext(b.Context(), http.MethodPut, "http://"+host+"/v2/installer/manifests/"+digest, bytes.NewReader(raw)))(b)
	req.Header.Set("Content-Type", string(m.MediaType))
	resp := must(http.DefaultClient.Do(req))(b)
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusCreated {
		b.Fatal(resp.Status)
	}
	return host, digest
}

// serveDisk serves a registry whose blobs and uploads are files:
// go-containerregistry's own keeps uploads in memory until they are complete.
func serveDisk(b *testing.B, dir string) (host string) {
	b.Helper()
	store := ggcr.New(ggcr.WithBlobHandler(ggcr.NewDiskBlobHandler(dir)), ggcr.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		upload := filepath.Join(dir, "upload-"+filepath.Base(r.URL.Path))
		switch {
		case r.Method == http.MethodPatch:
			if err := receive(upload, r.Body); err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			w.Header().Set("Location", r.URL.Path)
			w.WriteHeader(http.StatusAccepted)
		case r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/blobs/uploads/"):
			hash, err := v1.NewHash(r.URL.Query().Get("digest"))
			if err == nil {
				err = commit(upload, dir, hash)
			}
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			w.WriteHeader(http.StatusCreated)
		default:
			store.ServeHTTP(w, r)
		}
	}))
	b.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://")
}

func receive(file string, body io.Reader) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(f, body)
	return err
}

func commit(file, dir string, want v1.Hash) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	got, _, err := v1.SHA256(f)
	if err != nil {
		return err
	}
	if got != want {
		return fmt.Errorf("it is %s, not %s", got, want)
	}
	if err := os.MkdirAll(filepath.Join(dir, want.Algorithm), 0o700); err != nil {
		return err
	}
	return os.Rename(file, filepath.Join(dir, want.Algorithm, want.Hex))
}

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
