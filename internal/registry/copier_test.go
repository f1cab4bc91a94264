package registry

import (
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	ggcr "github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	"github.com/recast-sh/recast/internal/sim/must"
)

// place is a registry server and the requests that it received.
type place struct {
	host string

	mu       sync.Mutex
	has      map[string]bool // blobs by digest, as answered
	again    []string
	requests []string                            // "PUT /v2/…/manifests/v1"
	refuse   func(r *http.Request) (status int)  // 0: serve it
	cut      func(r *http.Request) (after int64) // the connection breaks after that many bytes of the answer; -1: never
}

func newPlace(t *testing.T, o ...ggcr.Option) *place {
	t.Helper()
	p := &place{has: map[string]bool{}}
	handler := ggcr.New(append(o, ggcr.Logger(log.New(io.Discard, "", 0)))...)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if status := p.note(r); status != 0 {
			http.Error(w, `{"errors":[{"code":"DENIED","message":"not here"}]}`, status)
			return
		}
		if after := p.cuts(r); after >= 0 {
			w = &cutting{ResponseWriter: w, left: after}
		}
		a := &answering{ResponseWriter: w}
		handler.ServeHTTP(a, r)
		p.looked(r, a.status)
	}))
	t.Cleanup(server.Close)
	p.host = strings.TrimPrefix(server.URL, "http://")
	return p
}

func (p *place) note(r *http.Request) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.requests = append(p.requests, r.Method+" "+r.URL.Path)
	if p.refuse != nil {
		if status := p.refuse(r); status != 0 {
			return status
		}
	}
	if digest := r.URL.Query().Get("digest"); r.Method == http.MethodPut && digest != "" {
		if has, looked := p.has[digest]; has || !looked {
			p.again = append(p.again, digest)
		}
	}
	return 0
}

// let makes the place serve everything again.
func (p *place) let() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse = nil
}

// sentAgain lists the blobs that were sent although they existed, or without a check.
func (p *place) sentAgain() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.again)
}

// looked records the place's answer to a check for a blob.
func (p *place) looked(r *http.Request, status int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, digest, is := strings.Cut(r.URL.Path, "/blobs/"); is && r.Method == http.MethodHead {
		p.has[digest] = status == http.StatusOK
	}
}

// answering records the status of an answer.
type answering struct {
	http.ResponseWriter
	status int
}

func (a *answering) WriteHeader(status int) {
	a.status = status
	a.ResponseWriter.WriteHeader(status)
}

func (p *place) cuts(r *http.Request) int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cut == nil {
		return -1
	}
	return p.cut(r)
}

// cutting breaks the connection within an answer.
type cutting struct {
	http.ResponseWriter
	left int64
}

func (c *cutting) Write(p []byte) (int, error) {
	n, err := c.ResponseWriter.Write(p[:min(int64(len(p)), c.left)])
	c.left -= int64(n)
	if err == nil && n < len(p) {
		panic(http.ErrAbortHandler)
	}
	return n, err
}

// set makes the place refuse what f says, and forget the requests that it received.
func (p *place) set(f func(r *http.Request) int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse, p.requests = f, nil
}

// asked returns the requests of one method, except those for the API version.
func (p *place) asked(method string) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var list []string
	for _, r := range p.requests {
		if strings.HasPrefix(r, method+" ") && r != "GET /v2/" {
			list = append(list, r)
		}
	}
	return list
}

// copier is two registries, a client of both, and an index of two architectures in the first.
type copier struct {
	*Client
	from, to *place
	source   name.Digest
	mirror   name.Repository
}

func newCopier(t *testing.T, to ...ggcr.Option) *copier {
	t.Helper()
	c := &copier{from: newPlace(t, ggcr.WithReferrersSupport(true))}
	c.into(t, newPlace(t, to...))
	c.Client = must.Get(New(Options{Keychain: authn.NewMultiKeychain()}))(t)
	t.Cleanup(func() { must.Do(t, c.Close()) })
	index := must.Get(random.Index(512, 2, 2))(t)
	repository := must.Get(name.NewRepository(c.from.host + "/nocloud-installer/abc"))(t)
	c.source = repository.Digest(must.Get(index.Digest())(t).String())
	must.Do(t, remote.WriteIndex(repository.Tag("v1.13.9"), index))
	return c
}

// into directs copies to that registry.
func (c *copier) into(t *testing.T, to *place) {
	t.Helper()
	c.to, c.mirror = to, must.Get(name.NewRepository(to.host+"/acme/talos"))(t)
}

func (c *copier) signatureTag() string {
	return strings.Replace(c.source.DigestStr(), ":", "-", 1) + ".sig"
}

// sign puts an image under cosign's tag for signatures.
func (c *copier) sign(t *testing.T, in name.Repository) v1.Hash {
	t.Helper()
	sig := must.Get(random.Image(64, 1))(t)
	must.Do(t, remote.Write(in.Tag(c.signatureTag()), sig))
	return must.Get(sig.Digest())(t)
}

// refer puts an image into the source's repository whose subject is the source.
func (c *copier) refer(t *testing.T) v1.Hash {
	t.Helper()
	desc := must.Get(remote.Head(c.source))(t)
	r := mutate.Subject(must.Get(random.Image(64, 1))(t), *desc).(v1.Image)
	hash := must.Get(r.Digest())(t)
	must.Do(t, remote.Write(c.source.Context().Digest(hash.String()), r))
	return hash
}

func (c *copier) run(t *testing.T) error {
	t.Helper()
	return c.Copy(t.Context(), c.source.String(), c.mirror.String(), nil)
}

// whole fails the test unless the copy has every manifest and blob.
func (c *copier) whole(t *testing.T) {
	t.Helper()
	index := must.Get(remote.Index(c.mirror.Digest(c.source.DigestStr())))(t)
	must.Do(t, validate.Index(index))
	if m := must.Get(index.IndexManifest())(t); len(m.Manifests) != 2 {
		t.Errorf("%d manifests", len(m.Manifests))
	}
}

func (c *copier) attach(t *testing.T) (sig, referrer v1.Hash) {
	t.Helper()
	return c.sign(t, c.source.Context()), c.refer(t)
}

// eachInBubble is each with the time of a bubble.
func eachInBubble[T any](t *testing.T, cases map[string]T, test func(t *testing.T, tc T)) {
	t.Helper()
	must.Each(t, cases, func(t *testing.T, tc T) {
		synctest.Test(t, func(t *testing.T) { test(t, tc) })
	})
}
