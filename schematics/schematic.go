// Package schematics turns schematic files into a [Lock]: what every image of a cluster is made of, down to the
// digest of each extension. [Resolve] makes a lock, [ReadLock] reads one.
package schematics

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/redact"
	"github.com/siderolabs/image-factory/pkg/schematic"
	"go.yaml.in/yaml/v4"
)

// lockArg is the kernel argument that carries a lock hash. The kernel takes a name
// with a dot for a module's parameter and passes it to nothing.
const lockArg = "recast.lock="

// Schematic is the customization of an image, in the format of the Image Factory.
type Schematic struct {
	place     place
	doc       schematic.Schematic
	canonical string
}

// Parse reads a schematic as strictly as an Image Factory does. name is the file's name, for errors. Errors name the
// line of each problem and are of kind Config.
func Parse(name string, data []byte) (Schematic, error) {
	root, err := singleDocument(name, data)
	if err != nil {
		return Schematic{}, err
	}
	doc, err := schematic.Unmarshal(data)
	if err != nil {
		return Schematic{}, problems(name, err)
	}
	s := Schematic{place: place{file: name, root: root}, doc: *doc}
	if err := s.doc.Validate(false); err != nil {
		return Schematic{}, s.place.errorf([]any{"owner"}, "%w", err)
	}
	if s.canonical, err = canonical(s.doc); err != nil {
		return Schematic{}, fault.Configf("%s: %w", name, err)
	}
	return s, nil
}

// singleDocument returns the only document of a YAML file. An Image Factory reads the first document and silently
// drops the others.
func singleDocument(name string, data []byte) (*yaml.Node, error) {
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var root, second yaml.Node
	err := dec.Decode(&root)
	if errors.Is(err, io.EOF) || err == nil && len(root.Content) == 0 {
		return nil, fault.WithHint(fault.Configf("%s: the file is empty", name),
			"an image without any customization is written \"customization: {}\"")
	}
	if err != nil {
		return nil, problems(name, err)
	}
	if err := dec.Decode(&second); !errors.Is(err, io.EOF) {
		return nil, fault.Configf("%s:%d: only one YAML document is allowed in this file", name, max(second.Line, root.Line))
	}
	return root.Content[0], nil
}

// canonical returns the text whose SHA-256 is the schematic ID. An Image Factory must read the same schematic back
// from the text, or the factory's ID would differ.
func canonical(doc schematic.Schematic) (string, error) {
	text, err := doc.Marshal()
	if err != nil {
		return "", fmt.Errorf("write the canonical form: %w", err)
	}
	again, err := schematic.Unmarshal(text)
	if err != nil {
		return "", fmt.Errorf("read the canonical form back: %w", err)
	}
	text2, err := again.Marshal()
	if err != nil {
		return "", fmt.Errorf("write the canonical form: %w", err)
	}
	if !bytes.Equal(text, text2) {
		return "", errors.New("some value changes when the file is written and read again; quote it")
	}
	return string(text), nil
}

// Canonical returns the schematic as an Image Factory stores it.
func (s Schematic) Canonical() string { return s.canonical }

// ID returns the ID that an Image Factory assigns to the schematic, if the factory writes YAML as we do.
func (s Schematic) ID() string { return idOf(s.canonical) }

// Extensions lists the official extensions by name, in the order of the file, which is their build order.
func (s Schematic) Extensions() []string {
	return slices.Clone(s.doc.Customization.SystemExtensions.OfficialExtensions)
}

// lockHash returns the value of the last kernel argument if that argument is recast's; otherwise "".
func (s Schematic) lockHash() string {
	args := s.doc.Customization.ExtraKernelArgs
	if len(args) == 0 {
		return ""
	}
	hash, _ := strings.CutPrefix(args[len(args)-1], lockArg)
	if hash == args[len(args)-1] {
		return ""
	}
	return hash
}

// withLock returns the schematic with the lock hash as its last kernel argument.
func (s Schematic) withLock(hash string) (Schematic, error) {
	args := s.doc.Customization.ExtraKernelArgs
	s.doc.Customization.ExtraKernelArgs = append(slices.Clone(args), lockArg+hash)
	var err error
	s.canonical, err = canonical(s.doc)
	return s, err
}

// withoutLock returns the canonical form without recast's own kernel argument: what the user wrote.
func (s Schematic) withoutLock() string {
	if s.lockHash() == "" {
		return s.canonical
	}
	args := s.doc.Customization.ExtraKernelArgs
	s.doc.Customization.ExtraKernelArgs = args[:len(args)-1]
	text, err := canonical(s.doc)
	if err != nil { // impossible: the longer schematic could be written
		return s.canonical
	}
	return text
}

// Secrets describes the secrets in the schematic: a machine configuration, or a way to get one. It quotes no secret.
func (s Schematic) Secrets() []string {
	var out []string
	if s.EmbedsConfig() {
		out = append(out, "the machine configuration that it embeds")
	}
	for _, arg := range s.doc.Customization.ExtraKernelArgs {
		for arg := range strings.FieldsSeq(arg) { // one entry may hold several arguments
			if _, name := redact.KernelArg(arg); name != "" {
				out = append(out, "the kernel argument "+name)
			}
		}
	}
	for _, m := range s.doc.Customization.Meta {
		if privateKey.MatchString(m.Value) {
			out = append(out, fmt.Sprintf("the META value %#x", m.Key))
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

var privateKey = regexp.MustCompile(`(?i)private_?key"?\s*:\s*"?[^"\s]`)

// HoldsSecrets reports whether one of the schematics has secrets. An unreadable schematic counts as having some.
func (l Lock) HoldsSecrets() bool {
	for _, e := range l.Schematics {
		if s, err := Parse(e.File, []byte(e.Schematic)); err != nil || len(s.Secrets()) > 0 {
			return true
		}
	}
	return false
}

// Unlocked reads the schematic that a running image states, without recast's
// additions: the file that would produce the image again.
func Unlocked(name string, data []byte) (Schematic, error) {
	s, err := Parse(name, data)
	if err != nil {
		return Schematic{}, err
	}
	return Parse(name, []byte(s.withoutLock()))
}

// EmbedsConfig reports whether the schematic's images embed a machine configuration.
func (s Schematic) EmbedsConfig() bool {
	return s.doc.Customization.EmbeddedMachineConfiguration != ""
}

// Guess returns the schematic of an image that states none, from the extensions that the image's node lists. unknown
// are the listed extensions that match no official one.
func Guess(name string, listed []string, official []OfficialExtension) (s Schematic, unknown []string, err error) {
	var names []string
	for _, x := range listed {
		found := ""
		for _, o := range official {
			if path.Base(o.Name) == x {
				found = o.Name
			}
		}
		if found == "" {
			unknown = append(unknown, x)
			continue
		}
		names = append(names, found)
	}
	text := "customization: {}\n"
	if len(names) > 0 {
		text = fmt.Sprintf("customization:\n  systemExtensions:\n    officialExtensions:\n      - %s\n", strings.Join(names, "\n      - "))
	}
	s, err = Parse(name, []byte(text))
	return s, unknown, err
}

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

// at returns the place of the value under path, or of the nearest value above it.
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

// problems turns the YAML library's errors into one error of kind Config, with a line for each problem.
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
