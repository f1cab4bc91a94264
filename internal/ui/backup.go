package ui

import (
	"cmp"
	"io"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster/etcd"
	"github.com/recast-sh/recast/pipeline"
)

// WriteBackup prints a backup of etcd.
func WriteBackup(w io.Writer, format string, res pipeline.BackupResult) error {
	return write(w, format, res, func(p *page) {
		p.line("%s", res.File)
		drawSnapshot(p, res.Snapshot)
		p.line("  from      %s (%s)", res.Member, res.Address)
		if len(res.Removed) > 0 {
			p.wrapped("  removed   ", "            ", strings.Join(res.Removed, ", "))
		}
		drawWarnings(p, res.Warnings)
	})
}

func drawWarnings(p *page, texts []string) {
	p.wrapped("  "+p.paint(yellow, "warning")+"   ", "            ", texts...)
}

// WriteRestore prints what a restore will do, or has done.
func WriteRestore(w io.Writer, format string, rep pipeline.RestoreReport) error {
	return write(w, format, rep, func(p *page) {
		switch {
		case rep.Outcome == "":
			p.line("restore %s, %s at %s, from %s", rep.Node, rep.VM, rep.Addr, rep.File)
			drawSnapshot(p, rep.Snapshot)
			switch {
			case !rep.Bootstrapped.IsZero():
				p.line("  continues a restore whose data etcd has since %s: it only waits for the rest", rep.Bootstrapped.Format(time.DateTime))
			case rep.Resumes:
				p.line("  continues an earlier restore")
			}
			drawWarnings(p, rep.Warnings)
			return
		case rep.Outcome != "done":
			outcome, _, _ := strings.Cut(rep.Outcome, ":") // the error is printed separately
			p.line("run %s: %s; run the same command again to continue", rep.Run, outcome)
			return
		}
		if !rep.Bootstrapped.IsZero() {
			p.line("run %s: %s runs etcd from %s, which was restored at %s; nothing was done now", rep.Run, rep.Node, rep.File, rep.Bootstrapped.Format(time.DateTime))
			drawAfterwards(p, rep.Afterwards)
			p.line("next: recast drift; to restore it again, recast backup saves what it runs now, then wipe etcd: %s", etcd.WipeByReset)
			return
		}
		p.line("run %s: %s runs etcd from %s, after %s", rep.Run, rep.Node, rep.File, rep.Ended.Sub(rep.Started).Round(time.Second))
		drawAfterwards(p, rep.Afterwards)
		p.line("next: recast drift")
	})
}

// drawAfterwards lists what a person still has to do.
func drawAfterwards(p *page, texts []string) {
	p.wrapped("afterwards: ", "  ", texts...)
}

func drawSnapshot(p *page, s etcd.Snapshot) {
	p.line("  size      %d bytes", s.SizeBytes)
	p.line("  revision  %d", s.Revision)
	p.line("  sha256    %s", s.SHA256)
	p.line("  members   %s", cmp.Or(strings.Join(s.Members, ", "), "none"))
}
