package arch

import (
	"fmt"
	"go/ast"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const (
	maxFileLines     = 1000
	maxFunctionLines = 80
)

// readerOfDatabases may have an init: programs that read an etcd database start themselves
// again as the reader, test binaries too, and without the init the child would run the
// whole program or its tests.
const readerOfDatabases = "internal/etcddb/child.go"

func TestHabits(t *testing.T) {
	t.Parallel()
	for _, s := range sources(t, true) {
		for _, problem := range checkHabits(s) {
			t.Error(problem)
		}
	}
}

// checkHabits lists overlong files and functions, and code that runs or waits out of sight
// of its callers: init functions, own contexts.
func checkHabits(s source) []string {
	var problems []string
	report := func(n ast.Node, format string, args ...any) {
		problems = append(problems, fmt.Sprintf("%s:%d: ", s.path(), s.line(n.Pos()))+fmt.Sprintf(format, args...))
	}
	if s.lines > maxFileLines {
		report(s.file, "the file has %d lines, %d are allowed", s.lines, maxFileLines)
	}
	ast.Inspect(s.file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			if lines := s.line(n.End()) - s.line(n.Pos()) + 1; lines > maxFunctionLines {
				report(n, "%s has %d lines, %d are allowed", n.Name.Name, lines, maxFunctionLines)
			}
			if n.Recv == nil && n.Name.Name == "init" && s.path() != readerOfDatabases {
				report(n, "init runs without being called")
			}
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok && x.Name == "context" && (n.Sel.Name == "Background" || n.Sel.Name == "TODO") && !mayBegin(s) {
				report(n, "context.%s outside of main: take a ctx", n.Sel.Name)
			}
		}
		return true
	})
	return problems
}

// mayBegin says whether a file may hold an entry point.
func mayBegin(s source) bool { return s.name == "main.go" && s.file.Name.Name == "main" }

func TestCheckHabits(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		file, text string
		want       []string
	}{
		"as long as allowed": {"a.go", "package a\nfunc f() {" + strings.Repeat("\n", 79) + "}\n" + strings.Repeat("\n", 919), nil},
		"a long file":        {"a.go", "package a\n" + strings.Repeat("\n", 1000), []string{"a/a.go:1: the file has 1001 lines, 1000 are allowed"}},
		"a long function":    {"a_test.go", "package a\nfunc (t t) f() {" + strings.Repeat("\n", 80) + "}\n", []string{"a/a_test.go:2: f has 81 lines, 80 are allowed"}},
		"init":               {"a.go", "package a\nfunc init() {}\n", []string{"a/a.go:2: init runs without being called"}},
		"a method init":      {"a.go", "package a\nfunc (t t) init() {}\n", nil},
		"own context":        {"a.go", "package a\nvar c = context.Background()\n", []string{"a/a.go:2: context.Background outside of main: take a ctx"}},
		"own context, main":  {"main.go", "package main\nvar c = context.Background()\n", nil},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, err := parse("a", c.file, []byte(c.text))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, checkHabits(s)); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
}
