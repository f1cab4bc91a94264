package ui

import (
	"io"

	"github.com/recast-sh/recast/internal/fault"
)

// Trouble describes a failed command.
type Trouble struct {
	Err  error
	Safe string // what is safe, if the error itself does not say it
	// Runbook returns how to read the page of a code: command and URL.
	Runbook func(fault.Code) string
}

// WriteTrouble prints what happened, what is safe, what to type next, and where to read
// more.
func WriteTrouble(w io.Writer, t Trouble) error {
	p := newPage(w)
	p.lines(p.paint(red, "error:") + " " + t.Err.Error())
	safe := fault.Safe(t.Err)
	if len(safe) == 0 && t.Safe != "" {
		safe = []string{t.Safe}
	}
	p.wrapped(p.paint(green, "safe:")+" ", "  ", safe...)
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
