// Package bundle packs an archive for support. Each source contributes to a [Bundle] only
// what a [List] allows, and a redactor then removes known secrets and what looks like
// one.
package bundle

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"path"
	"regexp"
	"slices"
	"time"

	"github.com/recast-sh/recast/internal/redact"
)

// Bundle is an archive under construction.
type Bundle struct {
	Dir   string    // in which everything is: "recast-support-homelab"
	Made  time.Time // of all files
	hide  redact.Redactor
	files []File
}

// File is one file of a bundle.
type File struct {
	Name string
	Data []byte
}

// New makes an empty bundle that will contain none of these secrets.
func New(dir string, made time.Time, secrets []string) *Bundle {
	return &Bundle{Dir: dir, Made: made, hide: redact.New(secrets)}
}

// programTexts match the command line of a hook or gate and the output of programs, up to
// the end of the line. A report shows them, a bundle must not: it leaves the organisation.
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

// Text adds a file, unless it is blank.
func (b *Bundle) Text(name string, data []byte) { b.add(name, []byte(b.redact(string(data)))) }

// Lines adds a file of JSON, one document a line.
func (b *Bundle) Lines(name string, lines []byte) { b.add(name, redact.InJSON(lines, b.redact)) }

func (b *Bundle) add(name string, data []byte) {
	if len(bytes.TrimSpace(data)) > 0 {
		b.files = append(b.files, File{b.hide.Text(name), data})
	}
}

// JSON adds what the list allows of v.
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
	return slices.SortedFunc(slices.Values(b.files), func(x, y File) int { return bytes.Compare([]byte(x.Name), []byte(y.Name)) })
}

// Write writes the archive, a tar.gz.
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
	if err := archive.Close(); err != nil {
		return err
	}
	return zipped.Close()
}

// indented is JSON for people to read.
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
