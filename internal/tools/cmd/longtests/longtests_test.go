package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// files are a module with a test for every way to come to testing.Short, and others beside them.
var files = map[string]string{
	"go.mod": "module example\n\ngo 1.26\n",
	"x/x.go": "package x\n\nfunc Double(n int) int { return 2 * n }\n",
	"x/x_test.go": `package x

import (
	"fmt"
	"testing"
)

func TestItself(t *testing.T) { if testing.Short() { t.Skip() } }
func TestInASubtest(t *testing.T) { t.Run("a", func(t *testing.T) { long(t) }) }
func TestByAHelper(t *testing.T) { helper(t) }
func TestByAMethod(t *testing.T) { var s slice; s.next() }
func TestByAnInterface(t *testing.T) { var s stepper = &slice{}; s.next() }
func TestByATable(t *testing.T) { for _, f := range table { f() } }
func TestByAValue(t *testing.T) { if quick { t.Skip() } }
func FuzzItself(f *testing.F) { if testing.Short() { f.Skip() } }

func TestShort(t *testing.T) { long := 1; fmt.Println(long) }
func TestAnotherNext(t *testing.T) { var o other; o.next() }
func TestMain(m *testing.M) { quick = testing.Short(); m.Run() }
func BenchmarkLong(b *testing.B) { if testing.Short() { b.Skip() } }

var quick = testing.Short()
var table = map[string]func() bool{"a": testing.Short}

type stepper interface{ next() bool }
type slice struct{}
type other struct{}

func (s *slice) next() bool { return !testing.Short() }
func (o other) next() bool { return true }
func helper(t *testing.T) { long(t) }
func long(t *testing.T) { t.Helper(); if testing.Short() { t.Skip("long") } }
`,
	"x/outside_test.go": "package x_test\n\nimport \"testing\"\n\nfunc TestOutside(t *testing.T) { if testing.Short() { t.Skip() } }\n",
	"y/y_test.go":       "package y\n\nimport \"testing\"\n\nfunc TestQuick(t *testing.T) {}\n",
	"z/z_test.go":       "package z\n\nimport t \"testing\"\n\nfunc TestItself(x *t.T) { if t.Short() { x.Skip() } }\nfunc TestZ(x *t.T) { x.Run(\"z\", func(x *t.T) { TestItself(x) }) }\n",
}

func write(t *testing.T, files map[string]string) {
	t.Helper()
	t.Chdir(t.TempDir())
	for name, text := range files {
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("GOFLAGS", "")
	t.Setenv("GOWORK", "off")
}

func TestLongTests(t *testing.T) {
	write(t, files)
	for args, want := range map[string]string{
		"./...":      "-run ^(FuzzItself|TestByAHelper|TestByAMethod|TestByATable|TestByAValue|TestByAnInterface|TestInASubtest|TestItself|TestOutside|TestZ)$ example/x example/z\n",
		"./z":        "-run ^(TestItself|TestZ)$ example/z\n",
		"-names ./y": "",
		"-names ./z": "example/z TestItself\nexample/z TestZ\n",
		"-list ./z":  "example/z TestItself testing.Short\nexample/z TestZ example/z.TestItself < testing.Short\n",
	} {
		var stdout, stderr strings.Builder
		if code := run(strings.Fields(args), &stdout, &stderr); code != 0 || stdout.String() != want {
			t.Errorf("longtests %s: %d, %q, %s; want %q", args, code, &stdout, &stderr, want)
		}
	}
}

func TestNothingIsPassedOver(t *testing.T) {
	for name, files := range map[string]map[string]string{
		"no long test":     {"go.mod": files["go.mod"], "y/y_test.go": files["y/y_test.go"]},
		"does not compile": {"go.mod": files["go.mod"], "y/y_test.go": "package y\n\nfunc TestX() { undefined() }\n", "z/z_test.go": files["z/z_test.go"]},
	} {
		t.Run(name, func(t *testing.T) {
			write(t, files)
			var stdout, stderr strings.Builder
			if code := run([]string{"./..."}, &stdout, &stderr); code != 1 || stdout.Len() > 0 {
				t.Errorf("longtests: %d, %q, %s", code, &stdout, &stderr)
			}
		})
	}
}
