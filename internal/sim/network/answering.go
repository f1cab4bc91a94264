package network

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"
)

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

// Header implements http.ResponseWriter.
func (a *answering) Header() http.Header { return a.header }

// WriteHeader implements http.ResponseWriter.
func (a *answering) WriteHeader(status int) {
	if a.sent != nil || status < 200 {
		return
	}
	a.sent, a.status = a.header.Clone(), status
	if a.sent["Date"] == nil {
		a.sent.Set("Date", time.Now().UTC().Format(http.TimeFormat))
	}
}

// Write implements http.ResponseWriter.
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

// Accept implements net.Listener.
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
