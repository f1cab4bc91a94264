package factory

import (
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

// depot is a registry at 127.0.0.1, the one address with which container tools
// speak plain HTTP. Its blobs are on disk.
type depot struct {
	addr    string
	content atomic.Int64 // requests that read content: blobs
	writes  atomic.Int64 // requests that change something
}

func newDepot(t *testing.T) *depot {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	d := &depot{addr: l.Addr().String()}
	handler := registry.New(
		registry.WithBlobHandler(registry.NewDiskBlobHandler(t.TempDir())),
		registry.WithReferrersSupport(true),
		registry.Logger(log.New(io.Discard, "", 0)),
	)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			d.writes.Add(1)
		case r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/"):
			d.content.Add(1)
		}
		handler.ServeHTTP(w, r)
	})}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
		<-ended // http.ErrServerClosed
	})
	return d
}

// tag names something in the registry: "siderolabs/imager:v1.13.9".
func (d *depot) tag(t *testing.T, path string) name.Tag {
	t.Helper()
	tag, err := name.NewTag(d.addr + "/" + path)
	if err != nil {
		t.Fatal(err)
	}
	return tag
}

func (d *depot) push(t *testing.T, path string, what remote.Taggable) {
	t.Helper()
	if err := remote.Push(d.tag(t, path), what, remote.WithContext(t.Context())); err != nil {
		t.Fatal(err)
	}
}

// digest is what a tag names; "" if there is none.
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
	h, err := what.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(h)
}
