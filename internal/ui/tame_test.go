package ui

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/pipeline"
)

func TestTame(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                             "",
		"plain – text\n\twith all":     "plain – text\n\twith all",
		"\x1b[31mours\x1b[0m":          "\x1b[31mours\x1b[0m",
		"\x1b[2Jcleared \x1b[8mhidden": "?[2Jcleared ?[8mhidden",
		"\x1b]0;title\x07\r\x1b[1mx":   "?]0;title??\x1b[1mx",
		"\x9b2J, \u009b2J, \u202egpj":  "?2J, ?2J, ?gpj",
	} {
		if got := Tame(text); got != want {
			t.Errorf("%q became %q, want %q", text, got, want)
		}
	}
}

// Whatever a server says, a terminal only shows it.
func TestOthersWordsSteerNoTerminal(t *testing.T) {
	t.Parallel()
	const words = "no space\x1b[2J\x1b]52;c;eA==\x07 left\u009b1A\u202e"
	var out bytes.Buffer
	p := NewProgress(&out)
	p.Emit(step.Event{Path: "roll", Title: "roll " + words, Status: step.Started})
	p.Emit(step.Event{Path: "roll", Status: step.Note, Text: words})
	err := fault.WithSafe(fault.WithHint(errors.New(words+"\nand more"), "%s", words), words)
	if err := WriteTrouble(&out, Trouble{Err: err, Runbook: func(fault.Code) string { return "" }}); err != nil {
		t.Fatal(err)
	}
	res := pipeline.StatusResult{Kubernetes: words, Problems: []string{words}, Claim: &pipeline.ClaimHeld{}}
	res.Claim.Holder.Host = words
	if err := WriteStatus(&out, "text", res); err != nil {
		t.Fatal(err)
	}
	if strings.ContainsAny(out.String(), "\x1b\x07\u009b\u202e") || strings.Count(out.String(), "no space?[2J") != 8 {
		t.Errorf("%q", &out)
	}
	if !strings.Contains(out.String(), "\nand more\n") {
		t.Errorf("an error's second line is lost:\n%s", &out)
	}
}
