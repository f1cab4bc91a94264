package pveapi

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"sync/atomic"
)

// readAhead is the number of unrequested bytes that a connection may receive (rbuf_max in
// AnyEvent.pm, accept_connections); beyond that it is closed.
const readAhead = maxBodyBytes + 8<<10

// requestLine is what AnyEvent.pm takes for the beginning of a request.
var requestLine = regexp.MustCompile(`\S+ \S+ HTTP/\d+\.\d+`)

type servedKey struct{}

// countRequests lets unreadBody distinguish the first request of a connection from later
// ones.
func countRequests(ctx context.Context, _ net.Conn) context.Context {
	return context.WithValue(ctx, servedKey{}, new(atomic.Int64))
}

// isFirst says whether a request is the first of its connection, and counts it.
func isFirst(r *http.Request) bool {
	served, ok := r.Context().Value(servedKey{}).(*atomic.Int64)
	return !ok || served.Add(1) == 1
}

// unreadBody is the result of a request with a body that auth_handler refuses. The error is
// written three seconds later (AnyEvent.pm, authenticate_and_handle_request); meanwhile the
// body arrives and nobody reads it. If the connection has served a request before, on_read
// is still the one set by finish_response: it takes the body's first line for the next
// request and answers "400 bad request" at once. On any connection, more than readAhead
// bytes end it without an answer (AnyEvent::Handle, _drain_rbuf). nil: the client gets the
// error.
func unreadBody(r *http.Request, first bool) error {
	if r.ContentLength <= 0 {
		return nil
	}
	body := bufio.NewReaderSize(io.LimitReader(r.Body, readAhead+1), readAhead+1)
	for !first {
		line, err := body.ReadString('\n')
		if err != nil {
			break // no complete line
		}
		if line = strings.TrimRight(line, "\r\n"); line != "" && !requestLine.MatchString(line) {
			return plain(http.StatusBadRequest, "bad request")
		}
	}
	if r.ContentLength <= readAhead {
		return nil
	}
	if _, err := io.Copy(io.Discard, body); err != nil {
		return errors.Join(errNoAnswer, err)
	}
	return errNoAnswer
}
