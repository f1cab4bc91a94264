package main

import (
	"bufio"
	"os"
	"strings"
	"testing"
	"time"
)

// TestReader rolls with its output in a pipe: nobody reads it, or the reader goes away.
// Neither stops a node half-way, and Ctrl-C still works.
func TestReader(t *testing.T) {
	if testing.Short() {
		t.Skip("long: make stories")
	}
	t.Parallel()
	term := openLab(t)
	term.patch()

	// Nobody reads: a second Ctrl-C stops it where it is.
	_, full := fullPipe(t)
	s := &screen{t: t, cmd: term.recast("roll", "--yes")}
	s.cmd.Stderr = full
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s.awaitLogged("take wk1 down")
	interrupt(t, s.cmd.Process)
	<-time.After(200 * time.Millisecond) // nobody can see that the first one was heard
	interrupt(t, s.cmd.Process)
	if code := s.endSoon(); code != exitInterrupted {
		t.Errorf("exit code %d of a roll whose story nobody reads", code)
	}
	if said, _ := term.typed(exitDone, "status"); !strings.Contains(said, "nobody holds it") {
		t.Errorf("status afterwards:\n%s", said)
	}

	// The reader goes away: the roll continues.
	s = term.piped("bring wk2 up", "roll", "--yes")
	if code := s.endSoon(); code != exitDone {
		t.Errorf("exit code %d of a roll whose reader went away", code)
	}
	term.typed(exitDone, "drift")

	// As with Ctrl-C while tee reads: the node in progress is finished.
	term.patch()
	s = term.piped("take wk1 down", "roll", "--yes", "--progress", "json")
	interrupt(t, s.cmd.Process)
	if code := s.endSoon(); code != exitInterrupted {
		t.Errorf("exit code %d of a roll that was interrupted with its reader", code)
	}
	// If the second Ctrl-C above cut a shutdown off, status says for a while that it is unanswered.
	if said, _ := term.typed(exitDone, "status", "-o", "json"); !strings.Contains(said, `"open": []`) || !strings.Contains(said, `"marked": []`) {
		t.Errorf("status afterwards:\n%s", said)
	}
	if said, _ := term.typed(exitDone, "status"); !strings.Contains(said, "nobody holds it") {
		t.Errorf("status afterwards:\n%s", said)
	}
	term.typed(exitDone, "lab", "check", "--dir", ".")
}

// piped runs recast with all its output in a pipe, whose reader goes away once it has
// read a text.
func (term *terminal) piped(until string, args ...string) *screen {
	t := term.t.(*testing.T)
	t.Helper()
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	s := &screen{t: t, cmd: term.recast(args...)}
	s.cmd.Stdout, s.cmd.Stderr = write, write
	err = s.cmd.Start()
	_ = write.Close()
	if err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewScanner(read); lines.Scan(); {
		if strings.Contains(lines.Text(), until) {
			return s
		}
	}
	t.Fatalf("never said %q", until)
	return nil
}
