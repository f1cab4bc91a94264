// Package pveapi puts Proxmox VE's HTTPS API in front of a simulated world:
// paths, parameters, rights, wording and status lines as Proxmox VE 9.2 has them.
package pveapi

import (
	"crypto/tls"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/world"
)

// Server is the API as one Proxmox host serves it, while that host is up. What is
// asked about another host of the cluster it answers just as well.
type Server struct {
	world    *world.World
	recorder *record.Recorder
	host     string
	routes   []route
	http     *http.Server

	mu      sync.Mutex
	closed  bool
	running sync.WaitGroup // requests and the listener
}

// New makes the API of one host of w. Every request passes through the recorder.
func New(w *world.World, rec *record.Recorder, host string) *Server {
	s := &Server{world: w, recorder: rec, host: host, routes: routes()}
	s.http = &http.Server{
		Handler:           s,
		ReadHeaderTimeout: 30 * time.Second,
		ErrorLog:          log.New(io.Discard, "", 0), // failed handshakes and broken connections are the tests' business
		TLSNextProto:      map[string]func(*http.Server, *tls.Conn, http.Handler){},
	}
	return s
}

// Serve accepts connections on l, with TLS, until Close. It returns at once and owns l.
func (s *Server) Serve(l net.Listener, cert tls.Certificate) {
	config := &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{"http/1.1"}}
	s.running.Go(func() {
		_ = s.http.Serve(tls.NewListener(l, config)) // it always ends with an error, when l is closed
	})
}

// Close ends the listener and every connection, and waits for the requests in progress.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	err := s.http.Close()
	s.running.Wait()
	return err
}

func (s *Server) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.running.Add(1)
	}
	return !s.closed
}

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	if !s.enter() {
		panic(http.ErrAbortHandler)
	}
	defer s.running.Done()
	if s.world.HostDown(s.host) {
		panic(http.ErrAbortHandler)
	}
	q, err := readRequest(r)
	if err != nil {
		q = request{method: r.Method}
	}
	user, authErr := s.authenticate(r)
	seen, recErr := s.recorder.Begin(record.Call{
		Proto: "proxmox", Target: s.host, Method: r.Method, Path: r.URL.RequestURI(), Params: public(q.params),
		User: user, Mutation: r.Method != http.MethodGet && r.Method != http.MethodHead,
	})
	if recErr != nil {
		panic(http.ErrAbortHandler)
	}
	var a answer
	switch {
	case authErr != nil:
		if !s.pause(r, 3*time.Second) {
			panic(http.ErrAbortHandler)
		}
		err = authErr
	case err == nil:
		a, err = s.dispatch(user, q)
	}
	if errors.Is(err, world.ErrClosed) {
		panic(http.ErrAbortHandler)
	}
	s.recorder.End(seen)
	if err != nil {
		writeError(rw, err)
		return
	}
	writeAnswer(rw, a)
}

// pause lets simulated time pass; false when the client has gone.
func (s *Server) pause(r *http.Request, d time.Duration) bool {
	return s.world.Delay(d) && r.Context().Err() == nil
}

// authenticate reads the API token; every refusal is answered late.
func (s *Server) authenticate(r *http.Request) (user string, err error) {
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "PVEAPIToken=")
	if !ok {
		return "", &world.Error{Status: http.StatusUnauthorized, Message: "No ticket"}
	}
	id, secret, _ := strings.Cut(token, "=")
	if !s.world.Authenticate(id, secret) {
		return "", &world.Error{Status: http.StatusUnauthorized, Message: "invalid token value!"}
	}
	return id, nil
}

// public leaves out what no record may hold.
func public(params map[string]string) map[string]string {
	out := make(map[string]string, len(params))
	for name, value := range params {
		if name != "cipassword" && name != "password" {
			out[name] = value
		}
	}
	return out
}
