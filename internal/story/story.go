// Package story turns the log of a run into a [Story], the history of its nodes and
// steps, for reports of runs that have ended, still run, or were killed.
package story

import (
	"time"

	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/step"
)

// Story is the history in a run's log. For a killed run it ends in the middle.
type Story struct {
	From, To time.Time // of the first and the last line
	Sessions []Session // processes that worked on it, in order
	Turns    []*Turn   // of nodes, by beginning
	Steps    []*Stage  // that concern no node, by beginning
	Said     []Said    // all events, in order
	Notes    []Said    // the events that concern the whole run: claims taken over, servers waited for
	Pulses   []Pulse   // the cluster's state over time
	Requests []Requests
	Begins   bool // the log has its beginning; else rotation has removed it
	Broken   int  // unreadable lines
}

// Session is one process that worked on the run.
type Session struct {
	Began   time.Time
	Command string // "recast roll"; "": this run was not the first of its process, whose log names the command
	Version string // of recast
	Ended   bool
	Exit    int
	Error   string
}

// Turn is one node's part of the run. If it was cut off and resumed there are two.
type Turn struct {
	Node, Phase string
	Title       string    // "recreate wk1 (VM 9011 on pve1)"
	Began       time.Time // zero: only its preparation has begun
	Ended       time.Time // zero: it was cut off or still runs
	Status      string    // as in the log: "done", "failed", …; "": it has not ended
	Text, Error string
	Hints       []string
	AwayFrom    time.Time // when the node became unavailable; zero: it never did
	AwayTo      time.Time // when it was back; zero, with AwayFrom: it was not
	Stages      []*Stage
	Heard       time.Time // time of its latest line
	CutOff      bool      // its process ended first

	path string
}

// Until is when it ended, or the time of its latest line.
func (t *Turn) Until() time.Time {
	if t.Ended.IsZero() {
		return t.Heard
	}
	return t.Ended
}

// isWell says whether it ended with a healthy node.
func (t *Turn) isWell() bool {
	return t.Status == step.Done.String() || t.Status == step.Skipped.String()
}

// Stage is a step, or a phase of a turn.
type Stage struct {
	Name   string // "drain", "boot"
	Title  string
	Began  time.Time
	Ended  time.Time // zero: it was cut off or still runs
	Status string
	Text   string // why it was skipped
	Noted  string // its latest note
	Error  string
	Hints  []string
	CutOff bool // as in Turn

	path string
}

// Fate is how the turn ended in a run with that result ("done", "running", "killed", …): its status,
// or, if it has none, whether it goes on or was cut off.
func (t *Turn) Fate(result string) string { return fate(t.Status, t.CutOff, result) }

// Fate is as in Turn.
func (s *Stage) Fate(result string) string { return fate(s.Status, s.CutOff, result) }

func fate(status string, cutOff bool, result string) string {
	switch {
	case status != "":
		return status
	case cutOff:
		return "cut off"
	case result == "running":
		return "goes on"
	case result == "suspended":
		return "suspended"
	case result == "running or killed":
		return "running, or interrupted"
	}
	return "cut off"
}

// Said is one event.
type Said struct {
	At   time.Time
	Node string
	Mark string // status of a step: "started", "note", "done", …; "recast": a process
	Text string
}

// Pulse is the cluster's state at a moment.
type Pulse struct {
	At time.Time
	planning.Pulse
}

// Requests counts the mutating requests to one kind of server.
type Requests struct {
	Server string
	Sent   int
	Failed int
}

// Strategy is how the node was rolled: the first word of the title.
func (t *Turn) Strategy() string {
	for i, r := range t.Title {
		if r == ' ' {
			return t.Title[:i]
		}
	}
	return t.Title
}

// Outage is a time when a node was unavailable; it spans turns if the first was cut off.
type Outage struct {
	Node     string
	From, To time.Time
	Open     bool // it was not back when the log ended
}

// Seconds is the length.
func (o Outage) Seconds() int { return int(o.To.Sub(o.From).Round(time.Second).Seconds()) }

// Outages lists the outages of all nodes by beginning.
func (s Story) Outages() []Outage {
	var out []Outage
	open := map[string]int{} // index of the node's open outage
	for _, t := range s.Turns {
		at, goesOn := open[t.Node]
		switch {
		case goesOn: // unavailable since an earlier turn
		case t.AwayFrom.IsZero():
			continue
		default:
			out = append(out, Outage{Node: t.Node, From: t.AwayFrom})
			at = len(out) - 1
		}
		back := t.AwayTo
		if goesOn && back.IsZero() && t.isWell() {
			back = t.Ended // the turn only verified that it was back
		}
		out[at].To, out[at].Open = back, back.IsZero()
		delete(open, t.Node)
		if back.IsZero() {
			open[t.Node], out[at].To = at, s.To
		}
	}
	return out
}

// Longest is the longest outage; false if there was none.
func (s Story) Longest() (longest Outage, any bool) {
	for _, o := range s.Outages() {
		if !any || o.Seconds() > longest.Seconds() {
			longest, any = o, true
		}
	}
	return longest, any
}

// NotBack names the nodes that were unavailable when the log ended.
func (s Story) NotBack() []string {
	var names []string
	for _, o := range s.Outages() {
		if o.Open {
			names = append(names, o.Node)
		}
	}
	return names
}
