// Package schematic reads what a schematic asks of an image, as a running image states it, and says how
// two of them differ.
package schematic

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"
)

// Schematic is what a schematic asks of an image, beside its extensions.
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

// Parse reads a schematic in the form in which the Image Factory writes it into an image. Its errors
// do not quote the text, which may hold secrets.
func Parse(text string) (Schematic, error) {
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

// flatten writes each value of a tree by its path. Empty values ask for nothing.
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
