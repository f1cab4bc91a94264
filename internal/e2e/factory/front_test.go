package factory

import (
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// front is the address of an Image Factory, in front of one or several processes like a
// load balancer.
type front struct {
	addr, url string
	images    atomic.Int64 // requests that make the factory build

	mu               sync.Mutex
	lists, otherwise *url.URL // targets of requests for lists and certificates, and of all others
}

func newFront(t *testing.T) *front {
	t.Helper()
	l := must(net.Listen("tcp", "127.0.0.1:0"))(t)
	f := &front{addr: l.Addr().String(), url: "http://" + l.Addr().String()}
	serve(t, &http.Server{Handler: &httputil.ReverseProxy{Rewrite: f.route, FlushInterval: -1}}, func(s *http.Server) error { return s.Serve(l) })
	return f
}

func (f *front) route(r *httputil.ProxyRequest) {
	path := r.In.URL.Path
	if strings.HasPrefix(path, "/image/") || strings.HasPrefix(path, "/v2/") && strings.Contains(path, "/manifests/v") {
		f.images.Add(1)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	to := f.otherwise
	if strings.HasPrefix(path, "/version/") || strings.HasPrefix(path, "/secureboot/") {
		to = f.lists
	}
	r.SetURL(to)
	r.Out.Host = r.In.Host
}

// leads sends every request to one factory.
func (f *front) leads(t *testing.T, to *running) { f.splits(t, to, to) }

// splits sends requests for lists and certificates to one factory and all others to another, as may happen with replicas.
func (f *front) splits(t *testing.T, lists, otherwise *running) {
	t.Helper()
	parse := func(r *running) *url.URL {
		return must(url.Parse(r.url))(t)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lists, f.otherwise = parse(lists), parse(otherwise)
}
