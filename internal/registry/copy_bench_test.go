package registry

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
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
	ggcr "github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/recast-sh/recast/internal/heap"
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
