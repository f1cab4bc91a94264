package ui

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/foreign"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/pipeline"
)

func TestWrapped(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("word ", 25)
	for name, tc := range map[string]struct {
		columns    int
		text, want string
	}{
		"short":                       {20, "a b", "why: a b\n"},
		"nothing":                     {20, "", "why:\n"},
		"at spaces":                   {12, "aaa bbb ccc ddd", "why: aaa bbb\n  ccc ddd\n"},
		"a word that is too long":     {8, "aaa bbbbbbbbbb c", "why: aaa\n  bbbbbbbbbb\n  c\n"},
		"no terminal":                 {0, long, "why: " + strings.TrimSpace(long) + "\n"},
		"lines of its own":            {0, "a\n\nb", "why: a\n  b\n"},
		"few reasons":                 {0, reasons("a; b"), "why: a; b\n"},
		"many reasons":                {0, reasons(long + "a; b"), "why: " + long + "a;\n  b\n"},
		"colours take no room":        {12, (&page{colour: true}).paint(red, "aaa bbb") + " ccc", "why: \x1b[31maaa bbb\x1b[0m\n  ccc\n"},
		"letters count, not bytes":    {12, "äää ööö", "why: äää ööö\n"},
		"spaces are not worth a line": {12, "  aaa   bbb  ", "why: aaa bbb\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			(&page{w: &out, columns: tc.columns}).wrapped("why: ", "  ", tc.text)
			must.Equal(t, "wrapped", tc.want, out.String())
		})
	}
}

func TestColoured(t *testing.T) {
	for name, c := range map[string]struct {
		no, force string
		want      bool
	}{
		"no terminal":       {"", "", false},
		"forced":            {"", "1", true},
		"forced with 0":     {"", "0", false},
		"NO_COLOR wins":     {"1", "1", false},
		"NO_COLOR is empty": {"", "yes", true},
	} {
		t.Setenv("NO_COLOR", c.no)
		t.Setenv("CLICOLOR_FORCE", c.force)
		must.Equal(t, name, c.want, coloured(&bytes.Buffer{}))
	}
}

func TestTogether(t *testing.T) {
	t.Parallel()
	for names, want := range map[string]string{
		"":                              "",
		"wk1":                           "wk1",
		"wk1 wk2 wk3":                   "wk1, wk2, wk3",
		"cp1 wk1 wk2 wk3 wk4 db":        "cp1, wk1…wk4, db",
		"wk8 wk9 wk10 wk11":             "wk8…wk11",
		"wk008 wk009 wk010 wk011 wk013": "wk008…wk011, wk013",
		"wk08 wk09 wk10 wk011 wk012":    "wk08, wk09, wk10, wk011, wk012",
		"a1 b2 c3 d4":                   "a1, b2, c3, d4",
		"wk4 wk3 wk2 wk1":               "wk4, wk3, wk2, wk1",
		"n99999999999999999999 n1":      "n99999999999999999999, n1",
		"a1 a2 a3 a4 a5 b1 b2 b3 b4 b6": "a1…a5, b1…b4, b6",
		"1 2 3 4":                       "1…4",
	} {
		must.Equal(t, names, want, together(strings.Fields(names)))
	}
}

// stringsOf are all texts in v.
func stringsOf(v reflect.Value) (out []string) {
	switch v.Kind() {
	case reflect.String:
		if v.Type() != reflect.TypeFor[Mood]() && v.String() != "" {
			out = append(out, v.String())
		}
	case reflect.Slice:
		for i := range v.Len() {
			out = append(out, stringsOf(v.Index(i))...)
		}
	case reflect.Struct:
		for _, field := range v.Fields() {
			out = append(out, stringsOf(field)...)
		}
	}
	return out
}

// requireWords: the text output has every text of the words, and the words have each of
// those texts.
func requireWords(t *testing.T, text string, words any, texts ...string) {
	t.Helper()
	all := stringsOf(reflect.ValueOf(words))
	if len(all) < 5 {
		t.Fatalf("only %q", all)
	}
	for _, word := range all {
		if !strings.Contains(spaced(text), spaced(word)) {
			t.Errorf("the text does not say %q", word)
		}
	}
	for _, want := range texts {
		if !slices.ContainsFunc(all, func(word string) bool { return strings.Contains(word, want) }) {
			t.Errorf("the words do not say %q", want)
		}
	}
}

func same(text string) string { return text }

// The words of a plan are those that it prints, none more and no fact less.
func TestPlanInWords(t *testing.T) {
	t.Parallel()
	for name, plan := range map[string]planning.Plan{"every phase": everyPhase(), "many": many(500, 20)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var text bytes.Buffer
			must.Do(t, WritePlan(&text, "text", plan))
			must.Do(t, AdvisePlan(&text, plan))
			var facts []string
			for _, n := range plan.Nodes {
				for _, f := range factsOf(n) {
					facts = append(facts, f.Text)
				}
			}
			words := PlanInWords(plan, same)
			names := 0
			for i := range words.Idle {
				words.Idle[i].Node, names = "", names+1 // many share a line, which leaves names out
			}
			for _, p := range words.Phases {
				names += len(p.Nodes)
			}
			if names != len(plan.Nodes) {
				t.Errorf("%d nodes of %d", names, len(plan.Nodes))
			}
			requireWords(t, text.String(), words, append(facts, plan.Warn...)...)
		})
	}
}

func TestDriftInWords(t *testing.T) {
	t.Parallel()
	res := pipeline.DriftResult{Stale: 1, Unread: 1, Unlisted: []string{"wk9"}, Nodes: []observe.Drift{
		{Node: "cp1", Talos: "v1.13.9", Build: "abcdef0123456789"},
		{Node: "wk1", Talos: "v1.13.8", Build: "abcdef0123456789", Stale: true, Reasons: []cluster.Reason{{Code: "talos", Text: "Talos v1.13.8 → v1.13.9"}}, Notes: []string{"a disk is parked"}},
		{Node: "wk2", Build: "abcdef0123456789", Unread: []string{"no route to host"}},
	}}
	var text bytes.Buffer
	must.Do(t, WriteDrift(&text, "text", res))
	words := DriftInWords(res, same)
	requireWords(t, text.String(), words, "Talos v1.13.8 → v1.13.9", "a disk is parked", "no route to host", "wk9", "recast plan", "recast doctor")
	var order []string
	for _, n := range words.Nodes {
		order = append(order, n.Node+" "+n.State+" "+string(n.Mood))
	}
	if want := []string{"wk2 unread bad", "wk1 stale open", "cp1 in sync good"}; !slices.Equal(order, want) || words.InSync != 1 {
		t.Errorf("nodes %q, %d in sync", order, words.InSync)
	}
	hidden := DriftInWords(res, func(string) string { return "x" })
	if all := strings.Join(stringsOf(reflect.ValueOf(hidden)), " "); strings.Contains(all, "parked") || strings.Contains(all, "route") || strings.Contains(all, "→") {
		t.Errorf("not hidden: %s", all)
	}
}

// Text from a server can't control the terminal.
func TestForeignTextDoesNotControlTheTerminal(t *testing.T) {
	t.Parallel()
	const words = "no space\x1b[2J\x1b]52;c;eA==\x07 left\u009b1A\u202e"
	var out bytes.Buffer
	p := NewProgress(&out)
	p.Emit(step.Event{Path: "roll", Title: "roll " + words, Status: step.Started})
	p.Emit(step.Event{Path: "roll", Status: step.Note, Text: words})
	err := fault.WithSafe(fault.WithHint(errors.New(words+"\nand more"), "%s", words), words)
	must.Do(t, WriteTrouble(&out, Trouble{Err: err, Runbook: func(fault.Code) string { return "" }}))
	res := pipeline.StatusResult{Kubernetes: words, Problems: []string{words}, Claim: &pipeline.ClaimHeld{}}
	res.Claim.Holder.Host = words
	must.Do(t, WriteStatus(&out, "text", res))
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
	must.Equal(t, "value", want, out.String())
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
		must.Do(t, WriteDrift(&out, format, res))
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
	must.Do(t, WritePlan(&plan, "markdown", p))
	if text := plan.String(); foreign.Lines(text) != text || strings.Count(text, "\n| ") != 2 || strings.Count(text, "\n#") != 0 {
		t.Errorf("%s", text)
	}
}
