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

// mostSaid is how many event lines are shown, and mostNotes how many notes about the whole
// run: the newest ones.
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
		v.Idle = slices.DeleteFunc(slices.Clone(p.Nodes), func(n planning.NodePlan) bool { return n.Strategy != "" })
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
	switch result {
	case "done":
		return "good"
	case "running", "suspended", "running or killed":
		return "open"
	}
	return "bad"
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

// versions are the versions of recast that worked on the run.
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

// missing lists what is not in the report, and why.
func (v view) missing() []string {
	var out []string
	for _, text := range v.Past.Problems {
		out = append(out, "could not be read: "+text)
	}
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

// cameTo says whether a node had a turn.
func (v view) cameTo(node string) bool {
	return slices.ContainsFunc(v.Story.Turns, func(t *story.Turn) bool {
		return t.Node == node && !t.Began.IsZero() && t.Status != "not started"
	})
}

// nodes lists the planned nodes, or a placeholder for them.
func (v view) nodes(none string) string {
	var names []string
	if v.Past.Plan != nil {
		for _, n := range v.Past.Plan.Work() {
			names = append(names, n.Node)
		}
	}
	if len(names) == 0 {
		return none
	}
	return strings.Join(names, " ")
}
