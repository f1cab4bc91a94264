package tools

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// fakeGo runs no test: it prints what go test -json does for one that passes, and its nth call of go test
// does not start, where FAILS says so.
const fakeGo = `#!/bin/bash
case $1 in
list) echo example.org/x ;;
env) [[ ${!#} != CC ]] || echo true ;;
test)
	n=$(($(cat "$STATE/calls" 2>/dev/null || echo 0) + 1))
	echo "$n" >"$STATE/calls"
	[[ $n != "$FAILS" ]] || { echo "go: it does not start" >&2 && exit 1; }
	if [[ " $* " == *" -bench "* ]]; then
		for name in $(grep -ohE 'Benchmark[A-Za-z]+' docs/performance.md); do echo "$name-2 1 1 ns/op"; done
		exit 0
	fi
	for figure in requests objects alerts commands failed kubernetes-troubles archives installed images schedules node-rolls faults violations mutants; do
		attrs+="{\"Action\":\"attr\",\"Package\":\"x\",\"Test\":\"TestX\",\"Key\":\"$figure\",\"Value\":\"1\"}"$'\n'
	done
	printf '%s\n' '{"Action":"start","Package":"x"}' '{"Action":"run","Package":"x","Test":"TestX"}' "$attrs" \
		'{"Action":"pass","Package":"x","Test":"TestX"}' '{"Action":"pass","Package":"x"}'
	;;
esac
`

// stages are the targets of make that run tests, and so do their scripts.
var stages = []string{
	"test", "stories", "race", "contract", "crash", "kill", "schedules", "test-mutants", "limits", "schema", "release-snapshot",
	"e2e", "e2e-talosctl", "e2e-k8s", "e2e-operator", "e2e-report", "e2e-helm",
}

// repository is a copy of what make runs, with programs that do nothing except testsummary.
func repository(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	copied := []string{"Makefile", "docs/performance.md", ".ci/run"}
	scripts, err := filepath.Glob("*")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range scripts {
		if info, err := os.Stat(name); err == nil && info.Mode().IsRegular() && info.Mode()&0o100 != 0 {
			copied = append(copied, "internal/tools/"+name)
		}
	}
	for _, name := range copied {
		text, err := os.ReadFile(filepath.Join("../..", name))
		if err != nil {
			t.Fatal(err)
		}
		write(t, dir, name, string(text))
	}
	const nothing = "#!/bin/bash\n"
	for _, name := range []string{"go.mod", "go.sum", "release/go.mod", "release/go.sum"} {
		write(t, dir, "internal/tools/"+name, "")
	}
	for _, module := range []string{"e2e/factory", "e2e/kubernetes", "e2e/talosctl", "e2e/report", "e2e/helm"} {
		write(t, dir, "internal/"+module+"/go.mod", "")
	}
	write(t, dir, "internal/x/bench_test.go", "package x\n\nfunc BenchmarkNewPlan(b *testing.B) {\n}\n")
	write(t, dir, "apidoc.json", "{}")
	write(t, dir, "internal/tools/build", nothing)
	write(t, dir, "bin/tools/longtests", nothing+"[[ $FAILS != longtests ]] || exit 1\necho '-run ^(TestX)$ ./x'\n")
	for _, name := range []string{"sbom", "chart", "gatemutants", "goreleaser", "gofumpt", "staticcheck", "controller-gen", "actionlint"} {
		write(t, dir, "bin/tools/"+name, nothing)
	}
	programs := []string{"mksquashfs", "unsquashfs", "cpio", "zstd", "mkfs.vfat", "mcopy", "mattrib", "xorrisofs", "grub-mkrescue", "depmod", "qemu-img", "sfdisk", "osslsigncode", "age-keygen", "buildah", "docker", "chromium"}
	for _, name := range programs {
		write(t, dir, "path/"+name, nothing)
	}
	write(t, dir, "path/go", fakeGo)
	build := exec.CommandContext(t.Context(), "go", "build", "-o", filepath.Join(dir, "bin/tools/testsummary"), "./cmd/testsummary")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return dir
}

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
}

// runs is a program in the copy, whose programs come first.
func runs(t *testing.T, dir string, env []string, name string, args ...string) (out string, err error) {
	t.Helper()
	c := exec.CommandContext(t.Context(), name, args...)
	c.Dir = dir
	c.Env = append(os.Environ(), append(env, "PATH="+filepath.Join(dir, "path")+":"+os.Getenv("PATH"), "MAKEFLAGS=", "GOFLAGS=", "TESTS_COMPLETE=", "PVE_ENDPOINT=")...)
	text, err := c.CombinedOutput()
	return string(text), err
}

// TestAStageThatDoesNotStartIsRed: whichever of its calls of go test does not even start.
func TestAStageThatDoesNotStartIsRed(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root: e2e-operator asks for it")
	}
	dir := repository(t)
	for _, stage := range stages {
		t.Run(stage, func(t *testing.T) {
			t.Parallel()
			play := func(fails string) (calls int, out string, err error) {
				state := t.TempDir()
				out, err = runs(t, dir, []string{"STATE=" + state, "FAILS=" + fails}, "make", "--no-print-directory", stage, "APIDOC=apidoc.json")
				text, _ := os.ReadFile(filepath.Join(state, "calls")) // none without a call
				_, _ = fmt.Sscan(string(text), &calls)
				return calls, out, err
			}
			calls, out, err := play("")
			if err != nil || calls == 0 {
				t.Fatalf("%d calls of go test, all of which pass: %v\n%s", calls, err, out)
			}
			for n := range calls {
				if _, out, err := play(strconv.Itoa(n + 1)); err == nil {
					t.Errorf("call %d of %d of go test does not start, yet the stage passes:\n%s", n+1, calls, out)
				}
			}
			if slices.Contains([]string{"test", "stories", "race"}, stage) {
				if _, out, err := play("longtests"); err == nil {
					t.Errorf("longtests fails, yet the stage passes:\n%s", out)
				}
			}
		})
	}
}

// TestCI: .ci/run is red if a stage is, or if there is no schema of Proxmox's API; every stage that runs tests is one of its.
func TestCI(t *testing.T) {
	t.Parallel()
	dir := repository(t)
	write(t, dir, "path/make", "#!/bin/bash\n[[ $2 != \"$FAILS\" ]] || exit 1\necho \"$2: $TESTS_COMPLETE tests, 5 requests, 0 schema-violations\"\n")
	play := func(fails, apidoc string) (string, error) {
		return runs(t, dir, []string{"FAILS=" + fails, "APIDOC=" + apidoc, "SEED=1"}, "bash", ".ci/run")
	}
	out, err := play("", "apidoc.json")
	if err != nil || !strings.Contains(out, "\nschema: 15 requests, 0 violations\n") {
		t.Fatalf("nothing fails: %v\n%s", err, out)
	}
	if out, err := play("", "nowhere.json"); err == nil {
		t.Errorf("without a schema it passes:\n%s", out)
	}
	for _, stage := range regexp.MustCompile(`(?m)^== make --no-print-directory ([a-z0-9-]+)`).FindAllStringSubmatch(out, -1) {
		if !slices.Contains(stages, stage[1]) && !slices.Contains([]string{"check", "gate-mutants", "demo"}, stage[1]) {
			t.Errorf("nothing says whether %s is red where it does not start", stage[1])
		}
	}
	for _, stage := range append([]string{"check", "gate-mutants", "demo"}, stages...) {
		// test, contract and stories are held against the schema.
		if stage != "schema" && !strings.Contains(out, "\n"+stage+": 1 tests") {
			t.Errorf("it does not run %s, or not with TESTS_COMPLETE=1", stage)
		}
	}
	for _, stage := range []string{"check", "e2e-operator", "race", "e2e-k8s"} { // alone, and side by side
		if out, err := play(stage, "apidoc.json"); err == nil {
			t.Errorf("%s fails, yet it passes:\n%s", stage, out)
		}
	}
}

// TestCIInterrupted: Ctrl-C ends what the rows of .ci/run have started, which are in process groups of their own.
func TestCIInterrupted(t *testing.T) {
	t.Parallel()
	dir := repository(t)
	pids := filepath.Join(dir, "pids")
	write(t, dir, "path/make", `#!/bin/bash
case $2 in
e2e-deps) ;;
check | test | limits) echo "$2: 5 requests, 0 schema-violations" ;;
*) sleep 600 & echo $$ $! >>"$PIDS"; wait ;;
esac
`)
	c := exec.CommandContext(t.Context(), "bash", ".ci/run")
	c.Dir, c.SysProcAttr = dir, &syscall.SysProcAttr{Setpgid: true}
	c.Env = append(os.Environ(), "PATH="+filepath.Join(dir, "path")+":"+os.Getenv("PATH"), "APIDOC=apidoc.json", "PIDS="+pids)
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	var started []string
	t.Cleanup(func() {
		if t.Failed() {
			_ = exec.Command("kill", started...).Run()
		}
	})
	until(t, "the four rows run", func() bool {
		text, _ := os.ReadFile(pids) // none at first
		started = strings.Fields(string(text))
		return len(started) == 8
	})
	if err := syscall.Kill(-c.Process.Pid, syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := c.Wait(); err == nil {
		t.Error("an interrupted .ci/run passes")
	}
	until(t, "all have ended", func() bool {
		return !slices.ContainsFunc(started, func(pid string) bool {
			state, err := os.ReadFile("/proc/" + pid + "/stat")
			return err == nil && !strings.Contains(string(state), ") Z ")
		})
	})
}

// until waits for other processes.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for range 200 {
		if holds() {
			return
		}
		<-time.After(100 * time.Millisecond)
	}
	t.Fatalf("after 20 s it is not so that %s", what)
}
