package factory

import (
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// depot is a registry at 127.0.0.1, the only address for which container tools use plain
// HTTP. Its blobs are on disk.
type depot struct {
	addr    string
	handler http.Handler
	content atomic.Int64 // requests that read blobs
	writes  atomic.Int64 // requests that change something
}

func newDepot(t *testing.T) *depot {
	t.Helper()
	l := must(net.Listen("tcp", "127.0.0.1:0"))(t)
	d := &depot{addr: l.Addr().String()}
	handler := registry.New(
		registry.WithBlobHandler(registry.NewDiskBlobHandler(t.TempDir())),
		registry.WithReferrersSupport(true),
		registry.Logger(log.New(io.Discard, "", 0)),
	)
	d.handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			d.writes.Add(1)
		case r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/"):
			d.content.Add(1)
		}
		handler.ServeHTTP(w, r)
	})
	serve(t, &http.Server{Handler: d.handler}, func(s *http.Server) error { return s.Serve(l) })
	return d
}

// servesTLS serves the same at another address, with certificates of an authority. HTTP/2 is disabled:
// of parallel uploads on one connection, this registry reads one at a time (the lock of PATCH in
// go-containerregistry's pkg/registry/blobs.go), and the others' data would fill the connection's
// window.
func (d *depot) servesTLS(t *testing.T, ca *authority) (addr string) {
	t.Helper()
	l := must(net.Listen("tcp", "127.0.0.1:0"))(t)
	server := &http.Server{Handler: d.handler, Protocols: new(http.Protocols)}
	server.Protocols.SetHTTP1(true)
	server.ErrorLog = log.New(io.Discard, "", 0) // tests use clients that do not trust the certificate
	serve(t, server, func(s *http.Server) error { return s.ServeTLS(l, ca.certFile, ca.keyFile) })
	return l.Addr().String()
}

// serve runs a server until the test ends.
func serve(t *testing.T, server *http.Server, run func(*http.Server) error) {
	t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- run(server) }()
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
		if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
}

// tag is a reference to the registry: "siderolabs/imager:v1.13.9".
func (d *depot) tag(t *testing.T, path string) name.Tag {
	t.Helper()
	return must(name.NewTag(d.addr + "/" + path))(t)
}

func (d *depot) push(t *testing.T, path string, what remote.Taggable) {
	t.Helper()
	mustDo(t, remote.Push(d.tag(t, path), what, remote.WithContext(t.Context())))
}

// forgets deletes everything with a tag in a repository.
func (d *depot) forgets(t *testing.T, path string) {
	t.Helper()
	repository := must(name.NewRepository(d.addr + "/" + path))(t)
	tags, err := remote.List(repository, remote.WithContext(t.Context()))
	if err != nil || len(tags) == 0 {
		t.Fatalf("%s has the tags %q: %v", repository, tags, err)
	}
	for _, tag := range tags {
		mustDo(t, remote.Delete(repository.Tag(tag), remote.WithContext(t.Context())))
	}
}

// digest is the digest of a tag; "" if there is none.
func (d *depot) digest(t *testing.T, path string) string {
	t.Helper()
	desc, err := remote.Head(d.tag(t, path), remote.WithContext(t.Context()))
	if err != nil {
		return ""
	}
	return desc.Digest.String()
}

func digestOf(t *testing.T, what interface{ Digest() (v1.Hash, error) }) string {
	t.Helper()
	h := must(what.Digest())(t)
	return fmt.Sprint(h)
}
