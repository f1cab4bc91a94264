package command_test

import (
	"context"
	"errors"
	"fmt"
	"io"
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

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/command"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
)

func shell(script string) cluster.CommandGate {
	return cluster.CommandGate{Args: []string{"sh", "-c", script}}
}

func TestRunGate(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{"check.sh": 0o700, "plain.sh": 0o600} {
		must.Do(t, os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\nls check.sh\nexit 7\n"), mode))
	}
	gates := command.Gates{Env: []string{"PATH=" + os.Getenv("PATH"), "PROXMOX_VE_API_TOKEN=u@pve!t=s3cret", "KUBECONFIG=/k"}}
	cases := map[string]struct {
		gate cluster.CommandGate
		exit int
		said string
		err  string
		kind fault.Kind
	}{
		"holds":           {gate: shell("echo all well"), said: "all well"},
		"does not":        {gate: shell("echo one; echo two >&2; exit 3"), exit: 3, said: "one; two"},
		"its environment": {gate: shell("echo $RECAST_NODE $KUBECONFIG ${PROXMOX_VE_API_TOKEN-none}"), said: "wk1 /k none"},
		"no input":        {gate: shell("cat"), said: ""},
		"by its path":     {gate: cluster.CommandGate{Args: []string{"./check.sh"}, Dir: dir}, exit: 7, said: "check.sh"},
		"not there":       {gate: cluster.CommandGate{Args: []string{"./other.sh"}, Dir: dir}, err: "run ./other.sh: ", kind: fault.Refused},
		"not in PATH":     {gate: cluster.CommandGate{Args: []string{"no-such-program"}}, err: "run no-such-program: ", kind: fault.Refused},
		"not executable":  {gate: cluster.CommandGate{Args: []string{"./plain.sh"}, Dir: dir}, err: "run ./plain.sh: ", kind: fault.Refused},
		"killed":          {gate: shell("kill -9 $$"), err: "run sh: signal: killed"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			exit, said, err := gates.RunGate(t.Context(), c.gate, []string{"RECAST_NODE=wk1"})
			if c.err != "" {
				must.Hold(t, err != nil && strings.HasPrefix(err.Error(), c.err) && fault.KindOf(err) == c.kind,
					"kind %d: %v", fault.KindOf(err), err)
				return
			}
			must.Hold(t, err == nil && exit == c.exit && said == c.said,
				"%d, %q, %v; want %d, %q", exit, said, err, c.exit, c.said)
		})
	}
}

var stopped = regexp.MustCompile(`^sh was stopped after [0-9]+s: it said last: here: over$`)

// A program that times out is stopped with all its children.
func TestRunGateEndsTheWholeGroup(t *testing.T) {
	t.Parallel()
	alive := filepath.Join(t.TempDir(), "fifo")
	ctx, cancel := context.WithCancelCause(t.Context())
	over := errors.New("over")
	must.Do(t, syscall.Mkfifo(alive, 0o600))
	script := "echo here; (sleep 600; echo late) & echo >" + alive + "; wait"
	go func() {
		_, err := os.ReadFile(alive) // written once the program runs
		cancel(errors.Join(over, err))
	}()
	start := time.Now()
	_, _, err := command.Gates{Env: os.Environ()}.RunGate(ctx, shell(script), nil)
	must.Hold(t, errors.Is(err, over) && stopped.MatchString(err.Error()), "err = %v", err)
	if took := time.Since(start); took > 15*time.Second { // the sleeping child keeps the output open
		t.Errorf("it took %s", took)
	}
}

// When a program has ended, its children are killed, whether they hold its output or not; its exit code counts.
func TestRunGateLeavesNothingRunning(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		child string
		exit  int
		said  string
	}{
		"holds, and the child prints":    {child: "sleep 600 &", said: "looked"},
		"does not, and the child prints": {child: "sleep 600 &", exit: 3, said: "looked"},
		"the child is quiet":             {child: "sleep 600 >/dev/null 2>&1 &", exit: 3, said: "looked"},
		"the child ignores signals":      {child: "(trap '' TERM HUP INT; sleep 600) &", said: "looked"},
		"a child of a child":             {child: "(sleep 600 & wait) &", said: "looked"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			alive := holdable(t)
			start := time.Now()
			exit, said, err := command.Gates{Env: os.Environ()}.RunGate(t.Context(), shell(fmt.Sprintf("exec 9>%s; %s echo looked; exit %d", alive.Name(), c.child, c.exit)), nil)
			must.Hold(t, err == nil && exit == c.exit && said == c.said,
				"%d, %q, %v; want %d, %q", exit, said, err, c.exit, c.said)
			requireNobodyHolds(t, alive)
			took := time.Since(start)
			must.Hold(t, took <= 15*time.Second, "it took %s", took)
		})
	}
}

// A daemon can't be killed, but it does not delay a gate.
func TestRunGateDoesNotWaitForADaemon(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("setsid"); err != nil {
		t.Skip("needs setsid")
	}
	alive := holdable(t)
	start := time.Now()
	exit, said, err := command.Gates{Env: os.Environ()}.RunGate(t.Context(),
		shell(fmt.Sprintf("exec 9<>%s; setsid sh -c 'echo $$ >&9; exec sleep 600' & read pid <&9; echo $pid", alive.Name())), nil)
	if pid, errPid := strconv.Atoi(said); errPid == nil {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	must.Hold(t, err == nil && exit == 0 && said != "", "%d, %q, %v", exit, said, err)
	took := time.Since(start)
	must.Hold(t, took <= 15*time.Second, "it took %s", took)
}

// All output before the end is read, however much it is.
func TestRunReadsToTheEnd(t *testing.T) {
	t.Parallel()
	lines, said := 0, &command.Lines{}
	said.Note = func(string) { lines++ }
	err := command.Program{Args: []string{"sh", "-c", "head -n 20000; printf last"}, Stdin: []byte(strings.Repeat("line\n", 30_000))}.Run(t.Context(), said)
	if err != nil || lines != 20_001 || !strings.HasSuffix(said.Last(), "line; last") {
		t.Errorf("%d lines, %q at last, %v", lines, said.Last(), err)
	}
}

// Children of a stopped program may clean up, even if the program itself is gone at once.
func TestRunGateLetsChildrenTidyUp(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ready, tidy := filepath.Join(dir, "ready"), filepath.Join(dir, "tidy")
	must.Do(t, syscall.Mkfifo(ready, 0o600))
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		_, _ = os.ReadFile(ready)
		cancel()
	}()
	child := fmt.Sprintf("(trap 'sleep 0.2; echo done >%s; exit' TERM; echo >%s; while :; do sleep 0.05; done) & wait", tidy, ready)
	if _, _, err := (command.Gates{Env: os.Environ()}).RunGate(ctx, shell(child), nil); !errors.Is(err, context.Canceled) {
		t.Errorf("err = %v", err)
	}
	if _, err := os.Stat(tidy); err != nil {
		t.Error(err)
	}
}

// holdable is a fifo, open for writing. Whoever inherits it holds it until it ends.
func holdable(t *testing.T) *os.File {
	t.Helper()
	path := filepath.Join(t.TempDir(), "fifo")
	must.Do(t, syscall.Mkfifo(path, 0o600))
	f := must.Get(os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0))(t)
	t.Cleanup(func() { f.Close() })
	return f
}

func requireNobodyHolds(t *testing.T, f *os.File) {
	t.Helper()
	must.Do(t, f.SetReadDeadline(time.Now().Add(5*time.Second)))
	if _, err := f.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("something runs on: %v", err)
	}
}

func TestEnviron(t *testing.T) {
	t.Parallel()
	env := []string{
		"PATH=/bin", "HOME=/root", "LC_ALL=C", "XDG_RUNTIME_DIR=/run/user/0", "RECAST_NODE=wk1", "KUBECONFIG=k", "https_proxy=http://p",
		"PROXMOX_VE_API_TOKEN=u@pve!t=s", "GITHUB_TOKEN=g", "SLACK_WEBHOOK_URL=https://h", "OTEL_EXPORTER_OTLP_HEADERS=a=b", "DOCKER_HOST=tcp://d", "DOCKER_AUTH_CONFIG={}", "PATHS=x", "BARE",
	}
	want := env[:7]
	must.Equal(t, "environment", want, command.Environ(env, nil))
	want = append(slices.Clone(want), "SLACK_WEBHOOK_URL=https://h", "DOCKER_HOST=tcp://d", "DOCKER_AUTH_CONFIG={}")
	got := command.Environ(env, []string{"SLACK_WEBHOOK_URL", "DOCKER_*", "PROXMOX_VE_API_TOKEN", "UNSET"})
	must.Hold(t, slices.Equal(got, want), "%q, want %q", got, want)
}

// TestProgramsGetNoSecrets: gates and hooks see no secrets of recast except those that they name.
func TestProgramsGetNoSecrets(t *testing.T) {
	t.Parallel()
	gates := command.Gates{Env: []string{
		"PATH=" + os.Getenv("PATH"), "PROXMOX_VE_API_TOKEN=planted", "GITHUB_TOKEN=planted", "SLACK_WEBHOOK_URL=planted", "OTEL_EXPORTER_OTLP_HEADERS=planted", "LB_PASSWORD=mine",
	}}
	program := shell("env; echo LB:${LB_PASSWORD-none}")
	if _, err := gates.RunHook(t.Context(), program, []string{"RECAST_HOOK=beforeNode"}, func(line string) {
		must.Hold(t, !strings.Contains(line, "planted") && line != "LB:mine", "a hook prints %q", line)
	}); err != nil {
		t.Error(err)
	}
	if _, said, err := gates.RunGate(t.Context(), program, nil); err != nil || strings.Contains(said, "planted") || !strings.Contains(said, "LB:none") {
		t.Errorf("a gate said %q, %v", said, err)
	}
	program.Env = []string{"LB_PASSWORD"}
	if _, said, err := gates.RunGate(t.Context(), program, nil); err != nil || strings.Contains(said, "planted") || !strings.Contains(said, "LB:mine") {
		t.Errorf("a gate that names it said %q, %v", said, err)
	}
}

// A program's output is shown without escape sequences, line by line.
func TestForeignTextIsOneLine(t *testing.T) {
	t.Parallel()
	const evil = `printf 'bad\033[31m\033]0;title\007\rfake line: \342\200\256\342\200\250\177\n'; exit 3`
	programs := command.Gates{Env: []string{"PATH=" + os.Getenv("PATH")}}
	_, said, err := programs.RunGate(t.Context(), shell(evil), nil)
	must.Do(t, err)
	var told []string
	end := must.Get(programs.RunHook(t.Context(), shell(evil), nil, func(line string) { told = append(told, line) }))(t)
	for _, text := range []string{said, end.Said, strings.Join(told, "\n")} {
		if !strings.HasPrefix(text, "bad fake line: ") || strings.ContainsAny(text, "\x1b\a\r\n\u202e\u2028\x7f") || strings.Contains(text, "title") {
			t.Errorf("%q", text)
		}
	}
}
