// Package command runs a user's [Program] and its child processes, in an environment without secrets. [Gates] runs
// the programs of gates and hooks.
package command

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/foreign"
)

const (
	stopTimeout  = 20 * time.Second // from SIGTERM until the program is killed
	closeTimeout = time.Second      // for the output to close after the program has ended
)

// Program is a program to run.
type Program struct {
	Args  []string // program and arguments
	Dir   string   // working directory; "": the current one
	Env   []string // a result of Environ; nil: empty
	Stdin []byte   // nil: none
	// Stdout gets the program's standard output, which said then does not get; may be nil.
	Stdout io.Writer
	// Stop ends things that a signal to the program may not reach, such as a container. It is called with the signal,
	// and again after the program has ended; may be nil.
	Stop func()
}

// Run runs the program to its end and writes its output to said. It kills every process left in the program's process
// group. If the context ends first, Run stops the program and returns the context's cause.
func (p Program) Run(ctx context.Context, said *Lines) error {
	cmd := exec.CommandContext(ctx, p.Args[0], p.Args[1:]...)
	cmd.Dir, cmd.Env = p.Dir, append([]string{}, p.Env...) // exec takes nil to mean this process's environment
	// Its own process group: recast itself handles Ctrl-C.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var stopped time.Time
	cmd.Cancel = func() error {
		stopped = time.Now()
		p.stop()
		return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM)
	}
	cmd.WaitDelay = stopTimeout
	out, err := p.start(cmd, said)
	if err == nil {
		err = cmd.Wait()
		if !stopped.IsZero() {
			out.waitClosed(time.Until(stopped.Add(stopTimeout))) // a child may still print while it cleans up
		}
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // usually nothing is left
		out.end()
	}
	if ctx.Err() == nil {
		return err
	}
	p.stop() // the first call may have come too early, with nothing to end yet
	return context.Cause(ctx)
}

// start starts the program. It makes its own pipe for the output: with exec's pipe, Wait would return only after
// every child that inherited the pipe is gone.
func (p Program) start(cmd *exec.Cmd, said *Lines) (*output, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer w.Close()
	cmd.Stdout, cmd.Stderr = w, w
	if p.Stdout != nil {
		cmd.Stdout = p.Stdout
	}
	var stdin io.WriteCloser
	if p.Stdin != nil {
		stdin, err = cmd.StdinPipe()
	}
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		r.Close()
		return nil, err
	}
	if stdin != nil {
		go feed(stdin, p.Stdin)
	}
	return readOutput(r, said), nil
}

// feed writes the input. It ends at the latest when Wait closes the pipe: a program need not read all of its input.
func feed(stdin io.WriteCloser, input []byte) {
	_, _ = stdin.Write(input)
	_ = stdin.Close()
}

func (p Program) stop() {
	if p.Stop != nil {
		p.Stop()
	}
}

// passed are the variables that every program gets: paths, user, locale, terminal, network and cluster access. All
// others are withheld, because many are secret: tokens of Proxmox and registries, webhook URLs, headers of a
// telemetry collector.
var passed = []string{
	"PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "TZ", "LANG", "LANGUAGE",
	"TERM", "COLORTERM", "NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "CI",
	"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy",
	"SSL_CERT_FILE", "SSL_CERT_DIR",
	"KUBECONFIG", "TALOSCONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT",
}

// passedPrefixes are the prefixes of further variables that every program gets.
var passedPrefixes = []string{"LC_", "XDG_", "RECAST_"}

// ProxmoxToken is never passed to a program, even if recast.yaml names it.
const ProxmoxToken = "PROXMOX_VE_API_TOKEN"

// Environ returns the variables in env that a program gets: passed, passedPrefixes, and the names in more, which may
// end in "*".
func Environ(env, more []string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		return name == ProxmoxToken || !allowed(name, more)
	})
}

func allowed(name string, more []string) bool {
	begins := func(prefix string) bool { return strings.HasPrefix(name, prefix) }
	return slices.ContainsFunc(passedPrefixes, begins) || slices.Contains(passed, name) || slices.ContainsFunc(more, func(m string) bool {
		prefix, family := strings.CutSuffix(m, "*")
		return m == name || family && strings.HasPrefix(name, prefix)
	})
}

// output reads the output of a program and its children.
type output struct {
	pipe *os.File
	said *Lines
	done chan struct{} // closed at the end of the output
}

func readOutput(pipe *os.File, said *Lines) *output {
	o := &output{pipe: pipe, said: said, done: make(chan struct{})}
	go func() {
		defer close(o.done)
		_, _ = io.Copy(said, pipe) // Copy ends with the last writer, or when the pipe is closed
	}()
	return o
}

// waitClosed waits until all writers are gone, at most for within.
func (o *output) waitClosed(within time.Duration) {
	select {
	case <-o.done:
	case <-time.After(within):
	}
}

// end reads the rest of the output. It closes the pipe after closeTimeout: a child outside the process group may hold
// the pipe open.
func (o *output) end() {
	o.waitClosed(closeTimeout)
	_ = o.pipe.Close() // its error does not matter: the pipe was only read
	<-o.done
	o.said.End()
}

const (
	keptLines = 8   // most lines that Last returns
	lineBytes = 400 // most bytes shown of a line
)

// Lines passes on a program's output, line by line, and remembers the last lines. The zero value is ready to use.
type Lines struct {
	Note func(line string)      // may be nil
	Drop func(line string) bool // says whether to skip a line; the line has its indent; may be nil

	partial []byte
	cut     bool // the rest of an overlong line is being dropped
	kept    []string
}

// Write never fails: a program must not stop because of its output.
func (l *Lines) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		line, after, ended := bytes.Cut(rest, []byte("\n"))
		if !l.cut {
			l.partial = append(l.partial, line[:min(len(line), lineBytes-len(l.partial))]...)
			l.cut = len(l.partial) == lineBytes
		}
		if ended {
			l.End()
		}
		rest = after
	}
	return len(p), nil
}

// End treats the bytes since the last line feed as a line.
func (l *Lines) End() {
	line := strings.TrimRight(foreign.Line(string(l.partial)), " ")
	l.partial, l.cut = l.partial[:0], false
	if line == "" || l.Drop != nil && l.Drop(line) {
		return
	}
	line = strings.TrimSpace(line)
	l.kept = append(l.kept, line)
	l.kept = l.kept[max(0, len(l.kept)-keptLines):]
	if l.Note != nil {
		l.Note(line)
	}
}

// Last returns the last lines, joined; "" if there was no output.
func (l *Lines) Last() string { return strings.Join(l.kept, "; ") }

// LastCleaned is Last with lines cleaned by clean. The lines are joined after that: in joined lines, the secret of a
// line would hide the next line.
func (l *Lines) LastCleaned(clean func(text string) string) string {
	return strings.ReplaceAll(clean(strings.Join(l.kept, "\n")), "\n", "; ")
}

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

// absolutePaths makes the files in KUBECONFIG and TALOSCONFIG absolute. KUBECONFIG may list several.
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
