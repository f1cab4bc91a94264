package ui

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
)

// drawnAt draws for a terminal with that many columns.
func drawnAt(columns int, colour bool, draw func(*page)) *bytes.Buffer {
	var out bytes.Buffer
	draw(&page{w: &out, columns: columns, colour: colour})
	return &out
}

func TestPlanAtEveryWidth(t *testing.T) {
	t.Parallel()
	plan := everyPhase()
	all := drawnAt(0, false, func(p *page) { drawPlan(p, plan) }).String()
	for _, columns := range []int{40, 80, 200} {
		name := fmt.Sprintf("plan-%d-columns", columns)
		drawn(t, name, func(b *bytes.Buffer) error {
			_, err := b.Write(drawnAt(min(columns, readable), false, func(p *page) { drawPlan(p, plan) }).Bytes())
			return err
		})
		out := drawnAt(min(columns, readable), false, func(p *page) { drawPlan(p, plan) }).String()
		tooWide(t, out, columns)
		// A comma may stand between what is a column elsewhere.
		if spaced(out) != spaced(all) {
			t.Errorf("%d columns do not say what any number of columns does:\n%s", columns, out)
		}
	}
}

// tooWide finds lines that a terminal would break, except lines of a single word.
func tooWide(t *testing.T, out string, limit int) {
	t.Helper()
	for line := range strings.Lines(out) {
		if line = strings.TrimRight(line, "\n"); columns(line) > limit && len(strings.Fields(line)) > 2 {
			t.Errorf("%d of %d columns: %s", columns(line), limit, line)
		}
	}
}

func spaced(text string) string {
	return strings.Join(strings.Fields(strings.ReplaceAll(text, ",", " ")), " ")
}

// Colours add no information to the words.
func TestPlanInColours(t *testing.T) {
	t.Parallel()
	plan := everyPhase()
	coloured := drawnAt(0, true, func(p *page) { drawPlan(p, plan) }).String()
	drawn(t, "plan-colours", func(b *bytes.Buffer) error { b.WriteString(coloured); return nil })
	sequences := regexp.MustCompile("\x1b\\[[0-9]+m")
	if plain := drawnAt(0, false, func(p *page) { drawPlan(p, plan) }).String(); sequences.ReplaceAllString(coloured, "") != plain {
		t.Error("in colours the plan is another one")
	}
}

// many is a plan of a large cluster in which that many workers change.
func many(nodes, changing int) planning.Plan {
	plan := planning.Plan{Cluster: "c1", ID: "0123456789abcdef", MaxUnavailable: 5, PerHost: 1, TotalSeconds: 240 * ((changing + 4) / 5)}
	batch := planning.Batch{Phase: planning.Workers, Limit: 5}
	for i := range nodes {
		name := fmt.Sprintf("wk%03d", i)
		if i >= changing {
			plan.Nodes = append(plan.Nodes, inSync(name))
			continue
		}
		n := node(name, cluster.VMID(10000+i), planning.Workers, cluster.Recreate, 240)
		n.Host, n.Why, n.OutageFrom = fmt.Sprintf("pve%d", 1+i%12), "recreate: possible, every persistent disk can be carried over", assumed
		n.Carried = []planning.DiskPlan{{Key: "scsi1", Serial: "data-" + name, Volid: fmt.Sprintf("fast:vm-%d-disk-1", n.VMID), Size: "20G"}}
		n.System = &planning.DiskPlan{Key: "scsi0", Serial: "sys", Volid: fmt.Sprintf("fast:vm-%d-disk-0", n.VMID), Size: "10G"}
		n.Renewed = []string{"vmgenid", "meta", "volid of scsi1"}
		plan.Nodes, batch.Nodes = append(plan.Nodes, n), append(batch.Nodes, name)
	}
	plan.Batches = []planning.Batch{batch}
	return plan
}

// For a large cluster a plan shows what changes, and shows once what all changes have in
// common.
func TestPlanOfManyNodes(t *testing.T) {
	t.Parallel()
	for name, plan := range map[string]planning.Plan{"plan-of-500": many(500, 3), "plan-of-30": many(30, 30)} {
		drawn(t, name, func(b *bytes.Buffer) error { return WritePlan(b, "text", plan) })
		drawn(t, name+".md", func(b *bytes.Buffer) error { return WritePlan(b, "markdown", plan) })
	}
	all := many(500, 500)
	var text, md bytes.Buffer
	if err := WritePlan(&text, "text", all); err != nil {
		t.Fatal(err)
	}
	if lines := strings.Count(text.String(), "\n"); lines > 3*500+20 {
		t.Errorf("%d lines", lines)
	}
	if err := WritePlan(&md, "markdown", all); err != nil {
		t.Fatal(err)
	}
	if md.Len() > largest || !strings.Contains(md.String(), "- 500 on 500 nodes") || strings.Count(md.String(), "wk000…wk499") != 2 {
		t.Errorf("%d bytes of Markdown:\n%.2000s", md.Len(), md.String())
	}
}

// Each form of a plan for people has all its facts.
func TestEveryFormHasEveryFact(t *testing.T) {
	t.Parallel()
	plan := everyPhase()
	var text, md bytes.Buffer
	if err := WritePlan(&text, "text", plan); err != nil {
		t.Fatal(err)
	}
	if err := WritePlan(&md, "markdown", plan); err != nil {
		t.Fatal(err)
	}
	facts := 0
	for _, n := range plan.Nodes {
		for _, f := range factsOf(n) {
			facts++
			if !strings.Contains(spaced(text.String()), spaced(f.Text)) {
				t.Errorf("the text does not say %s: %s", f.Label, f.Text)
			}
			if !strings.Contains(md.String(), escape(f.Text)) {
				t.Errorf("the Markdown does not say %s: %s", f.Label, f.Text)
			}
		}
	}
	if facts < 15 {
		t.Errorf("only %d facts", facts)
	}
}

func TestAfterPlan(t *testing.T) {
	t.Parallel()
	every := everyPhase()
	work := many(2, 1)
	refused := many(2, 1)
	refused.Nodes[0].Refused = []string{"no"}
	for name, c := range map[string]struct {
		plan planning.Plan
		want string
	}{
		"nothing":    {many(2, 0), ""},
		"work":       {work, "recast roll does it; recast plan --explain wk000"},
		"refused":    {refused, "recast plan --explain wk000 shows the reasons against each strategy"},
		"unfinished": {every, "recast status shows where every disk is"},
	} {
		if got := strings.Join(afterPlan(c.plan), "\n"); !strings.HasPrefix(got, c.want) || (c.want == "") != (got == "") {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
