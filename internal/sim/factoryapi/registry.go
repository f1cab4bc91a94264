package factoryapi

import (
	"io"
	"log"
	"net/http"

	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/recast-sh/recast/internal/sim/record"
)

// Registry is an OCI registry that keeps everything in memory.
type Registry struct {
	store    http.Handler
	recorded http.Handler
}

var _ http.Handler = (*Registry)(nil)

// NewRegistry makes an empty registry. It owns no goroutine and needs no Close.
func NewRegistry(rec *record.Recorder) *Registry {
	store := untagging{registry.New(registry.WithReferrersSupport(true), registry.Logger(log.New(io.Discard, "", 0)))}
	return &Registry{store: store, recorded: recorded(rec, "registry", store)}
}

func (r *Registry) ServeHTTP(w http.ResponseWriter, req *http.Request) { r.recorded.ServeHTTP(w, req) }

// Transport reaches the registry from inside the lab: whatever the URL's host, without a
// connection, and unrecorded. The factory and publishers of extensions use it, which are
// not under test.
func (r *Registry) Transport() http.RoundTripper { return inside{r.store} }

type inside struct{ handler http.Handler }

func (t inside) RoundTrip(req *http.Request) (*http.Response, error) {
	if err := req.Context().Err(); err != nil {
		return nil, err
	}
	r := req.Clone(req.Context())
	r.RequestURI = req.URL.RequestURI()
	r.Host = req.URL.Host
	if r.Body == nil {
		r.Body = http.NoBody
	}
	a := newAnswer()
	t.handler.ServeHTTP(a, r)
	if err := r.Body.Close(); err != nil {
		return nil, err
	}
	resp := a.response(req)
	if req.Method == http.MethodHead {
		resp.Body = http.NoBody
	}
	return resp, nil
}
