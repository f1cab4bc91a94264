package config

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/recast-sh/recast/internal/redact"
)

// Change is one field in which two configurations differ. No part of it is secret.
type Change struct {
	Document string `json:"document"`       // kind and name; "v1alpha1" for the one without a kind
	Path     string `json:"path,omitempty"` // "machine.network.interfaces[eth0].mtu"; "" for the document as a whole
	Kind     Kind   `json:"change"`
	Found    string `json:"found,omitempty"`  // what the node runs, in one line
	Wanted   string `json:"wanted,omitempty"` // what it would get
}

// Kind says how a field differs.
type Kind string

// The kinds of changes. Reordered is a list with the same entries in another order.
const (
	Added     Kind = "added"
	Removed   Kind = "removed"
	Changed   Kind = "changed"
	Reordered Kind = "reordered"
)

// OfKubernetesVersion says whether only the version of an image of Kubernetes differs. One of the two may name none:
// then it is Talos' default. recast upgrade-k8s upgrades Kubernetes.
func (c Change) OfKubernetesVersion() bool {
	usual, is := kubernetesImages[c.Document+" "+c.Path]
	if !is {
		return false
	}
	return repository(cmp.Or(c.Found, usual)) == repository(cmp.Or(c.Wanted, usual))
}

// OfHostname says whether only the document differs that names the machine, or how that says it: recast sets the hostname itself.
func (c Change) OfHostname() bool {
	return c.Document == "HostnameConfig" || c.Document == MainDocument && c.Path == "machine.network.hostname"
}

func repository(image string) string {
	name, _, _ := strings.Cut(image, "@")
	if colon := strings.LastIndex(name, ":"); colon > strings.LastIndex(name, "/") {
		name = name[:colon]
	}
	return name
}

// kubernetesImages are the fields of images of Kubernetes, with Talos' default repositories (machinery, constants.go).
var kubernetesImages = map[string]string{
	"v1alpha1 cluster.apiServer.image":         "registry.k8s.io/kube-apiserver",
	"v1alpha1 cluster.controllerManager.image": "registry.k8s.io/kube-controller-manager",
	"v1alpha1 cluster.scheduler.image":         "registry.k8s.io/kube-scheduler",
	"v1alpha1 cluster.proxy.image":             "registry.k8s.io/kube-proxy",
	"v1alpha1 machine.kubelet.image":           "ghcr.io/siderolabs/kubelet",
	"KubeAPIServerConfig image":                "registry.k8s.io/kube-apiserver",
	"KubeControllerManagerConfig image":        "registry.k8s.io/kube-controller-manager",
	"KubeSchedulerConfig image":                "registry.k8s.io/kube-scheduler",
	"KubeProxyConfig image":                    "registry.k8s.io/kube-proxy",
	"KubeletConfig image":                      "ghcr.io/siderolabs/kubelet",
}

// Compare lists how wanted differs from found, by document and path. The order of documents
// and keys, comments and style do not matter, nor whether a key is absent or null.
//
// Lists of scalars are compared by their entries, and lists of mappings by a key that names
// each entry if they have one, else by index. Another order of the same entries is a change of
// its own, Reordered: Talos' lists have no common rule for it.
//
// A secret is reported as changed, but its value is not shown: see package redact. A value that
// is secret in one place of either configuration is secret in every other place.
func Compare(found, wanted Documents) []Change {
	c := comparison{screen: newScreen(found, wanted)}
	was, is := byID(found), byID(wanted)
	for _, id := range slices.Sorted(maps.Keys(union(was, is))) {
		c.document = id
		a, b := was[id], is[id]
		switch {
		case a == nil:
			c.add(nil, Added, "", "")
			c.whole(nil, b, Added)
		case b == nil:
			c.add(nil, Removed, "", "")
			c.whole(nil, a, Removed)
		default:
			c.value(nil, a, b)
		}
	}
	return c.changes
}

func byID(d Documents) map[string]*value {
	out := map[string]*value{}
	for _, doc := range d.list {
		out[doc.id] = doc.root
	}
	return out
}

func union[V any](a, b map[string]V) map[string]V {
	all := map[string]V{}
	maps.Copy(all, a)
	maps.Copy(all, b)
	return all
}

type comparison struct {
	screen
	document string
	changes  []Change
}

// part is one step of a path: a key of a mapping, or an entry of a list.
type part struct {
	key   string
	entry bool
}

func (c *comparison) add(path []part, k Kind, found, wanted string) {
	c.changes = append(c.changes, Change{Document: c.name(c.document), Path: c.path(path), Kind: k, Found: found, Wanted: wanted})
}

// at returns path with one more step. The result shares no memory with other paths.
func at(path []part, key string, entry bool) []part {
	return append(slices.Clip(path), part{key, entry})
}

func (c *comparison) value(path []part, a, b *value) {
	switch {
	case a.kind == null && b.kind == null:
	case a.kind == null:
		c.whole(path, b, Added)
	case b.kind == null:
		c.whole(path, a, Removed)
	case a.kind == mapping && b.kind == mapping:
		for _, key := range slices.Sorted(maps.Keys(union(a.fields, b.fields))) {
			c.value(at(path, key, false), orNull(a.fields[key]), orNull(b.fields[key]))
		}
	case a.kind == list && b.kind == list:
		c.list(path, a, b)
	case a.kind != b.kind || a.text != b.text:
		c.add(path, Changed, c.show(path, a), c.show(path, b))
	}
}

func orNull(v *value) *value {
	if v == nil {
		return &value{}
	}
	return v
}

// whole lists the fields of a value that only one side has.
func (c *comparison) whole(path []part, v *value, k Kind) {
	before := len(c.changes)
	for _, key := range slices.Sorted(maps.Keys(v.fields)) {
		child := v.fields[key]
		if child.kind == null || path == nil && (key == "apiVersion" || key == "kind") {
			continue
		}
		c.whole(at(path, key, false), child, k)
	}
	if path != nil && len(c.changes) == before {
		c.one(path, v, k)
	}
}

// one adds a single change for a value that only one side has.
func (c *comparison) one(path []part, v *value, k Kind) {
	if k == Added {
		c.add(path, k, "", c.show(path, v))
		return
	}
	c.add(path, k, c.show(path, v), "")
}

func (c *comparison) list(path []part, a, b *value) {
	keyA, keyB, entries := keysOf(a, b)
	if keyA == nil {
		c.byIndex(path, a.items, b.items)
		return
	}
	only := func(key string, v *value, k Kind) {
		if entries {
			c.one(path, v, k)
		} else {
			c.whole(at(path, key, true), v, k)
		}
	}
	inA, inB := places(keyA), places(keyB)
	for i, key := range keyA {
		switch j, both := inB[key]; {
		case !both:
			only(key, a.items[i], Removed)
		case !entries:
			c.value(at(path, key, true), a.items[i], b.items[j])
		}
	}
	for j, key := range keyB {
		if _, both := inA[key]; !both {
			only(key, b.items[j], Added)
		}
	}
	both := func(of []string, other map[string]int) []string {
		return slices.DeleteFunc(slices.Clone(of), func(key string) bool { _, there := other[key]; return !there })
	}
	if was, is := both(keyA, inB), both(keyB, inA); !slices.Equal(was, is) {
		c.add(path, Reordered, c.show(path, a), c.show(path, b))
	}
}

func places(keys []string) map[string]int {
	at := map[string]int{}
	for i, key := range keys {
		at[key] = i
	}
	return at
}

func (c *comparison) byIndex(path []part, a, b []*value) {
	for i := range max(len(a), len(b)) {
		switch entry := at(path, strconv.Itoa(i), true); {
		case i >= len(a):
			c.whole(entry, b[i], Added)
		case i >= len(b):
			c.whole(entry, a[i], Removed)
		default:
			c.value(entry, a[i], b[i])
		}
	}
}

// naming are the keys that identify the entries of Talos' lists.
var naming = []string{"name", "interface", "path", "network", "endpoint", "ip"}

// keysOf names each entry of two lists, without duplicates; nil: no key does. entries: they are scalars, and names.
func keysOf(a, b *value) (keysA, keysB []string, entries bool) {
	for _, key := range append([]string{""}, naming...) {
		keysA, okA := entryKeys(a, key)
		keysB, okB := entryKeys(b, key)
		if okA && okB {
			return keysA, keysB, key == ""
		}
	}
	return nil, nil, false
}

// entryKeys returns the value of a key in each entry; "": the entries. They must be scalars without duplicates.
func entryKeys(v *value, key string) ([]string, bool) {
	keys, seen := []string{}, map[string]bool{}
	for _, entry := range v.items {
		if key != "" {
			entry = orNull(entry.fields[key])
		}
		if entry.kind != scalar || seen[entry.text] {
			return nil, false
		}
		seen[entry.text] = true
		keys = append(keys, entry.text)
	}
	return keys, true
}

func plainKey(key string) bool {
	return key != "" && !strings.ContainsAny(key, ".[]\" :=\\") && quoted(key) == key
}

// Discovers says whether the configuration makes its machine register with the discovery of its cluster.
func (d Documents) Discovers() bool {
	return d.Has("DiscoveryServiceConfig") || slices.Contains(d.said([]string{"cluster", "discovery", "enabled"}, "", nil), "true")
}

// DiscoveryService: the machine registers with one. Kubernetes' registry forgets without delay and is none.
func (d Documents) DiscoveryService() bool {
	off := d.said([]string{"cluster", "discovery", "registries", "service", "disabled"}, "", nil)
	return d.Has("DiscoveryServiceConfig") || d.Discovers() && !slices.Contains(off, "true")
}

func (d Documents) Hostname() string {
	return cmp.Or(d.said([]string{"machine", "network", "hostname"}, "HostnameConfig", []string{"hostname"})...)
}

// KubeSpan: the machine takes part in KubeSpan (machine.network.kubespan, or KubeSpanConfig since Talos 1.13).
func (d Documents) KubeSpan() bool {
	return slices.Contains(d.said([]string{"machine", "network", "kubespan", "enabled"}, "KubeSpanConfig", []string{"enabled"}), "true")
}

// said returns a setting's values, at main in the main document and at path in documents of a kind; "": in no other.
func (d Documents) said(main []string, kind string, path []string) (values []string) {
	for _, doc := range d.list {
		at := main
		if doc.id != MainDocument {
			at = path
		}
		if doc.root == nil || doc.id != MainDocument && doc.kind() != kind {
			continue
		}
		if v := doc.root.at(at); v != nil {
			values = append(values, v.shown)
		}
	}
	return values
}

func (d Documents) Has(kind string) bool {
	return slices.ContainsFunc(d.list, func(doc document) bool { return doc.kind() == kind })
}

// InstallArgs returns the kernel arguments of machine.install.extraKernelArgs. byImage says that GRUB is to take the
// boot image's arguments instead (grubUseUKICmdline). UnattendedInstallConfig has neither setting: an installer
// without that section takes the image's arguments. An entry may hold several arguments: Talos joins all entries
// before it reads them (siderolabs/go-procfs, Cmdline.AppendAll).
func (d Documents) InstallArgs() (args []string, byImage bool) {
	if list := d.main("machine", "install", "extraKernelArgs"); list != nil {
		for _, arg := range list.items {
			args = append(args, strings.Fields(arg.shown)...)
		}
	}
	uki := d.main("machine", "install", "grubUseUKICmdline")
	return args, uki != nil && uki.shown == "true"
}

// Hidden replaces a secret. A journal takes redact.Mark for one that should have been kept, and refuses it.
const Hidden = "[redacted value]"

// screen removes secrets from what is shown of a configuration: by path, and everywhere else by value.
type screen struct {
	secrets map[string]bool // whole values
	known   redact.Redactor
}

func newScreen(of ...Documents) screen {
	s := screen{secrets: map[string]bool{}}
	var foreign []string
	for _, docs := range of {
		for _, doc := range docs.list {
			s.collect(doc.root, nil, &foreign)
		}
	}
	s.known = redact.New(append(foreign, slices.Collect(maps.Keys(s.secrets))...))
	return s
}

// collect finds a value's secrets. In foreign fields, what may be a word of the configuration is none.
func (s *screen) collect(v *value, path []string, foreign *[]string) {
	for key, child := range v.fields {
		s.collect(child, append(slices.Clip(path), key), foreign)
	}
	for _, item := range v.items {
		s.collect(item, path, foreign)
	}
	switch text := v.shown; {
	case v.kind != scalar || text == "":
	case redact.Named(path, text):
		s.secrets[text] = true
	case redact.Foreign(path):
		if _, value, ok := redact.Variable(path, text); ok {
			text = value
		}
		*foreign = append(*foreign, text)
	}
}

func (s screen) show(path []part, v *value) string {
	if text := s.flow(keysIn(path), v); text != redact.Mark { // a list with that one word would look like the mark
		return text
	}
	return Hidden
}

// keysIn returns the keys of a path. The keys say what a value is.
func keysIn(path []part) (keys []string) {
	for _, p := range path {
		if !p.entry {
			keys = append(keys, p.key)
		}
	}
	return keys
}

func (s screen) flow(path []string, v *value) string {
	var parts []string
	switch v.kind {
	case mapping:
		for _, key := range slices.Sorted(maps.Keys(v.fields)) {
			parts = append(parts, s.name(key)+": "+s.flow(append(slices.Clip(path), key), v.fields[key]))
		}
		return "{" + strings.Join(parts, ", ") + "}"
	case list:
		for _, item := range v.items {
			parts = append(parts, s.flow(path, item))
		}
		return "[" + strings.Join(parts, ", ") + "]"
	case scalar:
		return s.scalar(path, v.shown)
	}
	return "null"
}

func (s screen) scalar(path []string, text string) string {
	switch {
	case text == "":
		return quoted(text)
	case redact.Named(path, text):
		return Hidden
	case redact.Foreign(path):
		if name, _, ok := redact.Variable(path, text); ok {
			return s.name(name) + "=" + redact.Mark
		}
		return Hidden
	}
	return s.name(text)
}

// name shows a text that is not secret by its place, but may be secret by its value.
func (s screen) name(text string) string {
	if s.secrets[text] {
		return Hidden
	}
	if text = s.known.Text(text); text == redact.Mark {
		return Hidden
	}
	return quoted(text)
}

// path writes a path for people: machine.sysctls["vm.swappiness"].
func (s screen) path(path []part) string {
	var out strings.Builder
	for _, p := range path {
		key := s.name(p.key)
		switch {
		case p.entry:
			out.WriteString("[" + key + "]")
		case key != Hidden && !plainKey(p.key):
			out.WriteString("[" + strconv.Quote(s.known.Text(p.key)) + "]")
		default:
			if out.Len() > 0 {
				out.WriteByte('.')
			}
			out.WriteString(key)
		}
	}
	return out.String()
}

// Redacted returns a configuration for people: without secrets, and without comments, which may quote one.
func Redacted(b []byte) ([]byte, error) {
	docs, err := Parse(b)
	if err != nil || len(docs.list) == 0 {
		return nil, err
	}
	s := newScreen(docs)
	var out bytes.Buffer
	decoder := yaml.NewDecoder(bytes.NewReader(b))
	dumper, err := yaml.NewDumper(&out, yaml.WithV3Defaults(), yaml.WithIndent(4), yaml.WithLineWidth(-1))
	if err != nil {
		return nil, fmt.Errorf("write YAML: %w", err)
	}
	for {
		var n yaml.Node
		err := decoder.Decode(&n)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, notYAML(err)
		}
		if len(n.Content) != 1 || n.Content[0].ShortTag() == "!!null" {
			continue // only comments
		}
		s.redact(n.Content[0], nil)
		if err := dumper.Dump(n.Content[0]); err != nil {
			return nil, errors.New("it can't be written as YAML") // the writer's error may quote it
		}
	}
	if err := dumper.Close(); err != nil {
		return nil, errors.New("it can't be written as YAML")
	}
	return out.Bytes(), nil
}

// redact replaces secrets below a node. An alias shows what its anchor shows: what is secret at one place is known.
func (s screen) redact(n *yaml.Node, path []string) {
	n.HeadComment, n.LineComment, n.FootComment = "", "", ""
	switch n.Kind {
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			key, value := n.Content[i], n.Content[i+1]
			s.redact(value, append(path[:len(path):len(path)], key.Value))
			s.redact(key, nil)
		}
	case yaml.SequenceNode:
		for _, item := range n.Content {
			s.redact(item, path)
		}
	case yaml.ScalarNode:
		if n.ShortTag() == "!!null" || n.Value == "" {
			return
		}
		if shown := s.scalar(path, n.Value); shown != quoted(n.Value) {
			n.SetString(shown)
			n.Tag, n.Style = "!!str", 0
		}
	}
}
