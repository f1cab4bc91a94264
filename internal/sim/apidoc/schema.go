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
	"regexp"
	"slices"
	"strconv"
	"strings"
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

// method is one HTTP method of a path.
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

// properties are parameters, or the keys of a property string.
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
