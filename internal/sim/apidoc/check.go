package apidoc

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/recast-sh/recast/internal/sim/record"
)

// Violation is a reason for which Proxmox refuses a request.
type Violation struct {
	Method  string
	Path    string // as requested, without the query
	Param   string // "" for the whole request; "net0.macaddr" for a key of a property string
	Problem string
}

func (v Violation) String() string {
	if v.Param == "" {
		return fmt.Sprintf("%s %s: %s", v.Method, v.Path, v.Problem)
	}
	return fmt.Sprintf("%s %s: %s: %s", v.Method, v.Path, v.Param, v.Problem)
}

// Verdict is the result of a check.
type Verdict struct {
	Template   string // the path in the schema; "" if it is not there
	Violations []Violation
	Unchecked  []string // parameters with unknown formats and the like
}

// Check checks a recorded request against the schema.
func (s *Schema) Check(call record.Call) Verdict {
	path, _, _ := strings.Cut(call.Path, "?")
	c := &check{schema: s, call: call, path: path}
	template, m, vars := c.find()
	if m == nil {
		return c.verdict
	}
	c.verdict.Template = "/" + strings.Join(template, "/")
	if m.unreadable != "" {
		c.wrong("", "it cannot be checked: %s", m.unreadable)
		return c.verdict
	}
	c.object("", m, c.merge(vars))
	return c.verdict
}

// check is one request being checked.
type check struct {
	schema  *Schema
	call    record.Call
	path    string
	verdict Verdict
}

func (c *check) wrong(param, format string, args ...any) {
	v := Violation{Method: c.call.Method, Path: c.path, Param: param, Problem: fmt.Sprintf(format, args...)}
	c.verdict.Violations = append(c.verdict.Violations, v)
}

// find looks the path up. Proxmox unescapes the whole path before it splits it
// (AnyEvent.pm, handle_api2_request), so an escaped slash separates segments too.
func (c *check) find() (template []string, m *method, vars map[string]string) {
	plain, err := url.PathUnescape(c.path)
	rest, ok := strings.CutPrefix(plain, "/api2/json")
	if err != nil || !ok {
		c.wrong("", "the path is not one of the API's")
		return nil, nil, nil
	}
	var best *endpoint
	for i, e := range c.schema.endpoints {
		got, ok := match(e.template, segments(rest))
		if ok && (best == nil || literals(e.template) > literals(best.template)) {
			best, vars = &c.schema.endpoints[i], got
		}
	}
	if best == nil {
		c.wrong("", "there is no such path")
		return nil, nil, nil
	}
	m = best.methods[c.call.Method]
	if m == nil {
		c.wrong("", "/%s has no method %s", strings.Join(best.template, "/"), c.call.Method)
	}
	return best.template, m, vars
}

// match fills a template's variables. A volume is the rest of its path, including slashes
// (fragmentDelimiter in API2/Storage/Content.pm).
func match(template, path []string) (vars map[string]string, ok bool) {
	vars = map[string]string{}
	for i, segment := range template {
		name, isVar := strings.CutPrefix(segment, "{")
		name = strings.TrimSuffix(name, "}")
		switch {
		case i >= len(path):
			return nil, false
		case name == "volume" && isVar:
			vars[name] = strings.Join(path[i:], "/")
			return vars, true
		case isVar:
			vars[name] = path[i]
		case segment != path[i]:
			return nil, false
		}
	}
	return vars, len(template) == len(path)
}

func literals(template []string) int {
	n := 0
	for _, segment := range template {
		if !strings.HasPrefix(segment, "{") {
			n++
		}
	}
	return n
}

// merge merges the path's variables and the parameters; one that is in both must have the
// same value (rest_handler in proxmox/pve-manager's HTTPServer.pm).
func (c *check) merge(vars map[string]string) map[string]string {
	all := maps.Clone(vars)
	for name, value := range c.call.Params {
		if inPath, ok := vars[name]; ok && inPath != value {
			c.wrong(name, "duplicate parameter (already defined in URI) with conflicting values!")
			continue
		}
		all[name] = value
	}
	return all
}

// object checks all parameters together, like check_object of PVE::JSONSchema.
func (c *check) object(at string, m *method, values map[string]string) {
	for _, name := range slices.Sorted(maps.Keys(m.params)) {
		p := m.params[name]
		if _, ok := values[name]; !ok && !bool(p.Optional) && p.Alias == "" && !secret(at, name) {
			c.wrong(at+name, "property is missing and it is not optional")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		p := m.property(name)
		if p == nil {
			if !m.open {
				c.wrong(at+name, "property is not defined in schema and the schema does not allow additional properties")
			}
			continue
		}
		if _, ok := values[p.Requires]; p.Requires != "" && !ok {
			c.wrong(at+p.Requires, "missing property - '%s' requires this property", at+name)
		}
		c.value(at+name, p, values[name])
	}
}

// secret says whether records omit a parameter.
func secret(at, name string) bool { return at == "" && (name == "password" || name == "cipassword") }

// property is the definition of a parameter; nil if there is none.
func (m *method) property(name string) *property {
	if p := m.params[name]; p != nil {
		return p
	}
	base := strings.TrimRight(name, "0123456789")
	p := m.indexed[base]
	if p == nil {
		return nil
	}
	n, err := strconv.Atoi(name[len(base):])
	if err != nil || strconv.Itoa(n) != name[len(base):] || n > p.last {
		return nil
	}
	return p
}
