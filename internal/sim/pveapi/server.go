// Package pveapi serves Proxmox VE's HTTPS API for a simulated world: a [Server] has the
// paths, parameters, permissions, wording and status lines of Proxmox VE 9.2.
package pveapi

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"math"
	"mime"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/world"
)

// Server is the API on one Proxmox host, while the host is up. It also answers requests about the cluster's other
// hosts.
type Server struct {
	world    *world.World
	recorder *record.Recorder
	host     string
	routes   []route
	rows     rows
	http     *http.Server

	mu      sync.Mutex
	closed  bool
	ended   chan struct{}  // closed by Close
	running sync.WaitGroup // requests and the listener
}

// New makes the API of one host of w. Every request is recorded by rec.
func New(w *world.World, rec *record.Recorder, host string) *Server {
	s := &Server{world: w, recorder: rec, host: host, routes: routes(), rows: rows{known: map[int]*row{}}, ended: make(chan struct{})}
	s.http = &http.Server{
		Handler:           s,
		ReadHeaderTimeout: 30 * time.Second,
		ConnContext:       countRequests,
		ErrorLog:          log.New(io.Discard, "", 0), // tests cause failed handshakes and broken connections
		TLSNextProto:      map[string]func(*http.Server, *tls.Conn, http.Handler){},
	}
	return s
}

// Serve accepts TLS connections on l until Close. It returns at once and owns l.
func (s *Server) Serve(l net.Listener, cert tls.Certificate) {
	config := &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{"http/1.1"}}
	s.running.Go(func() {
		_ = s.http.Serve(tls.NewListener(l, config)) // always an error once l is closed
	})
}

// Close ends the listener and every connection, and waits for the requests in progress.
func (s *Server) Close() error {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		close(s.ended)
	}
	s.mu.Unlock()
	err := s.http.Close()
	s.running.Wait()
	return err
}

func (s *Server) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.running.Add(1)
	}
	return !s.closed
}

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	if !s.enter() {
		panic(http.ErrAbortHandler)
	}
	defer s.running.Done()
	if s.world.HostDown(s.host) {
		panic(http.ErrAbortHandler)
	}
	rw.Header().Set("Date", s.world.Clock(s.host).UTC().Format(http.TimeFormat))
	if r.URL.Path == logo && r.Method == http.MethodGet {
		writeLogo(rw)
		return
	}
	first := isFirst(r)
	q, err := readHeader(r)
	var user string
	if err == nil {
		user, err = s.letIn(r, q, first)
	}
	if err == nil {
		err = s.readBody(r, &q)
	}
	if errors.Is(err, errNoAnswer) || errors.Is(err, errClientGone) {
		q.drop()
		panic(http.ErrAbortHandler)
	}
	if s.recorder.Await(r.Context(), "proxmox") != nil {
		q.drop()
		panic(http.ErrAbortHandler)
	}
	seen, recErr := s.recorder.Begin(record.Call{
		Proto: "proxmox", Target: s.host, Method: r.Method, Path: r.URL.RequestURI(), Params: public(q.params),
		User: user, Agent: r.UserAgent(), Mutation: r.Method != http.MethodGet && r.Method != http.MethodHead,
	})
	if held := record.AsHeld(recErr); held != nil && err == nil {
		s.hold(rw, r, q, seen, held)
		return
	} else if held != nil {
		held.End() // refused requests are answered at once
		recErr = nil
	}
	if recErr != nil {
		q.drop()
		panic(http.ErrAbortHandler)
	}
	if err != nil {
		q.drop()
	}
	s.answer(s.recorder.Counted(rw, seen), q, s.carryOut(r, user, q, seen, err))
}

type outcome struct {
	answer answer
	err    error
}

// carryOut processes a request, unless the request is refused already, and calls the recorder's hooks.
func (s *Server) carryOut(r *http.Request, user string, q request, seen record.Call, refused error) (out outcome) {
	out.err = refused
	if refused == nil {
		if out.answer, out.err = s.dispatch(user, q); isUnauthorized(out.err) && !s.pause(r, unauthorizedDelay) {
			out.err = errNoAnswer
		}
	}
	if errors.Is(out.err, world.ErrClosed) || errors.Is(out.err, errNoAnswer) || s.world.HostDown(s.host) {
		return outcome{err: errNoAnswer}
	}
	seen.Status = http.StatusOK
	if out.err != nil {
		seen.Status, _, _ = errorBody(out.err)
	}
	s.recorder.End(seen)
	return out
}

func (s *Server) answer(rw http.ResponseWriter, q request, out outcome) {
	switch {
	case errors.Is(out.err, errNoAnswer):
		panic(http.ErrAbortHandler)
	case out.err != nil:
		writeError(rw, out.err)
		return
	case q.isUpload():
		rw.Header().Set("Connection", "close")
	}
	writeAnswer(rw, out.answer)
}

// errNoAnswer closes the connection instead of answering.
var errNoAnswer = errors.New("no answer")

// letIn authenticates a request. An error comes late and with an empty body, unless the request's own body comes in
// between. first: the request is the first of its connection.
func (s *Server) letIn(r *http.Request, q request, first bool) (user string, err error) {
	user, err = s.authenticate(r, q)
	if err == nil {
		return user, nil
	}
	if err := unreadBody(r, first); err != nil {
		return user, err
	}
	if !s.pause(r, unauthorizedDelay) {
		return user, errNoAnswer
	}
	return user, late(err)
}

func isUnauthorized(err error) bool {
	e, ok := errors.AsType[*world.Error](err)
	return ok && e.Status == http.StatusUnauthorized
}

// unauthorizedDelay is AnyEvent.pm's delay of every 401.
const unauthorizedDelay = 3 * time.Second

// pause waits for simulated time; it returns false if the client has gone.
func (s *Server) pause(r *http.Request, d time.Duration) bool {
	return s.world.Delay(d) && r.Context().Err() == nil
}

func public(params map[string]string) map[string]string {
	out := make(map[string]string, len(params))
	for name, value := range params {
		if name != "cipassword" && name != "password" {
			out[name] = value
		}
	}
	return out
}

// hold sends the answer in held to a request, and has the request processed when it is due. If the request is due
// before the sender stops waiting, the sender gets the real answer.
func (s *Server) hold(rw http.ResponseWriter, r *http.Request, q request, seen record.Call, held *record.Held) {
	waiting, stop := context.WithCancel(r.Context())
	defer stop()
	var out outcome // read only after inTime is closed
	inTime := make(chan struct{})
	s.running.Go(func() {
		defer stop()
		defer held.End()
		// The request outlives its context, which ends with the connection's handler.
		out = s.late(r.Clone(context.WithoutCancel(r.Context())), q, seen, held)
		close(inTime)
	})
	a := held.Answer()
	s.world.DelayUnless(a.After, waiting.Done())
	select {
	case <-inTime:
		s.answer(rw, q, out)
		return
	default:
	}
	if a.Status == 0 || r.Context().Err() != nil || s.world.HostDown(s.host) {
		panic(http.ErrAbortHandler)
	}
	writeRaw(rw, a.Status, a.Reason, a.ContentType, []byte(a.Body))
}

// late waits until a request is due and processes it, unless the host is down. Like any worker, late authenticates
// the request only then.
func (s *Server) late(r *http.Request, q request, seen record.Call, held *record.Held) outcome {
	select {
	case <-held.Due():
	case <-s.ended:
		q.drop()
		return outcome{err: errNoAnswer}
	}
	if s.world.HostDown(s.host) {
		q.drop()
		return outcome{err: errNoAnswer}
	}
	seen, err := s.recorder.Resume(seen)
	if err != nil {
		q.drop()
		return outcome{err: errNoAnswer}
	}
	user, err := s.letIn(r, q, true)
	if err != nil {
		q.drop()
	}
	return s.carryOut(r, user, q, seen, err)
}

type route struct {
	method string
	path   string // "/nodes/{node}/qemu/{vmid}"; "{volume...}" takes the rest
	// segments are the segments of path.
	segments []segment
	params   []string // accepted parameters
	need     []string // required parameters
	options  bool     // also accepts every option of a VM's configuration
	permit   []demand // required privileges, checked first
	network  bool     // the caller must be allowed to look into the node's network
	noToken  bool     // API tokens are refused
	// daemonless says that pveproxy answers the request itself: no root permissions are needed.
	daemonless bool
	local      bool // always done by the host that was asked, whatever node the path names
	handle     func(*call) (any, error)
}

// demand holds privileges at a path; the path may contain the route's variables and parameters.
type demand struct {
	path  string
	anyOf []string
}

type call struct {
	*world.World
	user   string
	host   string // host whose API was asked
	vars   map[string]string
	params map[string]string
	spool  *world.Spool // of an upload
	total  int          // total beside the data, for paged lists
	vms    []world.VM   // set once they were used
	rows   *rows
}

func (c *call) node() string    { return c.vars["node"] }
func (c *call) storage() string { return c.vars["storage"] }

// VMs returns a snapshot of the VMs, the same for the whole call.
func (c *call) VMs() []world.VM {
	if c.vms == nil {
		c.vms = c.World.VMs()
	}
	return c.vms
}

// vmid returns the VMID in the path, or else the parameter; both are checked before the handler runs.
func (c *call) vmid() int {
	if text, ok := c.vars["vmid"]; ok {
		return atoi(text)
	}
	return c.number("vmid", 0)
}

func (c *call) flag(name string) bool {
	on, ok := world.ParseBool(c.params[name])
	return ok && on
}

func (c *call) number(name string, otherwise int) int {
	return world.NumberOr(c.params[name], otherwise)
}

// may reports whether the caller holds one of the privileges; used to filter lists.
func (c *call) may(path string, anyOf ...string) bool { return c.Check(c.user, path, anyOf...) == nil }

type segment struct {
	name  string
	isVar bool // a variable
	rest  bool // it matches all further segments too
}

var routes = sync.OnceValue(func() []route {
	list := slices.Concat(sessionRoutes(), clusterRoutes(), nodeRoutes(), storageRoutes(), publishRoutes(), qemuRoutes(), migrateRoutes(), cloneRoutes(), taskRoutes(), accessRoutes(), haRoutes(), jobRoutes(), firewallRoutes())
	for i, r := range list {
		for text := range strings.SplitSeq(strings.Trim(r.path, "/"), "/") {
			name, isVar := strings.CutPrefix(text, "{")
			name = strings.TrimSuffix(name, "}")
			name, rest := strings.CutSuffix(name, "...")
			list[i].segments = append(list[i].segments, segment{name, isVar, rest})
		}
	}
	return list
})

// dispatch does the work of rest_handler of HTTPServer.pm: it finds the route, checks the permissions, forwards to
// the host in the path, and only there checks the parameters.
func (s *Server) dispatch(user string, q request) (answer, error) {
	path := "/" + strings.Join(q.path, "/")
	if err := s.world.FailRequest(q.method, path); err != nil {
		q.drop()
		return answer{}, err
	}
	for i := range s.routes {
		r := s.routes[i]
		if r.method != q.method {
			continue
		}
		vars, ok := match(r.segments, q.path)
		if !ok {
			continue
		}
		if vars["node"] == "localhost" {
			vars["node"] = s.host
		}
		c := &call{World: s.world, user: user, host: s.host, vars: vars, params: q.params, spool: q.spool, rows: &s.rows}
		way, err := s.proxy(c, r)
		if err == nil {
			err = c.check(r)
		}
		if err != nil {
			q.drop()
			return answer{}, err
		}
		data, err := r.handle(c)
		if node := c.node(); !way.Acts && !r.local && node != s.host && s.world.HostDown(node) {
			way = world.AnswerTimedOut // the host went down during the request
		}
		if way.Acts {
			return answer{}, s.unreached(way)
		}
		return answer{Data: data, Total: c.total}, err
	}
	return answer{}, &world.Error{
		Status: http.StatusNotImplemented, Message: fmt.Sprintf("Method '%s %s' not implemented", q.method, path),
	}
}

// admit makes the checks of the host that was asked.
func (c *call) admit(r route) error {
	for name := range c.params {
		if inPath, ok := c.vars[name]; ok && inPath != c.params[name] {
			return world.BadParam(name, "duplicate parameter (already defined in URI) with conflicting values!")
		}
	}
	if err := c.refuseToken(r); err != nil {
		return err
	}
	for _, d := range r.permit {
		if err := c.Check(c.user, c.expand(d.path), d.anyOf...); err != nil {
			return err
		}
	}
	if r.network {
		if err := c.mayFetch(); err != nil {
			return err
		}
	}
	return c.checkNode()
}

func (c *call) expand(path string) string {
	for _, values := range []map[string]string{c.vars, c.params} {
		for name, value := range values {
			path = strings.ReplaceAll(path, "{"+name+"}", value)
		}
	}
	return path
}

// proxy admits a call and finds the connection to the process that handles the call: another host's pveproxy, or the
// asked host's pvedaemon. The connection may be broken, or may lose the answer.
func (s *Server) proxy(c *call, r route) (way world.ProxyFailure, err error) {
	if err := c.admit(r); err != nil {
		return way, err
	}
	switch node := c.node(); {
	case node == "" || r.local:
		return way, nil
	case node == s.host && (r.daemonless || s.world.DaemonRuns(node)):
		return way, nil
	case node == s.host:
		return way, s.unreached(world.ConnectionRefused)
	}
	way, broken := s.world.ProxyFailure(c.node())
	if broken && !way.Acts {
		return way, s.unreached(way)
	}
	return way, nil
}

func (s *Server) unreached(f world.ProxyFailure) error {
	if !s.world.Delay(f.After) {
		return world.ErrClosed
	}
	return bare(f.Status, f.Reason)
}

func match(pattern []segment, path []string) (vars map[string]string, ok bool) {
	last := len(pattern) - 1
	if len(path) <= last || len(path) > len(pattern) && !pattern[last].rest {
		return nil, false
	}
	for i, s := range pattern {
		if !s.isVar && s.name != path[i] {
			return nil, false
		}
	}
	vars = map[string]string{}
	for i, s := range pattern {
		switch {
		case s.rest:
			vars[s.name] = strings.Join(path[i:], "/")
		case s.isVar:
			vars[s.name] = path[i]
		}
	}
	return vars, true
}

func (c *call) check(r route) error {
	wrong := map[string]string{}
	for name := range c.params {
		if !slices.Contains(r.params, name) && !(r.options && world.IsOption(name)) {
			wrong[name] = "property is not defined in schema and the schema does not allow additional properties"
		}
	}
	for _, name := range r.need {
		if _, ok := c.params[name]; !ok {
			wrong[name] = "property is missing and it is not optional"
		}
	}
	for _, values := range []map[string]string{c.vars, c.params} {
		for name, value := range values {
			if problem := r.wrongType(name, value); problem != "" && wrong[name] == "" {
				wrong[name] = problem
			}
		}
	}
	if c.params["skiplock"] != "" && c.user != "root@pam" {
		wrong["skiplock"] = "Only root may use this option."
	}
	return world.BadParams(wrong)
}

// checkNode makes the check of remote_node_ip: a node's host name must resolve.
func (c *call) checkNode() error {
	node, ok := c.vars["node"]
	if !ok || slices.Contains(c.Hosts(), node) {
		return nil
	}
	return &world.Error{
		Status:  http.StatusInternalServerError,
		Message: fmt.Sprintf("hostname lookup '%s' failed - failed to get address info for: %s: Name or service not known", node, node),
	}
}

// booleans are the parameters that must be 1 or 0: on, yes and true are only valid in property strings (check_type in
// JSONSchema.pm).
var booleans = []string{
	"allow-move", "current", "destroy-unreferenced-disks", "dhcp", "download", "enabled", "errors", "failback", "force", "forceStop", "full", "ha-managed",
	"ipfilter", "keepActive", "live-restore", "macfilter", "ndp", "new-format", "nomatch", "online", "overrule-shutdown", "purge", "radv", "skiplock", "unique", "verify-certificates", "vmstate",
	"with-conntrack-state", "with-local-disks",
}

type bounds struct{ from, to int }

var (
	unbounded = bounds{math.MinInt, math.MaxInt}
	natural   = bounds{0, math.MaxInt}
	anyVMID   = bounds{100, 999999999}
)

var integers = map[string]bounds{
	"background_delay": {1, 30}, "bwlimit": natural, "delay": {1, 30}, "enable": natural, "guest": anyVMID, "limit": natural, "max_relocate": natural, "max_restart": natural,
	"newid": anyVMID, "pos": natural, "since": unbounded, "start": natural, "target-vmid": anyVMID, "timeout": natural, "until": unbounded, "vmid": anyVMID,
}

// isBoolean reports whether a parameter of the route is a boolean. The type of some parameters depends on the route.
func (r route) isBoolean(name string) bool {
	switch r.method + " " + r.path + " " + name {
	case "POST /nodes/{node}/qemu start", "POST /nodes/{node}/qemu/{vmid}/move_disk delete", "PUT /pools delete", "GET /nodes/{node}/storage format",
		"PUT /nodes/{node}/qemu/{vmid}/firewall/options enable":
		return true
	}
	return slices.Contains(booleans, name)
}

// isInteger reports whether a parameter of the route is an integer, and returns its bounds.
func (r route) isInteger(name string) (bounds, bool) {
	within, is := integers[name]
	aList := r.path == "/nodes/{node}/vzdump" && name == "vmid"
	return within, is && !aList && !r.isBoolean(name)
}

var (
	wholeNumber = regexp.MustCompile(`^[+-]?\d+$`)
	vmidForm    = regexp.MustCompile(`^[1-9][0-9]{2,8}$`)
)

// wrongType says why a value has the wrong type; "" if the type is right.
func (r route) wrongType(name, value string) string {
	if r.isBoolean(name) && value != "0" && value != "1" {
		return fmt.Sprintf("type check ('boolean') failed - got '%s'", value)
	}
	within, is := r.isInteger(name)
	if !is {
		return ""
	}
	if !wholeNumber.MatchString(value) {
		return fmt.Sprintf("type check ('integer') failed - got '%s'", value)
	}
	if within == anyVMID && !vmidForm.MatchString(value) {
		return "invalid format - value does not look like a valid VM ID\n"
	}
	switch n, err := strconv.Atoi(value); {
	case err != nil || n > within.to:
		return fmt.Sprintf("value must have a maximum value of %d", within.to)
	case n < within.from:
		return fmt.Sprintf("value must have a minimum value of %d", within.from)
	}
	return ""
}

// maxBodyBytes limits the body of everything except uploads.
const maxBodyBytes = 512 << 10

type request struct {
	method string
	path   []string // unescaped segments after /api2/json
	params map[string]string
	spool  *world.Spool // of an upload
}

// readHeader reads the header. It makes the checks of process_header and authenticate_and_handle_request in
// AnyEvent.pm.
func readHeader(r *http.Request) (request, error) {
	q := request{method: r.Method, params: map[string]string{}}
	if !slices.Contains([]string{"GET", "POST", "PUT", "DELETE"}, r.Method) {
		return q, bare(http.StatusNotImplemented, fmt.Sprintf("method '%s' not available", r.Method))
	}
	if len(r.TransferEncoding) > 0 {
		return q, plain(http.StatusNotImplemented, "chunked transfer encoding not supported")
	}
	rest, ok := strings.CutPrefix(r.URL.EscapedPath(), "/api2/json")
	if !ok {
		return q, plain(http.StatusInternalServerError, "no such file '%s'", r.URL.Path)
	}
	for segment := range strings.SplitSeq(strings.Trim(rest, "/"), "/") {
		name, err := url.PathUnescape(segment)
		if err != nil {
			return q, bare(http.StatusBadRequest, "Bad Request")
		}
		q.path = append(q.path, name)
	}
	return q, nil
}

// isUpload reports whether the request is an upload, the only request whose body may be large.
func (q *request) isUpload() bool {
	return q.method == http.MethodPost && len(q.path) == 5 && q.path[0] == "nodes" && q.path[2] == "storage" && q.path[4] == "upload"
}

func (q *request) drop() {
	if q.spool != nil {
		q.spool.Close()
	}
}

// readBody reads the body: form, JSON or multipart. Parameters in the query string win; in uploads the parts win.
func (s *Server) readBody(r *http.Request, q *request) error {
	query := map[string]string{}
	for name, values := range r.URL.Query() {
		query[name] = strings.Join(values, "\x00") // like CGI.pm
	}
	if r.ContentLength > 0 && r.Method != http.MethodPost && r.Method != http.MethodPut {
		return plain(http.StatusNotImplemented, "Unexpected content for method '%s'", r.Method)
	}
	kind, options, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil && r.Header.Get("Content-Type") == "" {
		kind = "application/x-www-form-urlencoded"
	}
	switch {
	case r.ContentLength <= 0:
	case q.isUpload():
		if kind != "multipart/form-data" || options["boundary"] == "" {
			return errNoAnswer // an uncaught exception
		}
		if _, ok := query["tmpfilename"]; ok {
			return errNoAnswer // an uncaught exception
		}
		q.params, q.spool = query, s.world.NewSpool(s.host)
		return readUpload(r.Body, r.ContentLength, options["boundary"], q.params, q.spool)
	case r.ContentLength > maxBodyBytes:
		return errNoAnswer // meant to be "for data too large", but the connection is closed first
	case kind != "application/json" && kind != "application/x-www-form-urlencoded":
		return plain(http.StatusVariantAlsoNegotiates, "upload 'Content-Type '%s' not implemented", r.Header.Get("Content-Type"))
	default:
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return errClientGone
		}
		if kind == "application/json" {
			err = readJSON(body, q.params)
		} else {
			err = readForm(body, q.params)
		}
		if err != nil {
			return err
		}
	}
	maps.Copy(q.params, query)
	return nil
}

func readForm(body []byte, params map[string]string) error {
	values, err := url.ParseQuery(string(body))
	if err != nil {
		return bare(http.StatusBadRequest, "Bad Request")
	}
	for name, list := range values {
		params[name] = strings.Join(list, "\x00") // like CGI.pm
	}
	return nil
}

func readJSON(body []byte, params map[string]string) error {
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.UseNumber()
	var values map[string]any
	if err := decoder.Decode(&values); err != nil {
		return plain(http.StatusInternalServerError,
			"malformed JSON string, neither tag, array, object, number, string or atom, at character offset 0 (before \"%.20s\") at /usr/share/perl5/PVE/APIServer/AnyEvent.pm line 927.\n", body)
	}
	for name, value := range values {
		switch v := value.(type) {
		case nil:
		case bool:
			params[name] = fmt.Sprint(bit(v))
		case []any:
			var list []string
			for _, item := range v {
				list = append(list, fmt.Sprint(item))
			}
			params[name] = strings.Join(list, ",")
		default:
			params[name] = fmt.Sprint(v)
		}
	}
	return nil
}

// uploadChunk is how much is read at a time; the parser runs after each chunk.
const uploadChunk = 128 << 10

// multipartBody is an upload being read, as file_upload_multipart of Proxmox' AnyEvent.pm reads it: with patterns
// that are matched against all unconsumed input. Therefore the fields have a fixed order, the file is last, and the
// first header of its part is its Content-Disposition.
type multipartBody struct {
	boundary string
	params   map[string]string
	spool    *world.Spool

	delimiter string // as a pattern
	buf       []byte
	phase     int // before the first boundary; in the fields; in the file; after it
}

const (
	inPreamble = iota
	inFields
	inFile
	afterFile
)

const newline = `\r?\n`

func readUpload(body io.Reader, size int64, boundary string, params map[string]string, spool *world.Spool) error {
	b := &multipartBody{boundary: boundary, params: params, spool: spool, delimiter: `--` + regexp.QuoteMeta(boundary) + newline}
	chunk := make([]byte, uploadChunk)
	for read := int64(0); ; {
		n, err := body.Read(chunk)
		read += int64(n)
		b.buf = append(b.buf, chunk[:n]...)
		if n > 0 {
			if err := b.step(); err != nil {
				return err
			}
		}
		switch {
		case b.phase == afterFile:
			_, _ = io.Copy(io.Discard, body) // anything after the file is ignored
			return nil
		case read >= size:
			return plain(http.StatusInternalServerError, "upload failed at /usr/share/perl5/PVE/APIServer/AnyEvent.pm line 1370.\n")
		case err != nil:
			return errClientGone
		}
	}
}

// errClientGone says that the client left before its request was complete.
var errClientGone = errors.New("the client has gone")

func (b *multipartBody) step() error {
	if b.phase == inPreamble {
		if at := b.pattern(b.delimiter).FindIndex(b.buf); at != nil {
			b.buf, b.phase = b.buf[at[0]:], inFields
		}
	}
	if b.phase == inFields {
		for _, name := range []string{"content", "checksum-algorithm", "checksum"} {
			if err := b.field(name); err != nil {
				return err
			}
		}
		if err := b.fileHeader(); err != nil {
			return err
		}
	}
	if b.phase == inFile {
		return b.fileContent()
	}
	return nil
}

func (b *multipartBody) pattern(text string) *regexp.Regexp { return regexp.MustCompile(`(?s)` + text) }

// field reads a field's value once the boundary after the value has arrived. The pattern finds the field's name
// anywhere: a part before the field ends up in the disposition.
func (b *multipartBody) field(name string) error {
	match := b.pattern(`^` + b.delimiter + `.*?Content-Disposition: (.*?); name="` + name + `"(.*?` + b.delimiter + `)`).FindSubmatchIndex(b.buf)
	if match == nil {
		return nil
	}
	if err := formData(b.buf[match[2]:match[3]]); err != nil {
		return err
	}
	b.buf = b.buf[match[4]:]
	b.skipHeaders()
	value := b.pattern(`^(.*?)` + b.delimiter).FindSubmatchIndex(b.buf)
	if value == nil {
		return nil
	}
	b.params[name] = strings.TrimSpace(string(b.buf[value[2]:value[3]]))
	b.buf = b.buf[value[3]:]
	return nil
}

// formData fails with a multi-line text if a part is in the wrong place; the text does not fit into a status line, so
// it becomes 400 (response in AnyEvent.pm).
func formData(disposition []byte) error {
	if string(disposition) == "form-data" {
		return nil
	}
	return plain(http.StatusInternalServerError, "wrong Content-Disposition '%s' in multipart, expected 'form-data'\n", disposition)
}

func (b *multipartBody) skipHeaders() {
	if at := b.pattern(newline + newline).FindIndex(b.buf); at != nil {
		b.buf = b.buf[at[1]:]
	}
}

func (b *multipartBody) fileHeader() error {
	match := b.pattern(`^` + b.delimiter + `Content-Disposition: (.*?); name="(.*?)"; filename="([^"]+)"` + newline).FindSubmatch(b.buf)
	if match == nil {
		return nil
	}
	if err := formData(match[1]); err != nil {
		return err
	}
	if name := string(match[2]); name != "filename" {
		return plain(http.StatusInternalServerError, "wrong field name '%s' for file upload, expected 'filename' at /usr/share/perl5/PVE/APIServer/AnyEvent.pm line 1325.\n", name)
	}
	b.params["filename"] = strings.TrimSpace(string(match[3]))
	b.buf, b.phase = b.buf[len(match[0]):], inFile
	// Without the end of the part's headers, the content begins with the headers.
	b.skipHeaders()
	return nil
}

// fileContent spools everything that can't be part of the closing boundary.
func (b *multipartBody) fileContent() error {
	end := len(b.buf) - len(b.boundary) - len("\r\n----\r\n")
	if at := bytes.Index(b.buf, []byte("--"+b.boundary+"--")); at >= 0 {
		end, b.phase = at, afterFile
		for _, c := range []byte("\n\r") {
			if end > 0 && b.buf[end-1] == c {
				end--
			} else {
				break
			}
		}
	}
	if end <= 0 {
		return nil
	}
	_, err := b.spool.Write(b.buf[:end])
	b.buf = b.buf[:copy(b.buf, b.buf[end:])]
	if errors.Is(err, syscall.ENOSPC) {
		return plain(http.StatusInternalServerError, "write to temporary file failed - No space left on device\n")
	}
	return err
}

// readAhead is the number of unrequested bytes that a connection may receive (rbuf_max in AnyEvent.pm,
// accept_connections); a connection that receives more is closed.
const readAhead = maxBodyBytes + 8<<10

// requestLine is what AnyEvent.pm takes for the beginning of a request.
var requestLine = regexp.MustCompile(`\S+ \S+ HTTP/\d+\.\d+`)

type servedKey struct{}

// countRequests lets unreadBody distinguish the first request of a connection from later requests.
func countRequests(ctx context.Context, _ net.Conn) context.Context {
	return context.WithValue(ctx, servedKey{}, new(atomic.Int64))
}

// isFirst reports whether a request is the first of its connection, and counts it.
func isFirst(r *http.Request) bool {
	served, ok := r.Context().Value(servedKey{}).(*atomic.Int64)
	return !ok || served.Add(1) == 1
}

// unreadBody returns the error of a request with a body that auth_handler refuses. The error is written three seconds
// later (AnyEvent.pm, authenticate_and_handle_request); meanwhile the body arrives and nobody reads it. If the
// connection has served a request before, on_read is still the one set by finish_response: it takes the body's first
// line for the next request and answers "400 bad request" at once. On any connection, more than readAhead bytes end
// the connection without an answer (AnyEvent::Handle, _drain_rbuf). nil: the client gets the error.
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
