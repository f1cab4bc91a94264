// Package schematics turns schematic files into a [Lock]: what every image of a cluster
// is made of, down to the digest of each extension. [Resolve] makes one, [ReadLock] reads
// it.
package schematics

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/recast-sh/recast/internal/fault"
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

// Parse reads a schematic as strictly as an Image Factory does. name is the file's,
// for errors; they name the line of each problem and are of kind Config.
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

// singleDocument returns the only document of a YAML file. An Image Factory reads
// the first and silently drops the others.
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

// canonical is the text whose SHA-256 is the schematic ID. An Image Factory must
// read the same schematic back from it, or its ID would differ.
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

// Canonical is the schematic as an Image Factory stores it.
func (s Schematic) Canonical() string { return s.canonical }

// ID is the ID that an Image Factory assigns to the schematic, if it writes YAML as we do.
func (s Schematic) ID() string { return idOf(s.canonical) }

// Extensions lists the official extensions by name, in the order of the file, which
// is their build order.
func (s Schematic) Extensions() []string {
	return slices.Clone(s.doc.Customization.SystemExtensions.OfficialExtensions)
}

// lockHash is the value of the last kernel argument if that is recast's; otherwise "".
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

// withoutLock is the canonical form without recast's own kernel argument: what the user wrote.
func (s Schematic) withoutLock() string {
	if s.lockHash() == "" {
		return s.canonical
	}
	args := s.doc.Customization.ExtraKernelArgs
	s.doc.Customization.ExtraKernelArgs = args[:len(args)-1]
	text, err := canonical(s.doc)
	if err != nil { // impossible: the longer one could be written
		return s.canonical
	}
	return text
}
