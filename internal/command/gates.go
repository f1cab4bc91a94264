package command

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
)

// Gates runs the programs of gates and hooks.
type Gates struct {
	// Env is an environment. Programs get the variables that Environ passes on and those that recast.yaml names.
	Env []string
}

var _ cluster.CommandRunner = Gates{}

// RunGate runs the gate's program once. If the program does not exist or can't be run, the error is of kind
// fault.Refused.
func (g Gates) RunGate(ctx context.Context, gate cluster.CommandGate, env []string) (exit int, said string, err error) {
	lines := &Lines{}
	exit, err = g.run(ctx, gate, env, lines, "roll.gates")
	if err != nil {
		return 0, "", err
	}
	return exit, lines.Last(), nil
}

// run runs a program that recast.yaml lists under key.
func (g Gates) run(ctx context.Context, gate cluster.CommandGate, env []string, lines *Lines, key string) (exit int, err error) {
	start := time.Now()
	err = Program{Args: gate.Args, Dir: gate.Dir, Env: append(Environ(g.Env, gate.Env), env...)}.Run(ctx, lines)
	ended, isExit := errors.AsType[*exec.ExitError](err)
	switch {
	case err == nil:
		return 0, nil
	case ctx.Err() != nil:
		if last := lines.Last(); last != "" {
			err = fmt.Errorf("it said last: %s: %w", last, err)
		}
		return 0, fmt.Errorf("%s was stopped after %s: %w", gate.Args[0], time.Since(start).Round(time.Second), err)
	case isExit && ended.ExitCode() > 0:
		return ended.ExitCode(), nil
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission):
		return 0, fault.WithHint(fault.Refusedf("run %s: %w", gate.Args[0], err),
			"command in %s has to name a program that can be run here: by its name in PATH, or by its path, which starts at recast.yaml", key)
	}
	return 0, fmt.Errorf("run %s: %w", gate.Args[0], err)
}

// FromHere returns Gates with this process's environment. It makes file names in the environment absolute, because
// gates and hooks run in the directory of recast.yaml.
func FromHere() Gates {
	here, _ := os.Getwd() // without a working directory, relative paths stay as they are
	return Gates{Env: absolutePaths(here, os.Environ())}
}

// absolutePaths makes the files in KUBECONFIG and TALOSCONFIG absolute. KUBECONFIG may
// list several.
func absolutePaths(dir string, env []string) []string {
	out := slices.Clone(env)
	for i, entry := range out {
		name, value, _ := strings.Cut(entry, "=")
		if name != "KUBECONFIG" && name != "TALOSCONFIG" {
			continue
		}
		files := filepath.SplitList(value)
		for j, file := range files {
			if file != "" && !filepath.IsAbs(file) {
				files[j] = filepath.Join(dir, file)
			}
		}
		out[i] = name + "=" + strings.Join(files, string(filepath.ListSeparator))
	}
	return out
}

// maxHookLines is the most lines that a running hook can report.
const maxHookLines = 200

// RunHook runs a hook's program once. It returns the end of the program's output even on an error. Errors are those
// of RunGate.
func (g Gates) RunHook(ctx context.Context, hook cluster.CommandGate, env []string, line func(text string)) (cluster.HookEnd, error) {
	var kept tail
	count := 0
	lines := &Lines{Note: func(text string) {
		kept.add(text)
		switch count++; {
		case count <= maxHookLines:
			line(text)
		case count == maxHookLines+1:
			line("further output is not shown here; the report has the end of it")
		}
	}}
	exit, err := g.run(ctx, hook, env, lines, "roll.hooks")
	return cluster.HookEnd{Exit: exit, Said: lines.Last(), Output: kept.String()}, err
}

// tail holds the last lines of a text, at most cluster.HookOutput bytes.
type tail struct {
	lines []string
	bytes int
}

func (t *tail) add(line string) {
	line += "\n"
	t.lines, t.bytes = append(t.lines, line), t.bytes+len(line)
	for t.bytes > cluster.HookOutput {
		t.bytes -= len(t.lines[0])
		t.lines = t.lines[1:]
	}
}

func (t *tail) String() string {
	b := make([]byte, 0, t.bytes)
	for _, line := range t.lines {
		b = append(b, line...)
	}
	return string(b)
}
