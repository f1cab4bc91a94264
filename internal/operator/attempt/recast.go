package attempt

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
)

// Recast is the program that does the work.
type Recast struct {
	Binary string
	Dir    string   // with recast.yaml
	Env    []string // besides that of this process
	Log    io.Writer
	// Signals are passed on: the first one finishes the nodes in progress, the second one stops at once.
	Signals <-chan os.Signal
}

// ended is how a command ended.
type ended struct {
	code   int
	stdout []byte
	trouble
}

// trouble is the end of what recast printed on stderr, by the words its lines begin with.
type trouble struct {
	Error   string // with its further lines
	Hints   []string
	Runbook string // its code
}

// String is an error with its remedy, in one line.
func (t trouble) String() string {
	return strings.Join(append([]string{t.Error}, t.Hints...), "; ")
}

// run runs recast to its end. An error means that it could not be run at all.
func (r Recast) run(ctx context.Context, onEvent func(event), args ...string) (ended, error) {
	cmd := exec.CommandContext(ctx, r.Binary, args...)
	cmd.Dir, cmd.Env = r.Dir, append(os.Environ(), r.Env...)
	var stdout bytes.Buffer
	cmd.Stdout = &stdout
	lines := &lineReader{log: r.Log, onEvent: onEvent}
	cmd.Stderr = lines
	cmd.SysProcAttr = dieWithParent()
	if err := cmd.Start(); err != nil {
		return ended{}, fmt.Errorf("start recast: %w", err)
	}
	done := make(chan struct{})
	var passing sync.WaitGroup
	passing.Go(func() {
		for {
			select {
			case s := <-r.Signals:
				_ = cmd.Process.Signal(s) // it may have ended
			case <-done:
				return
			}
		}
	})
	err := cmd.Wait()
	close(done)
	passing.Wait()
	e := ended{stdout: stdout.Bytes(), trouble: lines.trouble()}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		if e.code = exit.ExitCode(); e.code < 0 {
			return e, fmt.Errorf("recast was killed: %w", err)
		}
		return e, nil
	}
	return e, err
}

// event is a line of --progress json, as internal/live writes it.
type event struct {
	Msg    string `json:"msg"`
	Step   string `json:"step"`
	Node   string `json:"node"`
	Status string `json:"status"`
	Title  string `json:"title"`
	Text   string `json:"text"`
}

// lineReader passes stderr on, and reads it line by line: events, and what else is said.
type lineReader struct {
	log     io.Writer
	onEvent func(event)
	partial []byte
	said    []string // the end of what is no event
}

func (l *lineReader) Write(p []byte) (int, error) {
	l.partial = append(l.partial, p...)
	for {
		line, rest, found := bytes.Cut(l.partial, []byte("\n"))
		if !found {
			return len(p), nil
		}
		l.line(string(line))
		l.partial = rest
	}
}

func (l *lineReader) line(line string) {
	fmt.Fprintln(l.log, line)
	var e event
	if strings.HasPrefix(line, "{") && json.Unmarshal([]byte(line), &e) == nil {
		if e.Msg != "said" {
			if l.onEvent != nil && e.Msg == "step" {
				l.onEvent(e)
			}
			return
		}
		line = e.Text // what is printed beside the steps, as everything is without --progress json
	}
	const kept = 100
	l.said = append(l.said, line)
	l.said = l.said[max(0, len(l.said)-kept):]
}

// trouble reads the last error: "error: …", then lines that begin with "safe: ", "hint: " and "runbook: ".
func (l *lineReader) trouble() trouble {
	if len(l.partial) > 0 {
		l.line(string(l.partial))
		l.partial = nil
	}
	var t trouble
	inError := false
	for _, line := range l.said {
		switch {
		case strings.HasPrefix(line, "error: "):
			t, inError = trouble{Error: strings.TrimPrefix(line, "error: ")}, true
		case strings.HasPrefix(line, "hint: "):
			t.Hints, inError = append(t.Hints, strings.TrimPrefix(line, "hint: ")), false
		case strings.HasPrefix(line, "runbook: recast runbook "):
			t.Runbook, _, _ = strings.Cut(strings.TrimPrefix(line, "runbook: recast runbook "), " ")
			inError = false
		case strings.HasPrefix(line, "safe: "):
			inError = false
		case inError && strings.TrimSpace(line) != "":
			t.Error += "; " + strings.TrimSpace(line)
		}
	}
	return t
}
