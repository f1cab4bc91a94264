package pveapi

import (
	"fmt"
	"math"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/recast-sh/recast/internal/sim/world"
)

// route is one method of one path.
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

// call is one request on its route.
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
	text, ok := c.vars["vmid"]
	if !ok {
		text = c.params["vmid"]
	}
	id, err := strconv.Atoi(text)
	if err != nil {
		return 0
	}
	return id
}

func (c *call) flag(name string) bool {
	on, ok := world.ParseBool(c.params[name])
	return ok && on
}

func (c *call) number(name string, otherwise int) int {
	n, err := strconv.Atoi(c.params[name])
	if err != nil {
		return otherwise
	}
	return n
}

// may reports whether the caller holds one of the privileges; used to filter lists.
func (c *call) may(path string, anyOf ...string) bool { return c.Check(c.user, path, anyOf...) == nil }

// segment is one segment of a route's path.
type segment struct {
	name  string
	isVar bool // a variable
	rest  bool // it matches all further segments too
}

// routes are shared by all servers.
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

func notImplemented(method, path string) error {
	return &world.Error{Status: http.StatusNotImplemented, Message: fmt.Sprintf("Method '%s %s' not implemented", method, path)}
}

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
	return answer{}, notImplemented(q.method, path)
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

// expand replaces the route's variables and parameters in a path.
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
	node := c.node()
	if node == "" || r.local {
		return way, nil
	}
	if node == s.host {
		if !r.daemonless && !s.world.DaemonRuns(node) {
			return way, s.unreached(world.ConnectionRefused)
		}
		return way, nil
	}
	way, broken := s.world.ProxyFailure(node)
	if broken && !way.Acts {
		return way, s.unreached(way)
	}
	return way, nil
}

// unreached returns the error of a broken proxy connection.
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

// check checks the parameters against the route's.
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
	if len(wrong) > 0 {
		return &world.Error{Status: http.StatusBadRequest, Message: "Parameter verification failed.", Params: wrong}
	}
	return nil
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

// bounds are the minimum and maximum of a number.
type bounds struct{ from, to int }

var (
	unbounded = bounds{math.MinInt, math.MaxInt}
	natural   = bounds{0, math.MaxInt}
	anyVMID   = bounds{100, 999999999}
)

// integers are the integer parameters.
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
