// Package story reads the log of a run and tells what happened, to whom and when:
// for reports of runs that have ended, that still go on, or that were killed.
package story

import (
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/step"
)

// Story is what the log of a run tells. Of a run that was killed it ends in the middle.
type Story struct {
	From, To time.Time // of the first and the last line
	Sessions []Session // processes that worked on it, in their order
	Turns    []*Turn   // of nodes, in the order in which they began
	Steps    []*Stage  // that are about no node, in the order in which they were begun
	Said     []Said    // all that happened, in order
	Notes    []Said    // of that, what is about the run as a whole: claims taken over, servers waited for
	Pulses   []Pulse   // how the cluster stood
	Requests []Requests
	Begins   bool // the log has its beginning; else it grew too long
	Broken   int  // lines that can't be read
}

// Session is one process that worked on the run.
type Session struct {
	Began   time.Time
	Command string // "recast roll"; "": an earlier run of the same process has that in its log
	Version string // of recast
	Ended   bool
	Exit    int
	Error   string
}

// Turn is one node's way through the run. One that was cut off and went on later has two.
type Turn struct {
	Node, Phase string
	Title       string    // "recreate wk1 (VM 9011 on pve1)"
	Began       time.Time // zero: only what goes ahead of it was begun
	Ended       time.Time // zero: it was cut off, or goes on
	Status      string    // as the log has it: "done", "failed", …; "": it has not ended
	Text, Error string
	Hints       []string
	AwayFrom    time.Time // zero: it never was away
	AwayTo      time.Time // zero, with AwayFrom: it was not back by then
	Stages      []*Stage
	Heard       time.Time // of it, for the last time
	CutOff      bool      // the process that worked on it ended before it did

	path string
}

// Until is when it ended, or was heard of last.
func (t *Turn) Until() time.Time {
	if t.Ended.IsZero() {
		return t.Heard
	}
	return t.Ended
}

// isWell says whether it ended with the node as it should be.
func (t *Turn) isWell() bool {
	return t.Status == step.Done.String() || t.Status == step.Skipped.String()
}

// Stage is a step, or what a turn spends its time with.
type Stage struct {
	Name   string // "drain", "boot"
	Title  string
	Began  time.Time
	Ended  time.Time // zero: it was cut off, or goes on
	Status string
	Text   string // why there was nothing to do
	Noted  string // the last thing that it saw
	Error  string
	Hints  []string
	CutOff bool // as of a turn

	path string
}

// Fate is how the turn ended; unended is said of one that has not, unless it was cut off.
func (t *Turn) Fate(unended string) string { return fate(t.Status, t.CutOff, unended) }

// Fate is that of a turn.
func (s *Stage) Fate(unended string) string { return fate(s.Status, s.CutOff, unended) }

func fate(status string, cutOff bool, unended string) string {
	switch {
	case status != "":
		return status
	case cutOff:
		return "cut off"
	}
	return unended
}

// Said is one line of what happened.
type Said struct {
	At   time.Time
	Node string
	Mark string // status of a step: "started", "note", "done", …; "recast": of a process
	Text string
}

// Pulse is how the cluster stood at a moment.
type Pulse struct {
	At time.Time
	cluster.Pulse
}

// Requests counts those that could change something at one kind of server.
type Requests struct {
	Server string
	Sent   int
	Failed int
}

// Strategy is how the node was treated: the first word of the title.
func (t *Turn) Strategy() string {
	for i, r := range t.Title {
		if r == ' ' {
			return t.Title[:i]
		}
	}
	return t.Title
}

// Outage is when a node was away; across turns if it was left half done.
type Outage struct {
	Node     string
	From, To time.Time
	Open     bool // it was not back when the log ends
}

// Seconds is how long.
func (o Outage) Seconds() int { return int(o.To.Sub(o.From).Round(time.Second).Seconds()) }

// Outages lists when nodes were away, in the order in which they went.
func (s Story) Outages() []Outage {
	var out []Outage
	open := map[string]int{} // by node, which outage goes on
	for _, t := range s.Turns {
		at, goesOn := open[t.Node]
		switch {
		case goesOn: // it was left so: it has been away ever since
		case t.AwayFrom.IsZero():
			continue
		default:
			out = append(out, Outage{Node: t.Node, From: t.AwayFrom})
			at = len(out) - 1
		}
		back := t.AwayTo
		if goesOn && back.IsZero() && t.isWell() {
			back = t.Ended // nothing of it was left to be done but to see that it is back
		}
		out[at].To, out[at].Open = back, back.IsZero()
		delete(open, t.Node)
		if back.IsZero() {
			open[t.Node], out[at].To = at, s.To
		}
	}
	return out
}

// Longest is the longest outage; false where nobody was away.
func (s Story) Longest() (longest Outage, any bool) {
	for _, o := range s.Outages() {
		if !any || o.Seconds() > longest.Seconds() {
			longest, any = o, true
		}
	}
	return longest, any
}

// NotBack names the nodes that were not back when the log ends.
func (s Story) NotBack() []string {
	var names []string
	for _, o := range s.Outages() {
		if o.Open {
			names = append(names, o.Node)
		}
	}
	return names
}
