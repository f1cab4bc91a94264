package simtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestMakeCrash: make crash runs every test of which -crash.all and -crash.slice choose kills, and names
// none that is not there. Else nothing would ever play all of its kills.
func TestMakeCrash(t *testing.T) {
	t.Parallel()
	makefile, err := os.ReadFile("../../../Makefile")
	must(t, err)
	recipe := regexp.MustCompile(`(?m)^crash:.*\n.*-run '([^']+)'`).FindSubmatch(makefile)
	if recipe == nil {
		t.Fatal("make crash runs no tests")
	}
	runs := regexp.MustCompile(string(recipe[1]))
	tests, chooses := choosingTests(t)
	for _, name := range chooses {
		if !runs.MatchString(name) {
			t.Errorf("make crash does not run %s", name)
		}
	}
	for _, each := range namesIn(string(recipe[1])) {
		if re := regexp.MustCompile(each); !slices.ContainsFunc(tests, re.MatchString) {
			t.Errorf("make crash names %s, and there is no such test", each)
		}
	}
	if len(chooses) < 15 {
		t.Errorf("only %d tests choose kills: %q", len(chooses), chooses)
	}
}

// namesIn are the alternatives of an expression, in which a group has more of them.
func namesIn(expression string) (all []string) {
	depth, from := 0, 0
	for i, c := range expression + "|" {
		switch {
		case c == '(':
			depth++
		case c == ')':
			depth--
		case c == '|' && depth == 0:
			all = append(all, eachOf(expression[from:i])...)
			from = i + 1
		}
	}
	return all
}

// eachOf are the names of one alternative with a group: "Test(A|B)Killed".
func eachOf(alternative string) (all []string) {
	before, rest, grouped := strings.Cut(alternative, "(")
	if !grouped {
		return []string{alternative}
	}
	group, after, _ := strings.Cut(rest, ")")
	for each := range strings.SplitSeq(group, "|") {
		all = append(all, before+each+after)
	}
	return all
}

// choosingTests are the tests of this package, and those that choose kills, themselves or by a function.
func choosingTests(t *testing.T) (tests, chooses []string) {
	t.Helper()
	files, err := filepath.Glob("*_test.go")
	must(t, err)
	calls := map[string][]string{}
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		must(t, err)
		for _, d := range file.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			ast.Inspect(fn, func(n ast.Node) bool {
				if id, ok := n.(*ast.Ident); ok {
					calls[fn.Name.Name] = append(calls[fn.Name.Name], id.Name)
				}
				return true
			})
		}
	}
	chosen := map[string]bool{"chosenKills": true, "crashAll": true}
	for grew := true; grew; {
		grew = false
		for name, called := range calls {
			if !chosen[name] && slices.ContainsFunc(called, func(c string) bool { return chosen[c] }) {
				chosen[name], grew = true, true
			}
		}
	}
	for name := range calls {
		switch {
		case !strings.HasPrefix(name, "Test") || name == "TestMain" || name == "TestMakeCrash":
		case chosen[name]:
			chooses = append(chooses, name)
			fallthrough
		default:
			tests = append(tests, name)
		}
	}
	slices.Sort(chooses)
	return tests, chooses
}
