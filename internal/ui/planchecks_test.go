package ui

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/pipeline"
)

func TestPlanDrawsHooks(t *testing.T) {
	t.Parallel()
	run := func(args ...string) cluster.Hook {
		return cluster.Hook{TimeoutSeconds: 60, Command: cluster.CommandGate{Args: args}}
	}
	told := run("./freeze.sh", "on")
	told.Description = "freeze deployments"
	drawn(t, "plan-hooks", func(b *bytes.Buffer) error {
		return WritePlan(b, "text", planning.Plan{
			Nodes: []planning.NodePlan{node("wk1", 9031, planning.Workers, cluster.InPlace, 120)}, TotalSeconds: 120,
			Hooks: cluster.Hooks{BeforeRun: []cluster.Hook{told, run("date")}, AfterBatch: []cluster.Hook{run("sync")}, AfterNode: []cluster.Hook{run("sh", "-c", "a\nb\n")}},
		})
	})
}

// A step of a batch belongs to no node, and a node whose hook failed is not touched, or
// done.
func TestReportDrawsHooks(t *testing.T) {
	t.Parallel()
	p := NewProgress(&bytes.Buffer{})
	bad := fault.Refusedf("bad")
	for _, e := range []step.Event{
		{Path: "roll/workers/hooks_before", Status: step.Started, Title: "run the hooks"},
		{Path: "roll/workers/hooks_before", Status: step.Done},
		{Path: "roll/workers/wk1", Status: step.Started, Title: "in-place wk1"},
		{Path: "roll/workers/wk1/run-hooks-again", Status: step.Failed, Err: bad},
		{Path: "roll/workers/wk1", Status: step.Failed, Title: "in-place wk1", Err: bad},
		{Path: "roll/workers/wk2", Status: step.Started, Title: "in-place wk2"},
		{Path: "roll/workers/wk2/run-hooks", Status: step.Failed, Err: bad},
		{Path: "roll/workers/wk2", Status: step.Failed, Title: "in-place wk2", Err: bad},
		{Path: "roll/unfinished/wk3", Status: step.Started, Title: "recreate wk3"},
		{Path: "roll/unfinished/wk3/run-hooks", Status: step.Failed, Err: bad},
		{Path: "roll/unfinished/wk3", Status: step.Failed, Title: "recreate wk3", Err: bad},
	} {
		p.Emit(e)
	}
	var nodes []string
	for _, n := range p.Fared().Nodes {
		nodes = append(nodes, n.Node)
	}
	if strings.Join(nodes, " ") != "wk1 wk2 wk3" {
		t.Errorf("nodes %q", nodes)
	}
	began := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	drawn(t, "report-hooks", func(b *bytes.Buffer) error {
		return WriteReport(b, "text", pipeline.Report{
			Run: "r1", Started: began, Ended: began.Add(time.Minute), Outcome: "failed: bad",
			Hooks: []planning.HookRun{
				{Point: cluster.BeforeRun, Seconds: 1.5},
				{Point: cluster.BeforeBatch, Batch: planning.Workers, Seconds: 2, Error: "a ended with 3"},
				{Point: cluster.AfterNode, Batch: planning.Workers, Node: "wk1", Seconds: 3, Error: "b ended with 4"},
			},
			Unsent: []string{"webhook h.example: notice of end: no answer within 10s"},
		}, p.Fared())
	})
}
