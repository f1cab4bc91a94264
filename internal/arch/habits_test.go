package arch

import (
	"fmt"
	"go/ast"
	"go/token"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/internal/sim/must"
)

const (
	maxFileLines     = 1000
	maxFunctionLines = 80
)

// readerOfDatabases may have an init: programs that read an etcd database start themselves again as the reader, test
// binaries too, and without the init the child would run the whole program or its tests.
const readerOfDatabases = "internal/etcddb/etcddb.go"

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
			s := must.Get(parse("a", c.file, []byte(c.text)))(t)
			diff := cmp.Diff(c.want, checkHabits(s))
			must.Hold(t, diff == "", "problems (-want +got):\n%s", diff)
		})
	}
}

// destructive are commands that delete, detach, free, or break a lock.
var destructive = regexp.MustCompile(`qm destroy|qm set [^"]*--delete|qm unlock|qm delsnapshot|pvesm free|pvesr delete|remove-member|system-labels-to-wipe|kubectl delete|ha-manager remove|pveum acl delete|delete pod [^"]*--force`)

// advised are the functions and constants whose texts tell a person to run one, each with what shows that nothing uses
// the thing by then.
var advised = map[string]string{
	"cluster.HalfMade":                "a VM without a drive, after a look at its tasks",
	"cluster.Unlock":                  "after a look at its tasks; of a suspended VM it warns",
	"cluster.WithoutCustom":           "a setting",
	"cluster.RequireRemakeable":       "a setting of a VM that is off and is not deleted; it has no volume",
	"cluster.Unclaimed":               "the line shuts the VM down first, and the volume stays",
	"cluster/claim.deletion":          "VM.Bare, and a watch after which no run holds the claim",
	"cluster/etcd.Leftover":           "the member does not answer, after a look",
	"cluster/etcd.EmptyData":          "callers prove that no etcd uses the data; of EPHEMERAL after a look at the rest",
	"cluster/etcd.WipeByReset":        "used where the person wants to go back to a snapshot, after one of what is there; and where etcd has failed",
	"cluster/exchange.takeOut":        "the VM is off, and the volume stays with its owner",
	"cluster/exchange.onlyOnce":       "warns of the command",
	"cluster/kubeupgrade.members":     "once talosctl etcd status does not show the member",
	"cluster/observe.parkingsOf":      "once the Node is NotReady",
	"cluster/observe.goneForGood":     "the Node is not Ready",
	"cluster/parking.switchOff":       "each line asks first: lock and no volume, HA",
	"cluster/parking.finishMove":      "the line asks first: a volume that is gone",
	"cluster/parking.parkNew":         "the line asks first: the serial of the new disk",
	"cluster/parking.setCDs":          "a CD drive without a volume",
	"cluster/planning.againstRebuild": "once the Node is NotReady",
	"cluster/planning.giveUp":         "only what the run has made, of a VM that is off and has no Node",
	"cluster/roll.disksStay":          "after a look at what the machine has mounted; the volume stays with its owner",
	"cluster/rolling.otherMachine":    "once the Node is NotReady",
	"cluster/strategy.lines":          "slot.removable: another slot has the same volume",
	"cluster/strategy.occupied":       "named snapshots, which nothing that runs uses",
	"cluster/strategy.Tied":           "an ACL entry, with the line that gives it back",
	"cluster/strategy.Replicated":     "a replication job, with the line that makes it again",
	"cluster/strategy.unwritable":     "spared: settings that make no difference to Talos",
	"cluster/survey.noMember":         "the machine of the Node does not answer, after a look at its VM",
	"cmd/recast.newRebuildCmd":        "a Node whose VM is gone",
	"cmd/recast.newRestoreCmd":        "what the machine must be like before a restore",
	"images.replace":                  "mayReplace: no drive and no snapshot names the file",
	"internal/operator.podTrouble":    "a pod that ended, once its node is NotReady",
	"internal/operator.waits":         "an ImageRoll that waits for its approval",
	"internal/pve/api.hintLock":       "says when it is right: no task of the VM runs",
}

// TestHintsThatDelete: a text that tells a person to delete, detach or free something is listed, with the proof that
// nothing uses it.
func TestHintsThatDelete(t *testing.T) {
	t.Parallel()
	left := maps.Clone(advised)
	for _, s := range sources(t, false) {
		if s.test() || !strings.HasPrefix(s.pkg, "cluster") && !strings.HasPrefix(s.pkg, "pipeline") && !strings.HasPrefix(s.pkg, "cmd") && !strings.HasPrefix(s.pkg, "images") &&
			!strings.HasPrefix(s.pkg, "schematics") && !strings.HasPrefix(s.pkg, "internal") || slices.ContainsFunc([]string{"internal/sim", "internal/e2e", "internal/tools", "internal/contract", "internal/lab"}, func(p string) bool { return strings.HasPrefix(s.pkg, p) }) {
			continue
		}
		for _, d := range s.file.Decls {
			by := s.pkg + "." + declared(d)
			ast.Inspect(d, func(n ast.Node) bool {
				text, is := n.(*ast.BasicLit)
				if !is || text.Kind != token.STRING || !destructive.MatchString(text.Value) {
					return true
				}
				if advised[by] == "" {
					t.Errorf("%s:%d: %s advises %q: see that nothing uses the thing, or have the text look first, and say so in advised", s.path(), s.line(n.Pos()), by, destructive.FindString(text.Value))
				}
				delete(left, by)
				return true
			})
		}
	}
	for by := range left {
		t.Errorf("%s advises nothing of the kind", by)
	}
}

// declared is the first name that a declaration declares.
func declared(d ast.Decl) string {
	switch d := d.(type) {
	case *ast.FuncDecl:
		return d.Name.Name
	case *ast.GenDecl:
		if v, is := d.Specs[0].(*ast.ValueSpec); is {
			return v.Names[0].Name
		}
	}
	return ""
}

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
			s := must.Get(parse("x", "x_test.go", []byte(helpers+c.test+"\n")))(t)
			var want []string
			for _, by := range c.want {
				want = append(want, "x/x_test.go:5: what calls "+by+" runs in a bubble, where a test that is skipped passes")
			}
			diff := cmp.Diff(want, skipsInBubbles([]source{s}))
			must.Hold(t, diff == "", "problems (-want +got):\n%s", diff)
		})
	}
}

// TestPerformance checks docs/performance.md: every benchmark, test, package and make
// target in it exists, and every benchmark is in it.
func TestPerformance(t *testing.T) {
	t.Parallel()
	doc := must.Get(os.ReadFile("../../docs/performance.md"))(t)
	makefile := must.Get(os.ReadFile("../../Makefile"))(t)
	known := map[string]bool{}
	var benchmarks []string
	for _, s := range sources(t, false) {
		known["./"+s.pkg] = true
		for _, d := range s.file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || !s.test() || f.Recv != nil {
				continue
			}
			known[f.Name.Name] = true
			if strings.HasPrefix(f.Name.Name, "Benchmark") {
				benchmarks = append(benchmarks, f.Name.Name)
			}
		}
	}
	for _, target := range regexp.MustCompile(`(?m)^([a-z0-9-]+):`).FindAllStringSubmatch(string(makefile), -1) {
		known["make "+target[1]] = true
	}
	for _, problem := range checkPerformance(string(doc), known, benchmarks) {
		t.Error(problem)
	}
}

// performanceNames are the names in the document that must exist.
var performanceNames = regexp.MustCompile(`\b(?:Benchmark|Test)[A-Z]\w*|\bmake [a-z0-9-]+|\./(?:cmd|cluster|images|internal|pipeline|schematics)[a-z0-9/]*`)

func checkPerformance(doc string, known map[string]bool, benchmarks []string) []string {
	var problems []string
	named := performanceNames.FindAllString(inCode(doc), -1)
	for _, name := range named {
		if !known[name] {
			problems = append(problems, fmt.Sprintf("docs/performance.md names %s, which does not exist", name))
		}
	}
	for _, b := range benchmarks {
		if !slices.Contains(named, b) {
			problems = append(problems, fmt.Sprintf("docs/performance.md does not name %s", b))
		}
	}
	return problems
}

// inCode is the document's text in backquotes and code blocks.
func inCode(doc string) string {
	var b strings.Builder
	for _, code := range regexp.MustCompile("(?s)```.*?```|`[^`\n]+`").FindAllString(doc, -1) {
		b.WriteString(code + "\n")
	}
	return b.String()
}

func TestCheckPerformance(t *testing.T) {
	t.Parallel()
	known := map[string]bool{"BenchmarkRun": true, "TestLong": true, "make bench": true, "./internal/step": true}
	cases := map[string]struct {
		doc  string
		want []string
	}{
		"all there": {"`BenchmarkRun` of `TestLong`, which make fun of words\n```\nmake bench\ngo test ./internal/step -bench Run\n```\n", nil},
		"none such": {"`BenchmarkRun`, `BenchmarkRan`, `make fast`, `go test ./internal/stop`", []string{
			"docs/performance.md names BenchmarkRan, which does not exist",
			"docs/performance.md names make fast, which does not exist",
			"docs/performance.md names ./internal/stop, which does not exist",
		}},
		"not named": {"`TestLong`", []string{"docs/performance.md does not name BenchmarkRun"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			diff := cmp.Diff(c.want, checkPerformance(c.doc, known, []string{"BenchmarkRun"}))
			must.Hold(t, diff == "", "problems (-want +got):\n%s", diff)
		})
	}
}
