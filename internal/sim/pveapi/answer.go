package pveapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/recast-sh/recast/internal/sim/world"
)

// answer is a route's result: data, and the fields beside it.
type answer struct {
	Data  any `json:"data"`
	Total int `json:"total,omitempty"`
}

// object is a JSON object of an answer.
type object map[string]any

func writeAnswer(rw http.ResponseWriter, a answer) {
	body, err := a.encode()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	rw.Header().Set("Content-Type", "application/json;charset=UTF-8")
	_, _ = rw.Write(body) // the client may be gone
}

// earlyError is an error of the HTTP server itself, before any API handler. AnyEvent.pm
// has two forms: error puts the message into the body as plain text, other responses have
// an empty body.
type earlyError struct {
	status  int
	message string
	inBody  bool
}

// plain is an error of AnyEvent.pm's error.
func plain(status int, format string, args ...any) *earlyError {
	return &earlyError{status, fmt.Sprintf(format, args...), true}
}

// bare is an error with an empty body.
func bare(status int, message string) *earlyError { return &earlyError{status, message, false} }

func (e *earlyError) Error() string { return e.message }

// lingerTime is how long the rest of an unwanted body is still read: otherwise the client
// would often fail before it reads the answer.
const lingerTime = 5 * time.Second

// writeError puts the message into the status line, as Proxmox does. It hijacks the
// connection, because net/http has no custom reason phrases.
func writeError(rw http.ResponseWriter, err error) {
	status, message, body := errorBody(err)
	kind := "application/json;charset=UTF-8"
	if _, early := errors.AsType[*earlyError](err); early {
		kind = ""
	}
	writeRaw(rw, status, message, kind, body)
}

// writeRaw writes an answer with any reason phrase; contentType may be "".
func writeRaw(rw http.ResponseWriter, status int, reason, contentType string, body []byte) {
	conn, buf, hijackErr := http.NewResponseController(rw).Hijack()
	if hijackErr != nil {
		panic(http.ErrAbortHandler)
	}
	defer func() { _ = conn.Close() }()
	kind := ""
	if contentType != "" {
		kind = "Content-Type: " + contentType + "\r\n"
	}
	fmt.Fprintf(buf, "HTTP/1.1 %d %s\r\nConnection: close\r\n%sContent-Length: %d\r\n\r\n%s", status, reason, kind, len(body), body)
	if buf.Flush() != nil { // the client is gone
		return
	}
	_ = conn.SetReadDeadline(time.Now().Add(lingerTime)) // fails only on a closed connection
	_, _ = io.Copy(io.Discard, buf)
}

// errorBody is response of AnyEvent.pm: only the first line of a message counts, and a
// message that is invalid in a status line becomes a bad request.
func errorBody(err error) (status int, message string, body []byte) {
	status, message, body = fullError(err)
	message, _, _ = strings.Cut(message, "\n")
	if strings.Contains(message, "\r") {
		return http.StatusBadRequest, http.StatusText(http.StatusBadRequest), nil
	}
	return status, message, body
}

func fullError(err error) (status int, message string, body []byte) {
	if early, ok := errors.AsType[*earlyError](err); ok {
		if early.inBody {
			body = []byte(early.message)
		}
		return early.status, early.message, body
	}
	e, ok := errors.AsType[*world.Error](err)
	if !ok {
		e = &world.Error{Status: http.StatusInternalServerError, Message: err.Error()}
	}
	out := object{"data": nil, "message": strings.TrimSuffix(e.Message, "\n") + "\n"}
	if len(e.Params) > 0 {
		out["errors"] = e.Params
	}
	body, err = json.Marshal(out)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	return e.Status, e.Message, body
}

func bit(b bool) int {
	if b {
		return 1
	}
	return 0
}
