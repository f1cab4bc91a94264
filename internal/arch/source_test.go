package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
)

const module = "github.com/recast-sh/recast"

// source is one Go file of the module that is not generated.
type source struct {
	pkg    string // directory, slash-separated, from the top
	name   string
	nested bool // it is of a nested module
	lines  int
	fset   *token.FileSet
	file   *ast.File
}

func (s source) test() bool { return strings.HasSuffix(s.name, "_test.go") }

func (s source) path() string { return path.Join(s.pkg, s.name) }

func (s source) line(p token.Pos) int { return s.fset.Position(p).Line }

// sources returns every file of the module at the top of the repository; with nested, also
// of nested modules.
func sources(t *testing.T, nested bool) []source {
	t.Helper()
	all, err := parsed()
	if err != nil {
		t.Fatal(err)
	}
	if !nested {
		all = slices.DeleteFunc(slices.Clone(all), func(s source) bool { return s.nested })
	}
	if len(all) < 10 {
		t.Fatalf("found %d files: this is not the repository", len(all))
	}
	return all
}

// parsed parses every file once for all tests, which only read them.
var parsed = sync.OnceValues(func() (all []source, err error) {
	top := os.DirFS("../..")
	var nested []string // directories of nested modules
	err = fs.WalkDir(top, ".", func(name string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir():
			if name != "." && skipped(name) {
				return fs.SkipDir
			}
			if _, err := fs.Stat(top, path.Join(name, "go.mod")); err == nil && name != "." {
				nested = append(nested, name+"/")
			}
			return nil
		case path.Ext(name) != ".go":
			return nil
		}
		text, err := fs.ReadFile(top, name)
		if err != nil {
			return err
		}
		s, err := parse(path.Dir(name), path.Base(name), text)
		if err == nil && !ast.IsGenerated(s.file) {
			s.nested = slices.ContainsFunc(nested, func(dir string) bool { return strings.HasPrefix(name, dir) })
			all = append(all, s)
		}
		return err
	})
	return all, err
})

func skipped(dir string) bool {
	base := path.Base(dir)
	return base == "testdata" || base == "bin" || base == "dist" || strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_")
}

func parse(pkg, name string, text []byte) (source, error) {
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, path.Join(pkg, name), text, parser.ParseComments|parser.SkipObjectResolution)
	return source{pkg: pkg, name: name, lines: strings.Count(string(text), "\n"), fset: fset, file: f}, err
}
