package ui

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/survey"
	"github.com/recast-sh/recast/internal/words"
	"github.com/recast-sh/recast/pipeline/checkup"
)

// WriteDoctor prints the checks, group by group, and what to do about problems.
func WriteDoctor(w io.Writer, format string, res checkup.Result) error {
	return write(w, format, res, func(p *page) {
		group := ""
		count := map[checkup.State]int{}
		for _, c := range res.Checks {
			if c.Group != group {
				if group != "" {
					p.line("")
				}
				group = c.Group
				p.heading(group)
			}
			count[c.State]++
			drawCheck(p, c)
			if c.Group == checkup.GroupNodes {
				drawAssessment(p, c, res.Nodes)
			}
		}
		drawGrants(p, res)
		drawToRecreate(p, "What a roll would use today, and what makes it recreate", strategiesOf(res.Nodes))
		p.line("")
		p.line("%d checks: %s, %s", len(res.Checks), words.Counted(count[checkup.Problem], "problem"), words.Counted(count[checkup.Warning], "warning"))
	})
}

func drawCheck(p *page, c checkup.Check) {
	mood := map[checkup.State]Mood{checkup.OK: green, checkup.Warning: yellow, checkup.Problem: red}[c.State]
	p.wrapped("  "+p.paint(mood, fmt.Sprintf("%-8s", c.State))+c.What+": ", "            ", c.Seen)
	if c.State == checkup.OK {
		return // optional privileges are only in the JSON
	}
	p.wrapped("            → ", "              ", c.Remedy...)
}

// drawAssessment prints the reasons against each strategy for the node of a check: once
// for strategies that follow each other and have the same.
func drawAssessment(p *page, c checkup.Check, nodes []survey.Assessment) {
	for _, a := range nodes {
		if a.Node != c.What || a.Unread || a.VMID == 0 {
			continue
		}
		var names []string
		for i, s := range cluster.Strategies {
			names = append(names, string(s))
			if i+1 < len(cluster.Strategies) && slices.Equal(a.Against[s], a.Against[cluster.Strategies[i+1]]) {
				continue
			}
			text := "possible"
			if against := a.Against[s]; len(against) > 0 {
				text = "impossible: " + strings.Join(against, "; ")
			}
			p.wrapped(fmt.Sprintf("            %s: ", strings.Join(names, ", ")), "              ", text)
			names = nil
		}
	}
}

// drawGrants prints the commands for pasting: never wrapped.
func drawGrants(p *page, res checkup.Result) {
	if len(res.Grants) == 0 {
		return
	}
	on := "any Proxmox node (the same for VE 8 and 9)"
	if res.Version != "" {
		on = "a Proxmox VE " + res.Version + " node"
	}
	p.line("")
	p.line("%s, as root on %s:", p.paint(bold, "To grant what is missing"), on)
	for _, line := range res.Grants {
		p.line("  %s", line)
	}
	if res.Caution != "" {
		p.wrapped("", "", res.Caution)
	}
	p.wrapped("", "", "A token with privilege separation has only privileges that both it and its user have. An entry of the access control "+
		"list replaces entries above it, so each path gets everything that is needed there, and by RecastKeep roles what was granted there "+
		"before. It does not matter if a role exists already. Then run recast doctor again: it could not check what the token can't see yet.")
}
