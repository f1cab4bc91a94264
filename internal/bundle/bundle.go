// Package bundle packs an archive for support. Each source contributes to a [Bundle] only what a [List] allows. A
// redactor then removes known secrets, and text that looks like a secret.
package bundle

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/recast-sh/recast/internal/redact"
	"go.yaml.in/yaml/v4"
)

// Bundle is an archive under construction.
type Bundle struct {
	Dir   string    // directory within the archive: "recast-support-homelab"
	Made  time.Time // modification time of all files
	hide  redact.Redactor
	files []File
}

// File is one file of a bundle.
type File struct {
	Name string
	Data []byte
}

// New makes an empty bundle that will contain none of the given secrets.
func New(dir string, made time.Time, secrets []string) *Bundle {
	return &Bundle{Dir: dir, Made: made, hide: redact.New(secrets)}
}

// programTexts match the command line of a hook or gate and the output of programs, up to the end of the line. A
// report shows such texts; a bundle must not, because it leaves the organisation.
var programTexts = []*regexp.Regexp{
	regexp.MustCompile(`\b((?:hook|gate) )\\*".*`),
	regexp.MustCompile(`( ended with -?\d+: ).+`),
	regexp.MustCompile(`( said last: ).+`),
}

// redact removes secrets and programs' texts.
func (b *Bundle) redact(text string) string {
	text = b.hide.Text(text)
	for _, p := range programTexts {
		text = p.ReplaceAllString(text, "${1}"+LeftOut)
	}
	return text
}

// Text adds a file, unless data is blank.
func (b *Bundle) Text(name string, data []byte) { b.add(name, []byte(b.redact(string(data)))) }

// Lines adds a file of JSON, with one document per line.
func (b *Bundle) Lines(name string, lines []byte) { b.add(name, redact.InJSON(lines, b.redact)) }

func (b *Bundle) add(name string, data []byte) {
	if len(bytes.TrimSpace(data)) > 0 {
		b.files = append(b.files, File{b.hide.Text(name), data})
	}
}

// JSON adds the parts of v that the list allows.
func (b *Bundle) JSON(name string, v any, allow List) error {
	kept, err := allow.JSON(v)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	b.Lines(name, kept)
	return nil
}

// Files lists the files by name.
func (b *Bundle) Files() []File {
	return slices.SortedFunc(slices.Values(b.files), func(x, y File) int { return strings.Compare(x.Name, y.Name) })
}

// Write writes the archive as a tar.gz.
func (b *Bundle) Write(w io.Writer) error {
	zipped := gzip.NewWriter(w)
	archive := tar.NewWriter(zipped)
	for _, f := range b.Files() {
		header := &tar.Header{Name: path.Join(b.Dir, f.Name), Mode: 0o600, Size: int64(len(f.Data)), ModTime: b.Made, Format: tar.FormatPAX}
		if err := archive.WriteHeader(header); err != nil {
			return err
		}
		if _, err := archive.Write(f.Data); err != nil {
			return err
		}
	}
	return errors.Join(archive.Close(), zipped.Close())
}

func indented(v any) ([]byte, error) {
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// LeftOut replaces the parts that a list does not allow.
const LeftOut = "[left out]"

// List lists the paths of a document to keep: "nodes.*.name". "*" is any key or index; a final "**" is everything
// below.
type List []string

// JSON marshals v and returns the parts that the list allows.
func (l List) JSON(v any) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	doc, err := decode(b)
	if err != nil {
		return nil, err
	}
	return indented(l.keep(doc, nil))
}

// Line returns the parts that the list allows of a JSON object on one line; false if line is not an object.
func (l List) Line(line []byte) ([]byte, bool) {
	doc, err := decode(line)
	object, ok := doc.(map[string]any)
	if err != nil || !ok {
		return nil, false
	}
	kept, err := json.Marshal(l.keep(object, nil))
	return kept, err == nil
}

// YAML returns the parts that the list allows of a YAML document, without the document's comments.
func (l List) YAML(data []byte) ([]byte, error) {
	var doc any
	if err := yaml.Unmarshal(data, &doc); err != nil {
		return nil, fmt.Errorf("it is not YAML%s", linesOf(err))
	}
	return yaml.Marshal(l.keep(doc, nil))
}

// linesOf returns the line number in a YAML error. The rest of the error quotes the document.
func linesOf(err error) string {
	_, rest, found := strings.Cut(err.Error(), "line ")
	if !found {
		return ""
	}
	number := strings.TrimRightFunc(rest[:min(len(rest), 6)], func(r rune) bool { return r < '0' || r > '9' })
	if _, err := strconv.Atoi(number); err != nil {
		return ""
	}
	return ", line " + number
}

func decode(b []byte) (any, error) {
	var doc any
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	err := d.Decode(&doc)
	return doc, err
}

// keep returns v without the parts that the list does not allow. It drops the names of keys that are not on the list
// too.
func (l List) keep(v any, at []string) any {
	switch v := v.(type) {
	case map[string]any:
		out := map[string]any{}
		for key, value := range v {
			below := append(slices.Clone(at), key)
			if l.allows(below) {
				out[key] = l.keep(value, below)
			}
		}
		if more := len(v) - len(out); more > 0 {
			out[LeftOut] = fmt.Sprintf("%d more", more)
		}
		return out
	case []any:
		out := make([]any, 0, len(v))
		for i, value := range v {
			below := append(slices.Clone(at), strconv.Itoa(i))
			if l.allows(below) {
				out = append(out, l.keep(value, below))
			} else {
				out = append(out, LeftOut)
			}
		}
		return out
	case nil, bool:
		return v
	}
	if !l.allowsValue(at) {
		return LeftOut
	}
	return v
}

// allows says whether the list has this path, or a path below it.
func (l List) allows(at []string) bool {
	return slices.ContainsFunc(l, func(p string) bool {
		want := strings.Split(p, ".")
		for i, key := range at {
			switch {
			case i >= len(want):
				return false
			case want[i] == "**":
				return true
			case want[i] != "*" && want[i] != key:
				return false
			}
		}
		return true
	})
}

// allowsValue says whether the list has exactly this path, or a "**" that covers it.
func (l List) allowsValue(at []string) bool {
	return slices.ContainsFunc(l, func(p string) bool {
		want := strings.Split(p, ".")
		if want[len(want)-1] != "**" && len(want) != len(at) {
			return false
		}
		return List{p}.allows(at)
	})
}
