package ui

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/pipeline"
)

// WritePlan prints what a roll would do.
func WritePlan(w io.Writer, format string, plan cluster.Plan) error {
	return write(w, format, plan, func(p *page) {
		if plan.Run != "" {
			p.line("%s run %s is finished first", p.paint(yellow, "resume:"), plan.Run)
		}
		for _, n := range plan.Nodes {
			drawNode(p, n)
		}
		for _, text := range plan.Warn {
			p.line("%s %s", p.paint(yellow, "warning:"), text)
		}
		var outage time.Duration
		for _, n := range plan.Work() {
			outage += time.Duration(n.OutageSeconds) * time.Second
		}
		switch refused := len(plan.Refused()); {
		case refused > 0:
			p.line("%d to do, %s: a roll refuses until every reason is gone", len(plan.Work()), p.paint(red, fmt.Sprintf("%d refused", refused)))
		case len(plan.Work()) == 0:
			p.line("%d nodes: nothing to do", len(plan.Nodes))
		default:
			p.line("%d of %d nodes to recreate, one after the other, about %s", len(plan.Work()), len(plan.Nodes), outage)
		}
	})
}

func drawNode(p *page, n cluster.NodePlan) {
	what := p.paint(green, "in sync")
	if n.Strategy != "" {
		what = p.paint(yellow, string(n.Strategy))
	}
	if len(n.Refused) > 0 {
		what = p.paint(red, "refused")
	}
	p.line("%s  %s (%s, VM %d on %s): %s", what, n.Node, n.Role, n.VMID, n.Host, n.Why)
	for _, r := range n.Drift.Reasons {
		p.line("    stale: %s", r.Text)
	}
	for _, r := range n.Refused {
		p.line("    %s %s", p.paint(red, "refused:"), r)
	}
	if n.Strategy == "" || len(n.Refused) > 0 {
		return
	}
	for _, d := range n.Carried {
		p.line("    carried over: %s", drawDisk(d))
	}
	if n.System != nil {
		p.line("    replaced:     %s (stays parked)", drawDisk(*n.System))
	}
	p.line("    away for about %s", time.Duration(n.OutageSeconds)*time.Second)
}

func drawDisk(d cluster.DiskPlan) string {
	parts := []string{d.Key, d.Volid}
	if d.Size != "" {
		parts = append(parts, d.Size)
	}
	if d.Serial != "" {
		parts = append(parts, "serial "+d.Serial)
	}
	return strings.Join(parts, ", ")
}

// WriteDrift prints how every node stands.
func WriteDrift(w io.Writer, format string, res pipeline.DriftResult) error {
	return write(w, format, res, func(p *page) {
		for _, d := range res.Nodes {
			drawDrift(p, d)
		}
		switch {
		case res.Unread > 0:
			p.line("%d of %d nodes could not be read", res.Unread, len(res.Nodes))
		case res.Stale > 0:
			p.line("%d of %d nodes are stale", res.Stale, len(res.Nodes))
		default:
			p.line("%d nodes in sync", len(res.Nodes))
		}
	})
}

func drawDrift(p *page, d cluster.Drift) {
	state := p.paint(green, "in sync")
	switch {
	case len(d.Unread) > 0:
		state = p.paint(red, "unread")
	case d.Stale:
		state = p.paint(yellow, "stale")
	}
	p.line("%s  %s (wanted build %s)", state, d.Node, short(d.Build))
	for _, r := range d.Reasons {
		p.line("    %s", r.Text)
	}
	for _, u := range d.Unread {
		p.line("    %s %s", p.paint(red, "unread:"), u)
	}
	for _, n := range d.Notes {
		p.line("    note: %s", n)
	}
}
