package ui

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/survey"
	"github.com/recast-sh/recast/internal/foreign"
	"github.com/recast-sh/recast/internal/words"
	"github.com/recast-sh/recast/pipeline/checkup"
)

func WriteExplanation(w io.Writer, format string, e survey.Explanation) error {
	return write(w, format, e, func(p *page) { drawExplanation(p, e) })
}

func drawExplanation(p *page, e survey.Explanation) {
	drawTurn(p, e)
	drawComparison(p, e)
	drawFile(p, e.Plan)
	drawStrategies(p, e)
	drawFates(p, e)
	drawSteps(p, e)
	p.next(afterExplanation(e)...)
}

// drawTurn prints the node's row and facts from the plan, and its turn.
func drawTurn(p *page, e survey.Explanation) {
	n := e.Plan
	node := idleNode
	if acts(n) {
		node = changedNode
	}
	p.rows("", [][]string{node(n).row(p)}, nil)
	if e.Turn > 0 {
		turn := fmt.Sprintf("%d of %s to be rolled", e.Turn, words.Counted(e.Of, "node"))
		if b := e.Batch; b != nil {
			turn += fmt.Sprintf(", with the batch %s, %d at a time", strings.ReplaceAll(string(b.Phase), "-", " "), b.Limit)
		}
		p.wrapped("    turn: ", "      ", turn)
	}
	if len(n.Slots) > 0 {
		p.wrapped("    holds meanwhile: ", "      ", strings.Join(n.Slots, ", "))
	}
	for _, f := range factsOf(n) {
		switch f.Label {
		case factCarried, factBack, factParked, factSystem: // printed with the disks
		case factFile:
			if e.Plan.ConfigFile.Uncompared != "" { // otherwise drawFile lists all of them
				p.facts("    ", []Fact{f})
			}
		default:
			p.facts("    ", []Fact{f})
		}
	}
	p.line("")
}

func drawComparison(p *page, e survey.Explanation) {
	if len(e.Compared) == 0 {
		return
	}
	p.heading("wanted and found")
	var rows [][]string
	for _, c := range e.Compared {
		state, text := p.paint(green, "same"), foreign.Line(c.Found)
		if !c.Same {
			state = p.paint(yellow, "differs")
			text = shorter(cmp.Or(c.Found, "none known")) + " → " + shorter(cmp.Or(c.Wanted, "none"))
		}
		rows = append(rows, []string{state, c.What, shorter(text)})
	}
	p.rows("  ", rows, nil)
	p.line("")
}

// shorter shortens hashes and IDs, and leaves other text unchanged.
func shorter(text string) string {
	text = foreign.Line(text)
	if id := strings.TrimPrefix(text, "sha256-"); len(id) == 64 && strings.Trim(id, "0123456789abcdef") == "" {
		return words.Short(text)
	}
	return text
}

func drawStrategies(p *page, e survey.Explanation) {
	if len(e.Strategies) == 0 {
		return
	}
	heading := "strategies"
	if !acts(e.Plan) {
		heading += ", if there were anything to do"
	}
	if e.Asked == cluster.Auto {
		heading += ": auto uses the first one that is possible"
	} else {
		heading += fmt.Sprintf(": %s is configured", e.Asked)
	}
	p.heading(heading)
	rows := each(e.Strategies, func(s survey.StrategyChoice) []string { return strategyRow(p, s) })
	p.rows("  ", rows, func(row int) {
		s := e.Strategies[row]
		p.wrapped("      ", "        ", s.Against...)
		for _, text := range s.WillLose {
			p.wrapped("      ", "        ", p.paint(red, factLost+": "+strings.TrimSuffix(foreign.Line(text), " will be lost")))
		}
	})
	p.line("")
}

func strategyRow(p *page, s survey.StrategyChoice) []string {
	switch {
	case len(s.Against) > 0:
		return []string{p.paint(red, "impossible"), string(s.Strategy)}
	case s.Taken:
		return []string{p.paint(green, "taken"), string(s.Strategy)}
	}
	return []string{"possible", string(s.Strategy)}
}

func drawFates(p *page, e survey.Explanation) {
	if len(e.Disks) == 0 {
		return
	}
	p.heading("disks")
	var rows [][]string
	for _, d := range e.Disks {
		size := d.Size
		if d.NewSize != "" {
			size += " → " + d.NewSize
		}
		if d.Serial != "" {
			size = strings.TrimSpace(size + " serial " + d.Serial)
		}
		does := d.Does
		if d.Where != "" {
			does += "; now " + d.Where
		}
		rows = append(rows, []string{d.Key, d.Volid, size, p.paint(moodOfFate(d.Fate), does)})
	}
	p.rows("  ", rows, nil)
	p.line("")
}

func moodOfFate(f survey.Fate) Mood {
	switch f {
	case survey.FateReplaced:
		return yellow
	case survey.FateCarried, survey.FateDetached, survey.FateBack, survey.FateStays:
		return green
	}
	return ""
}

func drawSteps(p *page, e survey.Explanation) {
	if len(e.Steps) == 0 {
		return
	}
	p.heading("steps")
	var rows [][]string
	from := ""
	for i, s := range e.Steps {
		rows = append(rows, []string{fmt.Sprintf("%2d", i+1), p.paint(moodOfRisk(s.Risk), s.Path), s.Title + lasts(s)})
		from = cmp.Or(from, s.SecondsFrom)
	}
	p.rows("  ", rows, nil)
	if from != "" {
		p.wrapped("  ", "    ", "Times are those of "+from+"; a step without one took less than a second, or did not occur there.")
	} else {
		p.wrapped("  ", "    ", "The duration of each step is known after the first such roll from this machine.")
	}
	p.line("")
}

// lasts says how long a step took before, and its timeout.
func lasts(s survey.StepOutline) string {
	var parts []string
	if s.Seconds > 0 {
		parts = append(parts, "about "+(time.Duration(s.Seconds)*time.Second).String())
	}
	if s.TimeoutSeconds > 0 {
		parts = append(parts, "waits for "+minutes(time.Duration(s.TimeoutSeconds)*time.Second)+" at most")
	}
	if len(parts) == 0 {
		return ""
	}
	return " (" + strings.Join(parts, ", ") + ")"
}

func moodOfRisk(risk string) Mood {
	if risk == "destructive" {
		return red
	}
	return ""
}

func afterExplanation(e survey.Explanation) []string {
	switch n := e.Plan; {
	case len(n.Refused) > 0:
		return []string{"fix what is refused, then run recast plan again; recast roll --exclude " + n.Node + " leaves it out"}
	case n.Resume:
		return []string{"recast roll finishes it first; recast status shows where every disk is"}
	case n.Strategy != "":
		return []string{"recast roll --only " + n.Node + " does this and nothing else"}
	}
	return nil
}

// toRecreate is a node that is not recreated, and the reasons.
type toRecreate struct {
	node, host string
	strategy   string // what a roll would use today; "": not shown
	lift       string // instead of obstacles
	obstacles  []cluster.Obstacle
}

func toRecreateOf(plan planning.Plan) []toRecreate {
	recreated := func(n planning.NodePlan) bool { return len(n.ToRecreate) == 0 }
	nodes := slices.DeleteFunc(slices.Clone(plan.Nodes), recreated)
	return each(nodes, func(n planning.NodePlan) toRecreate {
		return toRecreate{node: n.Node, host: n.Host, obstacles: n.ToRecreate}
	})
}

// strategiesOf returns a row for each node: the strategy that a roll would use today, and how recreate becomes
// possible.
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
