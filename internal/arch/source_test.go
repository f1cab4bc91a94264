package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"strings"
	"testing"
)

const module = "github.com/recast-sh/recast"

// source is one Go file of the module that is not generated.
type source struct {
	pkg   string // directory, slash-separated, from the top
	name  string
	lines int
	fset  *token.FileSet
	file  *ast.File
}

func (s source) test() bool { return strings.HasSuffix(s.name, "_test.go") }

func (s source) path() string { return path.Join(s.pkg, s.name) }

func (s source) line(p token.Pos) int { return s.fset.Position(p).Line }

// sources parses every file of the module at the top of the repository; with nested, also
// of nested modules.
func sources(t *testing.T, nested bool) []source {
	t.Helper()
	top := os.DirFS("../..")
	var all []source
	err := fs.WalkDir(top, ".", func(name string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir():
			if name != "." && !wanted(top, name, nested) {
				return fs.SkipDir
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
			all = append(all, s)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 10 {
		t.Fatalf("found %d files: this is not the repository", len(all))
	}
	return all
}

func wanted(top fs.FS, dir string, nested bool) bool {
	base := path.Base(dir)
	if base == "testdata" || base == "bin" || base == "dist" || strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_") {
		return false
	}
	_, err := fs.Stat(top, path.Join(dir, "go.mod"))
	return nested || err != nil
}

func parse(pkg, name string, text []byte) (source, error) {
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, path.Join(pkg, name), text, parser.ParseComments|parser.SkipObjectResolution)
	return source{pkg: pkg, name: name, lines: strings.Count(string(text), "\n"), fset: fset, file: f}, err
}
