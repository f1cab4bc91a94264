package schedules

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// root is the repository's root, relative to this package.
const root = "../../.."

// mutant is recast without one of its guards. It is a patch, which is applied to a copy of
// the sources: the product contains none of it.
type mutant struct {
	name  string
	says  string    // what it breaks
	test  namedTest // fails with it; empty: schedules are played
	hunks []hunk
}

// hunk is one hunk of a patch. Its position does not count: its old lines, with their
// context, must be in the file exactly once.
type hunk struct {
	file     string
	old, new []byte
}

// mutants reads testdata/mutants, by name.
func mutants() (list []mutant, err error) {
	files, err := filepath.Glob("testdata/mutants/*.patch")
	if err != nil || len(files) == 0 {
		return nil, cmp.Or(err, errors.New("testdata/mutants has no patch"))
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		m, err := parseMutant(string(text))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		m.name = strings.TrimSuffix(filepath.Base(file), ".patch")
		list = append(list, m)
	}
	return list, nil
}

// parseMutant parses a unified diff; the text before it describes the mutant, and may name a test.
func parseMutant(text string) (m mutant, err error) {
	file := ""
	for line := range strings.Lines(text) {
		kind, rest := line[:1], line[1:]
		switch {
		case strings.HasPrefix(line, "--- "):
			file = ""
		case strings.HasPrefix(line, "+++ b/"):
			file = strings.TrimSpace(strings.TrimPrefix(line, "+++ b/"))
		case file == "" && strings.HasPrefix(line, strings.TrimSpace(namesTest)):
			if m.test != (namedTest{}) {
				return m, errors.New("it names two tests")
			}
			if m.test, err = parseNamedTest(strings.TrimSpace(strings.TrimPrefix(line, strings.TrimSpace(namesTest)))); err != nil {
				return m, err
			}
		case file == "":
			m.says += strings.TrimSpace(line)
		case kind == "@":
			m.hunks = append(m.hunks, hunk{file: file})
		case len(m.hunks) == 0 || !strings.Contains(" +-", kind):
			return m, fmt.Errorf("%q is not a line of a unified diff", line)
		default:
			h := &m.hunks[len(m.hunks)-1]
			if kind != "+" {
				h.old = append(h.old, rest...)
			}
			if kind != "-" {
				h.new = append(h.new, rest...)
			}
		}
	}
	if len(m.hunks) == 0 || m.says == "" {
		err = errors.New("it changes nothing, or does not say what")
	}
	return m, err
}

// sources are the mutant's versions of the files that it changes.
func (m mutant) sources() (map[string][]byte, error) {
	files := map[string][]byte{}
	for _, h := range m.hunks {
		content, ok := files[h.file]
		if !ok {
			var err error
			if content, err = os.ReadFile(filepath.Join(root, h.file)); err != nil {
				return nil, fmt.Errorf("mutant %s: %w", m.name, err)
			}
		}
		if n := bytes.Count(content, h.old); n != 1 {
			return nil, fmt.Errorf("mutant %s no longer applies: %s has these lines %d times, not once: recreate testdata/mutants/%s.patch\n%s", m.name, h.file, n, m.name, h.old)
		}
		files[h.file] = bytes.Replace(content, h.old, h.new, 1)
	}
	return files, nil
}

// TestMutantsApply: each patch applies to the present sources and changes something, and the test
// that it names is there.
func TestMutantsApply(t *testing.T) {
	t.Parallel()
	all, err := mutants()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range all {
		if _, err := m.sources(); err != nil {
			t.Error(err)
		}
		if m.test != (namedTest{}) {
			if err := m.test.exists(root); err != nil {
				t.Errorf("mutant %s: %v", m.name, err)
			}
		}
		if slices.ContainsFunc(m.hunks, func(h hunk) bool { return bytes.Equal(h.old, h.new) }) {
			t.Errorf("mutant %s has a hunk that changes nothing", m.name)
		}
	}
}

// TestForeignMutantsDoNotApply: a patch of other sources does not apply.
func TestForeignMutantsDoNotApply(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"another file":    "x\n--- a/nowhere.go\n+++ b/nowhere.go\n@@ -1 +1 @@\n-a\n+b\n",
		"other lines":     "x\n--- a/go.mod\n+++ b/go.mod\n@@ -1 +1 @@\n-module example.com/another\n+module b\n",
		"lines all over":  "x\n--- a/go.mod\n+++ b/go.mod\n@@ -1 +1 @@\n \n+b\n",
		"no unified diff": "x\n--- a/go.mod\n+++ b/go.mod\n@@ -1 +1 @@\n!a\n",
		"no change":       "x\n",
		"no named test":   "x\nTest: planning\n--- a/go.mod\n+++ b/go.mod\n@@ -1 +1 @@\n-module github.com/recast-sh/recast\n+module b\n",
	} {
		m, err := parseMutant(text)
		if err == nil {
			_, err = m.sources()
		}
		if err == nil {
			t.Errorf("%s: it applies", name)
		}
	}
}
