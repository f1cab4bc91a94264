package ui

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/survey"
)

// toRecreate is a node that is not recreated, and the reasons.
type toRecreate struct {
	node, host string
	strategy   string // what a roll would use today; "": not shown
	lift       string // instead of obstacles
	obstacles  []cluster.Obstacle
}

func toRecreateOf(plan planning.Plan) []toRecreate {
	var out []toRecreate
	for _, n := range plan.Nodes {
		if len(n.ToRecreate) > 0 {
			out = append(out, toRecreate{node: n.Node, host: n.Host, obstacles: n.ToRecreate})
		}
	}
	return out
}

// strategiesOf is a row for each node: the strategy that a roll would use today, and what lifts it to recreate.
func strategiesOf(nodes []survey.Assessment) []toRecreate {
	var out []toRecreate
	for _, a := range nodes {
		row := toRecreate{node: a.Node, host: a.Host, strategy: string(a.Strategy), obstacles: a.ToRecreate}
		against := a.Against[cluster.Recreate]
		switch {
		case a.Unread:
			row.strategy, row.lift = "not known", "its machine could not be read: see above"
		case len(a.Refused) > 0 || a.Strategy == cluster.Auto || a.Strategy == "":
			row.strategy = "refused"
		}
		switch {
		case row.lift != "" || len(a.ToRecreate) > 0:
		case row.strategy == "refused":
			row.lift = cmp.Or(slices.Concat(a.Refused, against, []string{"see above"})...)
		case a.Strategy.MakesVM():
			row.lift = "–"
		case len(against) > 0: // recast.yaml asks for another way, and there are obstacles besides
			row.lift = "in recast.yaml strategy: auto; and " + against[0]
		default:
			row.lift = "in recast.yaml strategy: auto"
		}
		out = append(out, row)
	}
	return out
}

// drawToRecreate prints a line for each node that is not recreated: the commands that
// change that, or the first reason if no command does. The lines are for pasting, so they
// are not wrapped.
func drawToRecreate(p *page, title string, nodes []toRecreate) {
	if len(nodes) == 0 {
		return
	}
	p.line("")
	p.wrapped("", "", p.paint(bold, title)+" (recast plan --explain NODE shows every reason):")
	pending, asked := false, false
	var rows [][]string
	for _, n := range nodes {
		line := n.line()
		pending = pending || strings.Contains(line, "qm set ")
		asked = asked || strings.Contains(line, kubectl)
		row := []string{n.node, line}
		if n.strategy != "" {
			row = []string{n.node, n.strategy, line}
		}
		rows = append(rows, row)
	}
	p.pasted("  ", rows)
	if pending {
		p.wrapped("", "", "Changes that Proxmox keeps pending on a running VM take effect when the VM was off.")
	}
	if asked {
		p.wrapped("", "", "The kubectl commands take time to complete, and must be undone afterwards (recast plan --explain NODE): roll once it is done.")
	}
}

// kubectl starts commands for a machine with the cluster's kubeconfig; all others are for the VM's host.
const kubectl = "kubectl "

func (n toRecreate) line() string {
	if n.lift != "" {
		return n.lift
	}
	var commands, anywhere, configs, words []string
	for _, o := range n.obstacles {
		switch {
		case o.Command == "" && o.Config == "":
			words = append(words, o.Text)
		case o.Command == "", slices.Contains(commands, o.Command), slices.Contains(anywhere, o.Command):
		case strings.HasPrefix(o.Command, kubectl):
			anywhere = append(anywhere, o.Command)
		default:
			commands = append(commands, o.Command)
		}
		if o.Config != "" && !slices.Contains(configs, o.Config) {
			configs = append(configs, o.Config)
		}
	}
	var lift []string
	if len(anywhere) > 0 {
		lift = append(lift, strings.Join(anywhere, " && "))
	}
	if len(commands) > 0 {
		lift = append(lift, fmt.Sprintf("as root on %s: %s", cmp.Or(n.host, "its host"), strings.Join(commands, " && ")))
	}
	if len(configs) > 0 {
		lift = append(lift, fmt.Sprintf("in recast.yaml %s, then recast lock", strings.Join(configs, ", ")))
	}
	line := strings.Join(lift, "; ")
	switch {
	case len(words) == 0:
		return line
	case line == "" && len(words) == 1:
		return words[0]
	case line == "":
		return fmt.Sprintf("%s; and %d more", words[0], len(words)-1)
	case len(words) == 1:
		return line + "; and " + words[0]
	}
	return fmt.Sprintf("%s; and %s; and %d more", line, words[0], len(words)-1)
}
