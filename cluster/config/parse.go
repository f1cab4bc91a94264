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

	"github.com/recast-sh/recast/internal/redact"
)

// Documents are the documents of one configuration.
type Documents struct{ list []document }

type document struct {
	id   string // "v1alpha1", "HostnameConfig", "UserVolumeConfig data"
	root *value
}

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
func Parse(b []byte) (docs Documents, err error) {
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

// merge adds the fields that v lacks from "<<", a mapping or a list of mappings, the earlier first.
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

// scalarOf compares by text, as a field of strings would: 1 is "1". So are spellings of an integer: 0644 is 0o644.
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

// Hash is the SHA-256 of the content: equal exactly if Compare finds no difference.
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

// Role returns the node's role as Kubernetes' users know it: "control-plane" or "worker".
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

func (d Documents) machineType() string {
	if t := d.main("machine", "type"); t != nil {
		return t.shown
	}
	return ""
}

func (d Documents) main(path ...string) *value {
	for _, doc := range d.list {
		if doc.id == MainDocument {
			return doc.root.at(path)
		}
	}
	return nil
}

// SameButForRecast: two configurations differ only in what recast sets. Others may mean the same in other documents.
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
func (d Documents) neutral() (out Documents) {
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

func (v *value) at(path []string) *value {
	for _, key := range path {
		if v = v.fields[key]; v == nil {
			return nil
		}
	}
	return v
}

// with returns a copy of v with other at a path that it has; nil removes the value, and mappings that get empty.
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

// Schematic is what a schematic asks of an image, as a running image states it.
type Schematic struct {
	KernelArgs     []string          // without recast's own
	Meta           map[string]string // by key
	EmbeddedConfig string            // the machine configuration in the image; a secret
	Extensions     []string          // by their official names, in build order
	// Rest is everything else by its path, "customization.bootloader", whether this recast knows it or not.
	Rest map[string]string
}

// LockArg is the kernel argument in which a schematic carries the hash of its extension digests.
const LockArg = "recast.lock="

// ParseSchematic reads the Image Factory's form of a schematic. Errors quote nothing: the text may hold secrets.
func ParseSchematic(text string) (Schematic, error) {
	s := Schematic{Meta: map[string]string{}, Rest: map[string]string{}}
	var root map[string]any
	if err := yaml.Unmarshal([]byte(text), &root); err != nil || root == nil {
		return s, errors.New("not in the Image Factory's format")
	}
	customization, _ := root["customization"].(map[string]any)
	var args, extensions, meta []any
	var problems []error
	take(customization, "extraKernelArgs", &args, &problems)
	take(customization, "meta", &meta, &problems)
	take(customization, "embeddedMachineConfiguration", &s.EmbeddedConfig, &problems)
	if list, ok := customization["systemExtensions"].(map[string]any); ok {
		take(list, "officialExtensions", &extensions, &problems)
	}
	for _, entry := range args {
		for arg := range strings.FieldsSeq(fmt.Sprint(entry)) { // one entry may hold several
			if !strings.HasPrefix(arg, LockArg) {
				s.KernelArgs = append(s.KernelArgs, arg)
			}
		}
	}
	for _, entry := range extensions {
		s.Extensions = append(s.Extensions, fmt.Sprint(entry))
	}
	for _, entry := range meta {
		value, ok := entry.(map[string]any)
		if !ok {
			problems = append(problems, errors.New("a META value is not in the Image Factory's format"))
			continue
		}
		s.Meta[metaKey(value["key"])] = fmt.Sprint(value["value"])
	}
	flatten("", root, s.Rest)
	return s, errors.Join(problems...)
}

func take[V any](from map[string]any, key string, to *V, problems *[]error) {
	value, there := from[key]
	if !there || value == nil {
		return
	}
	taken, ok := value.(V)
	if !ok {
		*problems = append(*problems, fmt.Errorf("its %s is not in the Image Factory's format", key))
		return
	}
	*to = taken
	delete(from, key)
}

func metaKey(key any) string {
	n, err := strconv.ParseUint(fmt.Sprint(key), 0, 8)
	if err != nil {
		return fmt.Sprint(key)
	}
	return fmt.Sprintf("%#x", n)
}

// flatten writes each value of a tree to out by its path. Empty values ask for nothing and are left out.
func flatten(path string, value any, out map[string]string) {
	switch v := value.(type) {
	case nil:
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			flatten(strings.TrimPrefix(path+"."+key, "."), v[key], out)
		}
	case []any:
		for i, entry := range v {
			flatten(fmt.Sprintf("%s[%d]", path, i), entry, out)
		}
	default:
		if text := fmt.Sprint(v); text != "" {
			out[path] = text
		}
	}
}

// SchematicChange is one way in which two schematics differ. No part of it is secret.
type SchematicChange struct {
	Code     string // "kernel-argument", "meta", "overlay", "bootloader", "embedded-config", "schematic"
	What     string // "kernel argument mitigations"
	Old, New string // "": it is not there
}

func (c SchematicChange) String() string {
	switch {
	case c.Old == c.New:
		return c.What + " has another value"
	case c.Old == "":
		return fmt.Sprintf("%s is missing", strings.TrimSpace(c.What+" "+c.New))
	case c.New == "":
		return fmt.Sprintf("%s is not in the schematic", strings.TrimSpace(c.What+" "+c.Old))
	}
	return fmt.Sprintf("%s: %s → %s", c.What, c.Old, c.New)
}

// CompareSchematics compares, of the extensions only the order: a node itself lists which it has.
func CompareSchematics(found, wanted Schematic) []SchematicChange {
	out := compareArgs(found.KernelArgs, wanted.KernelArgs)
	out = append(out, compareMeta(found.Meta, wanted.Meta)...)
	if found.EmbeddedConfig != wanted.EmbeddedConfig {
		out = append(out, SchematicChange{"embedded-config", "embedded machine configuration", there(found.EmbeddedConfig), there(wanted.EmbeddedConfig)})
	}
	for _, path := range slices.Sorted(maps.Keys(union(found.Rest, wanted.Rest))) {
		if was, is := found.Rest[path], wanted.Rest[path]; was != is {
			code, what := named(path)
			out = append(out, SchematicChange{code, what, shown(was), shown(is)})
		}
	}
	if reordered(found.Extensions, wanted.Extensions) {
		out = append(out, SchematicChange{"schematic", "order of the extensions", strings.Join(found.Extensions, ", "), strings.Join(wanted.Extensions, ", ")})
	}
	return out
}

// compareArgs compares kernel arguments as lists: one may be there twice, and of one name the later counts.
func compareArgs(was, is []string) (out []SchematicChange) {
	gone, fresh := without(was, is), without(is, was)
	for _, arg := range gone {
		name, old, _ := strings.Cut(arg, "=")
		i := slices.IndexFunc(fresh, func(f string) bool { other, _, _ := strings.Cut(f, "="); return other == name })
		if i < 0 || old == "" {
			out = append(out, SchematicChange{"kernel-argument", "kernel argument", show(arg), ""})
			continue
		}
		value := func(arg string) string { _, v, _ := strings.Cut(show(arg), "="); return v }
		out = append(out, SchematicChange{"kernel-argument", "kernel argument " + name, value(arg), value(fresh[i])})
		fresh = slices.Delete(fresh, i, i+1)
	}
	for _, arg := range fresh {
		out = append(out, SchematicChange{"kernel-argument", "kernel argument", "", show(arg)})
	}
	if len(out) == 0 && !slices.Equal(was, is) {
		out = append(out, SchematicChange{"kernel-argument", "order of the kernel arguments", strings.Join(each(was, show), " "), strings.Join(each(is, show), " ")})
	}
	return out
}

func without(list, other []string) []string {
	list = slices.Clone(list)
	for _, o := range other {
		if i := slices.Index(list, o); i >= 0 {
			list = slices.Delete(list, i, i+1)
		}
	}
	return list
}

func compareMeta(was, is map[string]string) (out []SchematicChange) {
	for _, key := range slices.Sorted(maps.Keys(union(was, is))) {
		old, hadOne := was[key]
		fresh, hasOne := is[key]
		if old != fresh || hadOne != hasOne {
			out = append(out, SchematicChange{"meta", "META value " + key, metaShown(old, hadOne), metaShown(fresh, hasOne)})
		}
	}
	return out
}

// metaShown returns a META value as it may be shown: only a short line, as others may be configurations with keys.
func metaShown(value string, there bool) string {
	switch {
	case !there:
		return ""
	case value == "" || len(value) > 60 || strings.ContainsAny(value, "\r\n"):
		return redact.Mark
	}
	return shown(value)
}

var names = []struct{ prefix, code, what string }{
	{"overlay.name", "overlay", "overlay"},
	{"overlay.image", "overlay", "image of the overlay"},
	{"overlay.options.", "overlay", "option of the overlay "},
	{"customization.bootloader", "bootloader", "bootloader"},
	{"customization.secureboot.", "secure-boot", "Secure Boot setting "},
	{"customization.diskImage.", "schematic", "setting of the disk image "},
	{"customization.", "schematic", "schematic's "},
}

func named(path string) (code, what string) {
	for _, n := range names {
		if rest, ok := strings.CutPrefix(path, n.prefix); ok {
			return n.code, n.what + rest
		}
	}
	return "schematic", "schematic's " + path
}

// show returns a kernel argument without its secrets.
func show(arg string) string { shown, _ := redact.KernelArg(arg); return shown }

// shown returns any other value without what looks like a secret.
func shown(value string) string { return redact.New(nil).Text(value) }

func each(list []string, change func(string) string) (out []string) {
	for _, entry := range list {
		out = append(out, change(entry))
	}
	return out
}

// there hides a text that is secret as a whole.
func there(text string) string {
	if text == "" {
		return ""
	}
	return redact.Mark
}

func reordered(a, b []string) bool {
	return !slices.Equal(a, b) && slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}
