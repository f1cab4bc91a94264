package main

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/ui"
)

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
