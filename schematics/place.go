package schematics

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/recast-sh/recast/internal/fault"
	"go.yaml.in/yaml/v4"
)

// place finds line and column of a key in a YAML file.
type place struct {
	file string
	root *yaml.Node
}

// errorf returns an error of kind Config that begins with the place of the value
// under path (string keys, int indexes), or of the nearest value above it.
func (p place) errorf(path []any, format string, args ...any) error {
	return fault.As(fault.Config, fmt.Errorf("%s: %w", p.at(path), fmt.Errorf(format, args...)))
}

// at is the place of the value under path, or of the nearest value above it.
func (p place) at(path []any) string {
	n := p.root
	for _, elem := range path {
		next := child(n, elem)
		if next == nil {
			break
		}
		n = next
	}
	if n != nil && n.Line > 0 {
		return fmt.Sprintf("%s:%d:%d", p.file, n.Line, n.Column)
	}
	return p.file
}

func child(n *yaml.Node, elem any) *yaml.Node {
	if n == nil {
		return nil
	}
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	switch e := elem.(type) {
	case string:
		for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
			if n.Content[i].Value == e {
				return n.Content[i+1]
			}
		}
	case int:
		if n.Kind == yaml.SequenceNode && e < len(n.Content) {
			return n.Content[e]
		}
	}
	return nil
}

// problems turns the YAML library's errors into one error of kind Config, with a
// line for each problem.
func problems(file string, err error) error {
	list, ok := errors.AsType[*yaml.LoadErrors](err)
	if !ok {
		one, ok := errors.AsType[*yaml.LoadError](err)
		if !ok {
			return fault.Configf("%s: %w", file, err)
		}
		list = &yaml.LoadErrors{Errors: []*yaml.LoadError{one}}
	}
	errs := make([]error, 0, len(list.Errors))
	for _, e := range list.Errors {
		errs = append(errs, fmt.Errorf("%s:%d:%d: %s", file, e.Mark.Line, e.Mark.Column, userMessage(e.Message)))
	}
	return fault.As(fault.Config, errors.Join(errs...))
}

// userMessage replaces Go's type names in a message of the YAML library.
func userMessage(message string) string {
	unknown := regexp.MustCompile(`^field (.*) not found in type \S+$`)
	if m := unknown.FindStringSubmatch(message); m != nil {
		return fmt.Sprintf("unknown key %q", m[1])
	}
	return strings.NewReplacer("!!seq into schematic.Schematic", "a list as a schematic", "schematic.", "").Replace(message)
}
