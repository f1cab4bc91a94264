package telemetry

import (
	"maps"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/ui"
	"github.com/recast-sh/recast/pipeline"
	"github.com/recast-sh/recast/pipeline/checkup"
)

// Drifted records the state of every node.
func (t *Telemetry) Drifted(res pipeline.DriftResult) {
	if t == nil {
		return
	}
	t.answer(func(p *page) {
		nodes := p.gauge("recast_nodes", "Nodes by state: in-sync, stale, unread.", "state")
		stale := p.gauge("recast_node_stale", "1: the node differs from the lock.", "node")
		unread := p.gauge("recast_node_unread", "1: something of the node could not be read, so nothing is certain.", "node")
		info := p.gauge("recast_node_info", "The build that the node should run and the Talos version that it runs; always 1.", "node", "build", "talos")
		reasons := p.gauge("recast_stale_nodes", "Nodes by why they are stale.", "reason")
		count := map[string]float64{"in-sync": 0, "stale": 0, "unread": 0}
		why := map[string]float64{}
		for _, d := range res.Nodes {
			count[state(d)]++
			stale(number(d.Stale), d.Node)
			unread(number(len(d.Unread) > 0), d.Node)
			info(1, d.Node, d.Build, d.Talos)
			for code := range reasonsOf(d) {
				why[code]++
			}
		}
		for s, n := range count {
			nodes(n, s)
		}
		for code, n := range why {
			reasons(n, code)
		}
	})
}

func state(d observe.Drift) string {
	switch {
	case len(d.Unread) > 0:
		return "unread"
	case d.Stale:
		return "stale"
	}
	return "in-sync"
}

func reasonsOf(d observe.Drift) map[string]bool {
	out := map[string]bool{}
	for _, r := range d.Reasons {
		out[r.Code] = true
	}
	return out
}

func number(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

// Planned records what a roll would do.
func (t *Telemetry) Planned(plan planning.Plan) {
	if t != nil {
		t.answer(func(p *page) { planned(p, plan) })
	}
}

func planned(p *page, plan planning.Plan) {
	nodes := p.gauge("recast_plan_nodes", "Nodes of the plan by strategy: none if nothing is to be done, refused if it can't be done.", "strategy")
	outage := p.gauge("recast_plan_outage_seconds", "How long the node is expected to be away.", "node", "strategy")
	count := map[string]float64{"none": 0, "refused": 0}
	for _, n := range plan.Nodes {
		strategy := string(n.Strategy)
		switch {
		case len(n.Refused) > 0:
			strategy = "refused"
		case strategy == "":
			strategy = "none"
		default:
			outage(float64(n.OutageSeconds), n.Node, strategy)
		}
		count[strategy]++
	}
	for strategy, n := range count {
		nodes(n, strategy)
	}
}

// Rolled records a run's outcome and that of each of its nodes.
func (t *Telemetry) Rolled(rep pipeline.Report, fared ui.Fared) {
	if t == nil {
		return
	}
	outcome, _, _ := strings.Cut(rep.Outcome, ":") // the error itself is not a label
	t.root.SetAttributes(attrOutcome.String(outcome))
	t.mu.Lock()
	took := maps.Clone(t.took)
	t.mu.Unlock()
	t.answer(func(p *page) {
		planned(p, rep.Plan)
		p.gauge("recast_run_info", "The run and how it ended: done, nothing to do, interrupted, failed; always 1.", "run", "outcome")(1, rep.Run, outcome)
		p.gauge("recast_run_duration_seconds", "How long the run took, building and asking included.")(seconds(rep.Ended.Sub(rep.Started)))
		p.gauge("recast_run_resumed", "Runs that had been left unfinished and were finished first.")(float64(len(rep.Resumed)))
		rolled(p, fared, took)
	})
}

func rolled(p *page, fared ui.Fared, took map[string]time.Duration) {
	labels := []string{"node", "phase", "strategy"}
	outcome := p.gauge("recast_node_roll_info", "How the node's turn ended: done, not needed, failed, stopped, not started; always 1.", append(labels, "outcome")...)
	total := p.gauge("recast_node_roll_seconds", "How long the node's turn took, its own waits included.", labels...)
	away := p.gauge("recast_node_outage_seconds", "From the end of the node's drain until it was back.", labels...)
	stages := p.gauge("recast_node_stage_seconds", "How long each stage of the node's turn took.", append(labels, "stage")...)
	for _, n := range fared.Nodes {
		of := func() []string { return []string{n.Node, n.Phase, n.Strategy} }
		outcome(1, append(of(), string(n.Outcome))...)
		away(float64(n.AwaySeconds), of()...)
		branch := "roll/" + n.Phase + "/" + n.Node
		if d, ran := took[branch]; ran {
			total(seconds(d), of()...)
		}
		for path, d := range took {
			if stage, below := strings.CutPrefix(path, branch+"/"); below {
				stages(seconds(d), append(of(), stage)...)
			}
		}
	}
}

// Examined records the results of recast doctor.
func (t *Telemetry) Examined(res checkup.Result) {
	if t == nil {
		return
	}
	t.answer(func(p *page) {
		checks := p.gauge("recast_doctor_checks", "Checks by group and result: ok, warning, problem.", "group", "state")
		count := map[[2]string]float64{}
		for _, c := range res.Checks {
			count[[2]string{c.Group, string(c.State)}]++
		}
		for of, n := range count {
			checks(n, of[0], of[1])
		}
	})
}
