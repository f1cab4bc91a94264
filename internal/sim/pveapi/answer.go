package pveapi

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
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

// earlyError is an error of the HTTP server itself, before any API handler. AnyEvent.pm has two forms: error puts the
// message into the body as plain text, other responses have an empty body.
type earlyError struct {
	status  int
	message string
	inBody  bool
}

// plain returns an error of AnyEvent.pm's error.
func plain(status int, format string, args ...any) *earlyError {
	return &earlyError{status, fmt.Sprintf(format, args...), true}
}

// bare returns an error with an empty body.
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

// errorBody does the work of response of AnyEvent.pm: only the first line of a message counts, and a message that is
// invalid in a status line becomes a bad request.
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

// listed returns the entry of each item, and [] if there are no items; a nil entry is left out.
func listed[T any](items []T, entry func(T) object) []object {
	list := []object{}
	for _, item := range items {
		if o := entry(item); o != nil {
			list = append(list, o)
		}
	}
	return list
}

// with adds the texts that are not empty.
func (o object) with(texts map[string]string) object {
	for name, value := range texts {
		if value != "" {
			o[name] = value
		}
	}
	return o
}

func bit(b bool) int {
	if b {
		return 1
	}
	return 0
}

// encode returns the same bytes as json.Marshal, but is faster: lists of hundreds of objects are requested again and
// again, and the maps of this package contain few types.
func (a answer) encode() ([]byte, error) {
	b, err := appendJSON([]byte(`{"data":`), a.Data)
	if err != nil {
		return nil, err
	}
	if a.Total != 0 {
		b = strconv.AppendInt(append(b, `,"total":`...), int64(a.Total), 10)
	}
	return append(b, '}'), nil
}

func appendJSON(b []byte, value any) ([]byte, error) {
	switch v := value.(type) {
	case nil:
		return append(b, "null"...), nil
	case string:
		return appendString(b, v)
	case int:
		return strconv.AppendInt(b, int64(v), 10), nil
	case int64:
		return strconv.AppendInt(b, v, 10), nil
	case bool:
		return strconv.AppendBool(b, v), nil
	case object:
		return appendObject(b, v)
	case []object:
		return appendList(b, v)
	case *row:
		b = append(b, v.before...)
		b = strconv.AppendInt(b, int64(v.uptime), 10)
		return append(b, v.after...), nil
	case []any:
		return appendList(b, v)
	}
	text, err := json.Marshal(value)
	return append(b, text...), err
}

// appendString falls back to encoding/json if s needs escapes.
func appendString(b []byte, s string) ([]byte, error) {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c >= 0x7f || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			text, err := json.Marshal(s)
			return append(b, text...), err
		}
	}
	return append(append(append(b, '"'), s...), '"'), nil
}

func appendObject(b []byte, o object) (_ []byte, err error) {
	if o == nil {
		return append(b, "null"...), nil
	}
	keys := make([]string, 0, 32)
	for key := range o {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	b = append(b, '{')
	for i, key := range keys {
		if i > 0 {
			b = append(b, ',')
		}
		if b, err = appendString(b, key); err != nil {
			return nil, err
		}
		if b, err = appendJSON(append(b, ':'), o[key]); err != nil {
			return nil, err
		}
	}
	return append(b, '}'), nil
}

func appendList[T any](b []byte, list []T) (_ []byte, err error) {
	if list == nil {
		return append(b, "null"...), nil
	}
	b = append(b, '[')
	for i, o := range list {
		if i > 0 {
			b = append(b, ',')
		}
		if b, err = appendJSON(b, o); err != nil {
			return nil, err
		}
	}
	return append(b, ']'), nil
}

// row is a VM in the list of all resources, encoded except for its uptime.
type row struct {
	of            rowOf
	before, after []byte
	uptime        int
}

// rowOf holds everything that a row depends on.
type rowOf struct {
	digest, host, pool string
	ha                 world.HAStatus
	running, down      bool
	seen               world.Report
}

// rows are the latest rows, by VMID.
type rows struct {
	mu    sync.Mutex
	known map[int]*row
}

var uptimeKey = []byte(`"uptime":`)

// vmRow returns vmResource, encoded again only if more than the uptime has changed.
func (r *rows) vmRow(c *call, vm world.VM) any {
	of := rowOf{vm.Digest, vm.Host, vm.Pool, vm.HA, vm.Running, c.HostDown(vm.Host), c.Report(vm.ID)}
	r.mu.Lock()
	known := r.known[vm.ID]
	r.mu.Unlock()
	if known != nil && known.of == of {
		now := *known
		now.uptime = uptimeOf(vm)
		return &now
	}
	o := vmResource(vm, of.seen, of.down)
	if o["uptime"] == nil || of.seen.Running != vm.Running {
		return o
	}
	o["uptime"] = 0
	text, err := appendObject(nil, o)
	at := bytes.LastIndex(text, uptimeKey) // no free text comes after it
	if err != nil || at < 0 {
		return o
	}
	at += len(uptimeKey)
	fresh := &row{of: of, before: text[:at:at], after: text[at+1:], uptime: uptimeOf(vm)}
	r.mu.Lock()
	r.known[vm.ID] = fresh
	r.mu.Unlock()
	return fresh
}

func uptimeOf(vm world.VM) int {
	if !vm.Running {
		return 0
	}
	return int(time.Since(vm.Started) / time.Second)
}

// logo is the only file of the web interface. Any Proxmox serves the file without authentication, so clients can
// detect a Proxmox by it.
const logo = "/pve2/images/logo-128.png"

// writeLogo answers with a PNG of one pixel.
func writeLogo(rw http.ResponseWriter) {
	png, err := base64.StdEncoding.DecodeString("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==")
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	rw.Header().Set("Content-Type", "image/png")
	_, _ = rw.Write(png) // the client may be gone
}
