package network

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"slices"
	"strconv"
	"sync"
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
		_ = req.Body.Close() // the handler read nothing of the body
	}
}

// end ends the exchange early, or after it is complete.
func (e *exchange) end(why error) {
	e.stop()
	e.detach()
	e.cancel(why)
}

// broken returns the client's error for the early end of the exchange; gone is the error for the end of the server.
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

// arriving returns the request as the server sees it.
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

// addBody determines the body's length as net/http does: an unknown length means chunks, unless it is empty.
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

// sending is the request's body; it fails if the client ends, or if its length is not as promised.
type sending struct {
	from         io.Reader
	e            *exchange
	length, sent int64 // length -1: unknown
}

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

func (w *whole) Read(b []byte) (int, error) {
	n, err := w.Reader.Read(b)
	if err == io.EOF && w.lost {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

func (*whole) Close() error { return nil }

// arrivals is the body of a streaming answer.
type arrivals struct {
	*stream
	e *exchange
}

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

// Door is direct access to a server, without the wire: the client calls its handler, and nothing is encrypted, framed
// or parsed.
type Door struct {
	Handler     http.Handler
	Context     context.Context   // base of its requests' contexts; nil: the listener's
	Certificate *x509.Certificate // the server's; nil: plain HTTP
	HTTP2       bool              // for clients that ask for it
	Channel     any               // for servers of another protocol; Handler is nil
}

// Door returns the door of the server that now listens on "ip:port", unless the client is cut off.
func (d *Dialer) Door(addr string) (Door, bool) {
	l, ok := d.listening(addr)
	if !ok {
		return Door{}, false
	}
	return l.behind()
}

// Open gives an in-memory server a door while the server listens on "ip:port" and ctx lasts. Each request calls find,
// which may say that no server is there.
func (n *Network) Open(ctx context.Context, addr string, find func() (Door, bool)) {
	if n.loopback || n.Latency > 0 {
		return
	}
	if l, ok := n.listener(addr); ok {
		l.mu.Lock()
		l.door = find
		l.ctx, l.end = context.WithCancel(ctx)
		l.mu.Unlock()
	}
}

// behind returns the listener's door, with its context.
func (l *memListener) behind() (Door, bool) {
	l.mu.Lock()
	find, ctx := l.door, l.ctx
	l.mu.Unlock()
	if find == nil {
		return Door{}, false
	}
	d, ok := find()
	if d.Context == nil {
		d.Context = ctx
	}
	return d, ok
}

// Direct sends requests through the server's door if the server has a door and both sides trust each other. Otherwise
// it sends them through inner, which returns the proper error.
func (d *Dialer) Direct(inner http.RoundTripper) http.RoundTripper {
	if wire, ok := inner.(*http.Transport); ok && !d.net.loopback {
		return &direct{dialer: d, wire: wire}
	}
	return inner
}

type direct struct {
	dialer *Dialer
	wire   *http.Transport
}

func (t *direct) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Context().Err() != nil {
		return t.wire.RoundTrip(req)
	}
	door, state, ok := t.enter(req)
	if !ok {
		return t.wire.RoundTrip(req)
	}
	return newExchange(t.dialer, door, spoken(t.wire, door)).carry(req, state, t.wire.ResponseHeaderTimeout)
}

// enter finds the door for a request, and the TLS state of the client that the server would see.
func (t *direct) enter(req *http.Request) (door Door, state *tls.ConnectionState, ok bool) {
	if door, ok = t.dialer.Door(addressOf(req)); !ok || door.Handler == nil || (req.URL.Scheme == "https") != (door.Certificate != nil) {
		return Door{}, nil, false
	}
	if door.Certificate == nil {
		return door, nil, true
	}
	config := t.wire.TLSClientConfig
	if config == nil || !t.dialer.Believes(config, door.Certificate, req.URL.Hostname()) {
		return Door{}, nil, false
	}
	state, err := Shown(config)
	return door, state, err == nil
}

func addressOf(req *http.Request) string {
	if req.URL.Port() != "" {
		return req.URL.Host
	}
	port := "80"
	if req.URL.Scheme == "https" {
		port = "443"
	}
	return net.JoinHostPort(req.URL.Hostname(), port)
}

// Shown returns what a server that asks for a client certificate sees of a client with that config.
func Shown(config *tls.Config) (*tls.ConnectionState, error) {
	state := &tls.ConnectionState{Version: tls.VersionTLS13, HandshakeComplete: true}
	var own *tls.Certificate
	switch {
	case config.GetClientCertificate != nil:
		var err error
		if own, err = config.GetClientCertificate(&tls.CertificateRequestInfo{Version: tls.VersionTLS13}); err != nil {
			return nil, err
		}
	case len(config.Certificates) > 0:
		own = &config.Certificates[0]
	}
	if own == nil || len(own.Certificate) == 0 {
		return state, nil
	}
	if own.Leaf != nil {
		state.PeerCertificates = []*x509.Certificate{own.Leaf}
		return state, nil
	}
	leaf, err := x509.ParseCertificate(own.Certificate[0])
	if err != nil {
		return nil, err
	}
	state.PeerCertificates = []*x509.Certificate{leaf}
	return state, nil
}

// belief is the key of a cached trust decision.
type belief struct {
	config *tls.Config
	cert   *x509.Certificate
	name   string
}

// Believes reports whether a client with that config would accept the certificate for that host.
func (d *Dialer) Believes(config *tls.Config, cert *x509.Certificate, host string) bool {
	if config.ServerName != "" {
		host = config.ServerName
	}
	about, now := belief{config, cert, host}, time.Now()
	d.mu.Lock()
	chain, known := d.believed[about]
	d.mu.Unlock()
	if !known {
		var err error
		if chain, err = verify(config, cert, host, now); err != nil {
			return false
		}
		d.mu.Lock()
		d.believed[about] = chain
		d.mu.Unlock()
	}
	return !slices.ContainsFunc(chain, func(c *x509.Certificate) bool { return now.Before(c.NotBefore) || now.After(c.NotAfter) })
}

// verify verifies as a handshake does; the chain is empty if only the certificate itself counts.
func verify(config *tls.Config, cert *x509.Certificate, host string, now time.Time) ([]*x509.Certificate, error) {
	if config.VerifyConnection != nil {
		if err := config.VerifyConnection(tls.ConnectionState{PeerCertificates: []*x509.Certificate{cert}}); err != nil {
			return nil, err
		}
	}
	if config.InsecureSkipVerify {
		return nil, nil
	}
	chains, err := cert.Verify(x509.VerifyOptions{Roots: config.RootCAs, DNSName: host, CurrentTime: now})
	if err != nil {
		return nil, err
	}
	return chains[0], nil
}

// listening finds the listener on an address, unless the client is cut off.
func (d *Dialer) listening(addr string) (*memListener, bool) {
	d.mu.Lock()
	cut := d.cut
	d.mu.Unlock()
	if cut {
		return nil, false
	}
	return d.net.listener(addr)
}

// errCut is the error of requests of a client whose network was cut.
var errCut = &net.OpError{Op: "read", Net: "tcp", Err: net.ErrClosed}

// Attach calls broken when the client is cut off, until detach is called; not ok: the client is cut off already.
func (d *Dialer) Attach(broken func()) (detach func(), ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.cut {
		return nil, false
	}
	d.attached++
	n := d.attached
	d.direct[n] = broken
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.direct, n)
	}, true
}

// answering is the handler's side of an exchange. The answer is buffered until the handler
// ends, flushes or exceeds heldBytes; from then on it streams.
type answering struct {
	e       *exchange
	header  http.Header
	sent    http.Header // as it was when written; nil: not written yet
	status  int
	buf     []byte
	out     *stream    // nil until it streams
	taken   *takenOver // set if the handler has hijacked the connection
	written int64
}

// heldBytes is the maximum size of a buffered answer; net/http buffers less.
const heldBytes = 64 << 10

func (a *answering) Header() http.Header { return a.header }

func (a *answering) WriteHeader(status int) {
	if a.sent != nil || status < 200 {
		return
	}
	a.sent, a.status = a.header.Clone(), status
	if a.sent["Date"] == nil {
		a.sent.Set("Date", time.Now().UTC().Format(http.TimeFormat))
	}
}

func (a *answering) Write(b []byte) (int, error) {
	if a.taken != nil {
		return 0, http.ErrHijacked
	}
	if a.sent == nil {
		a.WriteHeader(http.StatusOK)
	}
	if a.sent["Content-Type"] == nil && a.written == 0 && len(b) > 0 {
		a.sent.Set("Content-Type", http.DetectContentType(b))
	}
	a.written += int64(len(b))
	switch {
	case a.e.req.Method == http.MethodHead:
		return len(b), nil
	case a.out != nil:
		return a.stream(b)
	}
	a.buf = append(a.buf, b...)
	if len(a.buf) > heldBytes {
		return len(b), a.FlushError()
	}
	return len(b), nil
}

// stream waits while the client does not read.
func (a *answering) stream(b []byte) (written int, err error) {
	for {
		if a.e.ctx.Err() != nil {
			return written, net.ErrClosed
		}
		n, changed, err := a.out.write(b[written:])
		written += n
		if err != nil || written == len(b) {
			return written, err
		}
		select {
		case <-changed:
		case <-a.e.ctx.Done():
		}
	}
}

// FlushError sends the buffered answer; http.ResponseController calls it.
func (a *answering) FlushError() error {
	if a.sent == nil {
		a.WriteHeader(http.StatusOK)
	}
	if a.out == nil && a.e.req.Method != http.MethodHead {
		a.out = newStream()
		a.e.tell(a.response(&arrivals{a.out, a.e}, -1), nil)
		if _, err := a.stream(a.buf); err != nil {
			return err
		}
		a.buf = nil
	}
	if a.e.ctx.Err() != nil {
		return net.ErrClosed
	}
	return nil
}

// response returns the answer's status and header.
func (a *answering) response(body io.ReadCloser, length int64) *http.Response {
	if said, err := strconv.ParseInt(a.sent.Get("Content-Length"), 10, 64); err == nil {
		length = said
	} else if length >= 0 {
		a.sent.Set("Content-Length", strconv.FormatInt(length, 10))
	}
	return &http.Response{
		Status: strconv.Itoa(a.status) + " " + http.StatusText(a.status), StatusCode: a.status, Proto: a.e.spoken.name, ProtoMajor: a.e.spoken.major, ProtoMinor: 2 - a.e.spoken.major,
		Header: a.sent, Body: body, ContentLength: length, Request: a.e.req,
	}
}

// finish sends the buffered answer; without success the client sees a broken connection.
func (a *answering) finish(success bool) {
	switch {
	case a.taken != nil && !a.taken.closed:
		_ = a.taken.Close() // its error is reported to the client
	case a.taken != nil:
	case a.out != nil:
		switch {
		case !success:
			a.e.torn = a.e.spoken.torn
		case a.isShort():
			a.e.torn = io.ErrUnexpectedEOF
		}
		a.out.end()
	case !success:
		a.e.tell(nil, a.e.spoken.aborted)
	default:
		if a.sent == nil {
			a.WriteHeader(http.StatusOK)
		}
		a.e.tell(a.response(&whole{bytes.NewReader(a.buf), a.isShort()}, a.written), nil)
	}
}

// isShort reports whether the handler wrote less than the header promises.
func (a *answering) isShort() bool {
	said, err := strconv.ParseInt(a.sent.Get("Content-Length"), 10, 64)
	return err == nil && a.e.req.Method != http.MethodHead && a.written < said
}

// Hijack implements http.Hijacker: what the handler writes is read when it closes the connection.
func (a *answering) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	if a.e.spoken.major == 2 {
		return nil, nil, http.ErrNotSupported
	}
	if a.sent != nil || a.taken != nil {
		return nil, nil, errors.New("the answer has begun")
	}
	a.taken = &takenOver{a: a}
	return a.taken, bufio.NewReadWriter(bufio.NewReader(a.taken), bufio.NewWriter(a.taken)), nil
}

// takenOver is the connection of a handler that has hijacked it. The client sends nothing more.
type takenOver struct {
	a      *answering
	buf    bytes.Buffer
	closed bool
}

func (t *takenOver) Write(b []byte) (int, error) { return t.buf.Write(b) }
func (t *takenOver) Read([]byte) (int, error)    { return 0, io.EOF }

func (t *takenOver) Close() error {
	if !t.closed {
		t.closed = true
		t.a.e.tell(t.a.e.raw(t.buf.Bytes()))
	}
	return nil
}

func (t *takenOver) LocalAddr() net.Addr              { return memAddr("memory") }
func (t *takenOver) RemoteAddr() net.Addr             { return memAddr("memory") }
func (t *takenOver) SetDeadline(time.Time) error      { return nil }
func (t *takenOver) SetReadDeadline(time.Time) error  { return nil }
func (t *takenOver) SetWriteDeadline(time.Time) error { return nil }

var (
	_ http.Hijacker = (*answering)(nil)
	_ net.Conn      = (*takenOver)(nil)
)

// lastWrite limits how long the delivery of delayed data may take after its connection was closed.
const lastWrite = 5 * time.Second

// delayed delays everything written to its connections, like a longer line with the same bandwidth.
type delayed struct {
	net.Listener
	net *Network
}

func (l delayed) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &delayedConn{Conn: conn, latency: l.net.Latency}
	c.changed = sync.NewCond(&c.mu)
	l.net.underWay.Go(c.deliver)
	return c, nil
}

// delayedConn sends the data that is due, and holds the rest.
type delayedConn struct {
	net.Conn
	latency time.Duration

	mu      sync.Mutex
	changed *sync.Cond
	line    []parcel // delayed data, in order
	held    int      // bytes in line
	closed  bool     // no more writes
	broken  error    // why delivery has failed
}

// parcel is the data of one write.
type parcel struct {
	due   time.Time
	bytes []byte
}

// Write blocks only while too much data is delayed.
func (c *delayedConn) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.held > bufferBytes && c.broken == nil && !c.closed {
		c.changed.Wait()
	}
	switch {
	case c.closed:
		return 0, net.ErrClosed
	case c.broken != nil:
		return 0, c.broken
	}
	c.line = append(c.line, parcel{time.Now().Add(c.latency), slices.Clone(b)})
	c.held += len(b)
	c.changed.Broadcast()
	return len(b), nil
}

// SetWriteDeadline does nothing: a write does not wait for the other side. TLS sets a past deadline before it closes a
// connection; that must not stop the delivery of earlier writes.
func (*delayedConn) SetWriteDeadline(time.Time) error { return nil }

// SetDeadline sets only the read deadline.
func (c *delayedConn) SetDeadline(t time.Time) error { return c.SetReadDeadline(t) }

// Close closes the connection for its user at once, and for the other side when all delayed data was delivered.
func (c *delayedConn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return net.ErrClosed
	}
	c.closed = true
	c.changed.Broadcast()
	last := time.Now().Add(c.latency + lastWrite)
	return errors.Join(c.SetReadDeadline(time.Unix(1, 0)), c.Conn.SetWriteDeadline(last)) // wakes pending reads
}

// deliver sends the data that is due, until the connection is closed and all data was delivered.
func (c *delayedConn) deliver() {
	defer func() { _ = c.Conn.Close() }() // the other side may have closed it first
	for {
		p, more := c.next()
		if !more {
			return
		}
		time.Sleep(time.Until(p.due))
		_, err := c.Conn.Write(p.bytes)
		c.mu.Lock()
		c.held -= len(p.bytes)
		if err != nil {
			c.broken, c.line = err, nil
		}
		c.changed.Broadcast()
		c.mu.Unlock()
	}
}

// next returns the oldest unsent parcel; false: no parcel will come.
func (c *delayedConn) next() (parcel, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.line) == 0 && !c.closed && c.broken == nil {
		c.changed.Wait()
	}
	if len(c.line) == 0 {
		return parcel{}, false
	}
	p := c.line[0]
	c.line = c.line[1:]
	return p, true
}
