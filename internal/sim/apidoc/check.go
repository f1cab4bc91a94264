package apidoc

import (
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

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

var (
	integer = regexp.MustCompile(`^[+-]?\d+$`)
	number  = regexp.MustCompile(`^[+-]?(\d+\.\d+|\d+\.|\.\d+|\d+)([eE][+-]?\d+)?$`)
)

// value checks one value in the order of check_prop of PVE::JSONSchema, which stops at the first violation.
func (c *check) value(at string, p *property, value string) {
	for _, what := range p.unchecked {
		c.unchecked(at, what)
	}
	if !c.ofType(at, p.Type, value) {
		return
	}
	if p.Format != nil && !c.ofFormat(at, p.Format, value) {
		return
	}
	if p.pattern != nil && !p.pattern.MatchString(value) {
		c.wrong(at, "value does not match the regex pattern %s - got '%s'", p.Pattern, shown(value))
		return
	}
	length := bound(utf8.RuneCountInString(value))
	switch {
	case p.MaxLength != nil && length > *p.MaxLength:
		c.wrong(at, "value may only be %v characters long", *p.MaxLength)
		return
	case p.MinLength != nil && length < *p.MinLength:
		c.wrong(at, "value must be at least %v characters long", *p.MinLength)
		return
	}
	if !c.inBounds(at, p, value) {
		return
	}
	if len(p.Enum) > 0 && !slices.Contains(p.Enum, scalar(value)) {
		c.wrong(at, "value '%s' does not have a value in the enumeration", shown(value))
	}
}

// ofType is check_type. A boolean must be 1 or 0 here; on, yes and true are only valid in property strings.
func (c *check) ofType(at, kind, value string) bool {
	ok := true
	switch kind {
	case "boolean":
		ok = value == "1" || value == "0"
	case "integer":
		ok = integer.MatchString(value)
	case "number":
		ok = number.MatchString(value)
	case "", "string", "any":
	default:
		c.unchecked(at, "type "+kind)
	}
	if !ok {
		c.wrong(at, "type check ('%s') failed - got '%s'", kind, shown(value))
	}
	return ok
}

// inBounds checks everything that looks like a number, whatever its type.
func (c *check) inBounds(at string, p *property, value string) bool {
	if !number.MatchString(value) {
		return true
	}
	n, err := strconv.ParseFloat(value, 64)
	switch {
	case err != nil:
		c.wrong(at, "the number '%s' is too large", shown(value))
	case p.Maximum != nil && bound(n) > *p.Maximum:
		c.wrong(at, "value must have a maximum value of %v", *p.Maximum)
	case p.Minimum != nil && bound(n) < *p.Minimum:
		c.wrong(at, "value must have a minimum value of %v", *p.Minimum)
	default:
		return true
	}
	return false
}

func (c *check) unchecked(at, what string) {
	what = at + ": " + what
	if !slices.Contains(c.verdict.Unchecked, what) {
		c.verdict.Unchecked = append(c.verdict.Unchecked, what)
	}
}

// shown is a value, shortened for messages.
func shown(value string) string {
	value = strings.Join(strings.Fields(value), " ")
	if runes := []rune(value); len(runes) > 80 {
		return string(runes[:80]) + "…"
	}
	return value
}

// ofFormat checks a property string, or a value with a named format. A name may end in
// -list or -opt (check_format of PVE::JSONSchema).
func (c *check) ofFormat(at string, f *format, value string) bool {
	keys := f.keys
	if keys == nil {
		keys = c.schema.formats[f.name]
	}
	if keys != nil {
		return c.propertyString(at, keys, value)
	}
	name, kind := f.name, ""
	for _, suffix := range []string{"-list", "-opt"} {
		if base, ok := strings.CutSuffix(f.name, suffix); ok {
			name, kind = base, suffix
		}
	}
	is, known := named[name]
	if !known {
		c.unchecked(at, "format "+f.name)
		return true
	}
	parts := []string{value}
	switch {
	case kind == "-list":
		parts = splitList(value)
	case kind == "-opt" && (value == "" || value == "0"): // Perl's false
		parts = nil
	}
	for _, part := range parts {
		if !is(part) {
			c.wrong(at, "invalid format - '%s' is no %s", shown(part), name)
			return false
		}
	}
	return true
}

// splitList is split_list of PVE::Tools: a list that contains NULs is split at these, else
// at commas, semicolons and blanks.
func splitList(list string) []string {
	if strings.Contains(list, "\x00") {
		return strings.Split(list, "\x00")
	}
	return strings.FieldsFunc(list, func(r rune) bool { return strings.ContainsRune(",; \t\r\n\f\v", r) })
}

// propertyString checks key=value,… like parse_property_string of PVE::JSONSchema; it is false for an invalid one.
func (c *check) propertyString(at string, keys properties, text string) bool {
	before := len(c.verdict.Violations)
	values := c.split(at, keys, text)
	if len(c.verdict.Violations) == before {
		c.object(at+".", &method{params: keys}, values)
	}
	return len(c.verdict.Violations) == before
}

func (c *check) split(at string, keys properties, text string) map[string]string {
	values := map[string]string{}
	for part := range strings.SplitSeq(text, ",") {
		if strings.TrimSpace(part) == "" {
			continue
		}
		key, value, hasKey := strings.Cut(part, "=")
		switch {
		case !hasKey:
			c.setDefault(at, keys, values, part)
		case key == "" || value == "":
			c.wrong(at, "invalid format - missing key in comma-separated list property")
		default:
			c.set(at, keys, values, key, value)
		}
	}
	return values
}

func (c *check) set(at string, keys properties, values map[string]string, key, value string) {
	if _, twice := values[key]; twice {
		c.wrong(at, "invalid format - duplicate key in comma-separated list property: %s", key)
		return
	}
	p := keys[key]
	if p != nil && p.Alias != "" {
		if p.KeyAlias != "" {
			if _, twice := values[p.KeyAlias]; twice {
				c.wrong(at, "invalid format - key alias '%s' is already defined", p.KeyAlias)
				return
			}
			values[p.KeyAlias] = key
		}
		key = p.Alias
		p = keys[key]
	}
	if p == nil {
		c.wrong(at, "invalid format - invalid key in comma-separated list property: %s", shown(key))
		return
	}
	if p.Type == "boolean" {
		value = boolean(value)
	}
	values[key] = value
}

// setDefault assigns a value without a key to the default key.
func (c *check) setDefault(at string, keys properties, values map[string]string, value string) {
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		if !keys[key].DefaultKey {
			continue
		}
		if _, twice := values[key]; twice {
			c.wrong(at, "invalid format - duplicate key in comma-separated list property: %s", key)
			return
		}
		values[key] = value // unchanged, even a boolean: agent=on is refused
		return
	}
	c.wrong(at, "invalid format - value without key, but schema does not define a default key")
}

// boolean is parse_boolean: the spellings of 1 and 0.
func boolean(value string) string {
	switch strings.ToLower(value) {
	case "1", "on", "yes", "true":
		return "1"
	case "0", "off", "no", "false":
		return "0"
	}
	return value
}
