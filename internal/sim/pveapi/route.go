package pveapi

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/recast-sh/recast/internal/sim/world"
)

// route is one method of one path.
type route struct {
	method  string
	path    string   // "/nodes/{node}/qemu/{vmid}"; "{volume...}" takes the rest
	params  []string // parameters it takes
	need    []string // those that it can't do without
	options bool     // it also takes every option of a VM's configuration
	handle  func(*call) (any, error)
}

// call is one request on its route.
type call struct {
	*world.World
	user   string
	host   string // the host whose API was asked
	vars   map[string]string
	params map[string]string
	file   *file
	total  int // beside the data, where a list is shown in pages
}

func (c *call) node() string    { return c.vars["node"] }
func (c *call) storage() string { return c.vars["storage"] }

// vmid is the one in the path, or else the parameter; checked before the handler runs.
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

// may says whether the caller holds one of the privileges; for lists that leave out the rest.
func (c *call) may(path string, anyOf ...string) bool { return c.Check(c.user, path, anyOf...) == nil }

func routes() []route {
	return slices.Concat(clusterRoutes(), nodeRoutes(), storageRoutes(), qemuRoutes(), taskRoutes(), accessRoutes(), haRoutes(), jobRoutes(), firewallRoutes())
}

func notImplemented(method, path string) error {
	return &world.Error{Status: http.StatusNotImplemented, Message: fmt.Sprintf("Method '%s %s' not implemented", method, path)}
}

// dispatch finds the route, checks the parameters against it and runs it.
func (s *Server) dispatch(user string, q request) (answer, error) {
	path := "/" + strings.Join(q.path, "/")
	if err := s.world.FailRequest(q.method, path); err != nil {
		return answer{}, err
	}
	if err := s.proxy(q.path); err != nil {
		return answer{}, err
	}
	for _, r := range s.routes {
		vars, ok := match(strings.Split(strings.Trim(r.path, "/"), "/"), q.path)
		if !ok || r.method != q.method {
			continue
		}
		c := &call{World: s.world, user: user, host: s.host, vars: vars, params: q.params, file: q.file}
		if err := c.check(r); err != nil {
			return answer{}, err
		}
		data, err := r.handle(c)
		return answer{Data: data, Total: c.total}, err
	}
	return answer{}, notImplemented(q.method, path)
}

// proxy is the way to another host, which fails after a while when that one is down.
func (s *Server) proxy(path []string) error {
	if len(path) < 2 || path[0] != "nodes" || path[1] == s.host || !s.world.HostDown(path[1]) {
		return nil
	}
	if !s.world.Delay(3 * time.Second) {
		return world.ErrClosed
	}
	return &earlyError{595, "No route to host"}
}

func match(pattern, path []string) (vars map[string]string, ok bool) {
	vars = map[string]string{}
	for i, segment := range pattern {
		name, isVar := strings.CutPrefix(segment, "{")
		name = strings.TrimSuffix(name, "}")
		switch {
		case i >= len(path):
			return nil, false
		case strings.HasSuffix(name, "..."):
			vars[strings.TrimSuffix(name, "...")] = strings.Join(path[i:], "/")
			return vars, true
		case isVar:
			vars[name] = path[i]
		case segment != path[i]:
			return nil, false
		}
	}
	return vars, len(pattern) == len(path)
}

// check holds the parameters against the route's, and the node against the cluster's.
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
		if text, ok := values["vmid"]; ok {
			if _, err := strconv.Atoi(text); err != nil {
				wrong["vmid"] = "type check ('integer') failed - got '" + text + "'"
			}
		}
	}
	if c.params["skiplock"] != "" && c.user != "root@pam" {
		wrong["skiplock"] = "Only root may use this option."
	}
	if len(wrong) > 0 {
		return &world.Error{Status: http.StatusBadRequest, Message: "Parameter verification failed.", Params: wrong}
	}
	if node, ok := c.vars["node"]; ok && !slices.Contains(c.Hosts(), node) {
		return &world.Error{
			Status:  http.StatusInternalServerError,
			Message: fmt.Sprintf("hostname lookup '%s' failed - failed to get address info for: %s: Name or service not known", node, node),
		}
	}
	return nil
}
