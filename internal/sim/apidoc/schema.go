// Package apidoc checks requests against Proxmox VE's own API schema: a [Schema] knows
// paths, methods and their parameters, and judges them as PVE::JSONSchema does.
package apidoc

import (
	"bytes"
	_ "embed" // formats.json and beyond.json
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/recast-sh/recast/internal/sim/record"
)

// Schema is the API schema.
type Schema struct {
	endpoints  []endpoint
	formats    map[string]properties // named property strings
	exceptions []string
}

type endpoint struct {
	template []string // "nodes", "{node}", "qemu"
	methods  map[string]*method
}

type method struct {
	unreadable string // why its parameters can't be checked; "" if they can
	open       bool   // it accepts undefined parameters
	params     properties
	indexed    map[string]*property // of "scsi[n]", by "scsi"
}

// formats.json has the property strings that the schema only names, with their keys as registered in
// proxmox/qemu-server (QemuServer.pm, CPUConfig.pm, Network.pm, PCI.pm, RNG.pm). CPU models are left
// out: they depend on the version.
//
//go:embed formats.json
var formats []byte

// beyond.json has, in the same form, paths that the schema of a core installation lacks:
// API2/Ceph.pm, API2/Replication.pm, API2/Nodes.pm and API2/VZDump.pm of proxmox/pve-manager, API2/AccessControl.pm and
// API2/Domains.pm of proxmox/pve-access-control, API2/Disks/LVMThin.pm of proxmox/pve-storage.
//
//go:embed beyond.json
var beyond []byte

// Load reads a schema: a JSON object of paths, each an object of methods, as in pvesh and the API viewer.
func Load(r io.Reader) (*Schema, error) {
	text, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("read the API's schema: %w", err)
	}
	var paths, more map[string]map[string]json.RawMessage
	if err := json.Unmarshal(text, &paths); err != nil {
		return nil, fmt.Errorf("read the API's schema: %w", err)
	}
	if err := json.Unmarshal(beyond, &more); err != nil {
		return nil, fmt.Errorf("read beyond.json: %w", err)
	}
	s := &Schema{formats: map[string]properties{}}
	if err := json.Unmarshal(formats, &s.formats); err != nil {
		return nil, fmt.Errorf("read formats.json: %w", err)
	}
	for name, p := range s.formats {
		s.prepare("format "+name, p)
	}
	for _, path := range slices.Sorted(maps.Keys(paths)) {
		if !strings.HasPrefix(path, "/") {
			return nil, fmt.Errorf("read the API's schema: %q is not a path", path)
		}
		if err := s.add(path, paths[path]); err != nil {
			return nil, fmt.Errorf("read the API's schema: %w", err)
		}
	}
	if len(s.endpoints) == 0 {
		return nil, fmt.Errorf("read the API's schema: it has no path")
	}
	for _, path := range slices.Sorted(maps.Keys(more)) {
		if paths[path] != nil {
			continue
		}
		if err := s.add(path, more[path]); err != nil {
			return nil, fmt.Errorf("read beyond.json: %w", err)
		}
	}
	return s, nil
}

func (s *Schema) add(path string, methods map[string]json.RawMessage) error {
	e := endpoint{template: segments(path), methods: map[string]*method{}}
	for _, name := range slices.Sorted(maps.Keys(methods)) {
		m, err := s.readMethod(name+" "+path, methods[name])
		if err != nil {
			return fmt.Errorf("%s %s: %w", name, path, err)
		}
		e.methods[name] = m
	}
	s.endpoints = append(s.endpoints, e)
	return nil
}

func (s *Schema) readMethod(at string, raw json.RawMessage) (*method, error) {
	var info struct {
		Parameters map[string]json.RawMessage `json:"parameters"`
	}
	if err := json.Unmarshal(raw, &info); err != nil {
		return nil, err
	}
	m := &method{params: properties{}, indexed: map[string]*property{}}
	for _, keyword := range slices.Sorted(maps.Keys(info.Parameters)) {
		value := info.Parameters[keyword]
		switch keyword {
		case "additionalProperties":
			m.open = !bytes.Equal(value, []byte("0")) && !bytes.Equal(value, []byte("false"))
		case "properties":
			if err := json.Unmarshal(value, &m.params); err != nil {
				return nil, err
			}
		case "type":
		default:
			m.unreadable = "its parameters are defined by " + keyword
			s.except("%s: %s", at, m.unreadable)
		}
	}
	s.prepare(at, m.params)
	for name, p := range m.params {
		if base, ok := strings.CutSuffix(name, "[n]"); ok {
			p.last = lastIndex(base, p.Description)
			m.indexed[base] = p
			delete(m.params, name)
		}
	}
	return m, nil
}

func (s *Schema) except(format string, args ...any) {
	s.exceptions = append(s.exceptions, fmt.Sprintf(format, args...))
}

// Exceptions lists the parts of the schema that can't be checked, by path and parameter.
func (s *Schema) Exceptions() []string { return slices.Clone(s.exceptions) }

// Parameter is a parameter of a method.
type Parameter struct {
	Name     string // "scsi" if Indexed
	Indexed  bool   // followed by an index, from 0 to Last
	Last     int
	Type     string   // "string", "integer", …
	Minimum  *float64 // of a number; nil: none
	Maximum  *float64
	Required bool
}

// Parameters lists a method's parameters by name, including those in its path; template is
// the path as in the schema. False: there is no such method.
func (s *Schema) Parameters(httpMethod, template string) ([]Parameter, bool) {
	for _, e := range s.endpoints {
		m := e.methods[httpMethod]
		if m == nil || !slices.Equal(e.template, segments(template)) {
			continue
		}
		var list []Parameter
		for _, name := range slices.Sorted(maps.Keys(m.params)) {
			list = append(list, m.params[name].describe(name))
		}
		for _, base := range slices.Sorted(maps.Keys(m.indexed)) {
			p := m.indexed[base].describe(base)
			p.Indexed, p.Last = true, m.indexed[base].last
			list = append(list, p)
		}
		return list, true
	}
	return nil, false
}

func (p *property) describe(name string) Parameter {
	return Parameter{Name: name, Required: !bool(p.Optional), Type: p.Type, Minimum: (*float64)(p.Minimum), Maximum: (*float64)(p.Maximum)}
}

func segments(path string) []string { return strings.Split(strings.Trim(path, "/"), "/") }

type properties map[string]*property

// property is one of them, with the keywords of PVE::JSONSchema.
type property struct {
	Type        string   `json:"type"`
	Description string   `json:"description"`
	Optional    flag     `json:"optional"`
	Enum        []scalar `json:"enum"`
	Pattern     string   `json:"pattern"`
	Minimum     *bound   `json:"minimum"`
	Maximum     *bound   `json:"maximum"`
	MinLength   *bound   `json:"minLength"`
	MaxLength   *bound   `json:"maxLength"`
	Format      *format  `json:"format"`
	Requires    string   `json:"requires"`
	DefaultKey  flag     `json:"default_key"`
	Alias       string   `json:"alias"`
	KeyAlias    string   `json:"keyAlias"`
	unchecked   []string // keywords that can't be checked
	pattern     *regexp.Regexp
	last        int // highest index, if indexed
}

// described are keywords without a check. min and max are among them, by mistake: Proxmox
// only checks minimum and maximum.
var described = []string{
	"default", "description", "format_description", "max", "min", "renderer", "title", "typetext", "verbose_description",
}

// UnmarshalJSON notes unknown keywords.
func (p *property) UnmarshalJSON(b []byte) error {
	type plain property
	if err := json.Unmarshal(b, (*plain)(p)); err != nil {
		return err
	}
	var keywords map[string]json.RawMessage
	if err := json.Unmarshal(b, &keywords); err != nil {
		return err
	}
	known := append([]string{
		"type", "optional", "enum", "pattern", "minimum", "maximum", "minLength", "maxLength", "format", "requires",
		"default_key", "alias", "keyAlias",
	}, described...)
	for _, keyword := range slices.Sorted(maps.Keys(keywords)) {
		switch {
		case keyword == "enum" && bytes.Equal(keywords[keyword], []byte("null")):
			p.unchecked = append(p.unchecked, "its enumeration is not in the schema")
		case !slices.Contains(known, keyword):
			p.unchecked = append(p.unchecked, "keyword "+keyword)
		}
	}
	return nil
}

// prepare compiles the patterns and lists what can't be checked.
func (s *Schema) prepare(at string, all properties) {
	for _, name := range slices.Sorted(maps.Keys(all)) {
		p, at := all[name], at+" "+name
		if p.Pattern != "" {
			re, err := perl(p.Pattern)
			if err != nil {
				p.unchecked = append(p.unchecked, fmt.Sprintf("pattern %s: %v", p.Pattern, err))
			}
			p.pattern = re
		}
		for _, why := range p.unchecked {
			s.except("%s: %s", at, why)
		}
		if p.Format != nil {
			s.prepare(at, p.Format.keys)
		}
	}
}

var (
	perlGroup      = regexp.MustCompile(`\(\?\^([a-z]*):`)
	perlQuantifier = regexp.MustCompile(`\{,(\d+)\}`)
)

// perl translates a Perl pattern. It is not grouped, because check_prop of PVE::JSONSchema does not group it either:
// /^a|b$/. Go takes {,n} literally; since Perl 5.34 it means "up to n".
func perl(pattern string) (*regexp.Regexp, error) {
	pattern = perlGroup.ReplaceAllStringFunc(pattern, func(group string) string {
		return "(?" + strings.TrimPrefix(group, "(?^")
	})
	return regexp.Compile("^" + perlQuantifier.ReplaceAllString(pattern, "{0,$1}") + "$")
}

// unsaid are the highest indices of parameters whose schema has none (MAX_NETS and the like in qemu-server).
var unsaid = map[string]int{"hostpci": 15, "ipconfig": 31, "net": 31, "numa": 7, "unused": 255, "usb": 13, "virtiofs": 9}

var saidLast = regexp.MustCompile(`\(n is 0 to (\d+)\)`)

func lastIndex(base, description string) int {
	if m := saidLast.FindStringSubmatch(description); m != nil {
		if n, err := strconv.Atoi(m[1]); err == nil {
			return n
		}
	}
	return unsaid[base]
}

// format is a named format, or the keys of a property string.
type format struct {
	name string
	keys properties
}

func (f *format) UnmarshalJSON(b []byte) error {
	if json.Unmarshal(b, &f.name) == nil {
		return nil
	}
	return json.Unmarshal(b, &f.keys)
}

// flag is a boolean as Perl writes it: 1, "1", true.
type flag bool

func (f *flag) UnmarshalJSON(b []byte) error {
	switch strings.Trim(string(b), `"`) {
	case "1", "true":
		*f = true
	case "0", "false", "null", "":
		*f = false
	default:
		return fmt.Errorf("%s is neither true nor false", b)
	}
	return nil
}

// bound is a number, which Perl may write as a string.
type bound float64

func (n *bound) UnmarshalJSON(b []byte) error {
	v, err := strconv.ParseFloat(strings.Trim(string(b), `"`), 64)
	*n = bound(v)
	return err
}

// scalar is a string or a number, as text.
type scalar string

func (s *scalar) UnmarshalJSON(b []byte) error {
	var text string
	if json.Unmarshal(b, &text) != nil {
		text = string(b)
	}
	*s = scalar(text)
	return nil
}

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

// named are the named formats other than property strings, as registered in proxmox/pve-common (JSONSchema.pm),
// qemu-server (QemuServer.pm, Drive.pm), pve-storage (Storage.pm, Plugin.pm), pve-access-control (AccessControl.pm),
// pve-ha-manager (Tools.pm) and pve-guest-common.
var named = map[string]func(string) bool{
	"string":         func(string) bool { return true },
	"urlencoded":     like(`[-%a-zA-Z0-9_.!~*'()]*`),
	"pve-configid":   like(`(?i:[a-z][a-z0-9_-]+)`),
	"pve-storage-id": like(`(?i:[a-z][a-z0-9\-_.]*[a-z0-9])`),
	"pve-bridge-id":  like(`[-_.\w]+`),
	"pve-vmid":       like(`[1-9][0-9]{2,8}`),
	"pve-node":       like(host),
	"dns-name":       like(`(` + host + `\.)*` + host),
	"pve-iface":      like(`(?i:[a-z][a-z0-9_]{1,20}([:.]\d+)?)`),
	"mac-addr":       like(`(?i:[a-f0-9][02468ace](:[a-f0-9]{2}){5})`), // unicast: multicast addresses are refused
	"disk-size":      like(`\d+(\.\d+)?[KMGT]?`),
	"pve-tag":        like(`(?i:[a-z0-9_][a-z0-9_\-+.]*)`),

	"pve-volume-id":                  isVolume,
	"pve-volume-id-or-absolute-path": func(s string) bool { return strings.HasPrefix(s, "/") || isVolume(s) },
	"pve-volume-id-or-qm-path": func(s string) bool {
		return s == "none" || s == "cdrom" || strings.HasPrefix(s, "/") || isVolume(s)
	},
	"pve-storage-content": like(`images|rootdir|vztmpl|iso|backup|snippets|import|none`),
	"pve-storage-format":  like(`raw|qcow2|vmdk|subvol`),

	"pve-poolid":               like(name + `(/` + name + `){0,2}`),
	"pve-groupid":              like(name),
	"pve-roleid":               like(name),
	"pve-userid":               like(`[^\s:/]+@[A-Za-z][A-Za-z0-9.\-_]+`),
	"pve-tokenid":              like(`[^\s:/]+@[A-Za-z][A-Za-z0-9.\-_]+![A-Za-z][A-Za-z0-9.\-_]+`),
	"pve-task-status-type":     like(`(?i:ok|error|warning|unknown)`),
	"pve-ha-resource-id":       like(`[a-z]+:\S+`),
	"pve-ha-resource-or-vm-id": like(`[a-z]+:\S+|\d+`),
	"pve-replication-job-id":   like(`[1-9][0-9]{2,8}-\d{1,9}`),

	"pve-startup-order":    isStartupOrder,
	"pve-hotplug-features": isHotplug,
	"pve-qm-bootdev":       func(s string) bool { return isDisk(s) || isDevice(s) },
	"pve-qm-bootdisk":      isDisk,
	"pve-cpuset":           like(`\s*\d+(-\d+)?\s*(,\s*\d+(-\d+)?\s*)*`),
	"pve-phys-bits":        isPhysBits,

	"pve-ipv4-config": func(s string) bool { return s == "dhcp" || s == "manual" || isPrefix(s, netip.Addr.Is4) },
	"pve-ipv6-config": func(s string) bool {
		return s == "auto" || s == "dhcp" || s == "manual" || isPrefix(s, netip.Addr.Is6)
	},

	"ipv4":    func(s string) bool { a, err := netip.ParseAddr(s); return err == nil && a.Is4() },
	"ipv6":    func(s string) bool { a, err := netip.ParseAddr(s); return err == nil && a.Is6() && a.Zone() == "" },
	"address": func(s string) bool { _, err := netip.ParseAddr(s); return err == nil || like(`(`+host+`\.)*`+host)(s) },
	"CIDR":    func(s string) bool { return isPrefix(s, netip.Addr.IsValid) },
}

const (
	host = `[a-zA-Z0-9]([a-zA-Z0-9\-]*[a-zA-Z0-9])?`
	name = `[A-Za-z0-9.\-_]+`
)

func like(pattern string) func(string) bool {
	return regexp.MustCompile(`^(?:` + pattern + `)$`).MatchString
}

var isVolume = like(`(?i:[a-z][a-z0-9\-_.]*[a-z0-9]):.+`)

// isPrefix says whether s is a network, or an address with its network's length, of that
// family. Proxmox accepts none shorter than 8 bits.
func isPrefix(s string, family func(netip.Addr) bool) bool {
	p, err := netip.ParsePrefix(s)
	return err == nil && family(p.Addr()) && p.Bits() > 7
}

var startupPart = regexp.MustCompile(`^((order=)?\d+|up=\d+|down=\d+)$`)

func isStartupOrder(s string) bool {
	wrong := func(part string) bool { return strings.TrimSpace(part) != "" && !startupPart.MatchString(part) }
	return s != "" && s != "0" && !slices.ContainsFunc(strings.Split(s, ","), wrong) // "" and "0" are Perl's false
}

var hotplugFeature = like(`network|disk|cpu|memory|usb|cloudinit`)

func isHotplug(s string) bool {
	unknown := func(feature string) bool { return !hotplugFeature(feature) }
	return s == "0" || s == "1" || !slices.ContainsFunc(splitList(s), unknown)
}

func isPhysBits(s string) bool {
	n, err := strconv.Atoi(s)
	return s == "host" || err == nil && n >= 8 && n <= 64
}

func isDisk(key string) bool {
	return numbered(key, map[string]int{"ide": 3, "sata": 5, "scsi": 30, "virtio": 15})
}

// isDevice is isDisk for other bootable devices.
func isDevice(key string) bool {
	return numbered(key, map[string]int{"hostpci": unsaid["hostpci"], "net": unsaid["net"], "usb": unsaid["usb"]})
}

func numbered(key string, last map[string]int) bool {
	base := strings.TrimRight(key, "0123456789")
	n, err := strconv.Atoi(key[len(base):])
	highest, known := last[base]
	return known && err == nil && n <= highest && strconv.Itoa(n) == key[len(base):]
}
