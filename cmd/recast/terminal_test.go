package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/spf13/cobra"

	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/holder"
	"github.com/recast-sh/recast/internal/pump"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/story"
	"github.com/recast-sh/recast/internal/ui"
	"github.com/recast-sh/recast/pipeline/setup"
)

// answers types an answer on a terminal whenever a question appears.
type answers struct {
	terminal io.Writer
	text     string
}

func (a answers) Write(p []byte) (int, error) {
	if strings.Contains(string(p), "continues: ") {
		if _, err := io.WriteString(a.terminal, a.text); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

// Input from before the question is not its answer.
func TestConfirmTypedAhead(t *testing.T) {
	t.Parallel()
	for typed, want := range map[string]bool{"yes\n": true, "no\n": false} {
		master, tty := openTerminal(t)
		const ahead = "yes\n"
		must.Get(io.WriteString(master, ahead))(t)
		if _, err := io.ReadFull(master, make([]byte, len("yes\r\n"))); err != nil { // its echo
			t.Fatal(err)
		}
		s := &streams{in: tty, err: &console{Writer: answers{master, typed}}}
		if ok, err := confirm(t.Context(), s, question{text: "Change these nodes?"}, false); ok != want || err != nil {
			t.Errorf("typed %q: %t, %v", typed, ok, err)
		}
	}
}

// A machine that can't prove who it is counts only if a person says that its console shows the same certificate.
func TestVouch(t *testing.T) {
	t.Parallel()
	n := planning.NodePlan{Node: "wk1", Unproven: "b2Rk="}
	n.Found.Addr = netip.MustParseAddr("10.0.0.7")
	for typed, want := range map[string]bool{"yes\n": true, "y\n": false, "\n": false, "\x04": false} {
		master, tty := openTerminal(t)
		var seen bytes.Buffer
		s := &streams{in: tty, err: &console{Writer: io.MultiWriter(&seen, answers{master, typed})}}
		must.Equal(t, typed, want, vouch(t.Context(), s, "recast roll wk1", n))
		has(t, seen.String(), "wk1 is in maintenance mode", "10.0.0.7", "\n  b2Rk=\n", "The console of wk1 shows it, too")
	}
	var seen bytes.Buffer
	s := &streams{in: strings.NewReader("yes\n"), err: &console{Writer: &seen}}
	must.Hold(t, !vouch(t.Context(), s, "recast roll wk1", n) && seen.Len() == 0, "without a terminal: %q", &seen)
}

// A question whose text would go into a file is not asked.
func TestConfirmUnseen(t *testing.T) {
	t.Parallel()
	_, tty := openTerminal(t)
	story := must.Get(os.Create(filepath.Join(t.TempDir(), "roll.log")))(t)
	defer story.Close()
	nowhere := must.Get(os.OpenFile(os.DevNull, os.O_WRONLY, 0))(t)
	defer nowhere.Close()
	read, write, err := os.Pipe()
	must.Do(t, err)
	defer read.Close()
	defer write.Close()
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for _, stderr := range []*os.File{story, nowhere} {
		_, err := confirm(t.Context(), &streams{in: tty, err: &console{Writer: stderr}}, question{command: "recast roll"}, false)
		if exitCodeOf(err) != exitConfig || !strings.Contains(err.Error(), "where nobody would see the question") {
			t.Errorf("%s: %v", stderr.Name(), err)
		}
	}
	for _, stderr := range []*os.File{write, tty} {
		if ok, err := confirm(over, &streams{in: tty, err: &console{Writer: stderr}}, question{command: "recast roll"}, false); ok || err != nil {
			t.Errorf("%s: %t, %v", stderr.Name(), ok, err)
		}
	}
}

func openTerminal(t *testing.T) (master, tty *os.File) {
	t.Helper()
	master, tty, err := pty.Open()
	must.Do(t, err)
	t.Cleanup(func() {
		_ = tty.Close()
		_ = master.Close()
	})
	return master, tty
}

// TestAskedTwice confirms a roll that first finishes what an earlier one left. At the
// second question no node is out of service: Ctrl-C means no.
func TestAskedTwice(t *testing.T) {
	long(t)
	t.Parallel()
	term := openLab(t)
	term.patch()
	roll := term.background("roll.err", "roll", "--yes")
	term.await("roll.err", "create the VM again")
	must.Do(t, roll.Process.Kill())
	_ = roll.Wait()

	s := term.onScreen("roll")
	s.typed("yes\n") // too early to be an answer
	s.await(`Only "yes" continues: `)
	s.typed("yes\n")
	s.until("asked twice", func() string {
		return map[bool]string{true: "asked twice"}[strings.Count(s.seen(), `Only "yes" continues: `) == 2]
	})
	s.typed("\x03")
	if code := s.endSoon(); code != exitInterrupted || strings.Contains(s.seen(), "stopping: ") {
		t.Errorf("exit code %d:\n%s", code, s.seen())
	}
	has(t, s.seen(), "not confirmed; nothing more was changed on the nodes")
	term.finds("nobody holds it", "nothing is unfinished")
}

// TestTyped: who types what a hint shows does what was asked, and no more.
func TestTyped(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"prune":                                 "recast prune",
		"prune --yes":                           "recast prune",
		"prune --keep-disks 3 --only disks":     "recast prune --keep-disks 3 --only disks",
		"-c my,prod.yaml roll a --exclude b,c":  "recast roll a --config my,prod.yaml --exclude b,c",
		"roll --exclude b --exclude c --all":    "recast roll --all --exclude b,c",
		"roll -l pool=a,zone!=b --all=false":    "recast roll --all=false --selector 'pool=a,zone!=b'",
		"roll --what config,vm --accept-outage": "recast roll --accept-outage --what config,vm",
	} {
		root := &cobra.Command{Use: "recast"}
		root.PersistentFlags().StringP("config", "c", "", "")
		for _, name := range []string{"prune", "roll"} {
			c := &cobra.Command{Use: name, Run: func(c *cobra.Command, _ []string) {
				must.Equal(t, line, want, typed(c))
				if got := typed(c, "NODE", "--only", "x"); strings.Count(got, "--only") != 1 || !strings.Contains(got, "NODE --only x") {
					t.Errorf("%s, with more: %s", line, got)
				}
			}}
			c.Flags().Bool("yes", false, "")
			c.Flags().Bool("all", false, "")
			c.Flags().Int("keep-disks", 0, "")
			if name == "roll" {
				selection(c, &globals{}, &planning.Policy{})
			} else {
				c.Flags().String("only", "", "")
			}
			root.AddCommand(c)
		}
		root.SetArgs(strings.Fields(line))
		err := root.Execute()
		must.Hold(t, err == nil, "%s: %v", line, err)
	}
}

func TestAsk(t *testing.T) {
	t.Parallel()
	storage := setup.Question{Text: "Where?", Choices: []string{"isos", "local"}, Default: "isos", Flag: "--iso-storage"}
	unsafe := setup.Question{Text: "Where?", Flag: "--endpoint"}
	checked := setup.Question{Text: "Which?", Flag: "--vmids", Check: func(answer string) error {
		if answer == "1-2" {
			return fault.Configf("out of bounds")
		}
		return nil
	}}
	for name, c := range map[string]struct {
		q             setup.Question
		typed         string
		yes, terminal bool
		want, said    string
		kind          fault.Kind // where there is no answer
	}{
		"an answer":              {q: storage, typed: "local\n", terminal: true, want: "local", said: "Where? [isos] "},
		"no more than Enter":     {q: storage, typed: "\n", terminal: true, want: "isos"},
		"one of the choices":     {q: storage, typed: "fast\nlocal", terminal: true, want: "local", said: `"fast" is not one of isos, local`},
		"something":              {q: unsafe, typed: "\nx\n", terminal: true, want: "x", said: "an answer is needed"},
		"a good one":             {q: checked, typed: "1-2\n3-4\n", terminal: true, want: "3-4", said: "out of bounds"},
		"the end of input":       {q: storage, typed: "", terminal: true, kind: fault.Interrupted},
		"the end after a wrong":  {q: storage, typed: "fast\n", terminal: true, kind: fault.Interrupted},
		"--yes":                  {q: storage, yes: true, want: "isos", said: "Where? isos (--iso-storage)"},
		"--yes on a terminal":    {q: storage, yes: true, terminal: true, typed: "local\n", want: "isos"},
		"--yes to what is not":   {q: unsafe, yes: true, kind: fault.Config},
		"nobody there":           {q: storage, typed: "local\n", kind: fault.Config},
		"nobody, and no default": {q: unsafe, typed: "x\n", kind: fault.Config},
	} {
		var said bytes.Buffer
		a := newAsker(&streams{in: strings.NewReader(c.typed), err: &console{Writer: &said}}, c.yes)
		a.terminal = c.terminal
		got, err := a.ask(t.Context(), c.q)
		if c.want == "" && (err == nil || fault.KindOf(err) != c.kind) || c.want != "" && err != nil || got != c.want {
			t.Errorf("%s: %q, %v; want %q, kind %d", name, got, err, c.want, c.kind)
		}
		must.Contain(t, name, said.String(), c.said)
	}
}

// TestAskInterrupted presses Ctrl-C at a question.
func TestAskInterrupted(t *testing.T) {
	t.Parallel()
	in, out := io.Pipe()
	defer out.Close() // which ends the reader
	a := newAsker(&streams{in: in, err: &console{Writer: io.Discard}}, false)
	a.terminal = true
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := a.ask(ctx, setup.Question{Text: "Where?", Flag: "--endpoint"}); exitCodeOf(err) != exitInterrupted {
		t.Errorf("err = %v", err)
	}
}

// TestInterrupt presses Ctrl-C on a real process, once and twice.
func TestInterrupt(t *testing.T) {
	long(t)
	t.Parallel()
	term := openLab(t)
	term.patch()

	// Once: the node in progress is finished, no other is started.
	roll := term.background("roll.err", "roll", "--yes")
	term.await("roll.err", "bring wk1 up")
	interrupt(t, roll.Process)
	code := exitCode(roll.Wait())
	story := term.read("roll.err")
	has(t, story,
		"\nstopping: the node in progress is finished first; press Ctrl-C again to stop at once",
		"✓ recreate wk1", "\nrun ", ": interrupted after ", "\n  wk1 recreated as build ", "\nerror: stopped; not started: roll/",
	)
	must.Hold(t, code == exitInterrupted && !strings.Contains(story, "▸ recreate wk2"),
		"exit code %d, want %d:\n%s", code, exitInterrupted, story)
	term.finds("nobody holds it", "nothing is unfinished")

	// Twice: it stops where it is, and says how to go on.
	roll = term.background("roll.err", "roll", "--yes")
	term.await("roll.err", "take wk2 down")
	interrupt(t, roll.Process)
	term.await("roll.err", "press Ctrl-C again")
	interrupt(t, roll.Process)
	code = exitCode(roll.Wait())
	story = term.read("roll.err")
	has(t, story, ": interrupted after ", "\n  wk2 recreate ", "\nnext: recast status shows where every disk is; recast roll continues where this one stopped", "\nerror: interrupted: roll/workers/wk2/")
	must.Equal(t, "exit code, with the story\n"+story, exitInterrupted, code)
	term.finds("nobody holds it")
	term.typed(exitDone, "roll", "--yes")
	term.typed(exitDone, "drift")
	term.typed(exitDone, "lab", "check", "--dir", ".")
}

func interrupt(t *testing.T, p *os.Process) {
	t.Helper()
	must.Do(t, p.Signal(os.Interrupt))
}

// has requires every text in the output.
func has(t *testing.T, story string, want ...string) {
	t.Helper()
	must.Contain(t, "the story", story, want...)
}

// TestSuspended stops recast status --watch and recast ui in the middle of a roll, as a laptop that is closed, and
// continues them when the roll is over: they show the present.
func TestSuspended(t *testing.T) {
	long(t)
	t.Parallel()
	term := openLab(t)
	term.patch()
	ui := term.background("url", "ui", "--open=false")
	term.await("url", "Ctrl-C ends them")
	p := must.Get(enterPages(regexp.MustCompile(`http://\S+`).FindString(term.read("url"))))(t)
	page := func(path, want string) (text string) {
		t.Helper()
		for range 1200 {
			text = must.Get(p.ask(http.MethodGet, path, nil))(t)
			if strings.Contains(text, want) {
				return text
			}
			<-time.After(50 * time.Millisecond)
		}
		t.Fatalf("the page %q never held %q:\n%s", path, want, text)
		return ""
	}
	page("", "3 of 3 nodes are stale")

	watch := term.onScreen("status", "--watch")
	watch.await("nobody holds it")
	roll := term.onScreen("roll", "--yes")
	roll.awaitLogged("bring wk1 up")
	watch.await("wk1  recreate")
	page("run", `badge open">running`)
	stop := func(s syscall.Signal) {
		t.Helper()
		for _, of := range []*os.Process{watch.cmd.Process, ui.Process} {
			must.Do(t, of.Signal(s))
		}
	}
	stop(syscall.SIGSTOP)
	seen := len(watch.seen())
	if code := roll.end(); code != exitDone {
		t.Fatalf("exit code %d:\n%s", code, roll.seen())
	}
	stop(syscall.SIGCONT)

	watch.await(": done\r\n")
	after := watch.seen()[seen:]
	must.Hold(t, !strings.Contains(after, "stood still"), "what it shows then:\n%s", after)
	page("run", `badge good">done`)
	if text := page("", "3 of 3 nodes are stale"); !strings.Contains(text, " ago") || strings.Contains(text, ", 0s ago") {
		t.Errorf("an old reading passes for new:\n%s", text)
	}
	must.Get(p.ask(http.MethodPost, "read", url.Values{"what": {"drift"}}))(t)
	page("", "3 nodes in sync")

	watch.typed("\x03")
	must.Equal(t, "exit code of who watched", exitDone, watch.end())
	must.Do(t, ui.Process.Signal(os.Interrupt))
	must.Equal(t, "exit code of the pages", exitDone, exitCode(ui.Wait()))
}

var (
	killTimes = flag.Int("kill.times", 1, "how often TestKill kills a roll")
	killSeed  = flag.Uint64("kill.seed", 0, "at which moments TestKill kills; 0: others each time")
)

// TestKill kills rolls of real processes at random moments and runs the same command again: then every node is in sync,
// every persistent disk is unchanged, and etcd has its members. Each strategy has a lab of its own. For every second
// run the local files are lost with the process, as on a CI runner: of three, one or two.
func TestKill(t *testing.T) {
	long(t)
	t.Parallel()
	seed := *killSeed
	if seed == 0 {
		seed = rand.Uint64N(1e6)
	}
	t.Logf("go test ./cmd/recast -run TestKill -kill.times %d -kill.seed %d", *killTimes, seed)
	if *killTimes == 1 { // the main suite has no minute for it
		newKillings(openLab(t, "--workers", "1"), "auto", 5*time.Second, seed, 0).rounds(1)
		return
	}
	for i, by := range []struct {
		strategy string
		usual    time.Duration
	}{{"recreate", 12 * time.Second}, {"reimage", 10 * time.Second}, {"in-place", 8 * time.Second}} {
		t.Run(by.strategy, func(t *testing.T) {
			t.Parallel()
			lab := openLab(t, "--workers", "2", "--control-planes", "3")
			newKillings(lab, by.strategy, by.usual, seed, i).rounds((*killTimes + 2 - i) / 3)
		})
	}
}

type killings struct {
	*terminal
	random   *rand.Rand
	strategy string        // in recast.yaml
	usual    time.Duration // how long a roll takes
	lost     bool          // the next kill takes the local files
}

func newKillings(lab *terminal, strategy string, usual time.Duration, seed uint64, nth int) *killings {
	lab.replace("recast.yaml", "roll:\n", "roll:\n  strategy: "+strategy+"\n")
	return &killings{terminal: lab, random: rand.New(rand.NewPCG(seed+uint64(nth), 0)), strategy: strategy, usual: usual, lost: (seed+uint64(nth))%2 == 1}
}

// rounds kills rolls, one after the other, and finishes each.
func (k *killings) rounds(times int) {
	k.t.Helper()
	for n := range times {
		k.round(n)
	}
	k.t.Attr("kills-resumed", strconv.Itoa(times))
	k.t.Attr("promises-broken", "0") // lab check has failed the test otherwise
}

func (k *killings) round(n int) {
	k.t.Helper()
	lost := k.lost
	k.lost = !lost
	var after time.Duration
	for killed := false; !killed; {
		k.patch()
		after, killed = k.roll()
	}
	said, _ := k.typed(exitDone, "status")
	if lost {
		k.t.Attr("journals-lost", "1")
		must.Do(k.t, os.RemoveAll(filepath.Join(k.dir, ".recast")))
	}
	began := time.Now()
	report, _ := k.typed(exitDone, "roll", "--yes")
	k.typed(exitDone, "drift")
	kept, _ := k.typed(exitDone, "lab", "check", "--dir", ".")
	k.t.Logf("%d: %s killed after %s, journal lost: %t, was unfinished: %t; finished in %s: %s%s", n+1, k.strategy, after.Round(time.Millisecond),
		lost, strings.Contains(said, "\nunfinished ") || strings.Contains(said, "\nmarked "), time.Since(began).Round(time.Millisecond), kept, report)
}

// roll kills a roll at a random moment, unless it has ended before.
func (k *killings) roll() (after time.Duration, killed bool) {
	k.t.Helper()
	after = time.Duration(k.random.Int64N(int64(k.usual)))
	began := time.Now()
	c := k.background("roll.err", "roll", "--yes")
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	select {
	case err := <-ended:
		if code := exitCode(err); code != exitDone {
			k.t.Fatalf("a roll that nobody killed: exit code %d\n%s", code, k.read("roll.err"))
		}
		k.usual = time.Since(began)
		return 0, false
	case <-time.After(after):
	}
	must.Do(k.t, c.Process.Kill())
	return after, exitCode(<-ended) == -1
}

func tellHolder() {
	err := hide()
	h := holder.This()
	child, errChild := exec.Command("sh", "-c", "tr '\\0' '\\n' </proc/$$/environ | grep ^PATH=").Output()
	err = errors.Join(err, errChild, json.NewEncoder(os.Stdout).Encode(map[string]any{"Holder": h, "Dead": holder.Dead(h), "Child": string(child)}))
	if err != nil {
		panic(err)
	}
	os.Exit(0)
}

// TestLiveView rolls on a terminal that is resized, gets Ctrl-C and disappears, while
// the process is stopped and continued. None of this harms a node.
func TestLiveView(t *testing.T) {
	long(t)
	t.Parallel()
	term := openLab(t)
	term.patch()

	s := term.onScreen("roll", "--yes")
	s.awaitLogged("take wk1 down")
	s.typed("\x03")
	s.await("press Ctrl-C again to stop at once")
	s.resize(20, 5)
	s.awaitLogged("bring wk1 up")
	s.resize(100, 30)
	must.Equal(t, "exit code", exitInterrupted, s.end())
	has(t, s.seen(), "Ctrl-C: finish the current nodes", "  ✓ wk1  recreate", "  - wk2  recreate  not started\r\n", "1 of 3 nodes done, 2 not done", "\r\nrun ", "\nerror: ", "stopped; not started: roll/")
	for _, mode := range []string{"\x1b[>", "\x1b[?u", "\x1b[=", "$p", "\x1b[?1049h"} {
		must.Hold(t, !strings.Contains(s.seen(), mode), "the terminal was sent %q", mode)
	}
	term.finds("nothing is unfinished")

	beside := term.onScreen("status", "--watch")
	beside.await("nobody holds it")
	s = term.onScreen("roll", "--yes")
	s.awaitLogged("take wk2 down")
	leaves := term.onScreen("status", "--watch")
	leaves.await("wk2  recreate")
	leaves.typed("\x03")
	if code := leaves.end(); code != exitDone || strings.Contains(leaves.seen(), "not done") {
		t.Errorf("exit code %d of who watched and left:\n%s", code, leaves.seen())
	}
	has(t, leaves.seen(), "\nrun ", " continues\r\n")
	s.signal(syscall.SIGSTOP)
	s.signal(syscall.SIGCONT)
	must.Equal(t, "exit code, stopped and continued", exitDone, s.end())
	beside.await(": done\r\n")
	beside.typed("\x03") // it would show the next run
	must.Equal(t, "exit code of who watched", exitDone, beside.end())
	has(t, beside.seen(), "✓ wk2  recreate", "\nrun ", ": done\r\n")
	term.typed(exitDone, "drift")

	term.patch()
	s = term.onScreen("roll", "--yes")
	s.awaitLogged("take wk1 down")
	_ = s.pty.Close()
	if code := s.end(); code == exitDone || code < 0 {
		t.Errorf("exit code %d with its terminal away", code)
	}
	term.finds("nobody holds it", "nothing is unfinished")

	term.patch() // or nothing would be left where the terminal went away late
	_, story := term.typed(exitDone, "roll", "--yes", "--progress", "json")
	for text := range strings.Lines(story) {
		must.Hold(t, json.Valid([]byte(text)), "no JSON: %s", text)
	}
	has(t, story, `"msg":"step","step":"roll/workers/wk2","status":"started","node":"wk2"`)
	term.typed(exitDone, "lab", "check", "--dir", ".")
}

// screen is a terminal in which recast runs.
type screen struct {
	t   *testing.T
	cmd *exec.Cmd
	pty *os.File

	before []string // logs of runs before it

	mu  sync.Mutex
	got bytes.Buffer
	eof chan struct{}
}

func (term *terminal) onScreen(args ...string) *screen {
	c := term.recast(args...)
	c.Env = append(c.Env, "TERM=xterm-kitty", "CI=", "TERM_PROGRAM=ghostty")
	return startScreen(term.t.(*testing.T), c, 100, 30)
}

// startScreen runs a command in its own terminal.
func startScreen(t *testing.T, c *exec.Cmd, columns, rows uint16) *screen {
	t.Helper()
	s := &screen{t: t, cmd: c, eof: make(chan struct{})}
	var err error
	if s.before, err = filepath.Glob(filepath.Join(c.Dir, ".recast", "runs", "*", story.LogName)); err != nil {
		t.Fatal(err)
	}
	c.Stdin, c.Stdout, c.Stderr = nil, nil, nil // the terminal
	if s.pty, err = pty.StartWithSize(c, &pty.Winsize{Rows: rows, Cols: columns}); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(s.eof)
		b := make([]byte, 4096)
		for {
			n, err := s.pty.Read(b)
			s.mu.Lock()
			s.got.Write(b[:n])
			s.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	return s
}

// seen is everything that was sent to the terminal.
func (s *screen) seen() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.got.String()
}

func (s *screen) await(text string) {
	s.t.Helper()
	s.until(text, s.seen)
}

// awaitLogged waits until the run's log has a text: of a frame only the changes are drawn.
func (s *screen) awaitLogged(text string) {
	s.t.Helper()
	s.until(text, func() string {
		logs := must.Get(filepath.Glob(filepath.Join(s.cmd.Dir, ".recast", "runs", "*", story.LogName)))(s.t)
		for _, name := range logs {
			if !slices.Contains(s.before, name) {
				b := must.Get(os.ReadFile(name))(s.t)
				return string(b)
			}
		}
		return ""
	})
}

func (s *screen) until(text string, seen func() string) {
	s.t.Helper()
	for range 1200 {
		if strings.Contains(seen(), text) {
			return
		}
		<-time.After(50 * time.Millisecond)
	}
	s.t.Fatalf("never showed %q:\n%s", text, s.seen())
}

func (s *screen) typed(keys string) {
	s.t.Helper()
	if _, err := s.pty.WriteString(keys); err != nil {
		s.t.Fatal(err)
	}
}

func (s *screen) resize(columns, rows uint16) {
	s.t.Helper()
	must.Do(s.t, pty.Setsize(s.pty, &pty.Winsize{Rows: rows, Cols: columns}))
}

func (s *screen) signal(sig syscall.Signal) {
	s.t.Helper()
	must.Do(s.t, s.cmd.Process.Signal(sig))
}

func (s *screen) end() int {
	code := exitCode(s.cmd.Wait())
	if s.pty != nil {
		<-s.eof
		_ = s.pty.Close()
	}
	return code
}

// endSoon is end for a process that may hang: -1 then.
func (s *screen) endSoon() int {
	late := time.AfterFunc(2*time.Minute, func() { _ = s.cmd.Process.Kill() })
	defer late.Stop()
	return s.end()
}

// TestReader rolls with its output in a pipe: nobody reads it, or the reader goes away.
// Neither stops a node half-way, and Ctrl-C still works.
func TestReader(t *testing.T) {
	long(t)
	t.Parallel()
	term := openLab(t)
	term.patch()

	// Nobody reads: a second Ctrl-C stops it where it is.
	_, full := fullPipe(t)
	s := &screen{t: t, cmd: term.recast("roll", "--yes")}
	s.cmd.Stderr = full
	must.Do(t, s.cmd.Start())
	s.awaitLogged("take wk1 down")
	interrupt(t, s.cmd.Process)
	<-time.After(200 * time.Millisecond) // nobody can see that the first one was heard
	interrupt(t, s.cmd.Process)
	must.Equal(t, "exit code of a roll whose story nobody reads", exitInterrupted, s.endSoon())
	term.finds("nobody holds it")

	// The reader goes away: the roll continues.
	s = term.piped("bring wk2 up", "roll", "--yes")
	must.Equal(t, "exit code of a roll whose reader went away", exitDone, s.endSoon())
	term.typed(exitDone, "drift")

	// As with Ctrl-C while tee reads: the node in progress is finished.
	term.patch()
	s = term.piped("take wk1 down", "roll", "--yes", "--progress", "json")
	interrupt(t, s.cmd.Process)
	must.Equal(t, "exit code of a roll that was interrupted with its reader", exitInterrupted, s.endSoon())
	// If the second Ctrl-C above cut a shutdown off, status says for a while that it is unanswered.
	if said, _ := term.typed(exitDone, "status", "-o", "json"); !strings.Contains(said, `"open": []`) || !strings.Contains(said, `"marked": []`) {
		t.Errorf("status afterwards:\n%s", said)
	}
	term.finds("nobody holds it")
	term.typed(exitDone, "lab", "check", "--dir", ".")
}

// piped runs recast with all its output in a pipe, whose reader goes away once it has read a text.
func (term *terminal) piped(until string, args ...string) *screen {
	t := term.t.(*testing.T)
	t.Helper()
	read, write, err := os.Pipe()
	must.Do(t, err)
	defer read.Close()
	s := &screen{t: t, cmd: term.recast(args...)}
	s.cmd.Stdout, s.cmd.Stderr = write, write
	err = s.cmd.Start()
	_ = write.Close()
	must.Do(t, err)
	for lines := bufio.NewScanner(read); lines.Scan(); {
		if strings.Contains(lines.Text(), until) {
			return s
		}
	}
	t.Fatalf("never said %q", until)
	return nil
}

// terminal is a session in the working directory of a lab that runs as a separate process.
type terminal struct {
	t   testing.TB
	dir string
	env []string
}

// openLab starts a lab that is faster than any real cluster.
func openLab(t testing.TB, flags ...string) *terminal {
	t.Helper()
	term := &terminal{t: t, dir: filepath.Join(t.TempDir(), "lab")}
	lab := term.recast(append([]string{"lab", "up", "--dir", term.dir, "--speed", "100"}, flags...)...)
	lab.Dir = filepath.Dir(term.dir)
	var said bytes.Buffer
	lab.Stderr, lab.Cancel = &said, func() error { return lab.Process.Signal(os.Interrupt) }
	must.Do(t, lab.Start())
	t.Cleanup(func() {
		err := lab.Wait()
		must.Hold(t, errors.Is(err, context.Canceled), "the lab, interrupted at the end of the test: %v\n%s", err, &said)
	})
	hangs := time.AfterFunc(5*time.Minute, func() { _ = lab.Process.Signal(syscall.SIGQUIT) }) // then it says where
	awaitFile(t, filepath.Join(term.dir, "lab.json"))
	hangs.Stop()
	for line := range strings.Lines(term.read("env")) {
		setting, exported := strings.CutPrefix(strings.TrimSpace(line), "export ")
		if !exported {
			continue // PATH
		}
		name, value, _ := strings.Cut(setting, "=")
		term.env = append(term.env, name+"="+strings.Trim(value, "'"))
	}
	term.replace("recast.yaml", "settle: 2s", "settle: 200ms")
	term.replace("recast.yaml", "poll: 200ms", "poll: 50ms")
	return term
}

// recast is this test binary, run as recast in the directory of the lab.
func (term *terminal) recast(args ...string) *exec.Cmd {
	self := must.Get(os.Executable())(term.t)
	c := exec.CommandContext(term.t.Context(), self, args...)
	c.Dir = term.dir
	c.Env = append(append(os.Environ(), "RECAST_TEST_MAIN=1", "NO_COLOR=1"), term.env...)
	return c
}

// typed runs recast to its end and requires an exit code.
func (term *terminal) typed(want int, args ...string) (stdout, stderr string) {
	term.t.Helper()
	c := term.recast(args...)
	var out, story bytes.Buffer
	c.Stdout, c.Stderr = &out, &story
	if code := exitCode(c.Run()); code != want {
		term.t.Fatalf("recast %s: exit code %d, want %d\n%s%s", strings.Join(args, " "), code, want, &story, &out)
	}
	return out.String(), story.String()
}

// long skips a test that takes too long for every build.
func long(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("long: make stories")
	}
}

// finds requires words of recast status.
func (term *terminal) finds(words ...string) {
	term.t.Helper()
	said, _ := term.typed(exitDone, "status")
	must.Contain(term.t, "status afterwards", said, words...)
}

// exitCode is -1 for a process that was ended by a signal.
func exitCode(err error) int {
	if err == nil {
		return 0
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode()
	}
	return -2
}

func (term *terminal) background(story string, args ...string) *exec.Cmd {
	term.t.Helper()
	f := must.Get(os.Create(filepath.Join(term.dir, story)))(term.t)
	defer f.Close() // the child has its own
	c := term.recast(args...)
	c.Stdout, c.Stderr = f, f
	must.Do(term.t, c.Start())
	return c
}

func (term *terminal) await(file, text string) {
	term.t.Helper()
	for range 1200 {
		if strings.Contains(term.read(file), text) {
			return
		}
		<-time.After(50 * time.Millisecond)
	}
	term.t.Fatalf("%s never held %q:\n%s", file, text, term.read(file))
}

func (term *terminal) read(file string) string {
	term.t.Helper()
	b := must.Get(os.ReadFile(filepath.Join(term.dir, file)))(term.t)
	return string(b)
}

func (term *terminal) replace(file, old, fresh string) {
	term.t.Helper()
	text := term.read(file)
	if !strings.Contains(text, old) {
		term.t.Fatalf("%s does not hold %q:\n%s", file, old, text)
	}
	must.Do(term.t, os.WriteFile(filepath.Join(term.dir, file), []byte(strings.ReplaceAll(text, old, fresh)), 0o600))
}

// patch publishes a new version of an extension of every node and updates the lock to it.
func (term *terminal) patch() {
	term.t.Helper()
	term.typed(exitDone, "lab", "patch", "qemu-guest-agent", "--dir", ".")
	term.typed(exitDone, "lock", "--update")
}

// fullPipe is a pipe that accepts nothing until someone reads.
func fullPipe(t *testing.T) (read, write *os.File) {
	t.Helper()
	read, write, err := os.Pipe()
	must.Do(t, err)
	t.Cleanup(func() { _, _ = read.Close(), write.Close() })
	must.Do(t, write.SetWriteDeadline(time.Now().Add(50*time.Millisecond)))
	for line := bytes.Repeat([]byte("."), 63); err == nil; {
		_, err = write.Write(append(line, '\n'))
	}
	must.Do(t, write.SetWriteDeadline(time.Time{}))
	return read, write
}

// If nobody reads the output, as with a pager, no step waits, and the end waits only a
// moment. Once there is a reader, it gets what is missing.
func TestNobodyReads(t *testing.T) {
	t.Parallel()
	missing := regexp.MustCompile(`warning: (\d+) lines are missing here: nobody read them in time`)
	for _, progress := range []string{progressPlain, progressJSON} {
		read, write := fullPipe(t)
		s := &streams{err: &console{Writer: write}, interrupts: &interrupts{}}
		must.Do(t, s.setProgress("recast roll", progress))
		display := s.displaySteps(t.Context())
		s.err.pump.Patience = 20 * time.Millisecond
		const notes = 2 * pump.Queue
		for i := range notes {
			display.Emit(step.Event{Path: "roll", Status: step.Note, Text: fmt.Sprintf("note %d", i)})
		}
		display.end()
		fmt.Fprintln(s.err, "error: after the end")
		s.err.flush()

		var got []byte
		all := make(chan struct{})
		go func() {
			defer close(all)
			got, _ = io.ReadAll(read)
		}()
		s.err.pump.Patience = time.Minute
		s.err.unbuffer()
		must.Hold(t, s.err.pump == nil, "%s: is not written, though someone reads", progress)
		_ = write.Close()
		<-all
		m := missing.FindSubmatch(got)
		if m == nil {
			t.Errorf("%s: what is missing is not said", progress)
			continue
		}
		if n, err := strconv.Atoi(string(m[1])); err != nil || n+bytes.Count(got, []byte("note ")) != notes+1 {
			t.Errorf("%s: %d lines are missing, %d are there: %v", progress, n, bytes.Count(got, []byte("note ")), err)
		}
	}
}

// gone is a standard output that nobody reads any more.
type gone struct{}

func (gone) Write([]byte) (int, error) {
	return 0, &os.PathError{Op: "write", Path: "/dev/stdout", Err: syscall.EPIPE}
}

func TestAnswered(t *testing.T) {
	t.Parallel()
	_, err := fmt.Fprintln(gone{}, "a report")
	if err == nil || answered(err) != nil {
		t.Errorf("nobody reads: %v", answered(err))
	}
	if err := errors.New("no space left on device"); answered(err) != err {
		t.Errorf("another error: %v", answered(err))
	}
}

// stderr has only the colours of ui's pages.
func TestConsoleHasOurColoursOnly(t *testing.T) {
	t.Setenv("NO_COLOR", "")
	t.Setenv("CLICOLOR_FORCE", "1")
	var out bytes.Buffer
	c := &console{Writer: &out}
	fmt.Fprintf(c, "warning: %s\n", "all\x1b[32m is well\x1b[2J\x07")
	page := func(fault.Code) string { return "page" }
	must.Do(t, ui.WriteTrouble(c, ui.Trouble{Err: fault.WithHint(errors.New("all\x1b[32m is well"), "wait"), Runbook: page}))
	const want = "warning: all is well\ufffd\n" +
		"\x1b[31merror:\x1b[0m all is well\n\x1b[33mhint:\x1b[0m wait\n\x1b[2mrunbook:\x1b[0m page\n"
	must.Equal(t, "value", want, out.String())
}
