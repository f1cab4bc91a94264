package pveapi

import (
	"bytes"
	"cmp"
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

type answer struct {
	Data  any `json:"data"`
	Total int `json:"total,omitempty"`
}

type object map[string]any

func writeAnswer(rw http.ResponseWriter, a answer) {
	body, err := json.Marshal(a)
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

type rows struct {
	mu    sync.Mutex
	known map[int]*row
}

var uptimeKey = []byte(`"uptime":`)

// MarshalJSON adds the present uptime.
func (r *row) MarshalJSON() ([]byte, error) {
	return slices.Concat(r.before, strconv.AppendInt(nil, int64(r.uptime), 10), r.after), nil
}

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
	text, err := json.Marshal(o)
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

func writeLogo(rw http.ResponseWriter) {
	png, err := base64.StdEncoding.DecodeString("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==")
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	rw.Header().Set("Content-Type", "image/png")
	_, _ = rw.Write(png) // the client may be gone
}

func taskRoutes() []route {
	filters := []string{"errors", "limit", "since", "source", "start", "statusfilter", "typefilter", "until", "userfilter", "vmid"}
	return []route{
		{method: "GET", path: "/nodes/{node}/tasks", params: filters, daemonless: true, handle: nodeTasks},
		{method: "GET", path: "/nodes/{node}/tasks/{upid}/status", handle: taskStatus},
		{method: "GET", path: "/nodes/{node}/tasks/{upid}/log", params: []string{"start", "limit", "download"}, handle: taskLog},
		{method: "GET", path: "/nodes/{node}/tasks/{upid}", daemonless: true, handle: taskIndex},
		{method: "DELETE", path: "/nodes/{node}/tasks/{upid}", handle: stopTask},
	}
}

// ownsTask reports whether a task is the caller's own: a token owns its tasks; a user also owns the tasks of all
// their tokens (Tasks.pm).
func (c *call) ownsTask(t world.Task) bool {
	owner, _, _ := strings.Cut(t.User, "!")
	return c.user == t.User || c.user == owner
}

// upid returns the path's task; found is false if the node has no such task.
func (c *call) upid() (t world.Task, found bool, err error) {
	node, owner, ok := world.ParseUPID(c.vars["upid"])
	if !ok {
		return t, false, world.BadParam("upid", "unable to parse worker upid")
	}
	t, found = c.LookupTask(c.vars["upid"])
	found = found && node == c.node()
	if !found {
		t.Host, t.User = node, owner
	}
	return t, found, nil
}

func nodeTasks(c *call) (any, error) {
	var found []object
	for _, t := range c.Tasks() {
		if t.Host == c.node() && (c.ownsTask(t) || c.may("/nodes/"+t.Host, "Sys.Audit")) && c.wantsTask(t) {
			found = append(found, taskEntry(t))
		}
	}
	c.total = len(found)
	return page(found, c.number("start", 0), c.number("limit", 50)), nil
}

func (c *call) wantsTask(t world.Task) bool {
	source := cmp.Or(c.params["source"], "archive")
	failed := !t.Running && t.ExitStatus != "OK" && !strings.HasPrefix(t.ExitStatus, "WARNINGS")
	return (source != "archive" || !t.Running) && (source != "active" || t.Running) &&
		(c.params["vmid"] == "" || t.ID == strconv.Itoa(c.vmid())) &&
		(c.params["typefilter"] == "" || t.Type == c.params["typefilter"]) &&
		(!c.flag("errors") || failed) &&
		strings.Contains(strings.ToLower(t.User), strings.ToLower(c.params["userfilter"])) &&
		int(t.Start.Unix()) >= c.number("since", 0) &&
		(c.params["until"] == "" || int(t.Start.Unix()) <= c.number("until", 0))
}

func page[T any](list []T, start, limit int) []T {
	list = list[min(max(start, 0), len(list)):]
	if limit > 0 {
		list = list[:min(limit, len(list))]
	}
	return append([]T{}, list...)
}

// taskEntry separates user and token, as the API does.
func taskEntry(t world.Task) object {
	user, token, isToken := strings.Cut(t.User, "!")
	out := object{
		"upid": t.UPID, "node": t.Host, "type": t.Type, "id": t.ID, "user": user,
		"pid": t.PID, "pstart": t.PStart, "starttime": t.Start.Unix(),
	}
	if isToken {
		out["tokenid"] = token
	}
	if !t.Running {
		out["endtime"], out["status"] = t.End.Unix(), t.ExitStatus
	}
	return out
}

func taskStatus(c *call) (any, error) {
	t, err := c.existingTask("Sys.Audit")
	if err != nil {
		return nil, err
	}
	out := taskEntry(t)
	delete(out, "endtime")
	out["status"] = "running"
	if !t.Running {
		out["status"], out["exitstatus"] = "stopped", t.ExitStatus
	}
	return out, nil
}

// existingTask returns the task of the path, if the caller owns it or holds the privilege on its node.
func (c *call) existingTask(privilege string) (world.Task, error) {
	t, found, err := c.upid()
	if err == nil && !found {
		err = world.BadParam("upid", "no such task")
	}
	if err == nil && !c.ownsTask(t) {
		err = c.Check(c.user, "/nodes/"+c.node(), privilege)
	}
	return t, err
}

// taskLog does the work of dump_logfile of Tools.pm: if the log can't be opened, the error is a line of the log.
func taskLog(c *call) (any, error) {
	t, found, err := c.upid()
	if err != nil {
		return nil, err
	}
	if !c.ownsTask(t) {
		if err := c.Check(c.user, "/nodes/"+c.node(), "Sys.Audit"); err != nil {
			return nil, err
		}
	}
	rows := []object{}
	for i, line := range t.Log {
		rows = append(rows, object{"n": i + 1, "t": line})
	}
	c.total = max(1, len(rows))
	switch {
	case !found:
		return []object{{"n": 1, "t": "unable to open file - No such file or directory"}}, nil
	case len(rows) == 0:
		return []object{{"n": 1, "t": "no content"}}, nil
	}
	return page(rows, c.number("start", 0), cmp.Or(c.number("limit", 0), 50)), nil
}

func stopTask(c *call) (any, error) {
	if _, err := c.existingTask("Sys.Modify"); err != nil {
		return nil, err
	}
	c.StopTask(c.vars["upid"])
	return nil, nil
}

func taskIndex(c *call) (any, error) { return []object{{"name": "log"}, {"name": "status"}}, nil }
