package config

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/recast-sh/recast/internal/redact"
)

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

// ParseSchematic reads a schematic in the form in which the Image Factory writes it into an image. Its errors
// do not quote the text, which may hold secrets.
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

// take moves the value of a key out of a mapping.
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

// metaKey writes a META key as Talos does.
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

// String says what differs in words for people.
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

// CompareSchematics lists how wanted differs from found. Of the extensions it compares only the order: a node itself
// lists which extensions it has.
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

// compareArgs compares kernel arguments as lists: an argument may be there more than once, and of two arguments with
// the same name the later one counts.
func compareArgs(was, is []string) []SchematicChange {
	gone, fresh := without(was, is), without(is, was)
	var out []SchematicChange
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

// without returns list, with one entry removed for each equal entry of other.
func without(list, other []string) []string {
	list = slices.Clone(list)
	for _, o := range other {
		if i := slices.Index(list, o); i >= 0 {
			list = slices.Delete(list, i, i+1)
		}
	}
	return list
}

func compareMeta(was, is map[string]string) []SchematicChange {
	var out []SchematicChange
	for _, key := range slices.Sorted(maps.Keys(union(was, is))) {
		old, hadOne := was[key]
		fresh, hasOne := is[key]
		if old != fresh || hadOne != hasOne {
			out = append(out, SchematicChange{"meta", "META value " + key, metaShown(old, hadOne), metaShown(fresh, hasOne)})
		}
	}
	return out
}

// metaShown returns a META value as it may be shown. It hides a value that is not a short line: the value may be a
// configuration with keys in it.
func metaShown(value string, there bool) string {
	switch {
	case !there:
		return ""
	case value == "" || len(value) > 60 || strings.ContainsAny(value, "\r\n"):
		return redact.Mark
	}
	return shown(value)
}

// names has the words for the paths of a schematic.
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

func each(list []string, change func(string) string) []string {
	var out []string
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

// reordered says whether two lists have the same entries in another order.
func reordered(a, b []string) bool {
	return !slices.Equal(a, b) && slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}
