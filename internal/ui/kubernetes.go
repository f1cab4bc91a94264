package ui

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/etcd"
	"github.com/recast-sh/recast/cluster/kubeupgrade"
	"github.com/recast-sh/recast/internal/words"
	"github.com/recast-sh/recast/pipeline"
)

func WriteKubernetesPlan(w io.Writer, format string, plan kubeupgrade.Plan) error {
	return write(w, format, plan, func(p *page) { drawKubernetesPlan(p, plan) })
}

func drawKubernetesPlan(p *page, plan kubeupgrade.Plan) {
	if !plan.Work() && len(plan.Refused) == 0 {
		p.line("cluster %s: Kubernetes is %s on all of %s", plan.Cluster, plan.To, words.Counted(len(plan.Nodes), "node"))
		return
	}
	if plan.From == plan.To {
		p.line("cluster %s: Kubernetes is %s, not everywhere yet", plan.Cluster, plan.To)
	} else {
		p.line("cluster %s: Kubernetes %s → %s", plan.Cluster, plan.From, plan.To)
	}
	for _, c := range cluster.Components {
		drawComponent(p, plan, c)
	}
	for _, n := range plan.Nodes {
		p.wrapped("  waits for "+n.Node+": ", "    ", n.Lacks...)
	}
	p.wrapped("  "+p.paint(red, "refused: "), "    ", plan.Refused...)
	drawWarnings(p, plan.Warn)
	if plan.LeftOver != "" && len(plan.Refused) == 0 {
		p.wrapped("  afterwards: ", "    ", plan.LeftOver)
	}
}

// drawComponent prints on which nodes a component is changed, and on which not.
func drawComponent(p *page, plan kubeupgrade.Plan, c cluster.Component) {
	var nodes []string
	images := map[string]bool{}
	for _, n := range plan.Nodes {
		for _, change := range n.Changes {
			if change.Component == c {
				nodes = append(nodes, n.Node)
				images[change.To] = true
			}
		}
	}
	if c == cluster.KubeProxy && plan.Proxy != nil {
		nodes = append(nodes, "its DaemonSet")
		images[plan.Proxy.To] = true
	}
	if len(nodes) > 0 {
		p.wrapped(fmt.Sprintf("  %-24s", c), strings.Repeat(" ", 6), fmt.Sprintf("%s: %s", strings.Join(nodes, ", "), strings.Join(slices.Sorted(maps.Keys(images)), ", ")))
	}
}

func WriteKubernetesReport(w io.Writer, format string, rep pipeline.UpgradeKubernetesReport) error {
	return write(w, format, rep, func(p *page) {
		outcome, _, _ := strings.Cut(rep.Outcome, ":") // the error is printed separately
		switch took := rep.Ended.Sub(rep.Started).Round(time.Second); {
		case rep.DryRun:
			drawKubernetesPlan(p, rep.Plan)
		case rep.Run == "" && rep.Outcome == "nothing to do":
			p.line("nothing to do: Kubernetes is %s on all of %s", rep.Plan.To, words.Counted(len(rep.Plan.Nodes), "node"))
		case rep.Outcome == "done":
			p.line("run %s: Kubernetes is %s on all of %s, after %s", rep.Run, rep.Plan.To, words.Counted(len(rep.Plan.Nodes), "node"), took)
			p.wrapped("next: ", "  ", rep.Plan.LeftOver)
		default:
			p.line("run %s: %s after %s", rep.Run, outcome, took)
			p.line("next: run the same command again: it continues where this one stopped")
		}
	})
}

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
