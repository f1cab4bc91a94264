package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

var (
	pagesUpdate = flag.Bool("pages.update", false, "write what the commands of the documentation print into its pages, where it has changed")
	pagesSpeed  = flag.String("pages.speed", "40", "how many simulated seconds pass in one in the labs of the documentation")
)

// TestPages runs the commands of every page as they are written. A block that starts
// with recast lab up has its own terminal, in which the lab runs until the next such
// block; all others run in a second one. A command whose comment names an exit code must
// end with it, every other one with 0.
func TestPages(t *testing.T) {
	if testing.Short() {
		t.Skip("long: make stories; the story of a roll does the same")
	}
	t.Parallel()
	for _, p := range readPages(t) {
		scenes := p.scenes(t)
		if !p.guides() || len(scenes) == 0 {
			continue
		}
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			printed := map[int]string{}
			for _, s := range scenes {
				s.play(t, p, printed)
			}
			p.compare(t, printed)
		})
	}
}

// scene is one lab, and the commands that run in it.
type scene struct {
	lab    int // numbers of blocks
	blocks []int
}

func (p page) scenes(t *testing.T) []scene {
	t.Helper()
	var all []scene
	for i, b := range p.blocks {
		switch {
		case b.info != "sh" || !p.guides():
		case strings.HasPrefix(strings.TrimPrefix(b.text, "bin/"), "recast lab up"):
			all = append(all, scene{lab: i})
		case len(all) == 0:
			t.Errorf("%s:%d: this is typed where no lab is up", p.name, b.line)
		default:
			all[len(all)-1].blocks = append(all[len(all)-1].blocks, i)
		}
	}
	return all
}

// pageStage is the directory of a clone after make build: bin/recast in it is this test
// binary. The build itself is left out.
type pageStage struct {
	t    *testing.T
	dir  string
	home string
	path string // PATH
}

func newPageStage(t *testing.T) pageStage {
	t.Helper()
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "bin"), 0o700); err != nil {
		t.Fatal(err)
	}
	recast := filepath.Join(dir, "bin", "recast")
	if os.Link(self, recast) != nil { // it is on another file system
		b, err := os.ReadFile(self)
		if err := errors.Join(err, os.WriteFile(recast, b, 0o700)); err != nil {
			t.Fatal(err)
		}
	}
	return pageStage{t, dir, dir, os.Getenv("PATH")}
}

// installed is the same with recast in the PATH.
func (s pageStage) installed() pageStage {
	s.path = filepath.Join(s.dir, "bin") + ":" + s.path
	return s
}

func (s pageStage) shell(script string, said *bytes.Buffer) *exec.Cmd {
	c := exec.CommandContext(s.t.Context(), "bash", "-euo", "pipefail", "-c", script)
	c.Dir, c.Stdout, c.Stderr = s.dir, said, said
	c.Env = append(os.Environ(), "RECAST_TEST_MAIN=1", "PATH="+s.path, "HOME="+s.home, "NO_COLOR=1", "GORACE="+noNap)
	c.Cancel = func() error { return c.Process.Signal(os.Interrupt) }
	return c
}

// lab starts a lab. What it returns ends it, and returns what it has printed.
func (s pageStage) lab(command string) func() string {
	s.t.Helper()
	var said bytes.Buffer
	// Faster than a person would want it; nothing else differs.
	lab := s.shell("exec "+command+" --speed "+*pagesSpeed, &said)
	if err := lab.Start(); err != nil {
		s.t.Fatal(err)
	}
	awaitFile(s.t, filepath.Join(s.dir, labDir(command), "lab.json"))
	end := sync.OnceValue(func() string {
		if err := lab.Process.Signal(os.Interrupt); err != nil {
			s.t.Error(err)
		}
		if err := lab.Wait(); err != nil && !errors.Is(err, context.Canceled) {
			s.t.Errorf("%s, interrupted: %v\n%s", command, err, &said)
		}
		return said.String()
	})
	s.t.Cleanup(func() { end() })
	return end
}

// play runs a scene and adds the output, by the numbers of blocks.
func (sc scene) play(t *testing.T, p page, printed map[int]string) {
	t.Helper()
	command := strings.TrimSpace(p.blocks[sc.lab].text)
	s := newPageStage(t)
	first := s // the second terminal finds recast by the lab's env alone
	if !strings.HasPrefix(command, "bin/") {
		first = s.installed()
	}
	end := first.lab(command)
	defer func() { printed[sc.lab] = s.anonymous(end()) }()
	var said bytes.Buffer
	err := s.shell(sc.script(p), &said).Run()
	last := sc.lab
	for i, part := range strings.Split(said.String(), marker) {
		if i > 0 {
			last = sc.blocks[i-1]
			printed[last] = s.anonymous(part)
		}
	}
	if err != nil {
		t.Fatalf("%s:%d: %v:\n%s\n%s", p.name, p.blocks[last].line, err, p.blocks[last].text, printed[last])
	}
}

// marker is printed before a block.
const marker = "\x1e\n"

var exitComment = regexp.MustCompile(`(?m)^(recast [^#\n]*?)\s+#.*\bexit code (\d+).*$`)

// script returns all commands of a scene as one script.
func (sc scene) script(p page) string {
	var b strings.Builder
	b.WriteString("exits() { local want=$1 got=0; shift; \"$@\" || got=$?; if [ $got != $want ]; then echo \"exit code $got, want $want: $*\"; return 1; fi }\n")
	for _, i := range sc.blocks {
		fmt.Fprintf(&b, "printf %s\n%s\n", strconv.Quote(`\036\n`), exitComment.ReplaceAllString(p.blocks[i].text, "exits $2 $1"))
	}
	return b.String()
}

func labDir(command string) string {
	fields := strings.Fields(command)
	for i, f := range fields[:len(fields)-1] {
		if f == "--dir" {
			return fields[i+1]
		}
	}
	return "lab"
}

// anonymous replaces the temporary directory by another person's home directory.
func (s pageStage) anonymous(text string) string { return strings.ReplaceAll(text, s.home, "~") }

// compare compares the output with what the page shows of it.
func (p page) compare(t *testing.T, printed map[int]string) {
	t.Helper()
	text, changed := p.text, false
	for i := len(p.blocks) - 1; i > 0; i-- { // from the end, so that places stay
		b := p.blocks[i]
		if !b.output || showsStill(b.text, printed[i-1]) {
			continue
		}
		if !*pagesUpdate {
			t.Errorf("%s:%d: what this prints has changed; go test ./cmd/recast -run TestPages -pages.update writes it afresh. The page:\n%s\nprinted:\n%s",
				p.name, b.line, b.text, printed[i-1])
		}
		text, changed = text[:b.start]+excerpt(b.text, printed[i-1])+text[b.end:], true
	}
	if !changed || !*pagesUpdate {
		return
	}
	if err := os.WriteFile(filepath.Join("../..", p.name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// awaitFile waits for another process to write a file.
func awaitFile(t testing.TB, path string) {
	t.Helper()
	for range 6000 {
		if _, err := os.Stat(path); err == nil {
			return
		}
		<-time.After(100 * time.Millisecond)
	}
	t.Fatalf("%s was never written", path)
}

func TestScriptOfAPage(t *testing.T) {
	t.Parallel()
	p := parsePage("p.md", "```sh\nrecast lab up --dir x\n```\n```sh\nrecast drift   # exit code 2: stale\nrecast plan    # all of it\n```\n")
	sc := p.scenes(t)
	if len(sc) != 1 || labDir(p.blocks[sc[0].lab].text) != "x" {
		t.Fatalf("scenes %v", sc)
	}
	if got := sc[0].script(p); !strings.Contains(got, "\nexits 2 recast drift\nrecast plan    # all of it\n") {
		t.Error(got)
	}
}
