package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"log"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
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
	"github.com/recast-sh/recast/internal/sim/must"
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
		if err := root.Execute(); err != nil {
			t.Errorf("%s: %v", line, err)
		}
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
	if code != exitInterrupted || strings.Contains(story, "▸ recreate wk2") {
		t.Errorf("exit code %d, want %d:\n%s", code, exitInterrupted, story)
	}
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
	if after := watch.seen()[seen:]; strings.Contains(after, "stood still") {
		t.Errorf("what it shows then:\n%s", after)
	}
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

// TestKill kills rolls of real processes at random moments and runs the same command
// again: then every node is in sync, every persistent disk is unchanged, and etcd has
// its members. Each strategy has a lab of its own. For every second run the local files are lost with
// the process, as on a CI runner: of three, one or two.
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

// slowRegistry is a registry behind a proxy that holds the list of official extensions
// back until it is released.
type slowRegistry struct {
	mu   sync.Mutex
	held chan struct{} // closed: the list is answered
}

// keepsBack holds the list back until the returned function is called.
func (r *slowRegistry) keepsBack() (release func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	held := make(chan struct{})
	r.held = held
	return sync.OnceFunc(func() { close(held) })
}

func (r *slowRegistry) before(w http.ResponseWriter, req *http.Request, answer http.Handler) {
	if strings.Contains(req.URL.Path, "/siderolabs/extensions/manifests/") {
		r.mu.Lock()
		held := r.held
		r.mu.Unlock()
		select {
		case <-held:
		case <-req.Context().Done():
			return
		}
	}
	answer.ServeHTTP(w, req)
}

// slowly puts a slow registry in front of the lab's registry.
func slowly(t *testing.T, term *terminal) *slowRegistry {
	t.Helper()
	m := regexp.MustCompile(`(?m)^  extensions: (\S+)/siderolabs$`).FindStringSubmatch(term.read("recast.yaml"))
	if m == nil {
		t.Fatalf("recast.yaml names no registry of extensions:\n%s", term.read("recast.yaml"))
	}
	quiet := log.New(io.Discard, "", 0) // it is asked by TLS first
	answer := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: m[1]})
	answer.ErrorLog = quiet
	r := &slowRegistry{}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { r.before(w, req, answer) }))
	s.Config.ErrorLog = quiet
	s.Start()
	t.Cleanup(s.Close)
	term.replace("recast.yaml", m[1]+"/siderolabs", strings.TrimPrefix(s.URL, "http://")+"/siderolabs")
	return r
}

// TestLockSaysWhatItWaitsFor: while a registry is slow, lock says what it waits for, on
// a terminal and in a pipe, separately from its answer.
func TestLockSaysWhatItWaitsFor(t *testing.T) {
	t.Parallel()
	term := openLab(t)
	registry := slowly(t, term)
	const looks, answer = "looking at the registry's list of official extensions for Talos v1.13.9", "recast.lock is up to date"

	release := registry.keepsBack()
	defer release() // before the server is closed, which waits for its requests
	story := must.Get(os.Create(filepath.Join(term.dir, "lock.err")))(t)
	defer story.Close()
	var out strings.Builder
	c := term.recast("lock", "--check")
	c.Stdout, c.Stderr = &out, story
	must.Do(t, c.Start())
	term.await("lock.err", looks+"\n")
	release()
	if err := c.Wait(); err != nil || out.String() != answer+"\n" {
		t.Errorf("in a pipe: %v, answer %q, story:\n%s", err, out.String(), term.read("lock.err"))
	}
	must.Equal(t, "how often it is said", 1, strings.Count(term.read("lock.err"), looks))

	release = registry.keepsBack()
	defer release()
	s := term.onScreen("lock", "--check")
	s.await(looks + "\r\n")
	if strings.Contains(s.seen(), answer) {
		t.Errorf("answered before the registry was:\n%s", s.seen())
	}
	release()
	must.Equal(t, "exit code", exitDone, s.end())
	if seen := s.seen(); !strings.HasSuffix(seen, answer+"\r\n") || strings.Count(seen, looks) != 1 {
		t.Errorf("on a terminal:\n%q", seen)
	}
}

// TestGitThatHangs: what git has started, such as ssh, may outlive it.
func TestGitThatHangs(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "git"), []byte("#!/bin/sh\nsleep 20 &\nwait\n"), 0o700); err != nil { //nolint:gosec // it is a program
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	began := time.Now()
	if _, err := askedGit(ctx, dir, "", "log"); err == nil || time.Since(began) > 10*time.Second {
		t.Errorf("%v after %s", err, time.Since(began))
	}
}
