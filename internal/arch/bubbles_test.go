package arch

import (
	"fmt"
	"go/ast"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestNoSkipInABubble: a test that skips itself inside synctest.Test passes, and nobody sees that it did
// nothing. Whether it can run is for the test outside to say.
func TestNoSkipInABubble(t *testing.T) {
	t.Parallel()
	byPackage := map[string][]source{}
	for _, s := range sources(t, true) {
		byPackage[s.pkg] = append(byPackage[s.pkg], s)
	}
	for _, files := range byPackage {
		for _, problem := range skipsInBubbles(files) {
			t.Error(problem)
		}
	}
}

// skipsInBubbles finds what a package's tests skip in a bubble: in synctest.Test, or in a helper that calls
// that. Functions are known by their names; a name of several functions is none.
func skipsInBubbles(files []source) (problems []string) {
	declared := map[string][]*ast.FuncDecl{}
	for _, s := range files {
		for _, d := range s.file.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Body != nil {
				declared[fn.Name.Name] = append(declared[fn.Name.Name], fn)
			}
		}
	}
	bubble := closure(declared, map[string]bool{"synctest.Test": true}, takesFunction)
	skip := closure(declared, map[string]bool{skips: true}, func(fn *ast.FuncDecl) bool {
		return !bubble[fn.Name.Name] && fn.Name.Name != skipsOutside
	})
	for _, s := range files {
		ast.Inspect(s.file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || !bubble[called(call.Fun)] {
				return true
			}
			for _, arg := range call.Args {
				for name := range names(arg) {
					if skip[name] {
						problems = append(problems, fmt.Sprintf("%s:%d: what calls %s runs in a bubble, where a test that is skipped passes", s.path(), s.line(call.Pos()), name))
					}
				}
			}
			return true
		})
	}
	slices.Sort(problems)
	return slices.Compact(problems)
}

// skips stands for the methods that skip a test.
const skips = "t.Skip"

// skipsOutside is the name of a method that fails in a bubble, and skips elsewhere (internal/contract).
const skipsOutside = "skipf"

// closure adds the functions whose bodies name one of the set, and so on.
func closure(declared map[string][]*ast.FuncDecl, set map[string]bool, wanted func(*ast.FuncDecl) bool) map[string]bool {
	for grew := true; grew; {
		grew = false
		for name, fns := range declared {
			if set[name] || len(fns) != 1 || strings.HasPrefix(name, "Test") || !wanted(fns[0]) {
				continue
			}
			if slices.ContainsFunc(slices.Collect(maps.Keys(names(fns[0].Body))), func(used string) bool { return set[used] }) {
				set[name], grew = true, true
			}
		}
	}
	return set
}

func takesFunction(fn *ast.FuncDecl) bool {
	return slices.ContainsFunc(fn.Type.Params.List, func(f *ast.Field) bool {
		_, ok := f.Type.(*ast.FuncType)
		return ok
	})
}

// called is the name of what is called: of a function, of a method, or "synctest.Test".
func called(fun ast.Expr) string {
	switch fun := fun.(type) {
	case *ast.Ident:
		return fun.Name
	case *ast.IndexExpr:
		return called(fun.X)
	case *ast.SelectorExpr:
		switch of := called(fun.X); {
		case of == "synctest":
			return "synctest." + fun.Sel.Name
		case (of == "t" || of == "b" || of == "f" || of == "tb") && strings.HasPrefix(fun.Sel.Name, "Skip") && fun.Sel.Name != "Skipped":
			return skips
		}
		return fun.Sel.Name
	}
	return ""
}

// names are those of the functions, methods and variables that are used somewhere.
func names(in ast.Node) map[string]bool {
	all := map[string]bool{}
	ast.Inspect(in, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.KeyValueExpr:
			maps.Copy(all, names(n.Value)) // not the name of a field
			return false
		case *ast.SelectorExpr:
			all[called(n)] = true
			maps.Copy(all, names(n.X))
			return false
		case *ast.Ident:
			all[n.Name] = true
		}
		return true
	})
	return all
}

func TestSkipsInBubbles(t *testing.T) {
	t.Parallel()
	const helpers = `package x
func inLab(t *testing.T, f func(*testing.T)) { synctest.Test(t, f) }
func long(t *testing.T) { if testing.Short() { t.Skip("long") } }
func (l *lab) needs() { l.t.Skipf("needs: %s", "it") }
`
	cases := map[string]struct {
		test string
		want []string
	}{
		"outside":           {"func TestA(t *testing.T) { long(t); inLab(t, func(t *testing.T) { play(t) }) }", nil},
		"a row outside":     {"func TestA(t *testing.T) { t.Run(\"x\", func(t *testing.T) { t.Skip(); synctest.Test(t, play) }) }", nil},
		"inside":            {"func TestA(t *testing.T) { synctest.Test(t, func(t *testing.T) { t.SkipNow() }) }", []string{skips}},
		"inside a helper":   {"func TestA(t *testing.T) { inLab(t, func(t *testing.T) { t.Skip() }) }", []string{skips}},
		"by a helper":       {"func TestA(t *testing.T) { inLab(t, func(t *testing.T) { long(t) }) }", []string{"long"}},
		"by a method":       {"func TestA(t *testing.T) { inLab(t, func(t *testing.T) { l := &lab{t}; l.needs() }) }", []string{"needs"}},
		"by a named one":    {"func TestA(t *testing.T) { inLab(t, long) }", []string{"long"}},
		"a field's name":    {"func TestA(t *testing.T) { inLab(t, func(t *testing.T) { play(row{long: true}) }) }", nil},
		"one step's method": {"func TestA(t *testing.T) { inLab(t, func(t *testing.T) { step{}.Do() }) }", nil},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, err := parse("x", "x_test.go", []byte(helpers+c.test+"\n"))
			if err != nil {
				t.Fatal(err)
			}
			var want []string
			for _, by := range c.want {
				want = append(want, "x/x_test.go:5: what calls "+by+" runs in a bubble, where a test that is skipped passes")
			}
			if diff := cmp.Diff(want, skipsInBubbles([]source{s})); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
}
