package contract

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"

	"github.com/recast-sh/recast/internal/pve"
	"github.com/recast-sh/recast/internal/sim/network"
)

// lossy is an in-memory connection to the server that loses the first change or its
// answer. It also drops every reason phrase, like proxies that use HTTP/2.
type lossy struct {
	s      *server
	before bool // lose the change itself
	lost   atomic.Int32
}

// client makes a recast client that uses only this connection.
func (l *lossy) client() *pve.Client {
	l.s.t.Helper()
	memory := network.Memory()
	listener, err := memory.Listen(l.host())
	must(l.s.t, err)
	proxy := httptest.NewUnstartedServer(l)
	proxy.Config.ErrorLog = log.New(io.Discard, "", 0)
	must(l.s.t, proxy.Listener.Close())
	proxy.Listener = listener
	proxy.StartTLS()
	l.s.t.Cleanup(proxy.Close)
	sum := sha256.Sum256(proxy.Certificate().Raw)
	o := l.s.trusting()
	o.Fingerprint, o.Dial = hex.EncodeToString(sum[:]), memory.Dialer().DialContext
	return l.s.connect(o)
}

// host is the address in the client's requests.
func (l *lossy) host() string {
	l.s.t.Helper()
	req, err := http.NewRequestWithContext(l.s.t.Context(), http.MethodGet, l.s.place.endpoint, http.NoBody)
	must(l.s.t, err)
	if req.URL.Port() == "" {
		return net.JoinHostPort(req.URL.Hostname(), "8006")
	}
	return req.URL.Host
}

func (l *lossy) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	loses := r.Method != http.MethodGet && l.lost.CompareAndSwap(0, 1)
	if loses && l.before {
		panic(http.ErrAbortHandler)
	}
	status, header, body, err := l.pass(r)
	if err != nil || loses {
		panic(http.ErrAbortHandler)
	}
	for _, name := range []string{"Content-Type", "Date"} {
		rw.Header().Set(name, header.Get(name))
	}
	rw.WriteHeader(status)
	_, _ = rw.Write(body) // the client may be gone
}

// pass forwards a request to the server.
func (l *lossy) pass(r *http.Request) (status int, header http.Header, body []byte, err error) {
	sent, err := io.ReadAll(r.Body)
	if err != nil {
		return 0, nil, nil, err
	}
	req, err := http.NewRequestWithContext(r.Context(), r.Method, l.s.place.endpoint+r.URL.RequestURI(), bytes.NewReader(sent))
	if err != nil {
		return 0, nil, nil, err
	}
	for _, name := range []string{"Authorization", "Content-Type"} {
		if value := r.Header.Get(name); value != "" {
			req.Header.Set(name, value)
		}
	}
	resp, err := l.s.http.Do(req)
	if err != nil {
		return 0, nil, nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err = io.ReadAll(resp.Body)
	return resp.StatusCode, resp.Header, body, err
}
