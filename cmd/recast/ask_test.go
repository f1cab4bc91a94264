package main

import (
	"bytes"
	"context"
	"io"
	"strings"
	"testing"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/pipeline/setup"
)

func TestAsk(t *testing.T) {
	t.Parallel()
	storage := setup.Question{Text: "Where?", Choices: []string{"isos", "local"}, Default: "isos", Flag: "--iso-storage"}
	unsafe := setup.Question{Text: "Where?", Flag: "--endpoint"}
	checked := setup.Question{Text: "Which?", Flag: "--vmids", Check: func(answer string) error {
		if answer == "1-2" {
			return fault.Configf("out of bounds")
		}
		return nil
	}}
	for name, c := range map[string]struct {
		q             setup.Question
		typed         string
		yes, terminal bool
		want, said    string
		kind          fault.Kind // where there is no answer
	}{
		"an answer":              {q: storage, typed: "local\n", terminal: true, want: "local", said: "Where? [isos] "},
		"no more than Enter":     {q: storage, typed: "\n", terminal: true, want: "isos"},
		"one of the choices":     {q: storage, typed: "fast\nlocal", terminal: true, want: "local", said: `"fast" is not one of isos, local`},
		"something":              {q: unsafe, typed: "\nx\n", terminal: true, want: "x", said: "an answer is needed"},
		"a good one":             {q: checked, typed: "1-2\n3-4\n", terminal: true, want: "3-4", said: "out of bounds"},
		"the end of input":       {q: storage, typed: "", terminal: true, kind: fault.Interrupted},
		"the end after a wrong":  {q: storage, typed: "fast\n", terminal: true, kind: fault.Interrupted},
		"--yes":                  {q: storage, yes: true, want: "isos", said: "Where? isos (--iso-storage)"},
		"--yes on a terminal":    {q: storage, yes: true, terminal: true, typed: "local\n", want: "isos"},
		"--yes to what is not":   {q: unsafe, yes: true, kind: fault.Config},
		"nobody there":           {q: storage, typed: "local\n", kind: fault.Config},
		"nobody, and no default": {q: unsafe, typed: "x\n", kind: fault.Config},
	} {
		var said bytes.Buffer
		a := newAsker(&streams{in: strings.NewReader(c.typed), err: &console{Writer: &said}}, c.yes)
		a.terminal = c.terminal
		got, err := a.ask(t.Context(), c.q)
		if c.want == "" && (err == nil || fault.KindOf(err) != c.kind) || c.want != "" && err != nil || got != c.want {
			t.Errorf("%s: %q, %v; want %q, kind %d", name, got, err, c.want, c.kind)
		}
		if !strings.Contains(said.String(), c.said) {
			t.Errorf("%s: said %q, want %q", name, &said, c.said)
		}
	}
}

// TestAskInterrupted presses Ctrl-C at a question.
func TestAskInterrupted(t *testing.T) {
	t.Parallel()
	in, out := io.Pipe()
	defer out.Close() // which ends the reader
	a := newAsker(&streams{in: in, err: &console{Writer: io.Discard}}, false)
	a.terminal = true
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := a.ask(ctx, setup.Question{Text: "Where?", Flag: "--endpoint"}); exitCodeOf(err) != exitInterrupted {
		t.Errorf("err = %v", err)
	}
}
