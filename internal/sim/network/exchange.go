package network

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"time"
)

// exchange is one request and its answer, without the wire. It ends early when either side
// ends or the network between them is cut.
type exchange struct {
	dialer *Dialer
	door   Door
	spoken protocol
	ctx    context.Context // the handler's
	cancel context.CancelCauseFunc
	stop   func() bool // stops watching the client's context
	detach func()

	req   *http.Request // the client's
	ready chan struct{} // closed when there is an answer or an error
	resp  *http.Response
	err   error
	torn  error // why a streaming answer has broken; set before its stream ends
}

func newExchange(d *Dialer, door Door, p protocol) *exchange {
	e := &exchange{dialer: d, door: door, spoken: p, ready: make(chan struct{})}
	e.ctx, e.cancel = context.WithCancelCause(door.Context)
	return e
}

// slowError is net/http's error for a header that times out.
type slowError struct{}

func (slowError) Error() string { return "net/http: timeout awaiting response headers" }
func (slowError) Timeout() bool { return true }

// carry passes the request to the handler and waits for the header of its answer.
func (e *exchange) carry(req *http.Request, state *tls.ConnectionState, limit time.Duration) (*http.Response, error) {
	e.req = req
	e.stop = context.AfterFunc(req.Context(), func() { e.cancel(context.Cause(req.Context())) })
	detach, ok := e.dialer.Attach(func() { e.cancel(errCut) })
	if !ok {
		e.stop()
		e.cancel(errCut)
		closeBody(req)
		return nil, errCut
	}
	e.detach = detach
	if limit > 0 {
		slow := time.AfterFunc(limit, func() { e.cancel(slowError{}) })
		defer slow.Stop()
	}
	in, err := e.arriving(state)
	if err != nil {
		e.end(err)
		closeBody(req)
		return nil, err
	}
	if trace := httptrace.ContextClientTrace(req.Context()); trace != nil && trace.GotConn != nil {
		trace.GotConn(httptrace.GotConnInfo{})
	}
	go e.serve(in)
	select {
	case <-e.ready:
	case <-e.ctx.Done():
	}
	// A cut before the answer was sent loses the answer.
	if e.ctx.Err() != nil {
		return nil, e.broken(e.spoken.gone)
	}
	if e.err != nil {
		e.end(e.err)
		return nil, e.err
	}
	if _, over := e.resp.Body.(*whole); over {
		e.end(nil)
	}
	return e.resp, nil
}

func closeBody(req *http.Request) {
	if req.Body != nil {
		_ = req.Body.Close() // nothing was read of it
	}
}

// end ends the exchange early, or after it is complete.
func (e *exchange) end(why error) {
	e.stop()
	e.detach()
	e.cancel(why)
}

// broken is the client's error for the early end of the exchange; gone is the one for the
// end of the server.
func (e *exchange) broken(gone error) error {
	err := context.Cause(e.ctx)
	e.end(err)
	if e.req.Context().Err() != nil {
		return context.Cause(e.req.Context())
	}
	if e.door.Context.Err() != nil && errors.Is(err, context.Cause(e.door.Context)) {
		return gone
	}
	return err
}

// arriving is the request as the server sees it.
func (e *exchange) arriving(state *tls.ConnectionState) (*http.Request, error) {
	target := e.req.URL.RequestURI()
	at, err := url.ParseRequestURI(target)
	if err != nil {
		return nil, err
	}
	in := &http.Request{
		Method: e.req.Method, URL: at, RequestURI: target, Proto: e.spoken.name, ProtoMajor: e.spoken.major, ProtoMinor: 2 - e.spoken.major,
		Header: e.req.Header.Clone(), Host: e.req.Host, RemoteAddr: "memory", TLS: state, Body: http.NoBody,
	}
	if in.Method == "" {
		in.Method = http.MethodGet
	}
	if in.Host == "" {
		in.Host = e.req.URL.Host
	}
	if in.Header == nil {
		in.Header = http.Header{}
	}
	if _, said := in.Header["User-Agent"]; !said {
		in.Header["User-Agent"] = []string{e.spoken.agent()}
	}
	if err := e.addBody(in); err != nil {
		return nil, err
	}
	return in.WithContext(e.ctx), nil
}

// addBody determines the body's length as net/http does: an unknown length means chunks, unless it is
// empty.
func (e *exchange) addBody(in *http.Request) error {
	if e.req.Body == nil || e.req.Body == http.NoBody {
		return nil
	}
	from := io.Reader(e.req.Body)
	in.ContentLength = e.req.ContentLength
	if e.req.ContentLength <= 0 {
		first := make([]byte, 1)
		n, err := io.ReadFull(from, first)
		switch {
		case n == 0 && errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		if in.ContentLength = -1; e.spoken.major == 1 {
			in.TransferEncoding = []string{"chunked"}
		}
		from = io.MultiReader(bytes.NewReader(first), from)
	}
	in.Body = io.NopCloser(&sending{from: from, e: e, length: in.ContentLength})
	return nil
}

// sending is the request's body; it fails if the client ends, or if its length is not as
// promised.
type sending struct {
	from         io.Reader
	e            *exchange
	length, sent int64 // length -1: unknown
}

// Read implements io.Reader.
func (s *sending) Read(b []byte) (int, error) {
	if s.e.ctx.Err() != nil {
		return 0, io.ErrUnexpectedEOF
	}
	n, err := s.from.Read(b)
	s.sent += int64(n)
	switch over := errors.Is(err, io.EOF); {
	case err != nil && !over:
		s.e.cancel(err)
	case s.length >= 0 && (s.sent > s.length || over && s.sent < s.length):
		s.e.cancel(fmt.Errorf("http: ContentLength=%d with Body length %d", s.length, s.sent)) // net/http, transferWriter.writeBody
	default:
		return n, err
	}
	return n, io.ErrUnexpectedEOF
}

// serve runs the handler and reports its end to the client.
func (e *exchange) serve(in *http.Request) {
	a := &answering{e: e, header: http.Header{}}
	answered := false
	defer func() {
		// A handler panics to abort its answer; net/http logs other panics and goes on.
		_ = recover()
		closeBody(e.req)
		a.finish(answered)
	}()
	e.door.Handler.ServeHTTP(a, in)
	answered = true
}

// tell passes the header of the answer, or the error, to the client.
func (e *exchange) tell(resp *http.Response, err error) {
	e.resp, e.err = resp, err
	close(e.ready)
}

// whole is the body of a complete answer.
type whole struct {
	*bytes.Reader
	lost bool // it was truncated
}

// Read implements io.Reader.
func (w *whole) Read(b []byte) (int, error) {
	n, err := w.Reader.Read(b)
	if err == io.EOF && w.lost {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// Close implements io.Closer.
func (*whole) Close() error { return nil }

// arrivals is the body of a streaming answer.
type arrivals struct {
	*stream
	e *exchange
}

// Read implements io.Reader.
func (a *arrivals) Read(b []byte) (int, error) {
	for {
		if a.e.ctx.Err() != nil {
			return 0, a.e.broken(io.ErrUnexpectedEOF)
		}
		n, changed, err := a.read(b)
		if changed == nil {
			if err == io.EOF && a.e.torn != nil {
				err = a.e.torn
			}
			return n, err
		}
		select {
		case <-changed:
		case <-a.e.ctx.Done():
		}
	}
}

// Close implements io.Closer.
func (a *arrivals) Close() error {
	a.e.end(net.ErrClosed)
	return nil
}

// raw parses an answer that the handler has written to a hijacked connection.
func (e *exchange) raw(b []byte) (*http.Response, error) {
	resp, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(b)), e.req)
	if err != nil {
		return nil, io.EOF
	}
	body, err := io.ReadAll(resp.Body)
	resp.Body = &whole{bytes.NewReader(body), err != nil}
	return resp, nil
}
