package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/pump"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/ui"
)

// fullPipe is a pipe that accepts nothing until someone reads.
func fullPipe(t *testing.T) (read, write *os.File) {
	t.Helper()
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = read.Close(), write.Close() })
	if err := write.SetWriteDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	for line := bytes.Repeat([]byte("."), 63); err == nil; {
		_, err = write.Write(append(line, '\n'))
	}
	if err := write.SetWriteDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
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
		if err := s.setProgress("recast roll", progress); err != nil {
			t.Fatal(err)
		}
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
		if s.err.pump != nil {
			t.Errorf("%s: is not written, though someone reads", progress)
		}
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
	if err := ui.WriteTrouble(c, ui.Trouble{Err: fault.WithHint(errors.New("all\x1b[32m is well"), "wait"), Runbook: page}); err != nil {
		t.Fatal(err)
	}
	const want = "warning: all is well\ufffd\n" +
		"\x1b[31merror:\x1b[0m all is well\n\x1b[33mhint:\x1b[0m wait\n\x1b[2mrunbook:\x1b[0m page\n"
	if out.String() != want {
		t.Errorf("%q\nwant %q", &out, want)
	}
}
