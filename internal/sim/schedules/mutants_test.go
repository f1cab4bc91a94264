package schedules

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/recast-sh/recast/internal/sim/must"
)

// root is the repository's root, relative to this package.
const root = "../../.."

// mutant is recast without one of its guards: a patch, which is applied to a copy of the sources.
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

// TestMutantsApply: each patch applies to the present sources, and the test that it names is there.
func TestMutantsApply(t *testing.T) {
	t.Parallel()
	for _, m := range must.Get(mutants())(t) {
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

// namedTest is the test that a patch names as the one that fails with it.
type namedTest struct{ pkg, name string }

// namesTest is the line of a patch that names a test.
const namesTest = "Test: "

var namedTestForm = regexp.MustCompile(`^(\./[\w./-]+) (Test\w+)$`)

// parseNamedTest parses the rest of such a line.
func parseNamedTest(text string) (n namedTest, err error) {
	parts := namedTestForm.FindStringSubmatch(text)
	if parts == nil {
		return n, fmt.Errorf("%q does not name a test, as in %q", text, namesTest+"./cluster/planning TestPlan")
	}
	return namedTest{parts[1], parts[2]}, nil
}

func (n namedTest) exists(dir string) error {
	files, err := filepath.Glob(filepath.Join(dir, n.pkg, "*_test.go"))
	if err != nil {
		return err
	}
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, d := range parsed.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == n.name {
				return nil
			}
		}
	}
	return fmt.Errorf("%s has no test %s", n.pkg, n.name)
}

// outcomes runs tests of a package as make test does, but without the race detector, and returns how each
// ended: "pass", "fail" or "skip", "" where it did not run or did not end. said is what they printed.
func outcomes(ctx context.Context, dir, pkg string, tests []string, args ...string) (ended map[string]string, said string, err error) {
	args = append([]string{"test", "-json", "-short", "-vet=off", "-count=1", "-timeout=5m", "-run", "^(" + strings.Join(tests, "|") + ")$"}, args...)
	cmd := exec.CommandContext(ctx, "go", append(args, pkg)...)
	cmd.Dir = dir
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, runErr := cmd.Output()
	ended, built := map[string]string{}, false
	for line := range bytes.Lines(out) {
		var e struct{ Action, Test, Output string }
		if json.Unmarshal(line, &e) != nil {
			continue
		}
		switch {
		case e.Output != "":
			said += e.Output
		case e.Action == "start":
			built = true
		case e.Test != "" && (e.Action == "pass" || e.Action == "fail" || e.Action == "skip"):
			ended[e.Test] = e.Action
		}
	}
	switch {
	case ctx.Err() != nil:
		return nil, said, ctx.Err()
	case !built || strings.Contains(said, "[build failed]") || strings.Contains(said, "[setup failed]"):
		return nil, said, fmt.Errorf("the tests of %s do not compile: %w\n%s%s", pkg, runErr, said, &stderr)
	case strings.Contains(said, "panic: test timed out"):
		return nil, said, fmt.Errorf("the tests of %s did not end: %w", pkg, runErr)
	}
	return ended, said, nil
}

// verdict says why a test's end is not the one wanted; nil: it is.
func (n namedTest) verdict(ended map[string]string, want string) error {
	switch got := ended[n.name]; got {
	case want:
		return nil
	case "":
		return fmt.Errorf("%s of %s did not run to its end", n.name, n.pkg)
	case "skip":
		return fmt.Errorf("%s of %s is skipped with -short", n.name, n.pkg)
	default:
		return fmt.Errorf("%s of %s: %s, want %s", n.name, n.pkg, got, want)
	}
}

// miss runs the test that the mutant names with the mutant's sources. It fails if that test does not.
func (m mutant) miss(ctx context.Context, dir, overlay string) (said string, err error) {
	ended, said, err := outcomes(ctx, dir, m.test.pkg, []string{m.test.name}, "-overlay", overlay)
	if err != nil {
		return said, err
	}
	return said, m.test.verdict(ended, "fail")
}

// passesUnchanged runs the named tests with the sources as they are; each must pass.
func passesUnchanged(t *testing.T, all []mutant) {
	t.Helper()
	byPackage := map[string][]namedTest{}
	for _, m := range all {
		byPackage[m.test.pkg] = append(byPackage[m.test.pkg], m.test)
	}
	for pkg, tests := range byPackage {
		names := []string{}
		for _, n := range tests {
			names = append(names, n.name)
		}
		ended, said, err := outcomes(t.Context(), root, pkg, names)
		for _, n := range tests {
			e := errors.Join(err, n.verdict(ended, "pass"))
			must.Hold(t, e == nil, "recast as it is: %v\n%s", e, said)
		}
	}
}

var (
	mutantsPlay  = flag.Bool("mutants", false, "make the mutants, and run the test that each names or play schedules until one fails")
	mutantsNamed = flag.Bool("mutants.named", false, "only those that name their test")
	mutantsSlice = flag.Int("mutants.slice", 1, "every n-th, from mutants.seed on")
	mutantsOnly  = flag.String("mutants.only", "", "only those with this in their name")
	mutantsBound = flag.Int("mutants.bound", 2000, "give a mutant up after so many node-rolls")
	mutantsSeed  = flag.String("mutants.seed", "1", "of the run of schedules that all of them play")
	mutantsProcs = flag.Int("mutants.procs", runtime.GOMAXPROCS(0), "mutants that play at a time")
)

// caught is how a mutant was detected.
type caught struct {
	by        string // the problem found; "": none
	nodeRolls int    // until then
	schedules int
}

// TestMutants removes recast's guards one by one. The test that a mutant names must fail with it, or a
// schedule if it names none. The unchanged recast passes the same tests and schedules.
func TestMutants(t *testing.T) {
	if !*mutantsPlay {
		t.Skip("left to make mutants")
	}
	named, others := chosenMutants(t)
	passesUnchanged(t, named)
	limit := make(chan struct{}, *mutantsProcs)
	var mu sync.Mutex
	most := 0
	t.Run("mutants", func(t *testing.T) {
		for _, m := range slices.Concat(named, others) {
			t.Run(m.name, func(t *testing.T) {
				t.Parallel()
				limit <- struct{}{}
				defer func() { <-limit }()
				if m.test != (namedTest{}) {
					m.requireMissed(t)
					return
				}
				c := hunt(t, m, *mutantsBound, 0)
				mu.Lock()
				defer mu.Unlock()
				most = max(most, c.schedules)
				c.tell(m)
				must.Hold(t, c.by != "", "%s: %d node-rolls have not found it", m.says, c.nodeRolls)
			})
		}
	})
	t.Attr("mutants", strconv.Itoa(len(named)+len(others)))
	if len(others) == 0 {
		return
	}
	if c := hunt(t, mutant{}, 0, max(1, most)); c.by != "" {
		t.Errorf("recast as it is fails after %d node-rolls, too: %s", c.nodeRolls, c.by)
	} else {
		fmt.Printf("%-28s %s after %d node-rolls, %d schedules, seed %s\n", "recast as it is", "nothing is found", c.nodeRolls, c.schedules, *mutantsSeed)
	}
}

// chosenMutants are those of the flags: with a test of their own, and without.
func chosenMutants(t *testing.T) (named, others []mutant) {
	t.Helper()
	all := must.Get(mutants())(t)
	seed := must.Get(strconv.ParseUint(*mutantsSeed, 0, 64))(t)
	for _, m := range all {
		switch {
		case !strings.Contains(m.name, *mutantsOnly):
		case m.test != (namedTest{}):
			named = append(named, m)
		case !*mutantsNamed:
			others = append(others, m)
		}
	}
	named, others = everyNth(named, seed), everyNth(others, seed)
	must.Be(t, len(named)+len(others) != 0, "no mutant is chosen")
	return named, others
}

func everyNth(list []mutant, seed uint64) (part []mutant) {
	n := uint64(max(1, *mutantsSlice))
	for i, m := range list {
		if (uint64(i)+seed)%n == 0 {
			part = append(part, m)
		}
	}
	return part
}

func (m mutant) requireMissed(t *testing.T) {
	t.Helper()
	overlay := must.Get(m.overlay(t.TempDir()))(t)
	if said, err := m.miss(t.Context(), root, overlay); err != nil {
		t.Fatalf("%s: %v\n%s", m.says, err, said)
	}
	fmt.Printf("%-28s %s of %s fails\n", m.name, m.test.name, m.test.pkg)
}

func (c caught) tell(m mutant) {
	fmt.Printf("%-28s %s after %d node-rolls, schedule %d, seed %s\n", m.name, cmp.Or(c.by, "not found"), c.nodeRolls, c.schedules, *mutantsSeed)
}

// hunt builds a mutant and plays cases until one fails, up to that many node-rolls or schedules; 0 is no limit.
func hunt(t *testing.T, m mutant, nodeRolls, schedules int) (c caught) {
	t.Helper()
	program := must.Get(m.build(t))(t)
	play := func(test string, args ...string) (results []Result, said string) {
		said = spawn(t.Context(), program, test, func(r Result) { results = append(results, r) }, args...)
		return results, said
	}
	// found says whether one of count cases has failed.
	found := func(count int, results []Result, said string) bool {
		for _, r := range results {
			c.schedules++
			c.nodeRolls += r.NodeRolls
			if len(r.Problems) > 0 {
				if failed, err := Parse(r.Case); err == nil { // it was in progress
					c.nodeRolls += failed.nodes()
				}
				c.by = plain(r.Problems[0])
				t.Logf("%s\n%s\n%s", m.says, r.Case, strings.Join(r.Problems, "\n"))
				return true
			}
		}
		if len(results) < count {
			must.Be(t, !strings.Contains(said, errSlow.Error()), "%s: %s", m.name, said)
			c.schedules++
			c.by = "its process died"
			t.Logf("%s\n%s", m.says, said)
			return true
		}
		return false
	}
	for _, entry := range corpus(t) {
		if !strings.HasPrefix(entry.name, "guarded:") {
			continue
		}
		if results, said := play("TestReplay", "-schedules.replay", entry.c.String()); found(1, results, said) {
			return c
		}
	}
	for from := 0; (nodeRolls == 0 || c.nodeRolls < nodeRolls) && (schedules == 0 || c.schedules < schedules); {
		count := min(1+from, 10)
		if schedules > 0 {
			count = min(count, schedules-c.schedules)
		}
		results, said := play("TestSchedules", "-schedules.seed", *mutantsSeed, "-schedules.first", strconv.Itoa(from), "-schedules.n", strconv.Itoa(count))
		if found(count, results, said) {
			return c
		}
		from += count
	}
	return c
}

// numbers are the parts in which reports of the same problem differ.
var numbers = regexp.MustCompile(`[0-9a-f]{8,}|[0-9]+`)

func plain(problem string) string {
	line, _, _ := strings.Cut(problem, "\n")
	line = numbers.ReplaceAllString(line, "#")
	const longest = 140
	return line[:min(len(line), longest)]
}

func (m mutant) build(t *testing.T) (string, error) {
	t.Helper()
	dir := t.TempDir()
	overlay, err := m.overlay(dir)
	if err != nil {
		return "", err
	}
	program := filepath.Join(dir, "mutant.test")
	out, err := exec.CommandContext(t.Context(), "go", "test", "-c", "-overlay", overlay, "-o", program, ".").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("mutant %s does not compile: %w\n%s", m.name, err, out)
	}
	return program, nil
}

// overlay writes the mutant's files to dir, and returns the path of the file for go test -overlay.
func (m mutant) overlay(dir string) (string, error) {
	files, err := m.sources()
	if err != nil {
		return "", err
	}
	var overlay struct{ Replace map[string]string }
	overlay.Replace = map[string]string{}
	for name, content := range files {
		path, err := filepath.Abs(filepath.Join(root, name))
		if err != nil {
			return "", err
		}
		copied := filepath.Join(dir, strconv.Itoa(len(overlay.Replace))+filepath.Ext(name))
		if err := os.WriteFile(copied, content, 0o600); err != nil {
			return "", err
		}
		overlay.Replace[path] = copied
	}
	text, err := json.Marshal(overlay)
	if err != nil {
		return "", err
	}
	file := filepath.Join(dir, "overlay.json")
	return file, os.WriteFile(file, text, 0o600)
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
		must.Hold(t, err != nil, "%s: it applies", name)
	}
}

// TestNamedTests: only a test that ran, and failed, has caught a mutant.
func TestNamedTests(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":      "module example\n\ngo 1.26\n",
		"x/x.go":      "package x\n\nfunc Double(n int) int { return 2 * n }\n",
		"broken.go":   "package x\n\nfunc Double(n int) int { return m }\n",
		"wrong.go":    "package x\n\nfunc Double(n int) int { return n }\n",
		"broken.json": fmt.Sprintf(`{"Replace":{%q:%q}}`, filepath.Join(dir, "x/x.go"), filepath.Join(dir, "broken.go")),
		"wrong.json":  fmt.Sprintf(`{"Replace":{%q:%q}}`, filepath.Join(dir, "x/x.go"), filepath.Join(dir, "wrong.go")),
		"x/x_test.go": "package x\n\nimport (\n\"os\"\n\"testing\"\n)\n" + namedTestsOfX,
	} {
		path := filepath.Join(dir, name)
		must.Do(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)))
	}
	for name, c := range map[string]struct {
		test, overlay string
		exists        bool
		said          string // of the reason why it is not caught; "": it is caught
	}{
		"caught":           {"TestDouble", "wrong", true, ""},
		"by a panic":       {"TestPanics", "wrong", true, ""},
		"not caught":       {"TestOfNothing", "wrong", true, "pass, want fail"},
		"skipped":          {"TestLong", "wrong", true, "skipped with -short"},
		"no such test":     {"TestNothing", "wrong", false, "did not run"},
		"does not compile": {"TestDouble", "broken", true, "do not compile"},
		"leaves early":     {"TestLeaves", "wrong", true, "did not run to its end"},
	} {
		m := mutant{test: namedTest{"./x", c.test}}
		must.Equal(t, name+": exists", c.exists, m.test.exists(dir) == nil)
		said, err := m.miss(t.Context(), dir, filepath.Join(dir, c.overlay+".json"))
		if got := fmt.Sprint(err); (err == nil) != (c.said == "") || !strings.Contains(got, c.said) && c.said != "" {
			t.Errorf("%s: %v, want %q\n%s", name, err, c.said, said)
		}
	}
	if ended, said, err := outcomes(t.Context(), dir, "./x", []string{"TestDouble", "TestOfNothing"}); err != nil || ended["TestDouble"] != "pass" || ended["TestOfNothing"] != "pass" {
		t.Errorf("unchanged: %v, %v\n%s", ended, err, said)
	}
	for _, text := range []string{"", "./cluster/planning", "cluster/planning TestX", "./cluster/planning TestX and TestY", "./cluster TestX/sub", "./cluster BenchmarkX"} {
		if n, err := parseNamedTest(text); err == nil {
			t.Errorf("%q names %v", text, n)
		}
	}
}

const namedTestsOfX = `
func TestDouble(t *testing.T) { if Double(2) != 4 { t.Error("not double") } }
func TestPanics(t *testing.T) { if Double(2) != 4 { panic("not double") } }
func TestOfNothing(t *testing.T) {}
func TestLong(t *testing.T) { if testing.Short() { t.Skip("long: too much") }; TestDouble(t) }
func TestLeaves(t *testing.T) { if Double(2) != 4 { os.Exit(1) } }
`
