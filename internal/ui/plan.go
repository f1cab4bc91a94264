package ui

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/foreign"
	"github.com/recast-sh/recast/internal/words"
)

func WritePlan(w io.Writer, format string, plan planning.Plan) error {
	if format == "markdown" {
		return write(w, format, plan, func(p *page) { writeMarkdown(p, plan) })
	}
	return write(w, format, plan, func(p *page) { drawPlan(p, plan) })
}

func drawPlan(p *page, plan planning.Plan) {
	for _, draw := range []func(*page, planning.Plan){drawRehearsal, drawChanges, drawIdle, drawChecks, drawPlanWarnings, drawSum, drawPlanToRecreate} {
		draw(p, plan)
	}
}

func drawChanges(p *page, plan planning.Plan) {
	phases := phases(plan)
	var columns table
	for _, phase := range phases {
		for _, n := range phase.Nodes {
			columns.fit(widest, n.row(p))
		}
	}
	for _, phase := range phases {
		p.wrapped("", "  ", p.paint(bold, phase.Heading))
		if len(phase.Each) > 0 {
			p.line("  each of them")
			p.facts("      ", phase.Each)
		}
		for _, n := range phase.Nodes {
			p.row(columns, "  ", n.row(p)...)
			p.facts("      ", n.Facts)
		}
		p.line("")
	}
}

func drawChecks(p *page, plan planning.Plan) {
	p.wrapped("surge: ", "  ", plan.Surge.Lines()...)
	p.list("gates: checked before each node, and when it is back", gateLines(plan))
	p.list(storageHeading, storageLines(plan))
	p.list("hooks: one that fails stops the roll", hookLines(plan))
}

func drawPlanWarnings(p *page, plan planning.Plan) {
	p.wrapped(p.paint(yellow, "warning: "), "  ", plan.Warn...)
	p.wrapped("beside this: ", "  ", plan.Kubernetes...)
}

func drawPlanToRecreate(p *page, plan planning.Plan) {
	drawToRecreate(p, "To have these recreated", toRecreateOf(plan))
}

// drawRehearsal prints which VMs are deleted and created before any node is touched.
func drawRehearsal(p *page, plan planning.Plan) {
	proofs := plan.Proofs()
	if len(plan.Scratch)+len(plan.Trials)+len(proofs) == 0 {
		return
	}
	p.heading("before the first node")
	p.wrapped("  "+p.paint(red, "delete")+"  ", "      ", each(plan.Scratch, planning.LeftScratch.String)...)
	if proofs != "" {
		p.wrapped("  "+p.paint(yellow, "prove")+"  ", "      ", proofs)
	}
	p.wrapped("  "+p.paint(yellow, "rehearse")+"  ", "      ", each(plan.Trials, planning.Trial.String)...)
	p.line("")
}

// acts says whether the plan changes a node, or refuses to.
func acts(n planning.NodePlan) bool { return n.Strategy != "" || len(n.Refused) > 0 }

func phases(plan planning.Plan) []PhaseWords {
	var order []planning.Phase
	nodes := map[planning.Phase][]NodeWords{}
	for _, n := range plan.Nodes {
		if !acts(n) {
			continue
		}
		if nodes[n.Phase] == nil {
			order = append(order, n.Phase)
		}
		nodes[n.Phase] = append(nodes[n.Phase], changedNode(n))
	}
	return each(order, func(phase planning.Phase) PhaseWords {
		words := nodes[phase]
		return PhaseWords{heading(plan, phase, len(words)), sharedFacts(words), words}
	})
}

func heading(plan planning.Plan, phase planning.Phase, nodes int) string {
	switch phase {
	case planning.Unfinished:
		if plan.Run == "" {
			return "first: left cordoned by an earlier run"
		}
		return "finish first: left by run " + plan.Run
	case planning.Reset:
		return "before all others: machines that were reset"
	case planning.First:
		return "first: " + planning.BeginsTitle
	case planning.Surge:
		return "first: " + planning.SurgeTitle
	case planning.SurgeEnd:
		return "last: " + planning.SurgeEndTitle
	case planning.Canary:
		return "canary: " + planning.CanaryTitle(plan)
	}
	switch kind := strings.ReplaceAll(string(phase), "-", " "); {
	case plan.Bootstrap != "":
		return fmt.Sprintf("%s: %d, at most %d per Proxmox host", kind, nodes, max(1, plan.PerHost)) + beside(plan, phase)
	case phase == planning.ControlPlanes:
		return fmt.Sprintf("%s: %d, one at a time", kind, nodes) + beside(plan, phase)
	}
	text := fmt.Sprintf("workers: %d, at most %d at a time and %d per Proxmox host", nodes, max(1, plan.MaxUnavailable), max(1, plan.PerHost))
	return text + beside(plan, phase)
}

// beside returns the words for a batch that does not wait for the batch before it; "" for other batches.
func beside(plan planning.Plan, phase planning.Phase) string {
	i := slices.IndexFunc(plan.Batches, func(b planning.Batch) bool { return b.Phase == phase })
	if i < 1 || !plan.Batches[i].Beside {
		return ""
	}
	return fmt.Sprintf(", beside the %s", strings.ReplaceAll(string(plan.Batches[i-1].Phase), "-", " "))
}

func changedNode(n planning.NodePlan) NodeWords {
	out := NodeWords{n.Node, string(n.Strategy), yellow, []string{n.Role, vmOf(n), awayOf(n)}, factsOf(n)}
	if len(n.Refused) > 0 {
		out.State, out.Mood = "refused", red
	}
	return out
}

func vmOf(n planning.NodePlan) string {
	if n.VMID == 0 {
		return "no VM that can be read"
	}
	return fmt.Sprintf("VM %d on %s", n.VMID, n.Host)
}

func awayOf(n planning.NodePlan) string {
	about := "away for about " + minutes(outage(n))
	if n.Strategy.From() == cluster.Nowhere {
		about = "takes about " + minutes(outage(n))
	}
	switch {
	case n.OutageSeconds == 0 || len(n.Refused) > 0:
		return ""
	case n.OutageFrom == "":
		return about
	case n.OutageFrom == assumed:
		return about + " (assumed)"
	}
	return about + ", as in " + n.OutageFrom
}

// assumed is the source of an estimate if there was no such roll before.
const assumed = "assumed"

func drawIdle(p *page, plan planning.Plan) {
	if nodes := idleNodes(plan); len(nodes) > 0 {
		p.equalNodes("each", "      ", nodes)
		p.line("")
	}
}

func idleNodes(plan planning.Plan) []NodeWords {
	return each(slices.DeleteFunc(slices.Clone(plan.Nodes), acts), idleNode)
}

func idleNode(n planning.NodePlan) NodeWords {
	out := NodeWords{n.Node, wordInSync, green, []string{idleWhy(n)}, factsOf(n)}
	switch {
	case n.Paused != "":
		out.State, out.Mood = "paused", yellow
	case len(n.Drift.Unread) > 0:
		out.State, out.Mood = "later", yellow
	case n.Drift.Stale:
		out.State, out.Mood = "stays", yellow
	}
	return out
}

func idleWhy(n planning.NodePlan) string {
	return foreign.Line(strings.Join(strings.Fields(strings.TrimPrefix(n.Why, "paused: ")), " "))
}

func drawSum(p *page, plan planning.Plan) {
	refused := 0
	var losing []string
	var order []cluster.Strategy
	count := map[cluster.Strategy]int{}
	for _, n := range plan.Nodes {
		if len(n.WillLose) > 0 {
			losing = append(losing, n.Node)
		}
		switch {
		case len(n.Refused) > 0:
			refused++
		case n.Strategy != "":
			if count[n.Strategy]++; count[n.Strategy] == 1 {
				order = append(order, n.Strategy)
			}
		}
	}
	work := strings.Join(each(order, func(s cluster.Strategy) string { return fmt.Sprintf("%d %s", count[s], s) }), ", ")
	switch {
	case refused > 0:
		p.wrapped("", "  ", fmt.Sprintf("%s%s: a roll refuses until every reason is gone", strings.TrimPrefix(work+"; ", "; "), p.paint(red, fmt.Sprintf("%d refused", refused))))
	case work == "":
		p.line("%s: nothing to do", words.Counted(len(plan.Nodes), "node"))
	default:
		p.wrapped("", "  ", fmt.Sprintf("%s: %d of %s, about %s in all%s", work, len(plan.Work()), words.Counted(len(plan.Nodes), "node"), minutes(inAll(plan)), longest(plan)))
	}
	if len(losing) > 0 {
		p.wrapped("", "  ", p.paint(red, fmt.Sprintf("data will be lost on %s", together(losing))))
	}
	if names := reconfigured(plan); len(names) > 0 {
		p.wrapped("", "  ", p.paint(yellow, fmt.Sprintf("the machine configuration changes on %s", together(names))))
	}
	if _, first := plan.Unfinished(); first && refused == 0 && work != "" {
		p.wrapped("", "  ", "Unfinished nodes come first, separately; then recast roll plans the rest again.")
	}
}

// longest says how long a single node is down at most, if several nodes are changed.
func longest(plan planning.Plan) string {
	var most time.Duration
	for _, n := range plan.Work() {
		most = max(most, outage(n))
	}
	if len(plan.Work()) < 2 || most == 0 {
		return ""
	}
	return fmt.Sprintf(", each node away for at most %s", minutes(most))
}

func inAll(plan planning.Plan) time.Duration { return time.Duration(plan.TotalSeconds) * time.Second }

func outage(n planning.NodePlan) time.Duration { return time.Duration(n.OutageSeconds) * time.Second }

func minutes(d time.Duration) string {
	if d < time.Minute {
		return d.Round(time.Second).String()
	}
	d = d.Round(time.Minute)
	if hours := d / time.Hour; hours > 0 {
		return fmt.Sprintf("%d h %d min", hours, (d%time.Hour)/time.Minute)
	}
	return fmt.Sprintf("%d min", d/time.Minute)
}

func AdvisePlan(w io.Writer, plan planning.Plan) error {
	p := newPage(w)
	p.next(afterPlan(plan)...)
	return p.err
}

func afterPlan(plan planning.Plan) []string {
	var out []string
	refused := slices.IndexFunc(plan.Nodes, func(n planning.NodePlan) bool { return len(n.Refused) > 0 })
	switch work := plan.Work(); {
	case refused >= 0:
		name := plan.Nodes[refused].Node
		out = append(out, "recast plan --explain "+name+" shows the reasons against each strategy; recast roll --exclude "+name+" leaves it out")
	case len(work) == 0:
	case plan.Run != "":
		out = append(out, "recast status shows where every disk is; recast roll finishes what is unfinished")
	default:
		out = append(out, "recast roll does it; recast plan --explain "+work[0].Node+" shows each disk and step of one node")
	}
	return out
}

type PlanWords struct {
	Before   string // the first node: rehearsals
	Phases   []PhaseWords
	Idle     []NodeWords
	Checks   string // surge, gates, storage, hooks
	Warnings string
	Sum      string
	Recreate string // what would let more nodes be recreated
	Next     []string
}

type PhaseWords struct {
	Heading string
	Each    []Fact // the facts that all nodes of the phase have
	Nodes   []NodeWords
}

// PlanInWords returns what WritePlan and AdvisePlan print.
func PlanInWords(plan planning.Plan, hide func(string) string) PlanWords {
	text := func(draw func(*page, planning.Plan)) string { return hide(textOf(func(p *page) { draw(p, plan) })) }
	hidden := func(n NodeWords) NodeWords { return n.hidden(hide) }
	return PlanWords{
		Before: text(drawRehearsal), Checks: text(drawChecks), Warnings: text(drawPlanWarnings), Sum: text(drawSum),
		Recreate: text(drawPlanToRecreate), Next: each(afterPlan(plan), hide), Idle: each(idleNodes(plan), hidden),
		Phases: each(phases(plan), func(p PhaseWords) PhaseWords {
			return PhaseWords{hide(p.Heading), hiddenFacts(p.Each, hide), each(p.Nodes, hidden)}
		}),
	}
}

// The labels of facts. All formats for people have the same facts.
const (
	factDiffers  = "" // from recast.lock; not printed
	factWhy      = "why"
	factStale    = "stale"
	factOnly     = "not changed by a roll"
	factUnread   = "unread"
	factRefused  = "refused"
	factLost     = "will be lost"
	factNote     = "note"
	factFile     = "its file changes"
	factCarried  = "carried over"
	factBack     = "comes back"
	factParked   = "stays parked"
	factSystem   = "system disk"
	factRenewed  = "Proxmox regenerates"
	factFrees    = "frees"
	talosIgnores = "; Talos ignores them"
)

var factMoods = map[string]Mood{
	factRefused: red, factLost: red, factFrees: red, factUnread: red,
	factDiffers: yellow, factStale: yellow, factOnly: yellow, factFile: yellow,
	factCarried: green, factBack: green, factParked: green,
}

// factsOf lists the facts of a node: why it is stale and why it gets its strategy, then what
// that costs, then what happens to its disks.
func factsOf(n planning.NodePlan) []Fact {
	var out []Fact
	add := func(label string, texts ...string) {
		out = append(out, cluster.Each(texts, func(text string) Fact { return Fact{label, text} })...)
	}
	for _, r := range n.Drift.Reasons {
		if n.Strategy.From() == cluster.Nowhere {
			break // the same as why
		}
		if r.Code == kubernetesVersion || n.Strategy == "" && n.Paused == "" && len(n.Refused) == 0 {
			add(factOnly, foreign.Line(r.Text))
			continue
		}
		add(factStale, foreign.Line(r.Text))
	}
	if !acts(n) { // for other nodes no plan could be made: this one is checked again later
		add(factUnread, n.Drift.Unread...)
	}
	if why := strings.TrimPrefix(n.Why, string(n.Strategy)+": "); why != "" && acts(n) {
		add(factWhy, why)
	}
	add(factRefused, n.Refused...)
	for _, text := range n.WillLose {
		add(factLost, strings.TrimSuffix(text, " will be lost"))
	}
	out = append(out, fileFacts(n)...)
	add(factNote, n.Notes...)
	if len(n.Refused) == 0 {
		out = append(out, diskFacts(n)...)
	}
	return out
}

func diskFacts(n planning.NodePlan) []Fact {
	var out []Fact
	carried := factCarried
	switch {
	case n.Strategy.From() == cluster.Halfway:
		carried = factBack
	case n.Strategy.VM() == cluster.VMGone:
		carried = factParked
		if n.Phase == planning.SurgeEnd {
			carried = factFrees
		}
	}
	out = append(out, cluster.Each(n.Carried, func(d planning.DiskPlan) Fact { return Fact{carried, drawDisk(d)} })...)
	if what := n.Strategy.Words().System; n.System != nil && what != "" {
		if n.System.NewSize != "" {
			what += fmt.Sprintf(" (%s → %s)", n.System.Size, n.System.NewSize)
		}
		out = append(out, Fact{factSystem, drawDisk(*n.System) + ": " + what})
	}
	if len(n.Renewed) > 0 {
		out = append(out, Fact{factRenewed, strings.Join(n.Renewed, ", ") + talosIgnores})
	}
	out = append(out, cluster.Each(n.Frees, func(f parking.FreePlan) Fact { return Fact{factFrees, drawFree(f)} })...)
	return out
}

// sharedFacts removes the facts that all of several nodes have from the nodes, and returns them: they are printed once.
func sharedFacts(nodes []NodeWords) []Fact {
	if len(nodes) < 2 {
		return nil
	}
	common := slices.DeleteFunc(slices.Clone(nodes[0].Facts), func(f Fact) bool {
		return slices.ContainsFunc(nodes, func(n NodeWords) bool { return !slices.Contains(n.Facts, f) })
	})
	for i, n := range nodes {
		nodes[i].Facts = slices.DeleteFunc(n.Facts, func(f Fact) bool { return slices.Contains(common, f) })
	}
	return common
}

func drawDisk(d planning.DiskPlan) string {
	parts := []string{d.Key}
	switch {
	case d.Volid == "":
		parts = append(parts, d.Where)
	case d.Where != "":
		parts = append(parts, d.Volid+", now "+d.Where)
	default:
		parts = append(parts, d.Volid)
	}
	if d.Size != "" {
		parts = append(parts, d.Size)
	}
	if d.Serial != "" {
		parts = append(parts, "serial "+d.Serial)
	}
	return strings.Join(parts, ", ")
}

func drawFree(f parking.FreePlan) string {
	if f.Volid == "" {
		return f.String()
	}
	return f.String() + " (" + strings.TrimSuffix(f.Volid+", "+f.Size, ", ") + ")"
}

func does(plan planning.Plan) bool {
	return slices.ContainsFunc(plan.Nodes, func(n planning.NodePlan) bool { return n.Strategy != "" })
}

func gateLines(plan planning.Plan) []string {
	if !does(plan) {
		return nil
	}
	var lines []string
	for _, g := range plan.Gates {
		text := g.String()
		if text != g.About() {
			text += " (" + g.About() + ")"
		}
		if g.Objects != nil {
			text += ": " + strings.Join(strings.Fields(g.Objects.Expr), " ")
		}
		text += ", within " + minutes(time.Duration(g.TimeoutSeconds)*time.Second)
		if g.BeforeOnly {
			text += ", before only"
		}
		lines = append(lines, text)
	}
	return lines
}

const storageHeading = "storage: no node goes that has the only healthy replica of a volume; it is back once its volumes are whole"

// storageLines returns what recast has set in storage systems, and, for a plan that does something, the storage
// systems.
func storageLines(plan planning.Plan) []string {
	var lines []string
	for _, s := range plan.Storage {
		if s.Held != "" {
			lines = append(lines, s.Held+": recast roll gives it back")
		}
		if !does(plan) {
			continue
		}
		var facts []string
		if s.Volumes > 0 {
			facts = append(facts, words.Counted(s.Volumes, "volume"))
		}
		if s.WaitSeconds > 0 {
			facts = append(facts, fmt.Sprintf("waits %s for a replica that is away", minutes(time.Duration(s.WaitSeconds)*time.Second)))
		}
		text := strings.TrimSuffix(s.Name+": "+strings.Join(facts, ", "), ": ")
		lines = append(lines, text)
	}
	return lines
}

// hookPoints says in words when the hooks of a point run.
var hookPoints = map[cluster.HookPoint]string{
	cluster.BeforeRun: "before the run", cluster.AfterRun: "after the run, with any result",
	cluster.BeforeBatch: "before each batch", cluster.AfterBatch: "after each batch",
	cluster.BeforeNode: "before each node", cluster.AfterNode: "when each node is back",
}

func hookLines(plan planning.Plan) []string {
	if !does(plan) {
		return nil
	}
	var lines []string
	for _, point := range cluster.HookPoints() {
		for _, h := range plan.Hooks.At(point) {
			text := hookPoints[point] + ": " + h.String()
			if h.Description != "" {
				text += " (" + h.About() + ")"
			}
			lines = append(lines, text+", within "+minutes(h.Timeout()))
		}
	}
	return lines
}

// largest is the maximum length of a comment on a pull request: GitHub allows 65536
// characters, and the poster may add some.
const largest = 60_000

// writeMarkdown prints a plan as a comment on a pull request. For hundreds of changed nodes
// it counts the disks instead of listing them.
func writeMarkdown(p *page, plan planning.Plan) {
	var text strings.Builder
	drawMarkdown(&page{w: &text}, plan, false)
	if text.Len() > largest {
		text.Reset()
		drawMarkdown(&page{w: &text}, plan, true)
	}
	p.lines(strings.TrimSuffix(text.String(), "\n"))
}

func drawMarkdown(p *page, plan planning.Plan, brief bool) {
	p.line("### recast plan of %s: %s", escape(plan.Cluster), summary(plan))
	rows(p, slices.DeleteFunc(slices.Clone(plan.Nodes), func(n planning.NodePlan) bool { return !acts(n) && n.Paused == "" }))
	batches(p, plan)
	before(p, plan)
	bullets(p, "Surge nodes", plan.Surge.Lines())
	for _, l := range []struct{ label, heading string }{
		{factRefused, "Refused"},
		{factLost, "Will be lost"},
		{factFile, "Changed by their files in talos.machineConfigs"},
		{factCarried, "Carried over"},
		{factBack, "Comes back"},
		{factSystem, "System disks"},
		{factFrees, "Freed at the end"},
		{factRenewed, "Proxmox regenerates"},
		{factNote, "Notes"},
	} {
		if brief && slices.Contains([]string{factCarried, factSystem, factRenewed, factFile}, l.label) {
			count(p, l.heading, plan.Nodes, l.label)
			continue
		}
		list(p, l.heading, plan.Nodes, l.label)
	}
	idle(p, plan)
	bullets(p, "Gates, checked before each node and when it is back", gateLines(plan))
	bullets(p, strings.ToUpper(storageHeading[:1])+storageHeading[1:], storageLines(plan))
	bullets(p, "Hooks (if one fails, the roll stops)", hookLines(plan))
	bullets(p, "Warnings", slices.Concat(plan.Warn, plan.Kubernetes))
	if plan.ID != "" {
		p.line("")
		p.line("Plan `%s`", plan.ID)
	}
}

func summary(plan planning.Plan) string {
	work, refused := len(plan.Work()), 0
	for _, n := range plan.Nodes {
		if len(n.Refused) > 0 {
			refused++
		}
	}
	total := words.Counted(len(plan.Nodes), "node")
	switch {
	case refused > 0:
		return fmt.Sprintf("%d of %s refused", refused, total)
	case work == 0:
		return "nothing to do"
	}
	return fmt.Sprintf("%d of %s, about %s in all", work, total, minutes(inAll(plan)))
}

// rows prints the table of nodes that have facts; nodes with the same facts share a row.
func rows(p *page, nodes []planning.NodePlan) {
	if len(nodes) == 0 {
		return
	}
	var table group
	for _, n := range nodes {
		table.add(strings.Join(rowOf(n), " | "), n.Node)
	}
	p.line("")
	tabled(p, "role | now → then | strategy | why | outage", table)
}

// tabled prints a table; nodes with the same row share it.
func tabled(p *page, titles string, rows group) {
	p.line("| node | %s |", titles)
	p.line("%s|", strings.Repeat("|---", strings.Count(titles, "|")+2))
	for _, row := range rows.texts {
		p.line("| %s | %s |", escape(together(rows.names[row])), row)
	}
}

func rowOf(n planning.NodePlan) []string {
	var changes []string
	for _, r := range n.Drift.Reasons {
		text := escape(r.Text)
		if r.Code == kubernetesVersion {
			text += " (not changed by a roll)"
		}
		changes = append(changes, text)
	}
	what, away := escape(string(n.Strategy)), minutes(outage(n))
	switch {
	case len(n.Refused) > 0:
		what, away = "**refused**", "–"
	case n.Strategy == "":
		what, away = "paused", "–"
	case n.OutageSeconds == 0:
		away = "–"
	case n.OutageFrom != "":
		away += " (" + escape(n.OutageFrom) + ")"
	}
	why := strings.TrimPrefix(strings.TrimPrefix(n.Why, "paused: "), string(n.Strategy)+": ")
	return []string{escape(n.Role), strings.Join(changes, "<br>"), what, escape(why), away}
}

func batches(p *page, plan planning.Plan) {
	if len(plan.Work()) < 2 || len(plan.Batches) == 0 {
		return
	}
	p.line("")
	for i, b := range plan.Batches {
		text := fmt.Sprintf("%d. %s", i+1, strings.ReplaceAll(string(b.Phase), "-", " "))
		if b.Beside {
			text += " beside them"
		}
		p.line("%s, %d at a time: %s", text, b.Limit, escape(together(b.Nodes)))
	}
}

func before(p *page, plan planning.Plan) {
	lines := each(plan.Scratch, func(l planning.LeftScratch) string { return "delete " + l.String() })
	if proofs := plan.Proofs(); proofs != "" {
		lines = append(lines, "prove "+proofs)
	}
	lines = append(lines, cluster.Each(plan.Trials, func(t planning.Trial) string { return "rehearse: " + t.String() })...)
	bullets(p, "Before the first node", lines)
}

func list(p *page, heading string, nodes []planning.NodePlan, label string) {
	var said group
	for _, n := range nodes {
		for _, f := range factsOf(n) {
			if f.Label == label {
				said.add(f.Text, n.Node)
			}
		}
	}
	bullets(p, heading, said.lines())
}

// count prints the length of a list that is too long to be shown.
func count(p *page, heading string, nodes []planning.NodePlan, label string) {
	facts, of := 0, 0
	for _, n := range nodes {
		mine := 0
		for _, f := range factsOf(n) {
			if f.Label == label {
				mine++
			}
		}
		if facts += mine; mine > 0 {
			of++
		}
	}
	if facts > 0 {
		bullets(p, heading, []string{fmt.Sprintf("%d on %s: recast plan shows each", facts, words.Counted(of, "node"))})
	}
}

// idle lists the nodes that stay as they are, except paused ones, which are in the table.
func idle(p *page, plan planning.Plan) {
	var said group
	for _, n := range plan.Nodes {
		if acts(n) || n.Paused != "" {
			continue
		}
		texts := []string{idleWhy(n)}
		for _, f := range factsOf(n) {
			if f.Label != factNote {
				texts = append(texts, f.Label+": "+f.Text)
			}
		}
		said.add(strings.Join(texts, "; "), n.Node)
	}
	bullets(p, "Stay as they are", said.lines())
}

// bullets prints a list under a heading; nothing if it is empty.
func bullets(p *page, heading string, lines []string) {
	if len(lines) == 0 {
		return
	}
	p.line("")
	p.line("**%s**", heading)
	p.line("")
	for _, line := range lines {
		p.line("- %s", escape(line))
	}
}

// markdown matches text with a special meaning in a comment: markup, HTML, and what a
// forge turns into links (@someone, #12).
var markdown = strings.NewReplacer(
	"\\", "\\\\", "`", "\\`", "*", "\\*", "_", "\\_", "[", "\\[", "]", "\\]", "|", "\\|", "~", "\\~", "!", "\\!",
	"&", "&amp;", "<", "&lt;", ">", "&gt;", "@", "&#64;", "#", "&#35;",
)

// escape turns foreign text into one line of plain text.
func escape(s string) string {
	return markdown.Replace(strings.Join(strings.Fields(foreign.Line(s)), " "))
}
