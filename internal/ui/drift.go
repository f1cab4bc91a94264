package ui

import (
	"cmp"
	"encoding/xml"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/config"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/survey"
	"github.com/recast-sh/recast/internal/foreign"
	"github.com/recast-sh/recast/internal/words"
	"github.com/recast-sh/recast/pipeline"
	"github.com/recast-sh/recast/pipeline/checkup"
	"github.com/recast-sh/recast/pipeline/configs"
)

func WriteDrift(w io.Writer, format string, res pipeline.DriftResult) error {
	switch format {
	case "markdown":
		return write(w, format, res, func(p *page) { driftMarkdown(p, res) })
	case "junit":
		return writeJUnit(w, res)
	}
	return write(w, format, res, func(p *page) { drawDrifts(p, res) })
}

func drawDrifts(p *page, res pipeline.DriftResult) {
	p.equalNodes("each of them", "    ", each(res.Nodes, driftOf))
	p.wrapped("", "  ", driftSum(res))
	if more := unlisted(res); more != "" {
		p.wrapped("", "  ", more)
	}
	for _, h := range res.Held {
		drawHeld(p, h)
	}
	if res.HeldUnread != "" {
		p.wrapped(p.paint(yellow, "what is held back could not be read: "), "  ", res.HeldUnread)
	}
	p.next(hints(res.Nodes)...)
}

// wordInSync is the state of a node that matches the lock.
const wordInSync = "in sync"

func driftOf(d observe.Drift) NodeWords {
	n := NodeWords{d.Node, wordInSync, green, []string{"no Talos was read", "wanted build " + words.Short(d.Build)}, nil}
	switch {
	case len(d.Unread) > 0:
		n.State, n.Mood = "unread", red
	case d.Stale:
		n.State, n.Mood = "stale", yellow
	}
	if d.Talos != "" {
		n.Cells[0] = "Talos " + foreign.Line(d.Talos)
	}
	for _, r := range d.Reasons {
		n.Facts = append(n.Facts, Fact{factDiffers, foreign.Line(r.Text)})
	}
	n.Facts = append(n.Facts, cluster.Each(d.Unread, func(text string) Fact { return Fact{factUnread, text} })...)
	n.Facts = append(n.Facts, cluster.Each(d.Notes, func(text string) Fact { return Fact{factNote, text} })...)
	return n
}

func driftSum(res pipeline.DriftResult) string {
	switch {
	case res.Unread > 0 && res.Stale > 0:
		return fmt.Sprintf("%d of %d nodes could not be read, %d stale%s", res.Unread, len(res.Nodes), res.Stale, tally(res.Nodes))
	case res.Unread > 0:
		return fmt.Sprintf("%d of %d nodes could not be read", res.Unread, len(res.Nodes))
	case res.Stale > 0:
		return fmt.Sprintf("%d of %d nodes are stale%s", res.Stale, len(res.Nodes), tally(res.Nodes))
	}
	text := words.Counted(len(res.Nodes), "node") + " in sync"
	if res.HeldLeft {
		text += ", but a setting of a storage system is left changed"
	}
	return text
}

// kubernetesVersion is the code of the only reason that a roll does not fix.
const kubernetesVersion = "kubernetes-version"

// extensionFile is the code of a reason that only drift --deep finds.
const extensionFile = "extension-file"

// onlyFiles says whether a node is in sync except for its files.
func onlyFiles(d observe.Drift) bool {
	return len(d.Reasons) > 0 && !slices.ContainsFunc(d.Reasons, func(r cluster.Reason) bool {
		return r.Code != extensionFile && r.Code != kubernetesVersion
	}) && slices.ContainsFunc(d.Reasons, func(r cluster.Reason) bool { return r.Code == extensionFile })
}

// codes lists the codes of all reasons, each once per node that has it.
func codes(nodes []observe.Drift) (order []string, count map[string]int) {
	count = map[string]int{}
	for _, d := range nodes {
		mine := map[string]bool{}
		for _, r := range d.Reasons {
			if mine[r.Code] {
				continue
			}
			mine[r.Code] = true
			if count[r.Code]++; count[r.Code] == 1 {
				order = append(order, r.Code)
			}
		}
	}
	return order, count
}

func tally(nodes []observe.Drift) string {
	order, count := codes(nodes)
	parts := each(order, func(code string) string { return fmt.Sprintf("%s %d", code, count[code]) })
	return ": " + strings.Join(parts, ", ")
}

// unlisted says which nodes recast leaves alone, as recast.yaml does not name them; "" if there are none.
func unlisted(res pipeline.DriftResult) string {
	if len(res.Unlisted) == 0 {
		return ""
	}
	return "not in recast.yaml, so recast leaves it alone: " + together(res.Unlisted)
}

func hints(nodes []observe.Drift) []string {
	var out []string
	order, _ := codes(nodes)
	if slices.ContainsFunc(nodes, func(d observe.Drift) bool { return len(d.Unread) > 0 }) {
		out = append(out, "recast doctor checks every connection to the nodes; a node that could not be read is neither stale nor in sync")
	}
	if slices.Contains(order, "unfinished") || slices.Contains(order, "cordoned") {
		out = append(out, "recast status shows what is unfinished and where every disk is")
	}
	if slices.ContainsFunc(order, func(code string) bool { return code != kubernetesVersion && code != extensionFile }) {
		out = append(out, "recast plan shows what a roll would do, recast roll does it")
	}
	if slices.ContainsFunc(nodes, onlyFiles) {
		out = append(out, "if only files differ, the labels match and a roll finds nothing to do: talosctl upgrade --image with the locked installer (recast publish --only build verifies and records it, recast drift --explain shows it) brings the locked files")
	}
	for _, d := range nodes {
		for _, r := range d.Reasons {
			way := "recast upgrade-k8s --to " + r.New + " upgrades Kubernetes; a roll never changes it"
			if r.Code == kubernetesVersion && !slices.Contains(out, way) {
				out = append(out, way)
			}
		}
	}
	return out
}

// driftMarkdown prints drift for an issue, a chat or a job summary.
func driftMarkdown(p *page, res pipeline.DriftResult) {
	p.line("### recast drift of %s: %s", escape(res.Cluster), escape(driftSum(res)))
	p.line("")
	var rows group
	for _, d := range res.Nodes {
		rows.add(driftCells(d), d.Node)
	}
	tabled(p, "state | Talos | wanted build | why", rows)
	if more := unlisted(res); more != "" {
		p.line("")
		p.line("%s", escape(more))
	}
	for _, h := range res.Held {
		p.line("")
		p.line("**held back**: %s; %s %s", escape(heldText(h)), escape(h.Next[0].Command), escape(h.Next[0].Does))
	}
	if res.HeldUnread != "" {
		p.line("")
		p.line("what is held back could not be read: %s", escape(res.HeldUnread))
	}
	bullets(p, "Next", hints(res.Nodes))
}

func driftCells(d observe.Drift) string {
	n := driftOf(d)
	state := n.State
	if state != wordInSync {
		state = "**" + state + "**"
	}
	why := each(n.Facts, func(f Fact) string {
		if f.Label == factDiffers {
			return escape(f.Text)
		}
		return f.Label + ": " + escape(f.Text)
	})
	cells := []string{state, escape(cmp.Or(d.Talos, "–")), "`" + words.Short(d.Build) + "`", strings.Join(why, "<br>")}
	return strings.Join(cells, " | ")
}

type DriftWords struct {
	Sum                   string
	InSync, Stale, Unread int
	Nodes                 []NodeWords
	Unlisted              string // nodes that recast.yaml does not name
	Next                  []string
}

// DriftInWords returns what WriteDrift prints, unread nodes first, then stale ones.
func DriftInWords(res pipeline.DriftResult, hide func(string) string) DriftWords {
	out := DriftWords{
		Sum: hide(driftSum(res)), Stale: res.Stale, Unread: res.Unread,
		Unlisted: hide(unlisted(res)), Next: each(hints(res.Nodes), hide),
	}
	for _, d := range res.Nodes {
		n := driftOf(d).hidden(hide)
		n.Cells[1] = words.Short(d.Build) // the page's column says the rest
		if n.State == wordInSync {
			out.InSync++
		}
		out.Nodes = append(out.Nodes, n)
	}
	rank := func(n NodeWords) int { return slices.Index([]Mood{red, yellow, green}, n.Mood) }
	slices.SortStableFunc(out.Nodes, func(a, b NodeWords) int { return rank(a) - rank(b) })
	return out
}

// junitSuites is read by CI systems as test results: a node is a test case, which fails if the node is stale and has an
// error if it could not be read. Elements and attributes are those of the schema of Jenkins' reader; GitLab, GitHub
// actions and Azure DevOps read the ones that they know.
type junitSuites struct {
	XMLName  xml.Name `xml:"testsuites"`
	Name     string   `xml:"name,attr"`
	Tests    int      `xml:"tests,attr"`
	Failures int      `xml:"failures,attr"`
	Errors   int      `xml:"errors,attr"`
	Suites   []junitSuite
}

type junitSuite struct {
	XMLName  xml.Name `xml:"testsuite"`
	Name     string   `xml:"name,attr"`
	Tests    int      `xml:"tests,attr"`
	Failures int      `xml:"failures,attr"`
	Errors   int      `xml:"errors,attr"`
	Skipped  int      `xml:"skipped,attr"`
	Time     string   `xml:"time,attr"`
	Cases    []junitCase
}

type junitCase struct {
	XMLName   xml.Name      `xml:"testcase"`
	Name      string        `xml:"name,attr"`
	Classname string        `xml:"classname,attr"`
	Time      string        `xml:"time,attr"`
	Error     *junitProblem `xml:"error"`
	Failure   *junitProblem `xml:"failure"`
	Out       string        `xml:"system-out,omitempty"`
}

// junitProblem is why a case did not pass. Readers show the message in a list and the text
// below it; some read only the first problem of a case, so there is only one.
type junitProblem struct {
	Message string `xml:"message,attr"`
	Type    string `xml:"type,attr"`
	Text    string `xml:",chardata"`
}

func writeJUnit(w io.Writer, res pipeline.DriftResult) error {
	suite := junitSuite{Name: "recast drift " + res.Cluster, Tests: len(res.Nodes), Time: "0"}
	for _, d := range res.Nodes {
		c := junitOf(res.Cluster, d)
		switch {
		case c.Error != nil:
			suite.Errors++
		case c.Failure != nil:
			suite.Failures++
		}
		suite.Cases = append(suite.Cases, c)
	}
	if len(res.Held) > 0 {
		c := junitHeld(res)
		if suite.Tests++; c.Failure != nil {
			suite.Failures++
		}
		suite.Cases = append(suite.Cases, c)
	}
	all := junitSuites{Name: "recast drift", Tests: suite.Tests, Failures: suite.Failures, Errors: suite.Errors, Suites: []junitSuite{suite}}
	text, err := xml.MarshalIndent(all, "", "  ")
	if err != nil {
		return err
	}
	_, err = io.WriteString(w, foreign.Lines(xml.Header+string(text)+"\n"))
	return err
}

// junitHeld returns the test case for what recast has set in storage systems. It fails if no active run can restore
// the settings.
func junitHeld(res pipeline.DriftResult) junitCase {
	c := junitCase{Name: "held back", Classname: "recast.drift." + res.Cluster, Time: "0"}
	lines := each(res.Held, func(h pipeline.HeldBack) string { return foreign.Line(heldText(h)) })
	if text := strings.Join(lines, "\n"); res.HeldLeft {
		c.Failure = &junitProblem{Message: lines[0], Type: "held-back", Text: text}
	} else {
		c.Out = text
	}
	return c
}

func junitOf(name string, d observe.Drift) junitCase {
	c := junitCase{Name: d.Node, Classname: "recast.drift." + name, Time: "0"}
	lines := each(d.Unread, func(u string) string { return "unread: " + u })
	for _, r := range d.Reasons {
		lines = append(lines, r.Code+": "+foreign.Line(r.Text))
	}
	text := strings.Join(lines, "\n")
	switch {
	case len(d.Unread) > 0:
		message, _, _ := strings.Cut(d.Unread[0], "\n")
		c.Error = &junitProblem{Message: message, Type: "unread", Text: text}
	case len(d.Reasons) > 0:
		c.Failure = &junitProblem{Message: foreign.Line(d.Reasons[0].Text), Type: d.Reasons[0].Code, Text: text}
	}
	c.Out = strings.Join(append([]string{driftOf(d).said()}, d.Notes...), "\n")
	return c
}

func WriteConfigDiffs(w io.Writer, format string, res configs.Diffs) error {
	return write(w, format, res, func(p *page) {
		for _, d := range res.Nodes {
			drawConfigDiff(p, d)
		}
		p.wrapped("", "  ", configSum(res))
	})
}

func drawConfigDiff(p *page, d configs.Diff) {
	state, mood := "same", green
	switch {
	case len(d.Unread) > 0:
		state, mood = "unread", red
	case len(d.Refused) > 0:
		state, mood = "refused", red
	case len(d.Changes) > 0:
		state, mood = "differs", yellow
	case !d.Wanted:
		state, mood = "none", dim
	case d.New:
		state, mood = "new", yellow
	case d.Reset:
		state, mood = "reset", yellow
	}
	p.line("%s %s", p.paint(mood, fmt.Sprintf("%-7s", state)), d.Node)
	p.wrapped("    ", "      ", each(slices.Concat(d.Unread, d.Refused), foreign.Line)...)
	p.changes("    ", d.Changes)
	p.wrapped("    ", "      ", d.Notes...)
}

func configSum(res configs.Diffs) string {
	wanted := 0
	for _, d := range res.Nodes {
		if d.Wanted {
			wanted++
		}
	}
	sum := fmt.Sprintf("%d of %d configurations differ", res.Differ, wanted)
	if res.Unread > 0 {
		sum += fmt.Sprintf(", %d could not be compared", res.Unread)
	}
	if none := len(res.Nodes) - wanted; none > 0 {
		sum += fmt.Sprintf("; nodes without one in talos.machineConfigs: %d", none)
	}
	return sum
}

// mostChanges is how many changed fields of a node's file a plan shows.
const mostChanges = 8

// widestValue is how many characters of a value are shown.
const widestValue = 100

func fileFacts(n planning.NodePlan) []Fact {
	file := n.ConfigFile
	switch {
	case file == nil || !file.Applied:
		return nil
	case file.Uncompared != "":
		return []Fact{{factFile, "not compared with what the node runs: " + file.Uncompared}}
	}
	var out []Fact
	for i, c := range file.Changes {
		if i == mostChanges {
			out = append(out, Fact{factFile, fmt.Sprintf("… and %d more: recast plan --explain %s", len(file.Changes)-i, n.Node)})
			break
		}
		out = append(out, Fact{factFile, drawChange(c)})
	}
	return out
}

func drawChange(c config.Change) string {
	where := c.Document
	if c.Path != "" {
		where += " " + c.Path
	}
	switch {
	case c.Path == "":
		return where + ": the document is " + string(c.Kind)
	case c.Kind == config.Added:
		return where + ": added: " + cut(c.Wanted)
	case c.Kind == config.Removed:
		return where + ": removed: " + cut(c.Found)
	case c.Kind == config.Reordered:
		return where + ": in another order: " + cut(c.Found) + " → " + cut(c.Wanted)
	case c.Found == c.Wanted: // the difference is not shown
		return where + ": changed: " + cut(c.Found)
	}
	return where + ": " + cut(c.Found) + " → " + cut(c.Wanted)
}

func (p *page) changes(indent string, list []config.Change) {
	p.wrapped(indent, indent+"  ", each(list, func(c config.Change) string { return foreign.Line(drawChange(c)) })...)
}

// cut shortens a value; recast plan -o json has the whole value.
func cut(text string) string {
	if r := []rune(text); len(r) > widestValue {
		return string(r[:widestValue]) + "…"
	}
	return text
}

func drawFile(p *page, n planning.NodePlan) {
	if n.ConfigFile == nil || len(n.ConfigFile.Changes) == 0 {
		return
	}
	heading := "what its file in talos.machineConfigs changes"
	if !n.ConfigFile.Applied {
		heading = "how its file in talos.machineConfigs differs; it is not applied"
	}
	p.heading(heading)
	p.changes("  ", n.ConfigFile.Changes)
	p.line("")
}

func reconfigured(plan planning.Plan) []string {
	return each(cluster.Where(plan.Nodes, func(n planning.NodePlan) bool {
		return n.ConfigFile != nil && n.ConfigFile.Applied && len(n.ConfigFile.Changes) > 0 && len(n.Refused) == 0
	}), func(n planning.NodePlan) string { return n.Node })
}

func WriteProvenance(w io.Writer, format string, res observe.Provenance) error {
	return write(w, format, res, func(p *page) {
		p.heading(provenanceTitle(res))
		for _, l := range res.Links {
			lead := fmt.Sprintf("  %s  %-10s  ", p.paint(cmp.Or(certain[l.Certainty], dim), fmt.Sprintf("%-12s", l.Certainty)), l.Name)
			p.wrapped(lead, "                            ", foreign.Line(l.Text))
			p.wrapped("                            - ", "                              ", each(l.Details, foreign.Line)...)
		}
		p.wrapped("", "  ", res.Summary...)
	})
}

func provenanceTitle(res observe.Provenance) string {
	return fmt.Sprintf("%s: %s, %s", res.Node, res.VM, res.Address)
}

var certain = map[observe.Certainty]Mood{observe.Proven: green, observe.Contradicted: red, observe.Unknown: yellow}

type ProvenanceWords struct {
	Title   string
	Links   []LinkWords
	Summary []string
}

type LinkWords struct {
	Certainty string
	Mood      Mood
	Name      string
	Text      string
	Details   []string
}

func ProvenanceInWords(res observe.Provenance, hide func(string) string) ProvenanceWords {
	out := ProvenanceWords{Title: hide(provenanceTitle(res)), Summary: each(res.Summary, hide)}
	for _, l := range res.Links {
		text, details := hide(foreign.Line(l.Text)), each(l.Details, hide)
		out.Links = append(out.Links, LinkWords{string(l.Certainty), certain[l.Certainty], l.Name, text, details})
	}
	return out
}

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
	rows := each(e.Strategies, func(s survey.StrategyChoice) []string {
		state := "possible"
		switch {
		case len(s.Against) > 0:
			state = p.paint(red, "impossible")
		case s.Taken:
			state = p.paint(green, "taken")
		}
		return []string{state, string(s.Strategy)}
	})
	p.rows("  ", rows, func(row int) {
		s := e.Strategies[row]
		p.wrapped("      ", "        ", s.Against...)
		for _, text := range s.WillLose {
			p.wrapped("      ", "        ", p.paint(red, factLost+": "+strings.TrimSuffix(foreign.Line(text), " will be lost")))
		}
	})
	p.line("")
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
		rows = append(rows, []string{d.Key, d.Volid, size, p.paint(moodOfFate[d.Fate], does)})
	}
	p.rows("  ", rows, nil)
	p.line("")
}

var moodOfFate = map[survey.Fate]Mood{
	survey.FateReplaced: yellow, survey.FateCarried: green, survey.FateDetached: green, survey.FateBack: green, survey.FateStays: green,
}

func drawSteps(p *page, e survey.Explanation) {
	if len(e.Steps) == 0 {
		return
	}
	p.heading("steps")
	var rows [][]string
	from := ""
	for i, s := range e.Steps {
		rows = append(rows, []string{fmt.Sprintf("%2d", i+1), p.paint(moodOfRisk[s.Risk], s.Path), s.Title + lasts(s)})
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

var moodOfRisk = map[string]Mood{"destructive": red}

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

type toRecreate struct {
	node, host string
	strategy   string // what a roll would use today; "": not shown
	lift       string // instead of obstacles
	obstacles  []cluster.Obstacle
}

func toRecreateOf(plan planning.Plan) []toRecreate {
	nodes := cluster.Where(plan.Nodes, func(n planning.NodePlan) bool { return len(n.ToRecreate) > 0 })
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

// drawToRecreate prints a line for each node that is not recreated: the commands that change that, or the first reason
// if no command does. The lines are for pasting, so they are not wrapped.
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
