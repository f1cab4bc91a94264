package ui

import (
	"io"

	"github.com/recast-sh/recast/internal/fault"
)

// Trouble is how a command ended that did not end well.
type Trouble struct {
	Err  error
	Safe string // what is safe, where the error itself does not say
	// Runbook is what shows the page of a code, by command and on the web.
	Runbook func(fault.Code) string
}

// WriteTrouble says what happened, what is safe, what to type next, and where
// more about it is to be read.
func WriteTrouble(w io.Writer, t Trouble) error {
	p := newPage(w)
	p.lines(p.paint(red, "error:") + " " + t.Err.Error())
	safe := fault.Safe(t.Err)
	if len(safe) == 0 && t.Safe != "" {
		safe = []string{t.Safe}
	}
	for _, line := range safe {
		p.wrapped(p.paint(green, "safe:")+" ", "  ", line)
	}
	codes, hints := fault.Codes(t.Err), fault.Hints(t.Err)
	if len(hints) == 0 {
		hints = []string{codes[0].Next()}
	}
	for _, hint := range hints {
		p.lines(p.paint(yellow, "hint:") + " " + hint)
	}
	for _, code := range codes {
		p.line("%s %s", p.paint(dim, "runbook:"), t.Runbook(code))
	}
	return p.err
}
