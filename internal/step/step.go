// Package step runs a tree of steps: in order, each skipped when the world
// already is as it should be, and believed only after the world was asked again.
package step

import (
	"context"

	"github.com/recast-sh/recast/internal/fault"
)

// Risk says what a step can cost; plans and displays show it.
type Risk int

const (
	// Safe steps only read or add: nothing in use is touched.
	Safe Risk = iota
	// Disruptive steps interrupt a running node and can be undone.
	Disruptive
	// Destructive steps remove something for good.
	Destructive
)

func (r Risk) String() string {
	names := [...]string{"safe", "disruptive", "destructive"}
	if r < 0 || int(r) >= len(names) {
		return "unknown"
	}
	return names[r]
}

// Step is one piece of work, or a branch of several. Every field but ID may be
// left out. A step has Do or Steps, not both.
type Step struct {
	ID    string // verb and object, lower-case, stable for ever: "create-vm"; unique among its siblings, no slash
	Title string // for people: "create VM 101 on pve2"
	Risk  Risk
	Kind  string // what sort of step it is, where the ID names a thing of the world: "rehearse-boot"; "": the ID
	// Code is that of failures, here and below, which have none of their own.
	Code fault.Code

	// Skip asks the world whether the goal is met and, if so, returns the
	// reason in words a person can read; "" means there is work to do. The
	// engine asks before Do and again after it: a step whose goal is still unmet
	// then has failed. On a branch it guards everything below.
	Skip func(ctx context.Context) (reason string, err error)
	// Do does the work. It is safe to run again after it was cut off anywhere.
	Do func(ctx context.Context) error
	// Steps lists a branch's children, asked for only after Skip said there is work.
	Steps func(ctx context.Context) ([]Step, error)

	// Ahead are steps that touch nothing in use and go before everything else, side by
	// side: before the slots are taken and, in a branch with LookAhead, while siblings
	// before this one still run.
	Ahead []Step
	// LookAhead is of how many children, beyond those that Limit lets run, the Ahead
	// may be done; 0: none.
	LookAhead int
	Beside    bool // of a branch's child: it runs beside the one before it, whatever Limit says
	Quiet     bool // a branch that only groups: nothing is told of it unless it goes wrong

	Limit int      // how many children may run at the same time; 0 and 1: one after another
	Uses  []string // slots taken for the whole step, in name order, before Skip: "control-plane", "host/pve1"
	Whole bool     // once started, runs to its end although another step failed or Stop was called

	// Yields says that Do only waits and may be cut off: its context ends as soon
	// as no further branch may start, within a Whole one too.
	Yields bool

	// Alone keeps siblings from running beside it, whatever the Limit above says:
	// those before it in the list have ended, those after it have not begun.
	Alone bool
	// Closes is of a step that runs Alone, and what its siblings before it have set
	// up waits for it: where all of those have ended well it runs, although another
	// step failed or Stop was called meanwhile.
	Closes bool
}

// Status is how a step stands.
type Status int

// The statuses of a step. A step's first event is Started, Skipped or NotStarted,
// or Failed if Skip itself failed: what was never Started has touched nothing.
// What was Started ends in Done, Failed or Stopped, with any number of Notes before.
const (
	Started    Status = iota
	Skipped           // goal already met; Event.Text has the reason
	Note              // progress within a running step; Event.Text says what
	Done              // Event.Text has the reason that Skip gave afterwards, if the step has one
	Failed            // Event.Err says why; on a branch it joins the errors of its steps
	NotStarted        // the run was stopped, or a step failed, before this one could start
	Stopped           // a branch some of whose steps were NotStarted, though none failed
)

func (s Status) String() string {
	names := [...]string{"started", "skipped", "note", "done", "failed", "not started", "stopped"}
	if s < 0 || int(s) >= len(names) {
		return "unknown"
	}
	return names[s]
}

// Event tells a display what happens. Path is the IDs from the root, joined by
// slashes: "roll/wk1/bring-up/create-vm".
type Event struct {
	Path   string
	Kind   string // of a step of its own, for counting; "" of a branch and of a Note
	Title  string
	Risk   Risk
	Status Status
	Text   string
	Err    error
}
