// Package config compares two machine configurations document by document and field by field, and shows what differs
// without showing a secret.
//
// It reads plain YAML and knows no kind of document, so a document of a newer Talos is compared like any other.
// [CompareSchematics] does the same for what two schematics ask of an image.
package config

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"
)

// Documents are the documents of one configuration.
type Documents struct{ list []document }

type document struct {
	id   string // "v1alpha1", "HostnameConfig", "UserVolumeConfig data"
	root *value
}

// kind is the first word of the id.
func (d document) kind() string {
	kind, _, _ := strings.Cut(d.id, " ")
	return kind
}

// value is a YAML value without its style. A mapping has fields, a list has items, and a scalar has text and shown.
type value struct {
	kind   kind
	fields map[string]*value
	items  []*value
	text   string // of a scalar, as it is compared
	shown  string // of a scalar, as it is written
}

type kind int

const (
	null kind = iota
	scalar
	mapping
	list
)

// MainDocument is Talos' name for the document without a kind.
const MainDocument = "v1alpha1"

// maxValues limits the size that aliases can produce. A large configuration has some thousands.
const maxValues = 1 << 16

// Parse reads a configuration. Its errors quote nothing from it.
func Parse(b []byte) (Documents, error) {
	var docs Documents
	seen := map[string]int{}
	decoder := yaml.NewDecoder(bytes.NewReader(b))
	left := maxValues
	for {
		var n yaml.Node
		switch err := decoder.Decode(&n); {
		case errors.Is(err, io.EOF):
			slices.SortStableFunc(docs.list, func(a, b document) int { return strings.Compare(a.id, b.id) })
			return docs, nil
		case err != nil:
			return Documents{}, notYAML(err)
		}
		p := parser{left: &left}
		root, err := p.value(&n)
		if err != nil {
			return Documents{}, err
		}
		if root.kind == null {
			continue // only comments
		}
		if root.kind != mapping {
			return Documents{}, fmt.Errorf("line %d: a document is not a mapping", n.Line)
		}
		id := root.id()
		if seen[id]++; seen[id] > 1 {
			id += fmt.Sprintf(" (%d)", seen[id])
		}
		docs.list = append(docs.list, document{id, root})
	}
}

var lineNumber = regexp.MustCompile(`line \d+`)

// notYAML keeps only the line number of the parser's error: the rest may quote a secret.
func notYAML(err error) error {
	if at := lineNumber.FindString(err.Error()); at != "" {
		return fmt.Errorf("%s: not valid YAML", at)
	}
	return errors.New("not valid YAML")
}

// id identifies a document: kind and name.
func (v *value) id() string {
	text := func(key string) string {
		if f := v.fields[key]; f != nil {
			return f.shown
		}
		return ""
	}
	id := text("kind")
	if id == "" {
		return MainDocument
	}
	if version := text("apiVersion"); version != "" && version != "v1alpha1" {
		id = version + " " + id
	}
	return strings.TrimSpace(id + " " + text("name"))
}

type parser struct {
	left *int         // how many values may still come
	open []*yaml.Node // aliases that are being followed
}

func (p *parser) value(n *yaml.Node) (*value, error) {
	if *p.left--; *p.left < 0 {
		return nil, errors.New("its aliases make it too large")
	}
	switch n.Kind {
	case yaml.DocumentNode:
		if len(n.Content) != 1 {
			return &value{}, nil
		}
		return p.value(n.Content[0])
	case yaml.AliasNode:
		if n.Alias == nil || slices.Contains(p.open, n.Alias) {
			return nil, fmt.Errorf("line %d: an alias refers to itself", n.Line)
		}
		p.open = append(p.open, n.Alias)
		v, err := p.value(n.Alias)
		p.open = p.open[:len(p.open)-1]
		return v, err
	case yaml.MappingNode:
		return p.mapping(n)
	case yaml.SequenceNode:
		v := &value{kind: list}
		for _, item := range n.Content {
			child, err := p.value(item)
			if err != nil {
				return nil, err
			}
			v.items = append(v.items, child)
		}
		return v, nil
	case yaml.ScalarNode:
		return scalarOf(n), nil
	}
	return &value{}, nil // an empty document
}

// mapping reads a mapping. A field of the mapping takes precedence over the same field of "<<".
func (p *parser) mapping(n *yaml.Node) (*value, error) {
	v := &value{kind: mapping, fields: map[string]*value{}}
	var merged []*value
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		if key.Kind == yaml.AliasNode && key.Alias != nil {
			key = key.Alias
		}
		if key.Kind != yaml.ScalarNode {
			return nil, fmt.Errorf("line %d: a key is not a word", key.Line)
		}
		child, err := p.value(n.Content[i+1])
		if err != nil {
			return nil, err
		}
		_, twice := v.fields[key.Value]
		switch {
		case key.ShortTag() == "!!merge":
			merged = append(merged, child)
		case twice:
			return nil, fmt.Errorf("line %d: a key is given twice", key.Line)
		default:
			v.fields[key.Value] = child
		}
	}
	for _, m := range merged {
		v.merge(m)
	}
	return v, nil
}

// merge adds to v the fields of the value of "<<" that v lacks. The value is a mapping, or a list of mappings, where
// earlier mappings take precedence.
func (v *value) merge(from *value) {
	for key, child := range from.fields {
		if _, own := v.fields[key]; !own {
			v.fields[key] = child
		}
	}
	for _, item := range from.items {
		v.merge(item)
	}
}

// decimal matches a number that reads the same in a field of strings and in a field of numbers.
var decimal = regexp.MustCompile(`^-?(?:0|[1-9][0-9]*)$`)

// scalarOf returns the value of a scalar. Scalars are compared by text, as a field of strings would read it: 1 and
// "1" are the same. So are two spellings of a non-decimal integer, such as 0644 and 0o644.
func scalarOf(n *yaml.Node) *value {
	v := &value{kind: scalar, text: n.Value, shown: n.Value}
	switch tag := n.ShortTag(); {
	case tag == "!!null":
		return &value{}
	case tag == "!!int" && !decimal.MatchString(n.Value):
		var number any
		if n.Decode(&number) == nil {
			v.text = "\x00" + fmt.Sprint(number)
		}
	}
	return v
}

// quoted returns a text in a form that fits on one line.
func quoted(text string) string {
	if text == "" || strings.TrimSpace(text) != text || strings.ContainsFunc(text, func(r rune) bool { return !strconv.IsPrint(r) }) {
		return strconv.Quote(text)
	}
	return text
}

// Hash is the SHA-256 of the documents' content: two configurations have the same hash exactly if
// Compare finds no difference.
func (d Documents) Hash() string {
	h := sha256.New()
	for _, doc := range d.list {
		say(h, "document", doc.id)
		doc.root.write(h)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// say writes a word and a text so that no two sequences of them give the same bytes.
func say(h hash.Hash, word, text string) { fmt.Fprintf(h, "%s %d %s\n", word, len(text), text) }

func (v *value) write(h hash.Hash) {
	switch v.kind {
	case null:
		say(h, "null", "")
	case scalar:
		say(h, "scalar", v.text)
	case mapping:
		for _, key := range slices.Sorted(maps.Keys(v.fields)) {
			if child := v.fields[key]; child.kind != null {
				say(h, "field", key)
				child.write(h)
			}
		}
		say(h, "end of mapping", "")
	case list:
		for _, item := range v.items {
			say(h, "item", "")
			item.write(h)
		}
		say(h, "end of list", "")
	}
}

// Role returns the role that the configuration gives its node, as Kubernetes' users know it: "control-plane" or
// "worker".
func (d Documents) Role() string {
	if t := d.machineType(); t == "controlplane" || t == typeInit {
		return "control-plane"
	}
	return "worker" // Talos takes "join" for that as well (config/machine, ParseType)
}

// SaysRole says whether the configuration has a machine.type. Without a machine.type, Role returns "worker".
func (d Documents) SaysRole() bool { return d.machineType() != "" }

// TypeInit says whether the configuration is of a control plane of machine.type init.
func (d Documents) TypeInit() bool { return d.machineType() == typeInit }

const typeInit = "init"

// machineType returns the machine.type; "": there is none.
func (d Documents) machineType() string {
	if t := d.main("machine", "type"); t != nil {
		return t.shown
	}
	return ""
}

// main returns the value at a path of the main document; nil if there is none.
func (d Documents) main(path ...string) *value {
	for _, doc := range d.list {
		if doc.id == MainDocument {
			return doc.root.at(path)
		}
	}
	return nil
}

// SameButForRecast says whether two configurations differ in nothing but what recast sets in each: installer, install
// disk, hostname, and the versions of Kubernetes. Even if it returns false, they may have the same meaning: one of
// them may be written in other documents.
func SameButForRecast(a, b Documents) bool { return a.neutral().Hash() == b.neutral().Hash() }

// setByRecast are the fields that recast sets, by the kind of document.
var setByRecast = map[string][][]string{
	MainDocument: {
		{"machine", "install", "image"},
		{"machine", "install", "disk"},
		{"machine", "install", "diskSelector"},
		{"machine", "install", "wipe"},
		{"machine", "network", "hostname"},
	},
	"UnattendedInstallConfig": {{"installer", "image"}, {"provisioning", "diskSelector"}, {"provisioning", "wipe"}},
	"HostnameConfig":          {{"hostname"}, {"auto"}},
}

// neutral returns d without the fields of setByRecast, and without versions in images of Kubernetes.
func (d Documents) neutral() Documents {
	var out Documents
	for _, doc := range d.list {
		for _, path := range setByRecast[doc.id] {
			doc.root = doc.root.with(path, nil)
		}
		for where, usual := range kubernetesImages {
			kind, path, _ := strings.Cut(where, " ")
			if image := doc.root.at(strings.Split(path, ".")); kind == doc.id && image != nil && image.kind == scalar {
				doc.root = doc.root.with(strings.Split(path, "."), &value{kind: scalar, text: "image " + repository(cmp.Or(image.shown, usual))})
			}
		}
		out.list = append(out.list, doc)
	}
	return out
}

// at returns the value at a path of keys; nil if there is none.
func (v *value) at(path []string) *value {
	for _, key := range path {
		if v = v.fields[key]; v == nil {
			return nil
		}
	}
	return v
}

// with returns a copy of v with another value at a path. v stays as it is if it has no value there. If other is nil,
// the value is removed, and so are mappings that become empty.
func (v *value) with(path []string, other *value) *value {
	child := v.fields[path[0]]
	if child == nil {
		return v
	}
	if len(path) > 1 {
		other = child.with(path[1:], other)
	}
	changed := *v
	changed.fields = maps.Clone(v.fields)
	if other == nil || other.kind == mapping && len(other.fields) == 0 {
		delete(changed.fields, path[0])
	} else {
		changed.fields[path[0]] = other
	}
	return &changed
}
