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
	rows     rows
	http     *http.Server

	mu      sync.Mutex
	closed  bool
	running sync.WaitGroup // requests and the listener
}

// New makes the API of one host of w. Every request passes through the recorder.
func New(w *world.World, rec *record.Recorder, host string) *Server {
	s := &Server{world: w, recorder: rec, host: host, routes: routes(), rows: rows{known: map[int]*row{}}}
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
	if r.URL.Path == logo && r.Method == http.MethodGet {
		writeLogo(rw)
		return
	}
	q, err := readHeader(r)
	var user string
	if err == nil {
		user, err = s.letIn(r, q)
	}
	if err == nil {
		err = s.readBody(r, &q)
	}
	if errors.Is(err, errNoAnswer) || errors.Is(err, errClientGone) {
		q.drop()
		panic(http.ErrAbortHandler)
	}
	seen, recErr := s.recorder.Begin(record.Call{
		Proto: "proxmox", Target: s.host, Method: r.Method, Path: r.URL.RequestURI(), Params: public(q.params),
		User: user, Agent: r.UserAgent(), Mutation: r.Method != http.MethodGet && r.Method != http.MethodHead,
	})
	if recErr != nil {
		q.drop()
		panic(http.ErrAbortHandler)
	}
	var a answer
	if err == nil {
		if a, err = s.dispatch(user, q); isUnauthorized(err) && !s.pause(r, unauthorizedDelay) {
			err = errNoAnswer
		}
	} else {
		q.drop()
	}
	if errors.Is(err, world.ErrClosed) || errors.Is(err, errNoAnswer) || s.world.HostDown(s.host) {
		panic(http.ErrAbortHandler)
	}
	seen.Status = http.StatusOK
	if err != nil {
		seen.Status, _, _ = errorBody(err)
	}
	s.recorder.End(seen)
	if err != nil {
		writeError(rw, err)
		return
	}
	if q.isUpload() {
		rw.Header().Set("Connection", "close")
	}
	writeAnswer(rw, a)
}

// errNoAnswer closes the connection instead of answering.
var errNoAnswer = errors.New("no answer")

// letIn authenticates; every refusal comes late and with an empty body.
func (s *Server) letIn(r *http.Request, q request) (user string, err error) {
	user, err = s.authenticate(r, q)
	if err == nil {
		return user, nil
	}
	if !s.pause(r, unauthorizedDelay) {
		return user, errNoAnswer
	}
	return user, late(err)
}

func isUnauthorized(err error) bool {
	e, ok := errors.AsType[*world.Error](err)
	return ok && e.Status == http.StatusUnauthorized
}

// unauthorizedDelay is what AnyEvent.pm delays every 401 by.
const unauthorizedDelay = 3 * time.Second

// pause lets simulated time pass; false when the client has gone.
func (s *Server) pause(r *http.Request, d time.Duration) bool {
	return s.world.Delay(d) && r.Context().Err() == nil
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
