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
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/schematics"
)

const maxPeakMiB = 128

// BenchmarkCopy copies an image of 300 MiB between two registries that keep blobs in
// files, all in one process, and fails if that takes too much memory.
func BenchmarkCopy(b *testing.B) {
	from, digest := largeImage(b, 3, 100<<20)
	for b.Loop() {
		to := serveDisk(b, b.TempDir())
		c := must.Get(New(Options{Keychain: authn.NewMultiKeychain()}))(b)
		peak := heap.Peak(b.Context(), func() {
			must.Do(b, c.Copy(b.Context(), from+"/installer@"+digest, to+"/talos", func(int64, int64) {}))
		})
		must.Do(b, c.Close())
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
		out := must.Get(os.Create(file))(b)
		size := must.Get(io.Copy(io.MultiWriter(out, sum), content))(b)
		d := v1.Descriptor{MediaType: mediaType, Size: size, Digest: v1.Hash{Algorithm: "sha256", Hex: fmt.Sprintf("%x", sum.Sum(nil))}}
		must.Do(b, os.MkdirAll(filepath.Join(dir, "sha256"), 0o700))
		must.Do(b, os.Rename(file, filepath.Join(dir, "sha256", d.Digest.Hex)))
		return d
	}
	m := v1.Manifest{SchemaVersion: 2, MediaType: types.OCIManifestSchema1, Config: blob(strings.NewReader("{}"), types.OCIConfigJSON)}
	for range layers {
		m.Layers = append(m.Layers, blob(io.LimitReader(random, layerBytes), types.OCILayer))
	}
	raw := must.Get(json.Marshal(m))(b)
	digest = fmt.Sprintf("sha256:%x", sha256.Sum256(raw))
	req := must.Get(http.NewRequestWithContext(b.Context(), http.MethodPut, "http://"+host+"/v2/installer/manifests/"+digest, bytes.NewReader(raw)))(b)
	req.Header.Set("Content-Type", string(m.MediaType))
	resp := must.Get(http.DefaultClient.Do(req))(b)
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
	base := must.Get(random.Image(512, 1))(b)
	config := must.Get(base.ConfigFile())(b).DeepCopy()
	config.Architecture, config.OS = "amd64", "linux"
	base = must.Get(mutate.ConfigFile(base, config))(b)
	ref := must.Get(name.NewRepository(host + "/installer-base"))(b).Digest(must.Get(base.Digest())(b).String())
	must.Do(b, remote.Write(ref, base))
	layer, _ := fileOfNoise(b, filepath.Join(dir, "layer.tar.gz"), true)
	img := must.Get(mutate.AppendLayers(base, must.Get(tarball.LayerFromFile(layer))(b)))(b)
	archive := filepath.Join(dir, "installer-amd64.tar")
	must.Do(b, tarball.WriteToFile(archive, ref, img))
	file, iso := fileOfNoise(b, filepath.Join(dir, "nocloud-amd64.iso"), false)
	for b.Loop() {
		c := must.Get(New(Options{Keychain: authn.NewMultiKeychain()}))(b)
		to := serveDisk(b, b.TempDir())
		peak := heap.Peak(b.Context(), func() {
			digest, err := c.PushArchive(b.Context(), images.ArchivePush{File: archive, Repository: to + "/talos", Arch: "amd64", Base: ref.String()})
			if err == nil {
				err = c.Attach(b.Context(), to+"/talos@"+digest, file, images.BootISO, iso, nil)
			}
			must.Do(b, err)
		})
		must.Do(b, c.Close())
		b.ReportMetric(float64(peak)/(1<<20), "peak-MiB")
		if peak > maxPeakMiB<<20 {
			b.Fatalf("the heap has grown to %d MiB, %d are allowed", peak>>20, maxPeakMiB)
		}
	}
}

// fileOfNoise writes 300 MiB: raw, or packed as the layer of an installer.
func fileOfNoise(b *testing.B, path string, packed bool) (string, schematics.BootFile) {
	b.Helper()
	const size = 300 << 20
	f := must.Get(os.Create(path))(b)
	defer f.Close()
	sum := sha256.New()
	to := io.MultiWriter(f, sum)
	noise := io.LimitReader(rand.NewChaCha8([32]byte{1}), size)
	if packed {
		z := must.Get(gzip.NewWriterLevel(to, gzip.NoCompression))(b)
		t := tar.NewWriter(z)
		err := t.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "usr/install/amd64/vmlinuz.efi", Mode: 0o644, Size: size})
		must.Get(io.Copy(t, noise))(b)
		must.Do(b, errors.Join(err, t.Close(), z.Close()))
	} else {
		must.Get(io.Copy(to, noise))(b)
	}
	return path, schematics.BootFile{Name: filepath.Base(path), SHA256: hex.EncodeToString(sum.Sum(nil)), SizeBytes: size}
}
