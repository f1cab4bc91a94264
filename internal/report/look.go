package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/story"
)

// view is the run as the page has it.
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
	Legend              []legend // kinds of stages that are there
	Others              []stage  // steps that are about no node
	Charts              []chart
	Work, Idle          []cluster.NodePlan
	Notes               []story.Said
	Said                []story.Said
	Unsaid              int // lines that are left out
	Missing             []string
}

type fact struct{ Name, Value string }

// trouble is what went wrong, and what to do about it.
type trouble struct {
	Where, What string
	Hints       []string
}

// mostSaid is how many lines of what happened are shown, and mostNotes how many of
// what is about the run as a whole: the newest.
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
		v.Idle = slices.DeleteFunc(slices.Clone(p.Nodes), func(n cluster.NodePlan) bool { return n.Strategy != "" })
	}
	v.Unsaid = max(0, len(r.Story.Said)-mostSaid)
	v.Said = r.Story.Said[v.Unsaid:]
	v.Notes = r.Story.Notes[max(0, len(r.Story.Notes)-mostNotes):]
	v.Missing = v.missing()
	return v
}

// first is when anything was begun that is drawn: building images, and asking, may
// have taken longer than all of the roll.
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
	case "running", "running or killed":
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
			who = "begun on another machine, finished by "
		}
		add("run", who+a.By.String())
		for _, h := range a.GoneOn {
			add("went on", h.String())
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

// versions are those of the recasts that worked on the run.
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

// figures are what a tired person wants to know first.
func (v view) figures() []fact {
	done, planned := v.Past.Counted()
	figures := []fact{{"nodes done", fmt.Sprintf("%d of %d", done, planned)}}
	if !v.Past.Finished.IsZero() {
		figures = append(figures, fact{"from begin to end", took(v.Past.Finished.Sub(v.Past.Started))})
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

// troubles lists every failure with its hints: of steps, else of the whole run.
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

// days says whether it went on over midnight, where it is told.
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

// missing says what is not in the report, and why.
func (v view) missing() []string {
	var out []string
	for _, text := range v.Past.Problems {
		out = append(out, "could not be read: "+text)
	}
	if len(v.Story.Turns) == 0 && v.Past.Command() != "upgrade-k8s" && v.Past.Command() != "restore" {
		out = append(out, "no log of it is here that tells of nodes")
	}
	if !v.Story.Begins && !v.Story.From.IsZero() {
		out = append(out, "its log has grown too long: what was before "+stamp(v.Story.From.In(v.Now.Location()))+" is not in it any more")
	}
	if n := v.Story.Broken; n > 0 {
		out = append(out, fmt.Sprintf("lines of its log that can't be read: %d", n))
	}
	if a := v.Past.About; a != nil && a.Elsewhere {
		out = append(out, "another machine began it, and has its beginning")
	}
	return out
}
