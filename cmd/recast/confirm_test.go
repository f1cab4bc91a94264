package main

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/creack/pty"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/spf13/cobra"
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
		if _, err := io.WriteString(master, ahead); err != nil {
			t.Fatal(err)
		}
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
	story, err := os.Create(filepath.Join(t.TempDir(), "roll.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer story.Close()
	nowhere, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer nowhere.Close()
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = tty.Close()
		_ = master.Close()
	})
	return master, tty
}

// TestAskedTwice confirms a roll that first finishes what an earlier one left. At the
// second question no node is out of service: Ctrl-C means no.
func TestAskedTwice(t *testing.T) {
	if testing.Short() {
		t.Skip("long: make stories")
	}
	t.Parallel()
	term := openLab(t)
	term.patch()
	roll := term.background("roll.err", "roll", "--yes")
	term.await("roll.err", "create the VM again")
	if err := roll.Process.Kill(); err != nil {
		t.Fatal(err)
	}
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
	if said, _ := term.typed(exitDone, "status"); !strings.Contains(said, "nobody holds it") || !strings.Contains(said, "nothing is unfinished") {
		t.Errorf("status afterwards:\n%s", said)
	}
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
				if got := typed(c); got != want {
					t.Errorf("%s: %s, want %s", line, got, want)
				}
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
