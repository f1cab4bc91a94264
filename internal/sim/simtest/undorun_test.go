package simtest

import (
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
)

// TestUndoMeansTheRunThatStartedLast: of two rolls of one minute, the second one has the ID that sorts first. On the
// machine that did both, undo without a node is about that one. Another machine has no journal of them, and their times in
// Proxmox may be of two clocks: there the run is to be named.
func TestUndoMeansTheRunThatStartedLast(t *testing.T) {
	long(t)
	const first, last = "20000101-0000-ffff", "20000101-0000-0000"
	eachIn(t, func(bool) sim.Options { return sim.Options{ControlPlanes: 1, Workers: 2} }, map[string]bool{"on the same machine": false, "on another machine": true},
		func(t *testing.T, lab *Lab, elsewhere bool) {
			lab.Patch(everywhere)
			must(t, lab.as(first).roll(planning.Policy{Only: []string{"wk1"}})(t.Context()))
			must(t, lab.as(last).roll(planning.Policy{Only: []string{"wk2"}})(t.Context()))
			c, run := lab.as("20000101-0000-8888"), ""
			if c.Elsewhere = elsewhere; elsewhere {
				lab.loseJournal()
				_, err := c.Undo(t.Context(), planning.Policy{}, planning.Undone{})
				if fault.KindOf(err) != fault.Refused || !strings.Contains(err.Error(), "is not certain") || !strings.Contains(err.Error(), first) || !strings.Contains(err.Error(), last) {
					t.Fatalf("undo without a run: %v", err)
				}
				run = "0000-0000"
			}
			rep, err := c.Undo(t.Context(), planning.Policy{}, planning.Undone{Run: run})
			must(t, err)
			if n := rep.Plan.Work(); len(n) != 1 || n[0].Node != "wk2" {
				t.Errorf("undone: %+v", n)
			}
		})
}
