package arch

import (
	"fmt"
	"go/ast"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestPerformance checks docs/performance.md: every benchmark, test, package and make
// target in it exists, and every benchmark is in it.
func TestPerformance(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("../../docs/performance.md")
	if err != nil {
		t.Fatal(err)
	}
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
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
			if diff := cmp.Diff(c.want, checkPerformance(c.doc, known, []string{"BenchmarkRun"})); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
}
