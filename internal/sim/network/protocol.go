package network

import (
	"errors"
	"io"
	"net/http"
)

// protocol is what an exchange would be spoken in over a connection, and how its
// client hears there that it broke. TestTheDoorSaysWhatTheWireSays compares them.
type protocol struct {
	name  string
	major int
	// aborted is what comes of a handler that gives its client up, or is torn when
	// the answer has begun. gone is what comes of a server that ends.
	aborted, torn, gone error
}

// errReset is http2.StreamError of a stream that the server has reset
// (net/http, http2serverConn.handlerPanicked).
var errReset = errors.New("stream error: stream ID 1; INTERNAL_ERROR; received from peer")

var (
	http1 = protocol{name: "HTTP/1.1", major: 1, aborted: io.EOF, torn: io.ErrUnexpectedEOF, gone: io.EOF}
	http2 = protocol{name: "HTTP/2.0", major: 2, aborted: errReset, torn: errReset, gone: io.ErrUnexpectedEOF}
)

// spoken is what a client and a server have agreed on. A client with a dialer of
// its own asks for HTTP/2 only where it is told to (net/http, Transport.onceSetNextProtoDefaults).
func spoken(client *http.Transport, door Door) protocol {
	if door.HTTP2 && door.Certificate != nil && client.ForceAttemptHTTP2 {
		return http2
	}
	return http1
}

// agent is who a client says it is that does not say it.
func (p protocol) agent() string {
	if p.major == 2 {
		return "Go-http-client/2.0"
	}
	return "Go-http-client/1.1"
}
