package ui

import (
	"bytes"
	"encoding/json"
	"errors"
	"regexp"
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/foreign"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/pipeline"
)

// Text from a server can't control the terminal.
func TestForeignTextDoesNotControlTheTerminal(t *testing.T) {
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
	if foreign.Lines(out.String()) != out.String() || strings.Count(out.String(), "no space left\ufffd1A\ufffd") != 8 {
		t.Errorf("%q", &out)
	}
	if !strings.Contains(out.String(), "\nand more\n") {
		t.Errorf("an error's second line is lost:\n%s", &out)
	}
}

// A terminal with colours gets only the colours of paint, and a text that is not from
// recast can't add lines.
func TestColoursAreOurs(t *testing.T) {
	t.Parallel()
	const words = "disk\x1b[32m is fine\x1b[0m\nsafe: all of it"
	var out bytes.Buffer
	p := &page{w: &out, colour: true}
	p.line("%s %s", p.paint(red, "lost:"), words)
	p.row(tableOf(widest, []string{words}), "", p.paint(red, words), words)
	p.wrapped(p.paint(red, "lost:")+" ", "  ", words)
	const want = "\x1b[31mlost:\x1b[0m disk is fine safe: all of it\n" +
		"\x1b[31mdisk is fine safe: all of it\x1b[0m  disk is fine safe: all of it\n" +
		"\x1b[31mlost:\x1b[0m disk is fine\n  safe: all of it\n"
	if out.String() != want {
		t.Errorf("%q\nwant %q", &out, want)
	}
}

// Text from a node can't add markup, rows or lines to a comment or to test results, and
// the JSON output has the same text without control characters for the terminal.
func TestForeignTextInReports(t *testing.T) {
	t.Parallel()
	const words = "bad\x1b[31m | `code` |\r\n| fake | row |\n## <b>\u202e\u009b1A\x00"
	drift := observe.Drift{Node: "wk1", Stale: true, Talos: words, Reasons: []cluster.Reason{{Code: "extension", Text: words}}, Notes: []string{words}}
	res := pipeline.DriftResult{Cluster: "c", Nodes: []observe.Drift{drift}}
	print := func(format string) string {
		var out bytes.Buffer
		if err := WriteDrift(&out, format, res); err != nil {
			t.Fatal(err)
		}
		if text := out.String(); foreign.Lines(text) != text {
			t.Errorf("%s: %q", format, text)
		}
		return out.String()
	}
	print("text")
	markdown := print("markdown")
	if strings.Count(markdown, "\n| ") != 2 || strings.Count(markdown, "\n#") != 0 || strings.Contains(markdown, "<b>") {
		t.Errorf("%s", markdown)
	}
	if failure := regexp.MustCompile(`(?s)<failure .*</failure>`).FindString(print("junit")); failure == "" || strings.Contains(failure, "&#xA;") {
		t.Errorf("%s", failure)
	}
	var again pipeline.DriftResult
	if err := json.Unmarshal([]byte(print("json")), &again); err != nil || again.Nodes[0].Talos != words {
		t.Errorf("%q: %v", again.Nodes[0].Talos, err)
	}
	var plan bytes.Buffer
	p := planning.Plan{Nodes: []planning.NodePlan{{Node: "wk1", Drift: drift, Strategy: cluster.Recreate, Why: words, WillLose: []string{words}, Notes: []string{words}}}, Warn: []string{words}}
	if err := WritePlan(&plan, "markdown", p); err != nil {
		t.Fatal(err)
	}
	if text := plan.String(); foreign.Lines(text) != text || strings.Count(text, "\n| ") != 2 || strings.Count(text, "\n#") != 0 {
		t.Errorf("%s", text)
	}
}
