package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestMain has skipped tests pass, also where make test itself has to be complete.
func TestMain(m *testing.M) {
	if err := os.Unsetenv("TESTS_COMPLETE"); err != nil {
		panic(err)
	}
	m.Run()
}

// goTest runs the tests of one file in their own module and passes the go test -json output to run.
func goTest(t *testing.T, test string, args ...string) (code int, out string) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod": "module example\n\ngo 1.26\n", "x.go": "package x\n", "x_test.go": "package x\n\n" + test,
		"none/none.go": "package none\n",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	goArgs := []string{"test", "-json", "-count=1", "-timeout=1m"}
	if len(args) > 1 && args[0] == "-run" { // go test's own
		goArgs, args = append(goArgs, args[:2]...), args[2:]
	}
	cmd := exec.CommandContext(t.Context(), "go", append(goArgs, "./...")...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOFLAGS=", "GOWORK=off")
	text, err := cmd.Output()
	if err != nil && cmd.ProcessState.ExitCode() != 1 {
		t.Fatal(err)
	}
	var stdout, stderr strings.Builder
	code = run(append([]string{"-name", "check"}, args...), strings.NewReader(string(text)), &stdout, &stderr)
	if stderr.Len() > 0 {
		t.Errorf("stderr: %s", &stderr)
	}
	return code, regexp.MustCompile(`\(0\.\d\ds\)`).ReplaceAllString(stdout.String(), "(0.00s)")
}

// shown is what testsummary shows of the tests of a file.
type shown struct {
	test  string // after the import of testing
	args  []string
	code  int
	begin string   // without the lines that name the file
	lines []string // in this order
	never string
	last  string // without times: the end
}

// summaries are what -tests shows.
var summaries = map[string]shown{
	"passed": {
		test: `
func TestA(t *testing.T) { t.Log("quiet"); t.Attr("points", "3") }
func TestB(t *testing.T) { t.Attr("points", "4"); t.Run("x", func(t *testing.T) {}); t.Run("y", func(t *testing.T) { t.Skip("needs: a thing") }) }`,
		lines: []string{"passed  TestA (0 s)", "skipped TestB/y: needs: a thing", "passed  TestB (0 s)", "ok  \texample"},
		last:  "\ncheck: 3 tests in 1 package, 0 failed, 1 skipped, 7 points, 0 s\n",
	},
	"figures of one test alone": {
		test:  `func TestA(t *testing.T) { t.Attr("points", "3"); t.Attr("fault:kill", "2") }`,
		lines: []string{"TestA: 3 points, 2 kill"}, last: "\ncheck: 1 test in 1 package, 0 failed, 0 skipped, 3 points, 0 s\n",
	},
	"failed": {
		test: `
func TestA(t *testing.T) { t.Log("quiet") }
func TestB(t *testing.T) { t.Run("x", func(t *testing.T) { t.Error("loud") }) }`,
		code: 1, lines: []string{"loud", "--- FAIL: TestB/x", "FAIL\texample"},
		last: "\ncheck: 2 tests in 1 package, 1 failed, 0 skipped, 1 package failed, 0 s\n",
	},
	"panicked": {
		test: `
func TestA(t *testing.T) { panic("a bug") }
func TestB(t *testing.T) {}`,
		code: 1, lines: []string{"panic: a bug"},
		last: "\ncheck: 1 test in 1 package, 1 failed, 0 skipped, 1 package failed, 0 s\n",
	},
	"left early": {
		test: "import \"os\"\nfunc TestA(t *testing.T) { os.Exit(5) }",
		code: 1, lines: []string{"=== RUN   TestA", "FAIL\texample"},
		last: "\ncheck: 1 test in 1 package, 1 failed, 0 skipped, 1 package failed, 0 s\n",
	},
	"not built": {
		test: "func TestA(t *testing.T) { undefined() }",
		code: 1, lines: []string{"undefined: undefined", "[build failed]"},
		last: "\ncheck: 0 tests in 0 packages, 0 failed, 0 skipped, 1 package failed, 0 s\n",
	},
	"nothing ran": {
		test: "func helper(t *testing.T) {}",
		code: 1,
		last: "check: 0 tests in 0 packages, 0 failed, 0 skipped, 1 package failed, 0 s\n",
	},
}

// stories are what -tests shows with -story.
var stories = map[string]shown{
	"a story that passed": {
		test:  `import "fmt"` + "\n" + `func TestA(t *testing.T) { fmt.Fprintln(t.Output(), "once\n  upon"); t.Run("x", func(t *testing.T) { t.Skip("no time") }) }`,
		begin: "once\n  upon\nskipped TestA/x: no time\npassed  TestA (0 s)\n",
	},
	"a story that failed": {
		test: `import "fmt"` + "\n" + `func TestA(t *testing.T) { fmt.Fprintln(t.Output(), "once"); t.Fail() }`,
		code: 1, begin: "once\n--- FAIL: TestA (0.00s)\n",
	},
	"a story beside others": {
		test:  `import "fmt"` + "\n" + `func TestA(t *testing.T) { t.Run("x", func(t *testing.T) { t.Parallel(); fmt.Fprintln(t.Output(), "once") }) }`,
		begin: "x: once\npassed  TestA (0 s)\n",
	},
}

// chosen are what other arguments show.
var chosen = map[string]shown{
	"counted": {
		test: `
func TestA(t *testing.T) { t.Attr("requests", "3"); t.Attr("other", "9") }
func TestB(t *testing.T) { t.Attr("requests", "4"); t.Attr("violations", "0") }`,
		args: []string{"-figures", "requests,violations"}, last: "ok  \texample\ncheck: 7 requests, 0 violations\n",
	},
	"nothing counted": {
		test: "func TestA(t *testing.T) {}", args: []string{"-figures", "requests,violations"},
		code: 1, last: "ok  \texample\ncheck: 0 requests, 0 violations\n",
	},
	"counted, and failed": {
		test: `func TestA(t *testing.T) { t.Attr("requests", "3"); t.Attr("violations", "2"); t.Error("loud") }`,
		args: []string{"-figures", "requests,violations"}, code: 1,
		last: "tests: 1 test in 1 package, 1 failed, 0 skipped, 1 package failed, 3 requests, 2 violations, 0 s\ncheck: 3 requests, 2 violations\n",
	},
	"figures that are summed and not shown with each test": {
		test: `
func TestA(t *testing.T) { t.Attr("sum:requests", "3"); t.Attr("points", "1") }
func TestB(t *testing.T) { t.Attr("sum:requests", "4") }`,
		lines: []string{"TestA: 1 points\n", ", 1 points, 7 requests, "}, never: "TestB",
	},
	// What is skipped for being long has to be run some time.
	"skipped, and run later":       {test: longTests, args: []string{"-later", "example TestB\n"}, never: "is skipped here"},
	"skipped, and not run later":   {test: longTests, args: []string{"-later", "example TestA\n"}, code: 1, lines: []string{lostTest}},
	"named":                        {test: "func TestA(t *testing.T) {}", args: []string{"-run", "TestA"}, never: missedTest},
	"named, and renamed meanwhile": {test: "func TestA(t *testing.T) {}", args: []string{"-run", "TestB"}, code: 1, lines: []string{missedTest}},
}

const (
	longTests = `
func TestA(t *testing.T) {}
func TestB(t *testing.T) { t.Run("x", func(t *testing.T) { t.Skip("long: too much") }) }
func TestC(t *testing.T) { t.Skip("there is no such program") }`
	lostTest   = "example TestB/x is skipped here, and is not a test that is run later: long: too much\n"
	missedTest = "example: none of the named tests is there\n"
)

func TestSummary(t *testing.T) {
	t.Parallel()
	each := func(cases map[string]shown, args ...string) {
		for name, c := range cases {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				c.check(t, args...)
			})
		}
	}
	each(summaries, "-tests")
	each(stories, "-tests", "-story")
	each(chosen)
}

func (c shown) check(t *testing.T, args ...string) {
	t.Helper()
	code, out := goTest(t, "import \"testing\"\n"+c.test, append(args, c.args...)...)
	if code != c.code {
		t.Errorf("code = %d, want %d", code, c.code)
	}
	rest := out
	for _, want := range c.lines {
		_, after, found := strings.Cut(rest, want)
		if !found {
			t.Errorf("%q is not shown, or not in order", want)
		}
		rest = after
	}
	if strings.Contains(out, "quiet") || c.never != "" && strings.Contains(out, c.never) {
		t.Errorf("shows what a passing test printed, or %q", c.never)
	}
	if begin := regexp.MustCompile(`.*x_test\.go.*\n`).ReplaceAllString(out, ""); !strings.HasPrefix(begin, c.begin) {
		t.Errorf("begins with\n%s\nwant\n%s", begin, c.begin)
	}
	timeless := regexp.MustCompile(`(?m)(\texample)\t.*s$`).ReplaceAllString(out, "$1")
	if timeless = regexp.MustCompile(`\d+ s\n$`).ReplaceAllString(timeless, "0 s\n"); !strings.HasSuffix(timeless, c.last) {
		t.Errorf("does not end with %q", c.last)
	}
	if t.Failed() {
		t.Log(out)
	}
}

func TestForeignLinesAreShown(t *testing.T) {
	t.Parallel()
	var stdout, stderr strings.Builder
	code := run(nil, strings.NewReader("no JSON\n"), &stdout, &stderr)
	if want := "no JSON\ntest: 0 tests in 0 packages, 0 failed, 0 skipped, 0 s\n"; code != 1 || stdout.String() != want {
		t.Errorf("run = %d, %q", code, &stdout)
	}
}

// TestReasonOfAScript: that of a script that was skipped is before its log.
func TestReasonOfAScript(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	out.WriteString("    cmd.go:380: long: make stories\n    testscript.go:584: WORK=$WORK\n        HOME=$WORK\n")
	if got := reason(&out); got != "long: make stories" {
		t.Errorf("%q", got)
	}
}

func TestReportsOfRacesAreShown(t *testing.T) {
	t.Parallel()
	var events strings.Builder
	for _, line := range []struct{ pkg, test, text string }{
		{"a", "TestGood", "=================="},
		{"a", "TestGood", "WARNING: DATA RACE"},
		{"b", "TestOther", "quiet"},
		{"a", "TestGood", "Write at 0x00c000 by goroutine 7:"},
		{"a", "TestGood", "=================="},
		{"a", "TestGood", "quiet"},
	} {
		fmt.Fprintf(&events, `{"Action":"output","Package":%q,"Test":%q,"Output":%q}`+"\n", line.pkg, line.test, line.text+"\n")
	}
	var out strings.Builder
	for _, at := range []id{{"a", "TestGood"}, {"b", "TestOther"}} {
		fmt.Fprintf(&events, `{"Action":"pass","Package":%q,"Test":%q}`+"\n", at.pkg, at.test)
	}
	if err := newSummary(&out).read(strings.NewReader(events.String())); err != nil {
		t.Fatal(err)
	}
	if want := "WARNING: DATA RACE\nWrite at 0x00c000 by goroutine 7:\n==================\n"; out.String() != want {
		t.Errorf("shown: %q, want %q", out.String(), want)
	}
}

// TestCompleteRuns: what can't run here has failed where everything has to.
func TestCompleteRuns(t *testing.T) {
	for reason, want := range map[string]int{"long: make stories": 0, "not in this slice: SLICE=all": 0, "left to make mutants": 0, "needs age": 1, "there is no man": 1, "": 1} {
		events := `{"Action":"start","Package":"a"}
{"Action":"run","Package":"a","Test":"TestA"}
{"Action":"pass","Package":"a","Test":"TestA"}
{"Action":"run","Package":"a","Test":"TestB"}
{"Action":"output","Package":"a","Test":"TestB","Output":"    a_test.go:1: ` + reason + `\n"}
{"Action":"skip","Package":"a","Test":"TestB"}
{"Action":"pass","Package":"a"}
`
		for env, code := range map[string]int{"": 0, "1": want} {
			t.Setenv("TESTS_COMPLETE", env)
			var stdout, stderr strings.Builder
			if got := run(nil, strings.NewReader(events), &stdout, &stderr); got != code {
				t.Errorf("TESTS_COMPLETE=%s, %q: code %d, want %d:\n%s", env, reason, got, code, &stdout)
			}
		}
	}
}

// TestInterrupted: go test was killed, or its output was cut off.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	const whole = `{"Action":"start","Package":"a"}
{"Action":"run","Package":"a","Test":"TestA"}
{"Action":"pass","Package":"a","Test":"TestA"}
{"Action":"start","Package":"b"}
{"Action":"run","Package":"b","Test":"TestB"}
{"Action":"output","Package":"b","Test":"TestB","Output":"at work\n"}
{"Action":"pass","Package":"b","Test":"TestB"}
{"Action":"pass","Package":"b"}
{"Action":"pass","Package":"a"}
`
	lines := strings.SplitAfter(strings.TrimSuffix(whole, "\n"), "\n")
	for n := range len(lines) + 1 {
		var stdout, stderr strings.Builder
		code := run(nil, strings.NewReader(strings.Join(lines[:n], "")), &stdout, &stderr)
		if want := map[bool]int{true: 0, false: 1}[n == len(lines)]; code != want {
			t.Errorf("after %d of %d lines: code %d, want %d:\n%s", n, len(lines), code, want, &stdout)
		}
	}
	var stdout, stderr strings.Builder
	endless := strings.Replace(whole, `{"Action":"pass","Package":"b","Test":"TestB"}`+"\n", "", 1)
	if code := run(nil, strings.NewReader(endless), &stdout, &stderr); code != 1 || !strings.Contains(stdout.String(), "b TestB did not end\n") {
		t.Errorf("a test without an end: code %d:\n%s", code, &stdout)
	}
}
