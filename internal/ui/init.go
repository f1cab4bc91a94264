package ui

import (
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/recast-sh/recast/internal/foreign"
	"github.com/recast-sh/recast/internal/words"
	"github.com/recast-sh/recast/pipeline/setup"
)

// WriteInit prints what was found, what was written, and what to type next.
func WriteInit(w io.Writer, format string, res setup.InitResult) error {
	return write(w, format, res, func(p *page) {
		kubernetes := ""
		if res.Kubernetes != "" {
			kubernetes = ", Kubernetes " + res.Kubernetes
		}
		if res.New {
			kubernetes += " at " + res.Endpoint
		}
		p.line("cluster %s: %s, Talos %s (%s, %s)%s", res.Cluster, words.Counted(len(res.Nodes), "node"), res.Talos, res.Platform, res.Arch, kubernetes)
		drawInitNodes(p, res.Nodes)
		for _, name := range res.Left {
			p.line("  %s was left out: recast leaves it alone", name)
		}
		p.line("")
		for _, s := range res.Schematics {
			extensions := strings.Join(s.Extensions, ", ")
			if extensions == "" {
				extensions = "no extensions"
			}
			p.wrapped("", "  ", fmt.Sprintf("schematic %s (%s): %s", s.Name, strings.Join(s.Nodes, ", "), extensions))
		}
		p.wrapped(p.paint(yellow, "note: "), "      ", res.Warnings...)
		p.line("")
		p.line("written to %s: %s", filepath.Clean(res.Dir), strings.Join(res.Files, ", "))
		if res.New {
			drawNewNext(p, res)
			return
		}
		drawInitDrift(p, res)
		p.line("")
		p.line("next: %s shows what a roll still needs: privileges, space, versions", thereRun(res, "recast doctor"))
		if len(res.Secret) > 0 {
			p.line("      read recast.yaml; commit nothing while there are secrets in %s", strings.Join(res.Secret, ", "))
		} else {
			p.line("      read recast.yaml, then commit it with recast.lock and schematics/")
		}
	})
}

// drawNewNext says what is to be done until there is a cluster.
func drawNewNext(p *page, res setup.InitResult) {
	p.line("")
	p.line("next: read recast.yaml and change what you like: there is no VM yet")
	if res.Encrypted != "" {
		p.line("      commit all of these files: secrets.yaml is encrypted by %s. Without its key no node can be made again: keep a copy", res.Encrypted)
	} else {
		p.line("      commit all of these files but secrets.yaml. Without it no node can be made again: keep a copy in a safe place")
	}
	p.line("      %s makes the VMs and the cluster", thereRun(res, "recast bootstrap "+res.Nodes[0].Name)) // control planes are first
}

// thereRun is a command in the directory of the files.
func thereRun(res setup.InitResult, command string) string {
	if dir := filepath.Clean(res.Dir); dir != "." {
		return "cd " + dir + " && " + command
	}
	return command
}

func drawInitNodes(p *page, nodes []setup.InitNode) {
	var rows [][]string
	for _, n := range nodes {
		vm := fmt.Sprintf("VM %d on %s", n.VMID, n.Host)
		if n.VMID == 0 {
			vm = fmt.Sprintf("%s on %s", n.Address, n.Host)
		}
		rows = append(rows, []string{n.Name, n.Role(), vm, n.Firmware, n.Schematic, n.Disks()})
	}
	p.pasted("  ", rows)
}

// drawInitDrift prints what recast drift will report, and what that means if recast did not
// build the images.
func drawInitDrift(p *page, res setup.InitResult) {
	p.line("")
	in, unknown := 0, false
	var stale group
	for _, d := range res.Drift {
		if !d.Stale {
			in++
			continue
		}
		var reasons []string
		for _, r := range d.Reasons {
			reasons = append(reasons, foreign.Line(r.Text))
			unknown = unknown || r.Code == "unknown-build"
		}
		stale.add(strings.Join(reasons, "\n"), d.Node)
	}
	for _, text := range stale.texts {
		p.wrapped(p.paint(yellow, "stale")+"  ", "       ", strings.Join(stale.names[text], ", "))
		p.wrapped("    ", "      ", strings.Split(text, "\n")...)
	}
	if in > 0 || len(stale.texts) == 0 {
		p.line("%d of %s run exactly what recast.lock says", in, words.Counted(len(res.Drift), "node"))
	}
	if unknown {
		p.wrapped("", "", "This is normal at first: a node shows its extensions by name and version, and only an image that was built from a recast.lock also shows their digests. "+
			"recast drift reports this until recast roll has renewed those nodes, with the same Talos and the same schematics; until then nothing happens to them.")
	}
}
