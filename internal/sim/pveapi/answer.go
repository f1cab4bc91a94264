package pveapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/recast-sh/recast/internal/sim/world"
)

// answer is what a route returns: data, and what else stands beside it.
type answer struct {
	Data  any `json:"data"`
	Total int `json:"total,omitempty"`
}

// object is a JSON object of an answer.
type object map[string]any

func writeAnswer(rw http.ResponseWriter, a answer) {
	body, err := json.Marshal(a)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	rw.Header().Set("Content-Type", "application/json;charset=UTF-8")
	_, _ = rw.Write(body) // the client may be gone
}

// earlyError is a refusal by the HTTP server itself: its body is empty.
type earlyError struct {
	status  int
	message string
}

func (e *earlyError) Error() string { return e.message }

// writeError writes the message into the status line, as Proxmox does. That
// takes the connection away from net/http, which knows no reason phrases.
func writeError(rw http.ResponseWriter, err error) {
	status, message, body := errorBody(err)
	conn, buf, hijackErr := http.NewResponseController(rw).Hijack()
	if hijackErr != nil {
		panic(http.ErrAbortHandler)
	}
	defer func() { _ = conn.Close() }()
	fmt.Fprintf(buf, "HTTP/1.1 %d %s\r\nConnection: close\r\nContent-Type: application/json;charset=UTF-8\r\nContent-Length: %d\r\n\r\n%s",
		status, strings.Join(strings.Fields(message), " "), len(body), body)
	_ = buf.Flush() // the client may be gone
}

func errorBody(err error) (status int, message string, body []byte) {
	if early, ok := errors.AsType[*earlyError](err); ok {
		return early.status, early.message, nil
	}
	e, ok := errors.AsType[*world.Error](err)
	if !ok {
		e = &world.Error{Status: http.StatusInternalServerError, Message: err.Error()}
	}
	if e.Status == http.StatusUnauthorized {
		return e.Status, e.Message, nil
	}
	out := object{"data": nil, "message": e.Message + "\n"}
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
