package config

import (
	"cmp"
	"encoding"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"maps"
	"net/netip"
	"net/url"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/recast-sh/recast/internal/words"
)

// decode decodes n into out, which is a struct of this package or a value in one. Unlike the YAML library's strict
// decoding, decode knows the path and the column of every problem.
func (r *report) decode(n *yaml.Node, at spot, out reflect.Value, f field) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if out.Kind() == reflect.Pointer { // nil says that the key is missing
		out.Set(reflect.New(out.Type().Elem()))
		out = out.Elem()
	}
	if n.Kind == yaml.ScalarNode {
		r.decodeScalar(n, at, out, f)
		return
	}
	switch {
	case n.Kind == yaml.MappingNode && out.Kind() == reflect.Struct && !texts[out.Type()].whole:
		r.decodeSection(n, at, out)
	case n.Kind == yaml.MappingNode && out.Kind() == reflect.Map:
		r.decodeEntries(n, at, out)
	case n.Kind == yaml.SequenceNode && out.Kind() == reflect.Slice:
		r.decodeItems(n, at, out)
	default:
		r.mismatch(n, at, out)
	}
}

func (r *report) decodeSection(n *yaml.Node, at spot, out reflect.Value) {
	fields := fieldsOf(out.Type())
	for key, value := range r.pairs(n, at.path) {
		i := slices.IndexFunc(fields, func(f field) bool { return f.key == key })
		if i < 0 {
			r.unknownKey(at.key(key), key, fields)
			continue
		}
		r.decode(value, at.key(key), out.FieldByIndex(fields[i].index), fields[i])
	}
	for _, f := range fields {
		if path := at.key(f.key).path; f.required && !r.given(path) {
			r.add(path, "required")
		}
	}
}

func (r *report) decodeEntries(n *yaml.Node, at spot, out reflect.Value) {
	out.Set(reflect.MakeMap(out.Type()))
	for key, value := range r.pairs(n, at.path) {
		v := reflect.New(out.Type().Elem()).Elem()
		r.decode(value, at.key(key), v, field{})
		out.SetMapIndex(reflect.ValueOf(key), v)
	}
}

func (r *report) decodeItems(n *yaml.Node, at spot, out reflect.Value) {
	out.Set(reflect.MakeSlice(out.Type(), len(n.Content), len(n.Content)))
	for i, item := range n.Content {
		here := at.item(i)
		r.places[here.path] = place{item.Line, item.Column}
		r.decode(item, here, out.Index(i), field{})
	}
}

func (r *report) decodeScalar(n *yaml.Node, at spot, out reflect.Value, f field) {
	if n.ShortTag() == "!!null" {
		r.add(at.path, "has no value: give it one or remove it")
		return
	}
	text := n.Value
	if n.ShortTag() == "!!bool" {
		text = strings.ToLower(text) // True and TRUE are true
	}
	if u, ok := out.Addr().Interface().(encoding.TextUnmarshaler); ok && textual(n, out) {
		if err := u.UnmarshalText([]byte(n.Value)); err != nil {
			r.add(at.path, "%v", err)
		}
		return
	}
	tag, kind := n.ShortTag(), out.Kind()
	switch {
	case kind == reflect.String && tag == "!!str":
		out.SetString(n.Value)
	case kind == reflect.Bool && tag == "!!bool":
		out.SetBool(text == "true")
	case kind == reflect.Int && tag == "!!int":
		i, err := strconv.Atoi(n.Value)
		if err != nil || strconv.Itoa(i) != n.Value {
			r.add(at.path, "%s is not a plain decimal number", quote(n.Value))
			return
		}
		out.SetInt(int64(i))
	default:
		r.mismatch(n, at, out)
		return
	}
	if f.enum != nil && !slices.Contains(f.enum, n.Value) {
		r.add(at.path, "%s is not one of %s%s", quote(n.Value), strings.Join(f.enum, ", "), words.DidYouMean(n.Value, f.enum))
	}
}

// texts are types of this package that the file has as text.
var texts = map[reflect.Type]struct {
	words  string // what a value is
	whole  bool   // never a section
	number bool   // a number or a unit is expected
}{
	reflect.TypeFor[Duration]():  {"a duration such as 10m", true, true},
	reflect.TypeFor[VMIDRange](): {"a range such as 9000-9099", true, false},
	reflect.TypeFor[Surge]():     {"a number such as 1 or a percentage such as 10%", true, true},
	reflect.TypeFor[Share]():     {"a number such as 2 or a percentage such as 20%", true, true},
	reflect.TypeFor[Canary]():    {"true, false or the name of a node", true, false},
	reflect.TypeFor[Storage]():   {"on, off, or a section such as {linstor: off}", false, false},
	reflect.TypeFor[ImageRef]():  {"an image reference such as ghcr.io/acme/frr:1.7.15", true, false},
	reflect.TypeFor[DiskSize]():  {"a size such as 100G", true, false},
	reflect.TypeFor[Schematic](): {"the path of a file", false, false},
}

// textual says whether the type's UnmarshalText reads this node. A number is passed to UnmarshalText only if the type
// expects a number or a unit, so that the type's own message reports a missing unit.
func textual(n *yaml.Node, out reflect.Value) bool {
	tag := n.ShortTag()
	if out.Type() == reflect.TypeFor[Canary]() {
		return tag == "!!str" || tag == "!!bool"
	}
	return tag == "!!str" || texts[out.Type()].number && (tag == "!!int" || tag == "!!float")
}

func (r *report) mismatch(n *yaml.Node, at spot, out reflect.Value) {
	want, got := nameOfType(out.Type()), nameOfNode(n)
	if want == "text" && n.Kind == yaml.ScalarNode {
		got += ": put it in quotes"
	}
	r.add(at.path, "must be %s, not %s", want, got)
}

// field is a struct field that is a key of the file, with the rules of its jsonschema
// tag; the JSON Schema is generated from the same tag.
type field struct {
	key      string
	index    []int
	required bool
	enum     []string // the allowed values; nil: any
	rules    []string // all rules of the tag, such as "minimum=1"
}

func fieldsOf(t reflect.Type) []field {
	var fields []field
	for sf := range t.Fields() {
		key, _, _ := strings.Cut(sf.Tag.Get("yaml"), ",")
		if key == "" || key == "-" {
			continue
		}
		f := field{key: key, index: sf.Index, rules: strings.Split(sf.Tag.Get("jsonschema"), ",")}
		for _, rule := range f.rules {
			if v, ok := strings.CutPrefix(rule, "enum="); ok {
				f.enum = append(f.enum, v)
			}
			f.required = f.required || rule == "required"
		}
		fields = append(fields, f)
	}
	return fields
}

// pairs iterates over the valid keys of a mapping, stores the position of each, and reports the other keys.
func (r *report) pairs(n *yaml.Node, path string) iter.Seq2[string, *yaml.Node] {
	return func(yield func(string, *yaml.Node) bool) {
		for i := 0; i+1 < len(n.Content); i += 2 {
			key, value := n.Content[i], n.Content[i+1]
			at := place{key.Line, key.Column}
			here := spot{path: path}.key(key.Value).path
			switch {
			case key.ShortTag() == "!!merge":
				r.addAt(at, here, "merge keys are not supported: write the keys out")
			case key.Kind != yaml.ScalarNode || key.ShortTag() != "!!str":
				r.addAt(at, here, "a key must be text: put it in quotes")
			case r.given(here):
				r.addAt(at, here, "already exists (line %d)", r.line(here))
			default:
				r.places[here] = at
				if !yield(key.Value, value) {
					return
				}
			}
		}
	}
}

// unknownKey reports an unknown key, with the possible keys; for a key that looks like a secret, with what to do
// about it.
func (r *report) unknownKey(at spot, key string, fields []field) {
	lower := strings.ToLower(key)
	for _, word := range []string{"token", "password", "passwd", "secret", "apikey"} {
		if strings.Contains(lower, word) {
			r.add(at.path, "secrets never live in this file: export PROXMOX_VE_API_TOKEN")
			return
		}
	}
	if lower == "insecure" {
		r.add(at.path, "TLS is always verified: give fingerprint or caFile")
		return
	}
	var known []string
	for _, f := range fields {
		known = append(known, f.key)
	}
	if meant := words.Closest(key, known); meant != "" {
		r.add(at.path, "unknown key, did you mean %q?", meant)
		r.bad[join(parent(at.path), meant)] = true // the key is misspelt, not missing
		return
	}
	r.add(at.path, "unknown key, expected one of %s", strings.Join(known, ", "))
}

func nameOfType(t reflect.Type) string {
	if text, is := texts[t]; is {
		return text.words
	}
	switch t.Kind() {
	case reflect.String:
		return "text"
	case reflect.Bool:
		return "true or false"
	case reflect.Int:
		return "a whole number"
	case reflect.Slice:
		return "a list"
	default:
		return "a section with keys"
	}
}

func nameOfNode(n *yaml.Node) string {
	switch n.Kind {
	case yaml.SequenceNode:
		return "a list"
	case yaml.MappingNode:
		return "a section"
	}
	switch n.ShortTag() {
	case "!!str":
		return "text"
	case "!!int", "!!float":
		return "the number " + bare(n.Value)
	case "!!bool":
		return bare(n.Value)
	case "!!timestamp":
		return "the date " + bare(n.Value)
	default:
		return "a value tagged " + quote(n.ShortTag())
	}
}

// bare is like quote, without the quotes.
func bare(s string) string { return strings.Trim(quote(s), `"`) }

// spot is the decoder's position in the file.
type spot struct{ path string }

func (s spot) key(name string) spot { return spot{join(s.path, plain(name))} }
func (s spot) item(i int) spot      { return spot{s.path + "[" + strconv.Itoa(i) + "]"} }

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// plain returns a key as shown in a path: quoted if it would break the line or the path.
func plain(key string) string {
	special := func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '_'
	}
	if key == "" || len(key) > 60 || strings.ContainsFunc(key, special) {
		return quote(key)
	}
	return key
}

// Duration is a time.Duration that is read and written as "10m" or "1h30m".
type Duration time.Duration

// UnmarshalText reads a duration with its unit.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("%s is not a duration: write it like 30s, 10m or 1h30m", quote(string(text)))
	}
	*d = Duration(v)
	return nil
}

func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// String leaves out the zero units that time.Duration prints: "10m", not "10m0s".
func (d Duration) String() string {
	s := time.Duration(d).String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// The VMIDs that Proxmox VE allows.
const (
	minVMID = 100
	maxVMID = 999999999
)

// VMIDRange is a range of VMIDs, both ends included, written "9000-9099".
type VMIDRange struct{ First, Last int }

// UnmarshalText reads "first-last" and accepts only VMIDs that Proxmox allows.
func (r *VMIDRange) UnmarshalText(text []byte) error {
	first, last, ok := strings.Cut(string(text), "-")
	lo, errLo := strconv.Atoi(first)
	hi, errHi := strconv.Atoi(last)
	switch {
	case !ok || errLo != nil || errHi != nil:
		return fmt.Errorf("%s is not a range of VMIDs: write it like 9000-9099", quote(string(text)))
	case lo < minVMID || hi > maxVMID:
		return fmt.Errorf("%s is out of bounds: Proxmox allows %d-%d", quote(string(text)), minVMID, maxVMID)
	case lo > hi:
		return fmt.Errorf("%s runs backwards: did you mean %d-%d?", quote(string(text)), hi, lo)
	}
	*r = VMIDRange{lo, hi}
	return nil
}

func (r VMIDRange) MarshalText() ([]byte, error) { return []byte(r.String()), nil }
func (r VMIDRange) String() string               { return fmt.Sprintf("%d-%d", r.First, r.Last) }
func (r VMIDRange) Len() int                     { return r.Last - r.First + 1 }
func (r VMIDRange) Contains(id int) bool         { return r.First <= id && id <= r.Last }

// All iterates over the VMIDs of the range, lowest first.
func (r VMIDRange) All() iter.Seq[int] {
	return func(yield func(int) bool) {
		for id := r.First; id <= r.Last; id++ {
			if !yield(id) {
				return
			}
		}
	}
}

// Problem is one mistake in the file.
type Problem struct {
	File         string
	Line, Column int    // counted from 1
	Path         string // "nodes[2].vmid"; "" for the whole file
	Message      string
}

// String returns the problem on one line: file:line:column: path: message.
func (p Problem) String() string {
	where := fmt.Sprintf("%s:%d:%d: ", p.File, p.Line, p.Column)
	if p.Path != "" {
		where += p.Path + ": "
	}
	return where + p.Message
}

// Problems are all mistakes in a file, in the order of the file. Load and Parse return them, with kind fault.Config.
type Problems []Problem

func (ps Problems) Error() string {
	var b strings.Builder
	for _, p := range ps {
		fmt.Fprintln(&b, p)
	}
	if len(ps) == 1 {
		b.WriteString("1 problem")
	} else {
		fmt.Fprintf(&b, "%d problems", len(ps))
	}
	return b.String()
}

// report collects problems and the position of each path.
type report struct {
	file     string
	places   map[string]place
	problems Problems
	bad      map[string]bool // paths with a problem
}

// add reports a problem at the position of path. It drops the problem if path or a section around it already has a
// problem: the new one only follows from that.
func (r *report) add(path, format string, args ...any) {
	for p := path; p != ""; p = parent(p) {
		if r.bad[p] {
			return
		}
	}
	r.addAt(nearest(r.places, path), path, format, args...)
}

func (r *report) addAt(at place, path, format string, args ...any) {
	r.bad[path] = true
	r.problems = append(r.problems, Problem{
		File: r.file, Line: at.line, Column: at.column, Path: path,
		Message: fmt.Sprintf(format, args...),
	})
}

func (r *report) given(path string) bool {
	_, ok := r.places[path]
	return ok
}

// line returns the line of path, for messages that refer to it.
func (r *report) line(path string) int { return nearest(r.places, path).line }

// err returns the problems in the order of the file, or nil.
func (r *report) err() error {
	if len(r.problems) == 0 {
		return nil
	}
	slices.SortStableFunc(r.problems, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column), cmp.Compare(a.Path, b.Path))
	})
	return r.problems
}

// quote formats a value of the file for a message: one line, not too long.
func quote(s string) string {
	if r := []rune(s); len(r) > 60 {
		s = string(r[:60]) + "…"
	}
	return strconv.Quote(s)
}

// checker checks what the values mean, after all values have been read.
type checker struct {
	*report
	c        *Config
	expr     func(string) error // Options.Expr
	template func(string) error // Options.Template
}

func (k checker) all() {
	k.pattern("cluster", k.c.Cluster, `[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?`,
		"name of a cluster: letters, digits, '-', '_' and '.'")
	k.talos()
	k.version("kubernetes.version", k.c.Kubernetes.Version, "version of Kubernetes: write it like v1.35.4")
	k.images()
	k.schematics()
	k.proxmox()
	k.nodes()
	k.vms()
	k.roll()
	k.webhooks()
}

// pattern reports a given value that the pattern does not match completely.
func (r *report) pattern(path, value, pattern, what string) {
	if r.given(path) && !matches(value, pattern) {
		r.add(path, "%s is not a %s", quote(value), what)
	}
}

// matches says whether pattern describes the whole value.
func matches(value, pattern string) bool {
	return regexp.MustCompile(`^(` + pattern + `)$`).MatchString(value)
}

const semver = `(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)(-[0-9A-Za-z]+([.-][0-9A-Za-z]+)*)?`

func (k checker) talos() {
	k.version("talos.version", k.c.Talos.Version, "version of Talos: write it like v1.13.9")
	if matches(k.c.Talos.Version, `v(0|1\.[0-9])\..*`) {
		k.add("talos.version", "%s is too old: before v1.10 an installer does not include platform and kernel arguments, "+
			"so a node would not run what recast.lock says; use v1.10.0 or later", bare(k.c.Talos.Version))
	}
	k.notEmpty("talos.config", k.c.Talos.Config)
	k.machineConfigs()
}

func (r *report) version(path, v, what string) {
	if matches(v, semver) {
		r.add(path, "%q lacks its \"v\", did you mean \"v%s\"?", v, v)
	}
	r.pattern(path, v, "v"+semver, what)
}

func (r *report) notEmpty(path, value string) {
	if r.given(path) && value == "" {
		r.add(path, "is empty: give it a value or remove it")
	}
}

// url reports a value that is not the URL of a server. The message never shows the value, which may hold a password.
func (r *report) url(path, value string, schemes ...string) {
	u, err := url.Parse(value)
	switch {
	case err != nil || !slices.Contains(schemes, u.Scheme) || u.Hostname() == "":
		r.add(path, "is not the URL of a server: write it like %s://host", schemes[0])
	case u.User != nil:
		r.add(path, "holds a user or password: secrets never live in this file")
	case u.RawQuery != "" || u.Fragment != "" || u.ForceQuery:
		r.add(path, "has a query or fragment: give the server alone")
	}
}

func (k checker) proxmox() {
	px := k.c.Proxmox
	const list = "proxmox.endpoints"
	if k.given(list) && len(px.Endpoints) == 0 {
		k.add(list, "is empty: give at least one, like https://pve1.example:8006")
	}
	for i, e := range px.Endpoints {
		path := fmt.Sprintf("%s[%d]", list, i)
		k.url(path, e, "https")
		if u, err := url.Parse(e); err == nil && strings.Trim(u.Path, "/") != "" {
			k.add(path, "has a path: give the server alone, like https://pve1.example:8006")
		}
		same := func(other string) bool { return strings.TrimRight(other, "/") == strings.TrimRight(e, "/") }
		if first := slices.IndexFunc(px.Endpoints, same); first < i {
			k.add(path, "is listed already (line %d)", k.line(fmt.Sprintf("%s[%d]", list, first)))
		}
	}
	k.pattern("proxmox.fingerprint", px.Fingerprint, `[0-9A-Fa-f]{2}(:[0-9A-Fa-f]{2}){31}`,
		"SHA-256 fingerprint: 32 pairs of hex digits with colons between, as pvenode cert info shows it")
	k.notEmpty("proxmox.caFile", px.CAFile)
	if k.given("proxmox.fingerprint") && k.given("proxmox.caFile") {
		k.add("proxmox.caFile", "fingerprint is given too (line %d): keep one of them", k.line("proxmox.fingerprint"))
	}
	if k.given("proxmox.vmids") && px.VMIDs.Len() < 2 {
		k.add("proxmox.vmids", "%s is too small: recast needs one VMID for its claim and one for parked disks", px.VMIDs)
	}
}

func (k checker) nodes() {
	if k.given("nodes") && len(k.c.Nodes) == 0 {
		k.add("nodes", "is empty: name at least one node")
	}
	names, vmids := map[string]int{}, map[int]int{}
	for i, n := range k.c.Nodes {
		k.node(fmt.Sprintf("nodes[%d]", i), n)
		if first, ok := names[n.Name]; ok && n.Name != "" {
			k.add(nodePath(i, "name"), "%s already exists (line %d)", quote(n.Name), k.line(nodePath(first, "name")))
		} else {
			names[n.Name] = i
		}
		if first, ok := vmids[n.VMID]; ok && n.VMID != 0 {
			k.add(nodePath(i, "vmid"), "%d is already used by %s (line %d)", n.VMID, quote(k.c.Nodes[first].Name), k.line(nodePath(first, "vmid")))
		} else {
			vmids[n.VMID] = i
		}
	}
}

func nodePath(i int, key string) string { return fmt.Sprintf("nodes[%d].%s", i, key) }

func (k checker) node(path string, n Node) {
	const label = `[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?`
	k.pattern(path+".name", n.Name, label+`(\.`+label+`)*`,
		"name of a node: lower-case letters, digits and '-', at most 63, and maybe a domain")
	if k.given(path+".vmid") && (n.VMID < minVMID || n.VMID > maxVMID) {
		k.add(path+".vmid", "%d is out of bounds: Proxmox allows %d-%d", n.VMID, minVMID, maxVMID)
	}
	k.holder(path+".holder", n)
	k.names(path+".acceptLoss", "that the plan shows", n.AcceptLoss)
	if _, ok := k.c.Schematics[n.Schematic]; !ok && k.given(path+".schematic") && !k.bad["schematics"] {
		names := slices.Sorted(maps.Keys(k.c.Schematics))
		k.add(path+".schematic", "%s is not in schematics (line %d)%s", quote(n.Schematic), k.line("schematics"), words.DidYouMean(n.Schematic, names))
	}
	disk := path + ".systemDisk"
	k.pattern(disk+".slot", n.SystemDisk.Slot, diskSlot,
		"slot of a disk: write it like scsi0, virtio0 or sata0")
	if k.given(disk+".sizeGiB") && n.SystemDisk.SizeGiB < 1 {
		k.add(disk+".sizeGiB", "must be at least 1")
	}
}

func (k checker) holder(path string, n Node) {
	if !k.given(path) {
		return
	}
	if n.Holder < minVMID || n.Holder > maxVMID {
		k.add(path, "%d is out of bounds: Proxmox allows %d-%d", n.Holder, minVMID, maxVMID)
	}
	for i, other := range k.c.Nodes {
		if other.VMID == n.Holder {
			k.add(path, "%d is the VM of node %s (line %d): a holder must be another VM", n.Holder, quote(other.Name), k.line(nodePath(i, "vmid")))
		}
	}
}

// names checks that a list of names has no empty name and no duplicate.
func (r *report) names(list, of string, names []string) {
	for i, name := range names {
		path := fmt.Sprintf("%s[%d]", list, i)
		if strings.TrimSpace(name) == "" {
			r.add(path, "is empty: give the name %s, or remove it", of)
		}
		if first := slices.Index(names, name); first < i {
			r.add(path, "%s is listed already (line %d)", quote(name), r.line(fmt.Sprintf("%s[%d]", list, first)))
		}
	}
}

func (k checker) roll() {
	r := k.c.Roll
	if r.MaxUnavailable.PerHost < 1 {
		k.add("roll.maxUnavailable.perHost", "must be at least 1")
	}
	if name := r.Canary.Node; name != "" && !slices.ContainsFunc(k.c.Nodes, func(n Node) bool { return n.Name == name }) {
		k.add("roll.canary", "%s is not in nodes (line %d): write true, false or the name of a node", quote(name), k.line("nodes"))
	}
	if r.KeepDisks < 1 {
		k.add("roll.keepDisks", "must be at least 1: it is the way back; recast prune --keep-disks 0 frees it too")
	}
	k.names("roll.ignoreNodes", "of a node", r.IgnoreNodes)
	k.surge()
	k.notEmpty("roll.etcdSnapshot", r.EtcdSnapshot)
	k.gates()
	k.hooks()
	k.rehearse()
	if r.Settle < 0 {
		k.add("roll.settle", "must not be negative")
	}
	for path, d := range map[string]Duration{
		"roll.drain.timeout": r.Drain.Timeout,
		"roll.poll":          r.Poll,
		"roll.timeouts.stop": r.Timeouts.Stop,
		"roll.timeouts.boot": r.Timeouts.Boot,
		"roll.timeouts.join": r.Timeouts.Join,
		"roll.timeouts.try":  r.Timeouts.Try,

		"roll.timeouts.storage": r.Timeouts.Storage,
	} {
		if d <= 0 {
			k.add(path, "must be longer than 0")
		}
	}
}

// files checks that the files named in the configuration exist. Files that only some commands use may be missing.
func (r *report) files(c *Config, stat func(string) (fs.FileInfo, error)) {
	check := func(path, file, what string) {
		if !r.given(path) || file == "" {
			return
		}
		info, err := stat(file)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			r.add(path, "no such %s: %s", what, file)
		case err != nil:
			r.add(path, "%v", err)
		case info.IsDir() != (what == "directory"):
			r.add(path, "%s is not a %s", file, what)
		}
	}
	for name, s := range c.Schematics {
		check(spot{path: "schematics"}.key(name).path, s.Path, "file")
	}
	check("proxmox.caFile", c.Proxmox.CAFile, "file")
	check("images.caFile", c.Images.CAFile, "file")
	check("images.signingKey", c.Images.SigningKey, "file")
	program := func(path string, command []string) {
		if len(command) > 0 && strings.ContainsRune(command[0], filepath.Separator) {
			file := command[0]
			if !filepath.IsAbs(file) {
				file = filepath.Join(c.Dir, file)
			}
			check(path+".command", file, "file")
		}
	}
	for i, g := range c.Roll.Gates {
		program(fmt.Sprintf("roll.gates[%d]", i), g.Command)
	}
	program("talos.machineConfigs", c.Talos.MachineConfigs.Command)
	for _, list := range c.Roll.Hooks.lists() {
		for i, h := range list.hooks {
			program(fmt.Sprintf("%s[%d]", list.path, i), h.Command)
		}
	}
	for i, w := range c.Notify {
		check(fmt.Sprintf("notify[%d].caFile", i), w.CAFile, "file")
	}
	ifThere := func(path, file, what string) {
		if _, err := stat(file); !errors.Is(err, fs.ErrNotExist) {
			check(path, file, what)
		}
	}
	// Credentials are optional: building images needs no access to the cluster.
	ifThere("talos.config", c.Talos.Config, "file")
	ifThere("talos.machineConfigs", c.Talos.MachineConfigs.Path, "directory")
	c.Talos.MachineConfigs.Render.files(func(path string, file *string) { check(path, *file, "file") })
	// The directory is created when the first snapshot is saved.
	ifThere("roll.etcdSnapshot", c.Roll.EtcdSnapshot, "directory")
}

func (k checker) vms() {
	taken := map[string]string{} // address, or MAC address → node
	for _, name := range slices.Sorted(maps.Keys(k.c.VMClasses)) {
		k.vm(spot{path: "vmClasses"}.key(name), k.c.VMClasses[name])
	}
	for i, n := range k.c.Nodes {
		k.vm(spot{path: nodePath(i, "vm")}, n.VM)
		if path := nodePath(i, "class"); k.given(path) {
			if _, ok := k.c.VMClasses[n.Class]; !ok && !k.bad["vmClasses"] {
				k.add(path, "%s is not in vmClasses (line %d)%s", quote(n.Class), k.line("vmClasses"), words.DidYouMean(n.Class, slices.Sorted(maps.Keys(k.c.VMClasses))))
			}
		}
		k.pattern(nodePath(i, "host"), n.Host, hostName, "name of a Proxmox node")
		k.together(i, k.c.ShapeOf(n))
		if _, err := netip.ParseAddr(n.Address); n.Address != "" && err != nil {
			k.add(nodePath(i, "address"), "%s is not an address such as 192.0.2.31", quote(n.Address))
		}
		k.unshared(i, taken)
	}
}

// unshared refuses an IP or MAC address that another node has too: a class must not give the same address to all of
// its nodes.
func (k checker) unshared(i int, taken map[string]string) {
	n := k.c.Nodes[i]
	v := k.c.ShapeOf(n)
	have := []string{n.Address}
	for _, config := range v.IPConfig {
		for part := range strings.SplitSeq(config, ",") {
			if prefix, err := netip.ParsePrefix(part[strings.Index(part, "=")+1:]); err == nil {
				have = append(have, prefix.Addr().String())
			}
		}
	}
	for _, nic := range v.NICs {
		if nic.MAC != nil {
			have = append(have, strings.ToUpper(*nic.MAC))
		}
	}
	for _, address := range have {
		path := k.ownPath(i)
		if address == n.Address {
			path = nodePath(i, "address")
		}
		if other, ok := taken[address]; ok && other != n.Name {
			k.add(path, "%s is the address of node %s already", address, quote(other))
		}
		if address != "" {
			taken[address] = n.Name
		}
	}
}

// ownPath returns the path at which a node describes its VM: its own settings, else its class.
func (k checker) ownPath(i int) string {
	if path := nodePath(i, "vm"); k.given(path) {
		return path
	}
	return nodePath(i, "class")
}

// The names that Proxmox allows (pve-common, PVE/JSONSchema.pm: pve-node, pve-configid, pve-bridge-id,
// pve-tag, pve-startup-order; pve-access-control, PVE/AccessControl.pm: pve-poolid).
const (
	hostName  = `[A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?`
	configID  = `[A-Za-z][-A-Za-z0-9_]+`
	storageID = `[A-Za-z][-A-Za-z0-9_.]*[A-Za-z0-9]`
	diskSlot  = `scsi([0-9]|[12][0-9]|30)|virtio([0-9]|1[0-5])|sata[0-5]|ide[0-3]`
)

func (k checker) vm(at spot, v VM) {
	path := func(key string) string { return at.key(key).path }
	k.ranges(at, reflect.ValueOf(v))
	k.optional(path("cpu"), v.CPU, `[-A-Za-z0-9_.+]+(,[^\s,]+)*`, "type of a processor, such as host")
	k.optional(path("machine"), v.Machine, `(pc|q35|virt)(-[-A-Za-z0-9.+]+)?(,[^\s,]+)*`, "machine type, such as q35")
	k.optional(path("startup"), v.Startup, `(order=)?\d+(,(up|down)=\d+)*|(up|down)=\d+(,(up|down)=\d+)*`, "start order: write it like order=2,up=30")
	k.optional(path("pool"), v.Pool, `[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+){0,2}`, "name of a pool")
	if v.Description != nil && len([]rune(*v.Description)) > 4096 {
		k.add(path("description"), "is too long: Proxmox allows 8192 characters, and recast needs half of them for what it notes there")
	}
	for i, tag := range v.Tags {
		k.pattern(at.key("tags").item(i).path, tag, `[A-Za-z0-9_][-A-Za-z0-9_.+]*`, "tag: letters, digits, '_', '-', '.' and '+'")
	}
	k.names(path("tags"), "of a tag", v.Tags)
	if v.HA != nil {
		k.ranges(at.key("ha"), reflect.ValueOf(*v.HA))
		k.optional(path("ha")+".group", v.HA.Group, configID, "name of an HA group")
	}
	for i, nic := range v.NICs {
		here := at.key("nics").item(i)
		k.ranges(here, reflect.ValueOf(nic))
		k.optional(here.key("mac").path, nic.MAC, `([0-9A-Fa-f][02468ACEace](:[0-9A-Fa-f]{2}){5})`, "MAC address of a card")
		k.optional(here.key("bridge").path, nic.Bridge, `[-A-Za-z0-9_.:]{1,15}`, "name of a bridge")
	}
	k.optional(path("cloudinit"), v.CloudInit, storageID, "name of a storage")
	for i, config := range v.IPConfig {
		k.pattern(at.key("ipconfig").item(i).path, config, `(ip|ip6|gw|gw6)=[^\s,=]+(,(ip|ip6|gw|gw6)=[^\s,=]+)*`, "address: write it like ip=192.0.2.31/24,gw=192.0.2.1")
	}
	if len(v.NICs) > 32 {
		k.add(path("nics"), "has %d network cards: Proxmox allows 32", len(v.NICs))
	}
	for i, mapping := range v.HostPCI {
		k.pattern(at.key("hostpci").item(i).path, mapping, configID, "name of a resource mapping")
	}
	if len(v.HostPCI) > 16 {
		k.add(path("hostpci"), "has %d devices: Proxmox allows 16", len(v.HostPCI))
	}
	k.disks(at.key("disks"), v.Disks)
}

func (k checker) disks(at spot, disks []VMDisk) {
	slots, system := map[string]int{}, -1
	for i, d := range disks {
		here := at.item(i)
		k.pattern(here.key("slot").path, d.Slot, diskSlot, "slot of a disk: write it like scsi1, virtio1 or sata1")
		k.optional(here.key("storage").path, d.Storage, storageID, "name of a storage")
		k.optional(here.key("serial").path, d.Serial, `[-A-Za-z0-9_.]{1,20}`, "serial number: at most 20 letters, digits, '-', '_' and '.'")
		if first, ok := slots[d.Slot]; ok {
			k.add(here.key("slot").path, "%s already exists (line %d)", quote(d.Slot), k.line(at.item(first).key("slot").path))
		}
		slots[d.Slot] = i
		if !d.IsSystem() {
			continue
		}
		if system >= 0 {
			k.add(here.key("system").path, "there is a system disk already (line %d)", k.line(at.item(system).key("system").path))
		}
		system = i
	}
}

// together checks the combination of a class and a node's own settings, each of which is valid by itself.
func (k checker) together(i int, v VM) {
	path := k.ownPath(i)
	number := func(n *int, otherwise int) int {
		if n == nil {
			return otherwise
		}
		return *n
	}
	if v.Balloon != nil && v.Memory != nil && *v.Balloon > *v.Memory {
		k.add(path, "balloon is %d MiB, more than memory, which is %d MiB", *v.Balloon, *v.Memory)
	}
	if all := number(v.Cores, 1) * number(v.Sockets, 1); v.VCPUs != nil && (v.Cores != nil || v.Sockets != nil) && *v.VCPUs > all {
		k.add(path, "vcpus is %d, and cores times sockets is %d", *v.VCPUs, all)
	}
	n, system := k.c.Nodes[i], slices.IndexFunc(v.Disks, VMDisk.IsSystem)
	if system < 0 {
		return
	}
	d := v.Disks[system]
	if n.SystemDisk.Slot != "" && n.SystemDisk.Slot != d.Slot {
		k.add(nodePath(i, "systemDisk")+".slot", "%s is not the system disk of its vmClass, which is %s", quote(n.SystemDisk.Slot), d.Slot)
	}
	if n.SystemDisk.SizeGiB != 0 && d.Size != nil && n.SystemDisk.SizeGiB != d.Size.GiB {
		k.add(nodePath(i, "systemDisk")+".sizeGiB", "%d is not the size of its vmClass, which is %s: keep one of them", n.SystemDisk.SizeGiB, d.Size)
	}
	if d.Serial != nil {
		k.add(path, "%s has a serial and is the system disk, which recast names itself: remove the serial", d.Slot)
	}
}

// optional is like pattern, for a value that may be missing.
func (r *report) optional(path string, value *string, pattern, what string) {
	if value != nil {
		r.pattern(path, *value, pattern, what)
	}
}

// ranges checks the numbers of a section against the minimum and maximum of their keys.
func (r *report) ranges(at spot, section reflect.Value) {
	for _, f := range fieldsOf(section.Type()) {
		value := section.FieldByIndex(f.index)
		if value.Kind() != reflect.Pointer || value.IsNil() || value.Elem().Kind() != reflect.Int {
			continue
		}
		least, most := f.limit("minimum"), f.limit("maximum")
		switch n := value.Elem().Int(); {
		case least != nil && n < *least && most == nil:
			r.add(at.key(f.key).path, "must be at least %d", *least)
		case least != nil && n < *least, most != nil && n > *most:
			r.add(at.key(f.key).path, "%d is out of bounds: Proxmox allows %d-%d", n, *least, *most)
		}
	}
}

// limit returns the number in a rule such as minimum=1; nil if there is no such rule.
func (f field) limit(name string) *int64 {
	for _, rule := range f.rules {
		if text, is := strings.CutPrefix(rule, name+"="); is {
			n, err := strconv.ParseInt(text, 10, 64)
			if err != nil {
				panic(fmt.Sprintf("%s: %v", f.key, err)) // a mistake in a tag of this package
			}
			return &n
		}
	}
	return nil
}
