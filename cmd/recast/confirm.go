package main

import (
	"bufio"
	"context"
	"fmt"
	"strings"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/ui"
)

// question is what a command has to be allowed.
type question struct {
	command   string // "recast roll"
	text      string // "Change these nodes?"
	untouched string // what is said without a terminal: "nothing was changed on the nodes"
}

// confirm asks on a terminal, and refuses to guess without one.
func confirm(ctx context.Context, s *streams, q question, yes bool) (bool, error) {
	if yes {
		return true, nil
	}
	if !ui.IsTerminal(s.in) {
		return false, fault.WithHint(fault.NotConfirmed.Configf("%s needs to be confirmed, and there is no terminal to ask on; %s", q.command, q.untouched),
			"%s --yes", q.command)
	}
	fmt.Fprintf(s.err, "%s Only \"yes\" goes on: ", q.text)
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
