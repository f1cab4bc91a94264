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
	"slices"
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
// API2/Ceph.pm, API2/Replication.pm, API2/Nodes.pm and API2/VZDump.pm of proxmox/pve-manager,
// API2/AccessControl.pm and API2/Domains.pm of proxmox/pve-access-control,
// API2/Disks/LVMThin.pm of proxmox/pve-storage.
//
//go:embed beyond.json
var beyond []byte

// Load reads a schema: a JSON object of paths, each an object of methods, as in pvesh and
// the API viewer.
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
