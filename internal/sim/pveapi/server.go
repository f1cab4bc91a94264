// Package pveapi serves Proxmox VE's HTTPS API for a simulated world: a [Server] has the
// paths, parameters, permissions, wording and status lines of Proxmox VE 9.2.
package pveapi

import (
	"context"
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

// Server is the API on one Proxmox host, while the host is up. It also answers requests about the cluster's other
// hosts.
type Server struct {
	world    *world.World
	recorder *record.Recorder
	host     string
	routes   []route
	rows     rows
	http     *http.Server

	mu      sync.Mutex
	closed  bool
	ended   chan struct{}  // closed by Close
	running sync.WaitGroup // requests and the listener
}

// New makes the API of one host of w. Every request is recorded by rec.
func New(w *world.World, rec *record.Recorder, host string) *Server {
	s := &Server{world: w, recorder: rec, host: host, routes: routes(), rows: rows{known: map[int]*row{}}, ended: make(chan struct{})}
	s.http = &http.Server{
		Handler:           s,
		ReadHeaderTimeout: 30 * time.Second,
		ConnContext:       countRequests,
		ErrorLog:          log.New(io.Discard, "", 0), // tests cause failed handshakes and broken connections
		TLSNextProto:      map[string]func(*http.Server, *tls.Conn, http.Handler){},
	}
	return s
}

// Serve accepts TLS connections on l until Close. It returns at once and owns l.
func (s *Server) Serve(l net.Listener, cert tls.Certificate) {
	config := &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{"http/1.1"}}
	s.running.Go(func() {
		_ = s.http.Serve(tls.NewListener(l, config)) // always an error once l is closed
	})
}

// Close ends the listener and every connection, and waits for the requests in progress.
func (s *Server) Close() error {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		close(s.ended)
	}
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
	rw.Header().Set("Date", s.world.Clock(s.host).UTC().Format(http.TimeFormat))
	if r.URL.Path == logo && r.Method == http.MethodGet {
		writeLogo(rw)
		return
	}
	first := isFirst(r)
	q, err := readHeader(r)
	var user string
	if err == nil {
		user, err = s.letIn(r, q, first)
	}
	if err == nil {
		err = s.readBody(r, &q)
	}
	if errors.Is(err, errNoAnswer) || errors.Is(err, errClientGone) {
		q.drop()
		panic(http.ErrAbortHandler)
	}
	if s.recorder.Await(r.Context(), "proxmox") != nil {
		q.drop()
		panic(http.ErrAbortHandler)
	}
	seen, recErr := s.recorder.Begin(record.Call{
		Proto: "proxmox", Target: s.host, Method: r.Method, Path: r.URL.RequestURI(), Params: public(q.params),
		User: user, Agent: r.UserAgent(), Mutation: r.Method != http.MethodGet && r.Method != http.MethodHead,
	})
	if held := record.AsHeld(recErr); held != nil && err == nil {
		s.hold(rw, r, q, seen, held)
		return
	} else if held != nil {
		held.End() // refused requests are answered at once
		recErr = nil
	}
	if recErr != nil {
		q.drop()
		panic(http.ErrAbortHandler)
	}
	if err != nil {
		q.drop()
	}
	s.answer(s.recorder.Counted(rw, seen), q, s.carryOut(r, user, q, seen, err))
}

// outcome is the result of a request.
type outcome struct {
	answer answer
	err    error
}

// carryOut processes a request, unless the request is refused already, and calls the recorder's hooks.
func (s *Server) carryOut(r *http.Request, user string, q request, seen record.Call, refused error) (out outcome) {
	out.err = refused
	if refused == nil {
		if out.answer, out.err = s.dispatch(user, q); isUnauthorized(out.err) && !s.pause(r, unauthorizedDelay) {
			out.err = errNoAnswer
		}
	}
	if errors.Is(out.err, world.ErrClosed) || errors.Is(out.err, errNoAnswer) || s.world.HostDown(s.host) {
		return outcome{err: errNoAnswer}
	}
	seen.Status = http.StatusOK
	if out.err != nil {
		seen.Status, _, _ = errorBody(out.err)
	}
	s.recorder.End(seen)
	return out
}

func (s *Server) answer(rw http.ResponseWriter, q request, out outcome) {
	switch {
	case errors.Is(out.err, errNoAnswer):
		panic(http.ErrAbortHandler)
	case out.err != nil:
		writeError(rw, out.err)
		return
	case q.isUpload():
		rw.Header().Set("Connection", "close")
	}
	writeAnswer(rw, out.answer)
}

// errNoAnswer closes the connection instead of answering.
var errNoAnswer = errors.New("no answer")

// letIn authenticates a request. An error comes late and with an empty body, unless the request's own body comes in
// between. first: the request is the first of its connection.
func (s *Server) letIn(r *http.Request, q request, first bool) (user string, err error) {
	user, err = s.authenticate(r, q)
	if err == nil {
		return user, nil
	}
	if err := unreadBody(r, first); err != nil {
		return user, err
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

// unauthorizedDelay is AnyEvent.pm's delay of every 401.
const unauthorizedDelay = 3 * time.Second

// pause waits for simulated time; it returns false if the client has gone.
func (s *Server) pause(r *http.Request, d time.Duration) bool {
	return s.world.Delay(d) && r.Context().Err() == nil
}

// public returns the parameters without the secret ones.
func public(params map[string]string) map[string]string {
	out := make(map[string]string, len(params))
	for name, value := range params {
		if name != "cipassword" && name != "password" {
			out[name] = value
		}
	}
	return out
}

// hold sends the answer in held to a request, and has the request processed when it is due. If the request is due
// before the sender stops waiting, the sender gets the real answer.
func (s *Server) hold(rw http.ResponseWriter, r *http.Request, q request, seen record.Call, held *record.Held) {
	waiting, stop := context.WithCancel(r.Context())
	defer stop()
	var out outcome // read only after inTime is closed
	inTime := make(chan struct{})
	s.running.Go(func() {
		defer stop()
		defer held.End()
		// The request outlives its context, which ends with the connection's handler.
		out = s.late(r.Clone(context.WithoutCancel(r.Context())), q, seen, held)
		close(inTime)
	})
	a := held.Answer()
	s.world.DelayUnless(a.After, waiting.Done())
	select {
	case <-inTime:
		s.answer(rw, q, out)
		return
	default:
	}
	if a.Status == 0 || r.Context().Err() != nil || s.world.HostDown(s.host) {
		panic(http.ErrAbortHandler)
	}
	writeRaw(rw, a.Status, a.Reason, a.ContentType, []byte(a.Body))
}

// late waits until a request is due and processes it, unless the host is down. Like any worker, late authenticates
// the request only then.
func (s *Server) late(r *http.Request, q request, seen record.Call, held *record.Held) outcome {
	select {
	case <-held.Due():
	case <-s.ended:
		q.drop()
		return outcome{err: errNoAnswer}
	}
	if s.world.HostDown(s.host) {
		q.drop()
		return outcome{err: errNoAnswer}
	}
	seen, err := s.recorder.Resume(seen)
	if err != nil {
		q.drop()
		return outcome{err: errNoAnswer}
	}
	user, err := s.letIn(r, q, true)
	if err != nil {
		q.drop()
	}
	return s.carryOut(r, user, q, seen, err)
}
