// Package step runs a tree of steps in order. A [Runner] skips a [Step] if its goal is already met, and counts it as
// done only after its goal was checked again.
//
// Four flags serve one user each, and can't be derived from the tree: the hooks of a batch run Alone, before and after
// its nodes; workers run Beside control planes where the plan says so; nodes LookAhead, to fetch installers while
// others are rolled; and a Quiet branch groups those early pulls without a line of its own.
package step

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/recast-sh/recast/internal/fault"
)

// Risk is what a step can cost; plans and displays show it.
type Risk int

const (
	// Safe steps only read or add: nothing in use is touched.
	Safe Risk = iota
	// Disruptive steps interrupt a running node and can be undone.
	Disruptive
	// Destructive steps remove something for good.
	Destructive
)

func (r Risk) String() string { return name(int(r), "safe", "disruptive", "destructive") }

func name(n int, names ...string) string {
	if n < 0 || n >= len(names) {
		return "unknown"
	}
	return names[n]
}

// Step is one piece of work, or a branch of several. Every field but ID may be
// left out. A step has Do or Steps, not both.
type Step struct {
	ID    string // verb and object, lower-case, stable for ever: "create-vm"; unique among its siblings, no slash
	Title string // for people: "create VM 101 on pve2"
	Risk  Risk
	Kind  string // the sort of step, if the ID names a particular thing: "rehearse-boot"; "": the ID
	// Code is the code of failures, here and below, that have no code yet.
	Code fault.Code

	// Skip checks whether the goal is met and, if so, returns the reason in words for people; "" means there is work to
	// do. The engine calls it before Do and again after it: if the goal is still unmet then, the step has failed. On a
	// branch it guards everything below.
	Skip func(ctx context.Context) (reason string, err error)
	// Lacks says what is there instead of the goal. Its text goes into the error of a step whose goal is still unmet
	// after Do; nil: Title says enough.
	Lacks func(ctx context.Context) (string, error)
	// Do does the work. It is safe to run again after an interruption at any point.
	Do func(ctx context.Context) error
	// Steps lists a branch's children; it is called only if Skip says there is work.
	Steps func(ctx context.Context) ([]Step, error)

	// Ahead are steps that touch nothing in use. They run first, at the same time: before the slots are taken and, in a
	// branch with LookAhead, while earlier siblings still run.
	Ahead []Step
	// LookAhead is for how many children, beyond the Limit that run, the Ahead steps may run early; 0: none.
	LookAhead int
	Beside    bool // a branch's child: runs beside the one before it, whatever Limit says
	Quiet     bool // a branch that only groups: emits no events unless it fails

	Limit int      // how many children may run at the same time; 0 and 1: one after another
	Uses  []string // slots taken for the whole step, in name order, before Skip: "control-plane", "host/pve1"
	Whole bool     // once started, runs to its end even if another step fails or Stop is called

	// Yields says that Do only waits and may be cancelled: its context ends as soon as
	// no further branch may start, also within a Whole branch.
	Yields bool

	// Alone keeps siblings from running beside it, whatever the parent's Limit is:
	// earlier siblings have ended, later ones have not started.
	Alone bool
	// Closes is for a step that runs Alone and completes what its earlier siblings set up: if all of those succeeded,
	// it runs even if another step failed or Stop was called meanwhile.
	Closes bool
}

// Status is the state of a step in an Event.
type Status int

// The statuses of a step. A step's first event is Started, Skipped or NotStarted, or
// Failed if Skip itself failed: a step without Started has touched nothing. After
// Started it ends with Done, Failed or Stopped, with any number of Notes before.
const (
	Started    Status = iota
	Skipped           // goal already met; Event.Text has the reason
	Note              // progress within a running step; Event.Text says what
	Done              // Event.Text has the reason that Skip gave afterwards, if there is a Skip
	Failed            // Event.Err says why; on a branch it joins the errors of its steps
	NotStarted        // the run was stopped, or a step failed, before this one could start
	Stopped           // a branch with steps that were NotStarted, none of which failed
)

func (s Status) String() string {
	return name(int(s), "started", "skipped", "note", "done", "failed", "not started", "stopped")
}

// Event reports what happens to a step. Path is the IDs from the root, joined by
// slashes: "roll/wk1/bring-up/create-vm".
type Event struct {
	Path   string
	Kind   string // the step's Kind, for counting; "" for a branch and for a Note
	Title  string
	Risk   Risk
	Status Status
	Text   string
	Err    error
}

// List gives the steps of a branch that are known beforehand, without those that OnlyIf left out.
func List(steps ...Step) func(context.Context) ([]Step, error) {
	steps = slices.DeleteFunc(steps, func(s Step) bool { return s.ID == "" })
	return func(context.Context) ([]Step, error) { return steps, nil }
}

// OnlyIf returns s if it applies, and otherwise an empty Step, which List leaves out.
func OnlyIf(applies bool, s Step) Step {
	if !applies {
		return Step{}
	}
	return s
}

// checkSteps reports every problem of the steps of one branch, before any of them runs.
// held are the slots that the branch and its ancestors hold.
func checkSteps(steps []Step, held []string) error {
	var problems []error
	seen := map[string]bool{}
	for i, s := range steps {
		switch {
		case s.ID == "":
			problems = append(problems, fmt.Errorf("step %d (%q) has no ID", i+1, s.Title))
		case strings.Contains(s.ID, "/"):
			problems = append(problems, fmt.Errorf("step %q: an ID is one part of a path and has no slash", s.ID))
		case seen[s.ID]:
			problems = append(problems, fmt.Errorf("two steps have the ID %q", s.ID))
		}
		seen[s.ID] = true
		if s.Do != nil && s.Steps != nil {
			problems = append(problems, fmt.Errorf("step %q has both Do and Steps", s.ID))
		}
		if s.Closes && (!s.Alone || len(s.Ahead) > 0) {
			problems = append(problems, fmt.Errorf("step %q closes its branch: it must be Alone, without Ahead steps", s.ID))
		}
		if err := checkOrder(s, held); err != nil {
			problems = append(problems, err)
		}
	}
	return errors.Join(problems...)
}

// checkOrder makes a tree take slots in one order. Otherwise two branches that each hold
// the slot that the other one needs next would deadlock.
func checkOrder(s Step, held []string) error {
	taken := without(s.Uses, held)
	if len(taken) == 0 || len(held) == 0 {
		return nil
	}
	if last := slices.Max(held); taken[0] < last {
		return fmt.Errorf("step %q takes slot %q while an ancestor holds %q: slots are taken in name order, so take it in the ancestor", s.ID, taken[0], last)
	}
	return nil
}

// outcome is how a step and everything below it ended; zero is success.
type outcome struct {
	failures   []error  // each with its path, in source order
	notStarted []string // paths
}

func (o outcome) isClean() bool { return len(o.failures)+len(o.notStarted) == 0 }

func merge(outs []outcome) outcome {
	var all outcome
	for _, o := range outs {
		all.failures = append(all.failures, o.failures...)
		all.notStarted = append(all.notStarted, o.notStarted...)
	}
	return all
}

func (o outcome) err(ctx context.Context, stopped bool) error {
	cancelled := context.Cause(ctx)
	failures := o.failures
	if len(o.notStarted) > 0 && (stopped || cancelled != nil) {
		failures = append(failures, ended(ctx, o.notStarted))
	}
	switch {
	case len(failures) == 0:
		return nil
	case len(failures) == 1:
		return failures[0]
	}
	return fault.As(worst(failures), errors.Join(failures...))
}

func ended(ctx context.Context, notStarted []string) error {
	what := "not started: " + strings.Join(notStarted, ", ")
	if cause := context.Cause(ctx); cause != nil {
		return interrupted(ctx, fmt.Errorf("%s: %w", what, cause))
	}
	return fault.As(fault.Interrupted, errors.New("stopped; "+what))
}

// interrupted gives err the kind Interrupted if it comes from ctx being cancelled; a passed deadline is a normal
// failure. A cause that has a kind itself, such as a lost claim, takes precedence.
func interrupted(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); fault.KindOf(cause) != fault.Failed {
		if errors.Is(err, cause) {
			return err
		}
		return fmt.Errorf("%w: %w", cause, err)
	}
	if errors.Is(ctx.Err(), context.Canceled) && (errors.Is(err, context.Canceled) || errors.Is(err, context.Cause(ctx))) {
		return fault.As(fault.Interrupted, err)
	}
	return err
}

// worst is the common kind of all failures, or Failed if they differ. Interruptions do
// not count unless there is nothing else.
func worst(failures []error) fault.Kind {
	kind := fault.Interrupted
	for _, err := range failures {
		k := fault.KindOf(err)
		switch {
		case k == fault.Interrupted:
		case kind == fault.Interrupted:
			kind = k
		case k != kind:
			return fault.Failed
		}
	}
	return kind
}

// scope limits a halt: the tree has one, and every Whole branch that has started has its
// own. Within a halted scope no further step starts.
type scope struct {
	parent *scope
	halted chan struct{}
	once   sync.Once
}

func newScope(parent *scope) *scope {
	return &scope{parent: parent, halted: make(chan struct{})}
}

func (s *scope) halt() { s.once.Do(func() { close(s.halted) }) }

// fail halts the scope of a failed step and its parents. Other Whole branches that have
// started have their own scopes and continue.
func (s *scope) fail() {
	for ; s != nil; s = s.parent {
		s.halt()
	}
}

// errYielded is the cause with which a step that yields is cancelled.
var errYielded = errors.New("stopped")

// do runs the step's Do. If the step yields, it cancels Do when the whole tree is halted.
func (s Step) do(ctx context.Context, within *scope) error {
	if !s.Yields {
		return s.Do(ctx)
	}
	for within.parent != nil {
		within = within.parent
	}
	ctx, cancel := context.WithCancelCause(ctx)
	var watch sync.WaitGroup
	defer watch.Wait()
	defer cancel(nil)
	watch.Go(func() {
		select {
		case <-within.halted:
			cancel(errYielded)
		case <-ctx.Done():
		}
	})
	err := s.Do(ctx)
	if err != nil && context.Cause(ctx) == errYielded {
		return fault.As(fault.Interrupted, err)
	}
	return err
}

// ended says whether no further step may start.
func (s *scope) ended(ctx context.Context) bool {
	select {
	case <-s.halted:
		return true
	default:
		return ctx.Err() != nil
	}
}
