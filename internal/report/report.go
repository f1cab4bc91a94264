// Package report writes the report of one [Run] as one HTML file, readable on a phone and
// on paper. The file loads nothing from the network, and needs no script.
package report

import (
	"cmp"
	"embed"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/foreign"
	"github.com/recast-sh/recast/internal/story"
	"github.com/recast-sh/recast/internal/style"
	"github.com/recast-sh/recast/internal/words"
	"github.com/recast-sh/recast/pipeline/past"
)

type Run struct {
	Past    past.Run
	Story   story.Story
	Now     time.Time // its time zone is used for all times
	Version string    // of the recast that writes it
	// Hide removes secrets from foreign text.
	Hide func(string) string
}

//go:embed page.gohtml
var files embed.FS

func Write(w io.Writer, r Run) error {
	v := look(r)
	page, err := template.New("page.gohtml").Funcs(template.FuncMap{
		"css":   func() template.CSS { return template.CSS(style.CSS) },
		"hide":  r.Hide,
		"clock": func(t time.Time) string { return clock(t.In(r.Now.Location()), v.days()) },
		"stamp": func(t time.Time) string { return stamp(t.In(r.Now.Location())) },
		"short": words.Short,
		"join":  strings.Join,

		"expected": outageOf,
		"lasted":   func(s float64) string { return took(time.Duration(s * float64(time.Second))) },
	}).ParseFS(files, "page.gohtml")
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	var text strings.Builder
	if err := page.Execute(&text, v); err != nil {
		return fmt.Errorf("report of run %s: %w", r.Past.ID, err)
	}
	_, err = io.WriteString(w, foreign.Lines(text.String()))
	return err
}

func stamp(t time.Time) string {
	if t.IsZero() {
		return "–"
	}
	return t.Format("2006-01-02 15:04:05 -07:00")
}

// clock is a time of day, with the date if the run spans several days.
func clock(t time.Time, several bool) string {
	switch {
	case t.IsZero():
		return "–"
	case several:
		return t.Format("01-02 15:04:05")
	}
	return t.Format("15:04:05")
}

// took formats a duration: to the second, or to tenths if it is short.
func took(d time.Duration) string {
	switch {
	case d <= 0:
		return "0s"
	case d < 100*time.Millisecond:
		return "<0.1s"
	case d < 10*time.Second:
		return strconv.FormatFloat(d.Round(100*time.Millisecond).Seconds(), 'f', -1, 64) + "s"
	}
	text := d.Round(time.Second).String()
	if strings.HasSuffix(text, "h0m0s") {
		return strings.TrimSuffix(text, "0m0s")
	}
	if strings.HasSuffix(text, "m0s") {
		return strings.TrimSuffix(text, "0s")
	}
	return text
}

func seconds(n int) string { return took(time.Duration(n) * time.Second) }

type view struct {
	Run
	Title, Result, Mood string // Mood: "good", "bad", "open"
	From, To            time.Time
	Facts               []fact
	Figures             []fact
	Errors              []trouble
	Next                []string
	Axis                axis
	Rows                []row    // of the whole run
	Cards               []card   // of nodes
	Legend              []legend // kinds of stages that occur
	Others              []stage  // steps that belong to no node
	Charts              []chart
	Work, Idle          []planning.NodePlan
	Notes               []story.Said
	Said                []story.Said
	Unsaid              int // number of omitted lines
	Missing             []string
}

type fact struct{ Name, Value string }

type trouble struct {
	Where, What string
	Hints       []string
}

// mostSaid is how many event lines are shown, and mostNotes how many notes about the whole run: the newest ones.
const (
	mostSaid  = 3000
	mostNotes = 50
)

func look(r Run) view {
	v := view{Run: r, Result: r.Past.Result, Mood: mood(r.Past.Result)}
	v.Title = r.Past.Command() + " " + r.Past.ID
	v.From = cmp.Or(first(r.Story), r.Past.Started)
	v.To = cmp.Or(r.Past.Finished, r.Story.To, r.Past.Started)
	v.Axis = newAxis(v.From, v.To)
	v.Charts = v.charts()
	v.Facts, v.Figures = v.facts(), v.figures()
	v.Errors, v.Next = v.troubles(), v.next()
	v.Rows, v.Cards = v.rows(), v.cards()
	v.Legend, v.Others = legendOf(v.Cards), v.others()
	if p := r.Past.Plan; p != nil {
		v.Work = p.Work()
		v.Idle = cluster.Where(p.Nodes, func(n planning.NodePlan) bool { return n.Strategy == "" })
	}
	v.Unsaid = max(0, len(r.Story.Said)-mostSaid)
	v.Said = r.Story.Said[v.Unsaid:]
	v.Notes = r.Story.Notes[max(0, len(r.Story.Notes)-mostNotes):]
	v.Missing = v.missing()
	return v
}

// first is the start of the first thing that is drawn: building images and waiting for an
// answer may have taken longer than the roll itself.
func first(s story.Story) time.Time {
	var first time.Time
	at := func(t time.Time) {
		if !t.IsZero() && (first.IsZero() || t.Before(first)) {
			first = t
		}
	}
	for _, t := range s.Turns {
		at(t.Began)
	}
	for _, p := range s.Pulses {
		at(p.At)
	}
	return first
}

func mood(result string) string {
	return cmp.Or(map[string]string{"done": "good", "running": "open", "suspended": "open", "running or killed": "open"}[result], "bad")
}

func (v view) facts() []fact {
	p := v.Past
	facts := []fact{{"began", stamp(p.Started.In(v.Now.Location()))}}
	add := func(name, value string) {
		if value != "" {
			facts = append(facts, fact{name, value})
		}
	}
	if p.Finished.IsZero() {
		add("last heard of", stamp(v.To.In(v.Now.Location())))
	} else {
		add("ended", stamp(p.Finished.In(v.Now.Location()))+", after "+took(p.Finished.Sub(p.Started)))
	}
	if a := p.About; a != nil {
		who := "by "
		if a.Elsewhere {
			who = "started on another machine, finished by "
		}
		add("run", who+a.By.String())
		add("started by", a.Who)
		add("at commit", a.Commit)
		for _, h := range a.GoneOn {
			add("continued by", h.String())
		}
		if a.Was != "" && a.Was != a.Talos {
			add("Talos", a.Was+" → "+a.Talos)
		} else {
			add("Talos", a.Talos)
		}
		add("Kubernetes", a.Kubernetes)
	}
	add("brought", p.What())
	add("recast", versions(v.Run))
	return facts
}

func versions(r Run) string {
	var list []string
	note := func(version string) {
		if version != "" && !slices.Contains(list, version) {
			list = append(list, version)
		}
	}
	if r.Past.About != nil {
		note(r.Past.About.Recast)
	}
	for _, s := range r.Story.Sessions {
		note(s.Version)
	}
	return strings.Join(list, ", ")
}

func (v view) figures() []fact {
	done, planned := v.Past.Counted()
	figures := []fact{{"nodes done", fmt.Sprintf("%d of %d", done, planned)}}
	if !v.Past.Finished.IsZero() {
		figures = append(figures, fact{"from start to end", took(v.Past.Finished.Sub(v.Past.Started))})
	}
	if o, any := v.Story.Longest(); any {
		text := seconds(o.Seconds())
		if o.Open {
			text += " or more"
		}
		figures = append(figures, fact{"longest outage, " + o.Node, text})
	}
	if names := v.Story.NotBack(); len(names) > 0 {
		figures = append(figures, fact{"not seen back", strings.Join(names, ", ")})
	}
	for _, c := range v.Charts {
		figures = append(figures, fact{c.Lowest, c.Least})
	}
	return figures
}

// troubles lists every failure with its hints: of steps, or otherwise of the whole run.
func (v view) troubles() []trouble {
	var out []trouble
	add := func(where, what string, hints []string) {
		if what != "" && !slices.ContainsFunc(out, func(t trouble) bool { return t.What == what }) {
			out = append(out, trouble{where, what, hints})
		}
	}
	for _, t := range v.Story.Turns {
		for _, s := range t.Stages {
			add(t.Node+", "+s.Name, s.Error, s.Hints)
		}
		if len(out) == 0 || !slices.ContainsFunc(t.Stages, func(s *story.Stage) bool { return s.Error != "" }) {
			add(t.Node, t.Error, t.Hints)
		}
	}
	for _, s := range v.Story.Steps {
		add(s.Name, s.Error, s.Hints)
	}
	if len(out) == 0 {
		add("", v.Past.Error, nil)
	}
	return out
}

// days says whether the run continued after midnight, in the zone of the report.
func (v view) days() bool {
	from, to := v.From, v.To
	for _, t := range []time.Time{v.Past.Started, v.Story.From} {
		if !t.IsZero() && t.Before(from) {
			from = t
		}
	}
	if v.Story.To.After(to) {
		to = v.Story.To
	}
	day := func(t time.Time) string { return t.In(v.Now.Location()).Format(time.DateOnly) }
	return day(from) != day(to)
}

func (v view) missing() []string {
	out := cluster.Each(v.Past.Problems, func(text string) string { return "could not be read: " + text })
	if len(v.Story.Turns) == 0 && v.Past.Command() != "upgrade-k8s" && v.Past.Command() != "restore" {
		out = append(out, "there is no log with its nodes on this machine")
	}
	if !v.Story.Begins && !v.Story.From.IsZero() {
		out = append(out, "its log was too long: events before "+stamp(v.Story.From.In(v.Now.Location()))+" were dropped")
	}
	if n := v.Story.Broken; n > 0 {
		out = append(out, fmt.Sprintf("lines of its log that can't be read: %d", n))
	}
	if a := v.Past.About; a != nil && a.Elsewhere {
		out = append(out, "another machine started it, and has the first part")
	}
	return out
}

func (v view) next() []string {
	switch v.Past.Result {
	case "done":
		return v.nextOfDone()
	case "running":
		return []string{"the run is active: recast status shows its state, and recast history --open updates this report"}
	case "given up":
		return []string{"nothing: another run replaced it, see recast history"}
	}
	status := "recast status shows where every disk is, and what is unfinished"
	const again = " continues where this one stopped; nothing has to be undone by hand first"
	switch v.Past.Command() {
	case "undo --previous":
		return append([]string{status}, v.nextOfRollback()...)
	case "undo --cancel":
		return []string{status, "recast undo " + v.nodes("NODE") + again}
	case "restore":
		return []string{"recast restore FILE --node NODE, the same command," + again}
	case "upgrade-k8s":
		return []string{"recast upgrade-k8s" + again}
	}
	return []string{status, "recast roll" + again}
}

func (v view) nextOfDone() []string {
	switch v.Past.Command() {
	case "undo --previous":
		return []string{"restore the previous recast.lock: by the current one these nodes are stale, and recast roll brings them forward again"}
	case "undo --cancel":
		return []string{"recast plan shows what a roll would do: by the lock " + v.nodes("the node") + " is as stale as before"}
	}
	return []string{"recast drift checks whether every node still runs the lock"}
}

// nextOfRollback names the nodes: a rollback of all would turn finished nodes round again.
func (v view) nextOfRollback() []string {
	next := []string{"recast roll finishes an unfinished node, which must come first: before that, restore the previous recast.lock, or it brings the other nodes forward"}
	if v.Past.Fates == nil {
		return append(next, "recast undo NODE rolls back a node that was not started")
	}
	left := slices.DeleteFunc(slices.Clone(v.Past.Fates.Left), v.cameTo) // a node at which the rollback was stopped may be unfinished
	if len(left) > 0 {
		next = append(next, "recast undo "+strings.Join(left, " ")+" rolls back the nodes that were not started")
	}
	return next
}

func (v view) cameTo(node string) bool {
	return slices.ContainsFunc(v.Story.Turns, func(t *story.Turn) bool {
		return t.Node == node && !t.Began.IsZero() && t.Status != "not started"
	})
}

// nodes lists the planned nodes, or a placeholder for them.
func (v view) nodes(none string) string {
	if v.Past.Plan == nil {
		return none
	}
	names := cluster.Each(v.Past.Plan.Work(), func(n planning.NodePlan) string { return n.Node })
	return cmp.Or(strings.Join(names, " "), none)
}

// wide is the width of drawings in their own units; they scale to the page.
const wide = 1000

type axis struct {
	From, Middle, To time.Time
}

func newAxis(from, to time.Time) axis {
	if !to.After(from) {
		to = from.Add(time.Second)
	}
	return axis{from, from.Add(to.Sub(from) / 2), to}
}

func (a axis) x(t time.Time) float64 {
	at := wide * float64(t.Sub(a.From)) / float64(a.To.Sub(a.From))
	return float64(int(min(max(at, 0), wide)*10)) / 10
}

type bar struct {
	X, W  float64
	Kind  string
	Label string
}

// thinnest is the minimum width of a bar, so that it is visible.
const thinnest = 2

func (a axis) bar(from, to time.Time, kind, label string) bar {
	b := bar{X: a.x(from), Kind: kind, Label: label + " " + took(to.Sub(from))}
	b.W = max(thinnest, float64(int((a.x(to)-b.X)*10))/10)
	b.X = min(b.X, wide-b.W)
	return b
}

type row struct {
	Node, Mood, Text string
	Bars             []bar
}

func (r row) Label() string { return r.Node + ": " + r.Text }

// rows returns the nodes in the order of their turns, each with its turns and outages.
func (v view) rows() []row {
	var rows []row
	by := map[string]int{}
	find := func(node string) *row {
		i, known := by[node]
		if !known {
			i = len(rows)
			rows, by[node] = append(rows, row{Node: node}), i
		}
		return &rows[i]
	}
	fates := map[string]string{}
	for _, t := range v.Story.Turns {
		if t.Began.IsZero() {
			continue // it had no turn
		}
		r := find(t.Node)
		r.Mood, fates[t.Node] = moodOf(t.Status), t.Fate(v.Past.Result)
		kind := "turn"
		switch t.Status {
		case "not started":
			continue
		case "failed":
			kind = "failed"
		}
		r.Bars = append(r.Bars, v.Axis.bar(t.Began, t.Until(), kind, t.Strategy()))
	}
	for _, o := range v.Story.Outages() {
		r := find(o.Node)
		r.Bars = append(r.Bars, v.Axis.bar(o.From, o.To, "away", "away"))
		text := "away " + seconds(o.Seconds())
		if o.Open {
			text += ", not seen back"
		}
		r.Text = strings.TrimPrefix(r.Text+", "+text, ", ")
	}
	for _, t := range v.Story.Turns { // over the outage, which would hide it
		if t.Status == "failed" {
			r := find(t.Node)
			end := v.Axis.bar(t.Until(), t.Until(), "failed", t.Strategy()+" failed")
			end.X, end.W = min(end.X, wide-3*thinnest), 3*thinnest
			r.Bars = append(r.Bars, end)
		}
	}
	for i, r := range rows {
		rows[i].Text = cmp.Or(r.Text, "not away")
		if fate := fates[r.Node]; moodOf(fate) != "good" {
			rows[i].Text = fate + "; " + rows[i].Text
		}
	}
	return rows
}

func moodOf(status string) string {
	return cmp.Or(map[string]string{"done": "good", "skipped": "good", "failed": "bad"}[status], "open")
}

type card struct {
	ID, Node, Title, Mood, Status, Away, Expected string
	Took, Text                                    string
	Began, Ended                                  time.Time
	Bars                                          []bar
	Stages                                        []stage
}

// Label is the drawing in words.
func (c card) Label() string {
	shown := cluster.Where(c.Stages, func(s stage) bool { return s.Shown })
	return c.Node + ": " + strings.Join(cluster.Each(shown, func(s stage) string { return s.Name + " " + s.Took }), ", ")
}

type stage struct {
	*story.Stage
	Kind, Took, Ends string
	Shown            bool // it has a bar
}

func (v view) cards() []card {
	var cards []card
	for i, t := range v.Story.Turns {
		if t.Began.IsZero() {
			continue
		}
		c := card{
			ID: fmt.Sprintf("turn-%d", i+1), Node: t.Node, Title: t.Title, Mood: moodOf(t.Status), Status: t.Fate(v.Past.Result),
			Began: t.Began, Ended: t.Until(), Took: took(t.Until().Sub(t.Began)), Text: t.Text,
		}
		if !t.AwayFrom.IsZero() {
			c.Away = "away for " + took(cmp.Or(t.AwayTo, t.Until()).Sub(t.AwayFrom))
			if t.AwayTo.IsZero() {
				c.Away += ", and not seen back by then"
			}
			c.Expected = v.expected(t)
		}
		c.Stages, c.Bars = v.stages(t)
		cards = append(cards, c)
	}
	return cards
}

// expected is the plan's estimate of an outage; "" if there is none.
func (v view) expected(t *story.Turn) string {
	if v.Past.Plan == nil {
		return ""
	}
	for _, n := range v.Past.Plan.Work() {
		if n.Node == t.Node && string(n.Phase) == t.Phase && n.OutageFrom != "" {
			return seconds(n.OutageSeconds) + " expected"
		}
	}
	return ""
}

func (v view) stages(t *story.Turn) (stages []stage, bars []bar) {
	a := newAxis(t.Began, t.Until())
	for _, s := range t.Stages {
		end := cmp.Or(s.Ended, t.Until())
		g := stage{Stage: s, Kind: kindOf(s), Took: took(end.Sub(s.Began)), Ends: s.Fate(v.Past.Result)}
		g.Shown = s.Status != "skipped" && s.Status != "not started" && !s.Began.Before(t.Began) &&
			(end.Sub(s.Began) >= t.Until().Sub(t.Began)/200 || s.Error != "" || s.Ended.IsZero())
		if g.Shown {
			bars = append(bars, a.bar(s.Began, end, g.Kind, s.Name))
		}
		stages = append(stages, g)
	}
	return stages, bars
}

func (v view) others() []stage {
	return cluster.Each(v.Story.Steps, func(s *story.Stage) stage {
		return stage{Stage: s, Took: took(cmp.Or(s.Ended, v.Story.To).Sub(s.Began)), Ends: s.Fate(v.Past.Result)}
	})
}

type legend struct{ Kind, Text string }

// kinds are the kinds of stages, in the order of a node's turn.
var kinds = []struct {
	legend
	stages []string
}{
	{legend{"ready", "looks first"}, []string{"ask-gates", "await-storage", "await-served", "run-hooks", "gate", "pull", "remember", "keep-off", "unprotect"}},
	{legend{"drain", "drain, leave etcd"}, []string{"drain", "leave-etcd"}},
	{legend{"stop", "stop, delete"}, []string{"stop", "delete-vm", "give-up"}},
	{legend{"disks", "disks: park, attach"}, []string{"park", "attach", "blank-disk", "restore-disk", "renew-disk", "free-blank", "park-new", "hand-over", "detach"}},
	{legend{"boot", "create, install, boot"}, []string{"create-vm", "set-up", "start", "boot", "install", "reboot", "boot-entry", "fallback"}},
	{legend{"join", "configure, join"}, []string{"configure", "join"}},
	{legend{"finish", "settle, finish"}, nil},
}

// kindOf is the kind of a stage, which decides its colour.
func kindOf(s *story.Stage) string {
	if s.Status == "failed" {
		return "failed"
	}
	for _, k := range kinds {
		if slices.Contains(k.stages, s.Name) {
			return k.Kind
		}
	}
	return "finish"
}

func legendOf(cards []card) []legend {
	drawn := map[string]bool{}
	for _, c := range cards {
		for _, b := range c.Bars {
			drawn[b.Kind] = true
		}
	}
	var out []legend
	for _, k := range kinds {
		if drawn[k.Kind] {
			out = append(out, k.legend)
		}
	}
	if drawn["failed"] {
		out = append(out, legend{"failed", "failed"})
	}
	return out
}

func outageOf(n planning.NodePlan) string {
	if n.OutageSeconds == 0 {
		return ""
	}
	return seconds(n.OutageSeconds)
}

type chart struct {
	Name, Text    string
	Line          string // of the drawing
	Gaps          []bar  // without an answer
	Top, Bottom   int    // values at its edges
	Lowest, Least string // label and value of the figure for the lowest value
	Changes       []change
	Well          bool // it was never lower than at the end
}

type change struct {
	At   time.Time
	Text string
}

type reading struct {
	at      time.Time
	known   bool
	is, of  int
	lacking []string
}

// tall is the height of a chart in its own units, with some space at both edges.
const (
	tall = 100
	edge = 6
)

// fewNodes is the number up to which a chart starts at 0; above it, it starts at the lowest value.
const fewNodes = 12

func (v view) charts() []chart {
	var out []chart
	for _, c := range []struct {
		name, lowest, lack string
		read               func(planning.Pulse) reading
	}{
		{"Ready nodes", "fewest Ready nodes", "not Ready", func(p planning.Pulse) reading {
			return reading{known: p.Kubernetes, is: p.Ready(), of: p.Nodes, lacking: p.NotReady}
		}},
		{"healthy members of etcd", "fewest healthy members of etcd", "not healthy", func(p planning.Pulse) reading {
			return reading{known: p.Etcd && p.Members > 0, is: p.Well(), of: p.Members, lacking: p.Unwell}
		}},
	} {
		readings := cluster.Each(v.Story.Pulses, func(p story.Pulse) reading {
			r := c.read(p.Pulse)
			r.at = p.At
			return r
		})
		if drawn, any := v.chart(readings, c.lack); any {
			drawn.Name, drawn.Lowest = c.name, c.lowest
			out = append(out, drawn)
		}
	}
	return out
}

func (v view) chart(readings []reading, lack string) (c chart, any bool) {
	known := cluster.Where(readings, func(r reading) bool { return r.known })
	if len(known) == 0 {
		return c, false
	}
	least := slices.MinFunc(known, func(a, b reading) int { return a.is - b.is })
	c.Least = fmt.Sprintf("%d of %d", least.is, slices.MaxFunc(known, func(a, b reading) int { return a.of - b.of }).of)
	for _, r := range known {
		c.Top = max(c.Top, r.of)
	}
	c.Top = max(c.Top, 1)
	if c.Top > fewNodes {
		c.Bottom = max(0, least.is-2)
	}
	last := known[len(known)-1]
	c.Well = least.is == last.is
	c.Text = fmt.Sprintf("lowest %d, at the end %d of %d", least.is, last.is, last.of)
	c.Line, c.Gaps = v.line(readings, c)
	c.Changes = changes(readings, lack)
	return c, true
}

func (v view) line(readings []reading, c chart) (line string, gaps []bar) {
	var b strings.Builder
	y := func(is int) float64 {
		return tall - edge - float64(tall-2*edge)*float64(max(is-c.Bottom, 0))/float64(max(1, c.Top-c.Bottom))
	}
	drawing := false
	for i, r := range readings {
		until := v.Axis.To
		if i+1 < len(readings) {
			until = readings[i+1].at
		}
		if !r.known {
			gaps, drawing = append(gaps, v.Axis.bar(r.at, until, "gap", "no answer for")), false
			continue
		}
		command := "M"
		if drawing {
			command = "L"
		}
		fmt.Fprintf(&b, "%s%.1f %.1f", command, v.Axis.x(r.at), y(r.is))
		fmt.Fprintf(&b, "H%.1f", v.Axis.x(until))
		drawing = true
	}
	return b.String(), gaps
}

func changes(readings []reading, lack string) (out []change) {
	last := ""
	for _, r := range readings {
		text := "no answer"
		if r.known {
			text = fmt.Sprintf("%d of %d", r.is, r.of)
		}
		if r.known && len(r.lacking) > 0 {
			text += "; " + lack + ": " + strings.Join(r.lacking, ", ")
		}
		if text != last {
			out, last = append(out, change{r.at, text}), text
		}
	}
	return out
}
