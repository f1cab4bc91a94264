package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/ui"
	"github.com/recast-sh/recast/internal/words"
)

// question asks for permission to go on.
type question struct {
	command   string // "recast roll"
	text      string // "Change these nodes?"
	untouched string // printed if there is no terminal: "nothing was changed on the nodes"
}

// unasked says why nobody can be asked; "": someone can. A pipe counts as readable:
// its reader may show the question to a person.
func (s *streams) unasked() string {
	if !ui.IsTerminal(s.in) {
		return "needs to be confirmed, and there is no terminal to ask on"
	}
	file, ok := s.err.Writer.(*os.File)
	if !ok || ui.IsTerminal(file) {
		return ""
	}
	if info, err := file.Stat(); err == nil && (info.Mode().IsRegular() || info.Mode()&os.ModeCharDevice != 0) {
		return "needs to be confirmed, and standard error is a file, where nobody would see the question"
	}
	return ""
}

// mayAsk refuses a question that nobody would see.
func (s *streams) mayAsk(q question) error {
	why := s.unasked()
	if why == "" {
		return nil
	}
	return fault.WithHint(fault.NotConfirmed.Configf("%s %s; %s", q.command, why, q.untouched), "%s --yes", q.command)
}

// mayAskUnless returns the error of confirm where nobody could be asked, and somebody has to be. more is as in typed.
func (s *streams) mayAskUnless(yes bool, c *cobra.Command, more ...string) func() error {
	return func() error {
		if yes {
			return nil
		}
		return s.mayAsk(question{command: typed(c, more...), untouched: "nothing was changed"})
	}
}

// typed is the command as it was typed, so that typing it again does no more than was asked; more are arguments or flags that
// it had by itself.
func typed(c *cobra.Command, more ...string) string {
	out := []string{c.CommandPath()}
	for _, arg := range append(c.Flags().Args(), more...) {
		out = append(out, words.Quote(arg))
	}
	c.Flags().Visit(func(f *pflag.Flag) {
		value := f.Value.String()
		if list, is := f.Value.(pflag.SliceValue); is {
			value = strings.Join(list.GetSlice(), ",")
		}
		switch {
		case f.Name == "yes" || slices.Contains(more, "--"+f.Name):
		case f.Value.Type() == "bool" && value == "true":
			out = append(out, "--"+f.Name)
		case f.Value.Type() == "bool", value == "", strings.HasPrefix(value, "-"):
			out = append(out, "--"+f.Name+"="+words.Quote(value))
		default:
			out = append(out, "--"+f.Name, words.Quote(value))
		}
	})
	return strings.Join(out, " ")
}

// forgetTyped drops input that was typed before the question was printed.
func forgetTyped(in io.Reader) {
	if file, ok := in.(*os.File); ok {
		_ = dropInput(int(file.Fd())) // fails if it is not a terminal
	}
}

// confirm asks on a terminal, and refuses to guess without one.
func confirm(ctx context.Context, s *streams, q question, yes bool) (bool, error) {
	if yes {
		return true, nil
	}
	if err := s.mayAsk(q); err != nil {
		return false, err
	}
	forgetTyped(s.in)
	fmt.Fprintf(s.err, "%s Only \"yes\" continues: ", q.text)
	s.err.flush()
	answers := make(chan string, 1)
	go func() { // ends with the line, or with the process
		line, _ := bufio.NewReader(s.in).ReadString('\n') // end of input is a no
		answers <- strings.TrimSpace(line)
	}()
	select {
	case answer := <-answers:
		return answer == "yes", nil
	case <-ctx.Done():
		fmt.Fprintln(s.err) // the question has no end of line yet
		return false, nil
	}
}
