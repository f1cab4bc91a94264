package config

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"

	"github.com/recast-sh/recast/internal/fault"
)

// maxSize of a configuration file; a hundred nodes take less than 20 kB.
const maxSize = 1 << 20

// Options are inputs that are not in the file.
type Options struct {
	Dir    string              // relative paths start here; Load sets it to the file's directory
	Getenv func(string) string // for TALOSCONFIG and HOME; nil: no environment
	Expr   func(string) error  // checks the expression of a gate; nil: not checked
	// Template checks the template of a webhook; nil: not checked.
	Template func(string) error
	// Alone is for what reads nothing but the file itself: those that it names need not exist.
	Alone bool
}

// Load reads the file at path and checks that the files that it names exist.
// It reports all problems in one error of kind fault.Config.
func Load(path string, o Options) (*Config, error) {
	data, err := read(path)
	if err != nil {
		return nil, fault.As(fault.Config, err)
	}
	o.Dir = filepath.Dir(path)
	if o.Alone {
		return parse(path, data, o, nil)
	}
	return parse(path, data, o, os.Stat)
}

// Parse is Load for the content of the file name; it checks no other files.
func Parse(name string, data []byte, o Options) (*Config, error) {
	return parse(name, data, o, nil)
}

func read(path string) ([]byte, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fault.WithHint(fmt.Errorf("%s: no such file", path), "recast init finds the cluster and writes one; or give its path with --config")
	}
	if err != nil {
		return nil, fmt.Errorf("read the configuration: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxSize+1))
	if err != nil {
		return nil, fmt.Errorf("read the configuration: %w", err)
	}
	if len(data) > maxSize {
		return nil, fmt.Errorf("%s: larger than %d KiB: this is not a recast.yaml", path, maxSize>>10)
	}
	return data, nil
}

// parse implements Load and Parse; if stat is nil, it does not check other files.
func parse(name string, data []byte, o Options, stat func(string) (fs.FileInfo, error)) (*Config, error) {
	r := newReport(name)
	c := defaults()
	if root := r.root(data); root != nil && r.supported(root) {
		r.decodeSection(root, spot{}, reflect.ValueOf(&c).Elem())
		checker{r, &c, o.Expr, o.Template}.all()
		c.complete(o)
		if stat != nil {
			r.files(&c, stat)
		}
	}
	if err := r.err(); err != nil {
		return nil, fault.As(fault.Config, err)
	}
	c.file, c.sum, c.places = name, fmt.Sprintf("sha256-%x", sha256.Sum256(data)), r.places
	return &c, nil
}

// root returns the file's top-level mapping, or nil after reporting why there is none.
func (r *report) root(data []byte) *yaml.Node {
	if i := firstInvalid(data); i >= 0 {
		before := data[:i]
		line := bytes.Count(before, []byte("\n")) + 1
		column := utf8.RuneCount(before[bytes.LastIndexByte(before, '\n')+1:]) + 1
		r.addAt(place{line, column}, "", "not UTF-8 text")
		return nil
	}
	loader, err := yaml.NewLoader(bytes.NewReader(data))
	if err != nil {
		r.addAt(place{1, 1}, "", "not readable as YAML: %v", err)
		return nil
	}
	var doc, next yaml.Node
	switch err := loader.Load(&doc); {
	case errors.Is(err, io.EOF):
		r.addAt(place{1, 1}, "", "the file is empty")
		return nil
	case err != nil:
		r.syntax(err, data)
		return nil
	}
	switch err := loader.Load(&next); {
	case err == nil:
		r.addAt(place{next.Line, next.Column}, "", "a second document starts here: recast.yaml is one document")
		return nil
	case !errors.Is(err, io.EOF):
		r.syntax(err, data)
		return nil
	}
	if len(doc.Content) != 1 || doc.Content[0].Kind != yaml.MappingNode {
		r.addAt(place{1, 1}, "", "must be a mapping that starts with \"version: %d\"", Version)
		return nil
	}
	root := doc.Content[0]
	r.places[""] = place{root.Line, root.Column}
	return root
}

// firstInvalid returns the index of the first byte that is not UTF-8 text, or -1.
func firstInvalid(data []byte) int {
	for i := 0; i < len(data); {
		c, size := utf8.DecodeRune(data[i:])
		if c == utf8.RuneError && size == 1 || c < ' ' && c != '\t' && c != '\n' && c != '\r' {
			return i
		}
		i += size
	}
	return -1
}

// syntax reports an error of the YAML parser.
func (r *report) syntax(err error, data []byte) {
	at, message := place{1, 1}, err.Error()
	if e, ok := errors.AsType[*yaml.LoadError](err); ok {
		message = e.Message
		if e.Mark.Line > 0 {
			at = place{e.Mark.Line, e.Mark.Column}
		}
		if e.ContextMsg != "" {
			message = e.ContextMsg + ": " + message
		}
	}
	if lines := bytes.Split(data, []byte("\n")); at.line <= len(lines) {
		if l := lines[at.line-1]; bytes.ContainsRune(l[:len(l)-len(bytes.TrimLeft(l, " \t"))], '\t') {
			message = "the line is indented with a tab: use spaces"
		}
	}
	r.addAt(at, "", "not valid YAML: %s", message)
}

// supported says whether the file has the supported version, and reports if not: then its
// keys are not checked.
func (r *report) supported(root *yaml.Node) bool {
	for i := 0; i+1 < len(root.Content); i += 2 {
		key, value := root.Content[i], root.Content[i+1]
		var v int
		if key.Value != "version" || value.ShortTag() != "!!int" || value.Load(&v) != nil || v == Version {
			continue
		}
		r.places["version"] = place{key.Line, key.Column}
		if v > Version {
			r.add("version", "%d was made for a newer recast: this one reads version %d", v, Version)
		} else {
			r.add("version", "there is no version %d of this file: use %d", v, Version)
		}
		return false
	}
	return true
}
