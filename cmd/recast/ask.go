package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/pipeline/setup"
)

// asker asks a person on a terminal.
type asker struct {
	s        *streams
	yes      bool // take safe defaults and do not ask
	terminal bool // a person can be asked
	lines    *bufio.Reader
}

// errNoAnswer: the input ended, or Ctrl-C was pressed.
var errNoAnswer = fault.As(fault.Interrupted, errors.New("no answer; nothing was written"))

func newAsker(s *streams, yes bool) *asker {
	return &asker{s: s, yes: yes, terminal: s.unasked() == "", lines: bufio.NewReader(s.in)}
}

// ask implements pipeline.InitSources.Ask.
func (a *asker) ask(ctx context.Context, q setup.Question) (string, error) {
	switch {
	case a.yes && q.Default != "":
		a.s.say(q.Text + " " + q.Default + " (" + q.Flag + ")")
		return q.Default, nil
	case a.yes:
		return "", fault.WithHint(fault.Configf("%s No answer is safe to take", q.Text), "%s gives it", q.Flag)
	case !a.terminal:
		hint := q.Flag + " gives it"
		if q.Default != "" {
			hint += "; --yes takes " + q.Default
		}
		return "", fault.WithHint(fault.Configf("%s There is no terminal to ask on", q.Text), "%s", hint)
	}
	for {
		fmt.Fprintf(a.s.err, "%s ", q.Text)
		if q.Default != "" {
			fmt.Fprintf(a.s.err, "[%s] ", q.Default)
		}
		answer, err := a.line(ctx)
		if err != nil {
			return "", err
		}
		if answer == "" {
			answer = q.Default
		}
		if wrong := invalid(q, answer); wrong != "" {
			fmt.Fprintln(a.s.err, wrong)
			continue
		}
		return answer, nil
	}
}

// invalid says what is wrong with an answer; "" if nothing is.
func invalid(q setup.Question, answer string) string {
	switch {
	case answer == "":
		return "an answer is needed; Ctrl-C quits and changes nothing"
	case q.Choices != nil && !slices.Contains(q.Choices, answer):
		return fmt.Sprintf("%q is not one of %s", answer, strings.Join(q.Choices, ", "))
	case q.Check != nil:
		if err := q.Check(answer); err != nil {
			return err.Error()
		}
	}
	return ""
}

// line reads a line. It returns errNoAnswer at the end of input and on Ctrl-C.
func (a *asker) line(ctx context.Context) (string, error) {
	type answer struct {
		text string
		err  error
	}
	answers := make(chan answer, 1)
	go func() { // ends with the line, or with the process
		text, err := a.lines.ReadString('\n')
		answers <- answer{text, err}
	}()
	select {
	case got := <-answers:
		if errors.Is(got.err, io.EOF) && got.text != "" {
			got.err = nil
		}
		if got.err != nil {
			fmt.Fprintln(a.s.err)
			return "", errNoAnswer
		}
		return strings.TrimSpace(got.text), nil
	case <-ctx.Done():
		fmt.Fprintln(a.s.err) // the question has no end of line yet
		return "", errNoAnswer
	}
}
