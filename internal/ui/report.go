package ui

import (
	"io"
	"time"

	"github.com/recast-sh/recast/pipeline"
)

// WriteReport prints what a roll did.
func WriteReport(w io.Writer, format string, rep pipeline.Report) error {
	return write(w, format, rep, func(p *page) {
		took := rep.Ended.Sub(rep.Started).Round(time.Second)
		if rep.Run == "" {
			p.line("%s: every node is as the lock says (%d looked at, %s)", rep.Outcome, len(rep.Plan.Nodes), took)
			return
		}
		p.line("run %s: %s after %s", rep.Run, rep.Outcome, took)
		if rep.Outcome == "done" {
			for _, n := range rep.Plan.Work() {
				p.line("  %s recreated as build %s, %d persistent disks carried over", n.Node, short(n.Drift.Build), len(n.Carried))
			}
		} else {
			p.line("next: recast status says where every disk is; recast roll goes on where this one stopped")
		}
	})
}

// WriteStatus prints the last run and what is unfinished or kept.
func WriteStatus(w io.Writer, format string, res pipeline.StatusResult) error {
	return write(w, format, res, func(p *page) {
		if r := res.LastRun; r == nil {
			p.line("no run is on record here")
		} else if r.Finished.IsZero() {
			p.line("run %s, begun %s, is running or was killed", r.ID, r.Started.Format(time.RFC3339))
		} else {
			p.line("last run %s: %s at %s", r.ID, r.Outcome, r.Finished.Format(time.RFC3339))
		}
		for _, h := range res.Open {
			p.line("%s  %s: run %s did not finish; VM %d: %s", p.paint(yellow, "unfinished"), h.Node, h.Run, h.VMID, h.VM)
			for _, d := range h.Disks {
				p.line("    %s is at %s %s", d.Disk, d.Where, d.Volid)
			}
		}
		for _, k := range res.Kept {
			p.line("kept  previous system disk of %s: %s, %s", k.Node, k.Volid, k.Where)
		}
		if len(res.Open) > 0 {
			p.line("next: recast roll finishes what was begun")
		}
	})
}
