package network

import (
	"errors"
	"io"
	"net/http"
)

// protocol is what a connection would use for an exchange, and its client's errors when it
// breaks. TestTheDoorMatchesTheWire compares them.
type protocol struct {
	name  string
	major int
	// aborted is the error after a handler's abort; torn is the same once the answer has
	// begun. gone is the error after the server has ended.
	aborted, torn, gone error
}

// errReset is http2.StreamError of a stream that the server has reset (net/http,
// http2serverConn.handlerPanicked).
var errReset = errors.New("stream error: stream ID 1; INTERNAL_ERROR; received from peer")

var (
	http1 = protocol{name: "HTTP/1.1", major: 1, aborted: io.EOF, torn: io.ErrUnexpectedEOF, gone: io.EOF}
	http2 = protocol{name: "HTTP/2.0", major: 2, aborted: errReset, torn: errReset, gone: io.ErrUnexpectedEOF}
)

// spoken is the protocol that client and server negotiate. A client with its own dialer asks for
// HTTP/2 only if told so (net/http, Transport.onceSetNextProtoDefaults).
func spoken(client *http.Transport, door Door) protocol {
	if door.HTTP2 && door.Certificate != nil && client.ForceAttemptHTTP2 {
		return http2
	}
	return http1
}

// agent is the default User-Agent.
func (p protocol) agent() string {
	if p.major == 2 {
		return "Go-http-client/2.0"
	}
	return "Go-http-client/1.1"
}
