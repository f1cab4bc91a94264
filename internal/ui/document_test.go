package ui

import (
	"bytes"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/pipeline"
)

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
			if err := WritePlan(&text, "text", plan); err != nil {
				t.Fatal(err)
			}
			if err := AdvisePlan(&text, plan); err != nil {
				t.Fatal(err)
			}
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
	if err := WriteDrift(&text, "text", res); err != nil {
		t.Fatal(err)
	}
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
