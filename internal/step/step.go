// Package step runs a tree of steps in order. A [Runner] skips a [Step] if its goal is already met, and counts it as
// done only after its goal was checked again.
//
// Four flags serve one user each, and can't be derived from the tree: the hooks of a batch run Alone, before and after
// its nodes; workers run Beside control planes where the plan says so; nodes LookAhead, to fetch installers while
// others are rolled; and a Quiet branch groups those early pulls without a line of its own.
package step

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/wait"
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
	failures := o.failures
	if len(o.notStarted) > 0 && (stopped || context.Cause(ctx) != nil) {
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

func newScope(parent *scope) *scope { return &scope{parent: parent, halted: make(chan struct{})} }

func (s *scope) halt() { s.once.Do(func() { close(s.halted) }) }

// fail halts the scope of a failed step and its parents. Other Whole branches that have
// started have their own scopes and continue.
func (s *scope) fail() {
	for ; s != nil; s = s.parent {
		s.halt()
	}
}

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

func (s *scope) ended(ctx context.Context) bool {
	select {
	case <-s.halted:
		return true
	default:
		return ctx.Err() != nil
	}
}

// Runner runs trees of steps, one at a time. Its zero value is ready to use.
type Runner struct {
	// Emit is called with every event, one at a time. It must not block for long: the steps wait for it. May be nil.
	Emit func(Event)
	// Context returns the context for the step at a path, before its Skip is called. The context is in use until the
	// next event that ends the step. It may be called for several steps at the same time. May be nil.
	Context func(ctx context.Context, path string) context.Context
	// Slots says how many steps may hold a slot at the same time; a slot that is not listed can be held by one step.
	Slots map[string]int

	emitting  sync.Mutex
	listeners []*func(Event)

	mu      sync.Mutex
	stopped bool
	root    *scope // of the Run in progress
}

// Run runs root and everything below it. After a failure no further step starts, except within Whole branches that
// have started; Run returns when no step runs any more. Its error holds every failure, each with its path. The kind
// is that of the failures if they all have the same kind, and Interrupted if no step failed, but Stop or a cancelled
// context kept steps from starting.
//
// A panic in a step is not caught.
func (r *Runner) Run(ctx context.Context, root Step) error {
	if err := errors.Join(checkSlots(r.Slots), checkSteps([]Step{root}, nil)); err != nil {
		return err
	}
	t := &tree{Runner: r, slots: &slots{room: r.Slots, byName: map[string]chan struct{}{}}}
	out := t.run(ctx, root, place{path: root.ID, scope: r.begin(), code: root.Code, answers: new(answers)})
	return out.err(ctx, r.end())
}

// Stop keeps further steps from starting, in this Run and later ones, except within Whole branches that have started.
// It returns at once; to end those too, cancel Run's context.
func (r *Runner) Stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stopped = true
	if r.root != nil {
		r.root.halt()
	}
}

// Note emits a progress note for the step that runs at path.
func (r *Runner) Note(path, text string) { r.Tell(Event{Path: path, Status: Note, Text: text}) }

// Tell emits an event: to Emit, then to every listener.
func (r *Runner) Tell(e Event) {
	r.emitting.Lock()
	defer r.emitting.Unlock()
	if r.Emit != nil {
		r.Emit(e)
	}
	for _, see := range r.listeners {
		(*see)(e)
	}
}

// Listen calls see with every event, after Emit, one at a time, until the returned func
// is called. Both may be called while steps run.
func (r *Runner) Listen(see func(Event)) (end func()) {
	r.emitting.Lock()
	defer r.emitting.Unlock()
	r.listeners = append(r.listeners, &see)
	return func() {
		r.emitting.Lock()
		defer r.emitting.Unlock()
		r.listeners = slices.DeleteFunc(r.listeners, func(l *func(Event)) bool { return l == &see })
	}
}

func (r *Runner) begin() *scope {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.root = newScope(nil)
	if r.stopped {
		r.root.halt()
	}
	return r.root
}

func (r *Runner) end() (stopped bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.root = nil
	return r.stopped
}

type tree struct {
	*Runner
	slots *slots
}

type place struct {
	path  string
	scope *scope
	held  []string // slots that the step's ancestors hold
	code  fault.Code

	answers *answers // shared by steps that run one after the other
}

func (t *tree) run(ctx context.Context, s Step, at place) outcome {
	if out := t.ahead(ctx, s, at); !out.isClean() {
		return out
	}
	return t.itself(ctx, s, at)
}

func (t *tree) itself(ctx context.Context, s Step, at place) outcome {
	taken := without(s.Uses, at.held)
	if !t.slots.take(ctx, taken, at.scope.halted) {
		return t.notStarted(s, at)
	}
	defer t.slots.release(taken)
	at.held = append(at.held[:len(at.held):len(at.held)], taken...)

	if t.Context != nil && !s.Quiet {
		ctx = t.Context(ctx, at.path)
	}
	goals := context.WithValue(ctx, answersKey{}, at.answers)
	reason, err := ask(goals, s)
	switch {
	case err != nil:
		return t.failed(ctx, s, at, fmt.Errorf("check whether it is needed: %w", err))
	case reason != "":
		t.emitUnlessQuiet(s, s.event(at, Skipped, reason, nil))
		return outcome{}
	case at.scope.ended(ctx):
		return t.notStarted(s, at)
	}

	t.emitUnlessQuiet(s, s.event(at, Started, "", nil))
	if s.Whole {
		at.scope = newScope(at.scope)
	}
	if s.Steps != nil {
		return t.branch(ctx, goals, s, at)
	}
	if s.Do != nil {
		err := s.do(ctx, at.scope)
		at.answers.forget()
		if err != nil {
			return t.failed(ctx, s, at, err)
		}
	}
	return t.finish(goals, s, at)
}

func (t *tree) branch(ctx, goals context.Context, s Step, at place) outcome {
	steps, err := s.Steps(goals)
	if err != nil {
		return t.failed(ctx, s, at, fmt.Errorf("list its steps: %w", err))
	}
	if err := checkSteps(steps, at.held); err != nil {
		return t.failed(ctx, s, at, err)
	}
	out := t.children(ctx, s, steps, at)
	switch {
	case len(out.failures) > 0:
		t.Tell(s.event(at, Failed, "", errors.Join(out.failures...)))
		return out
	case len(out.notStarted) > 0:
		t.Tell(s.event(at, Stopped, "", nil))
		return out
	}
	return t.finish(goals, s, at)
}

func (t *tree) children(ctx context.Context, s Step, steps []Step, at place) outcome {
	alone := s.Limit <= 1 && s.LookAhead == 0 && countBeside(steps) == 0
	if !alone {
		defer at.answers.forget()
	}
	below := func(child Step, before []outcome) place {
		p := place{path: at.path + "/" + child.ID, scope: at.scope, held: at.held, code: cmp.Or(child.Code, at.code), answers: at.answers}
		if !alone {
			p.answers = new(answers)
		}
		if child.Closes && merge(before).isClean() {
			p.scope = newScope(at.scope)
		}
		return p
	}
	outs := make([]outcome, len(steps))
	if s.LookAhead > 0 || countBeside(steps) > 0 {
		return merge(t.lookingAhead(ctx, s, steps, below))
	}
	if s.Limit <= 1 {
		for i, child := range steps {
			outs[i] = t.run(ctx, child, below(child, outs[:i]))
		}
		return merge(outs)
	}
	for from := 0; from < len(steps); {
		to := from + beside(steps[from:])
		var g errgroup.Group
		g.SetLimit(s.Limit)
		for i, child := range steps[from:to] {
			g.Go(func() error {
				outs[from+i] = t.run(ctx, child, below(child, outs[:from]))
				return nil
			})
		}
		_ = g.Wait() // outcomes carry the errors
		from = to
	}
	return merge(outs)
}

func beside(steps []Step) int {
	if next := slices.IndexFunc(steps, func(s Step) bool { return s.Alone }); next >= 0 {
		return max(next, 1)
	}
	return len(steps)
}

func (t *tree) finish(ctx context.Context, s Step, at place) outcome {
	reason, err := ask(ctx, s)
	switch {
	case err != nil:
		return t.failed(ctx, s, at, fmt.Errorf("check its goal: %w", err))
	case s.Skip != nil && reason == "" && ctx.Err() != nil: // ctx ended, so Skip could not tell
		return t.failed(ctx, s, at, fmt.Errorf("check its goal: %w", context.Cause(ctx)))
	case s.Skip != nil && reason == "":
		return t.failed(ctx, s, at, unmet(ctx, s))
	}
	t.emitUnlessQuiet(s, s.event(at, Done, reason, nil))
	return outcome{}
}

// unmet returns the error of a step that was done without reaching its goal. It says what is there instead.
func unmet(ctx context.Context, s Step) error {
	err := fmt.Errorf("%q was done, and its goal is not reached", cmp.Or(s.Title, s.ID))
	if s.Lacks == nil {
		return err
	}
	lacks, errLacks := s.Lacks(ctx)
	switch {
	case errLacks != nil:
		return fmt.Errorf("%w; what is there instead can't be read: %w", err, errLacks)
	case lacks != "":
		return fmt.Errorf("%w: %s", err, lacks)
	}
	return err
}

func ask(ctx context.Context, s Step) (string, error) {
	if s.Skip == nil {
		return "", nil
	}
	return s.Skip(ctx)
}

func (t *tree) failed(ctx context.Context, s Step, at place, err error) outcome {
	at.scope.fail()
	err = fmt.Errorf("%s: %w", at.path, at.code.Else(interrupted(ctx, err)))
	t.Tell(s.event(at, Failed, "", err))
	return outcome{failures: []error{err}}
}

func (t *tree) notStarted(s Step, at place) outcome {
	t.Tell(s.event(at, NotStarted, "", nil))
	return outcome{notStarted: []string{at.path}}
}

func (t *tree) emitUnlessQuiet(s Step, e Event) {
	if !s.Quiet {
		t.Tell(e)
	}
}

func (s Step) event(at place, status Status, text string, err error) Event {
	return Event{Path: at.path, Kind: s.kind(), Title: s.Title, Risk: s.Risk, Status: status, Text: text, Err: err}
}

func (s Step) kind() string {
	if s.Steps != nil {
		return ""
	}
	return cmp.Or(s.Kind, s.ID)
}

func (t *tree) ahead(ctx context.Context, s Step, at place) outcome {
	if len(s.Ahead) == 0 {
		return outcome{}
	}
	if at.scope.ended(ctx) {
		return t.notStarted(s, at)
	}
	if err := checkAhead(s.Ahead, at.held); err != nil {
		return t.failed(ctx, s, at, err)
	}
	out := t.children(ctx, Step{Limit: len(s.Ahead)}, s.Ahead, at)
	switch {
	case len(out.failures) > 0:
		t.Tell(s.event(at, Failed, "", errors.Join(out.failures...)))
	case len(out.notStarted) > 0:
		return t.notStarted(s, at)
	}
	return out
}

// lookingAhead runs children in order, Limit of them at a time (plus those that are
// Beside another), and meanwhile runs the Ahead steps of the next ones.
func (t *tree) lookingAhead(ctx context.Context, s Step, steps []Step, below func(Step, []outcome) place) []outcome {
	limit := max(1, s.Limit)
	outs := make([]outcome, len(steps))
	prepared := make([]chan struct{}, len(steps))
	for i := range steps {
		prepared[i] = make(chan struct{})
	}
	window := make(chan struct{}, limit+s.LookAhead+countBeside(steps)) // a token for each child that was started
	var running, preparing errgroup.Group
	if limit > 1 {
		running.SetLimit(limit)
	}
	preparing.Go(func() error {
		for i, child := range steps {
			window <- struct{}{}
			preparing.Go(func() error {
				defer close(prepared[i])
				outs[i] = t.ahead(ctx, child, below(child, nil))
				return nil
			})
		}
		return nil
	})
	for i, child := range steps {
		if limit == 1 && !child.Beside || child.Alone || i > 0 && steps[i-1].Alone {
			_ = running.Wait() // outcomes carry the errors
		}
		running.Go(func() error {
			<-prepared[i]
			if outs[i].isClean() {
				outs[i] = t.itself(ctx, child, below(child, outs[:i]))
			}
			<-window
			return nil
		})
	}
	_, _ = running.Wait(), preparing.Wait() // outcomes carry the errors
	return outs
}

func countBeside(steps []Step) (n int) {
	for _, s := range steps {
		if s.Beside {
			n++
		}
	}
	return n
}

// checkAhead is checkSteps for Ahead steps. They may not take slots: a step with a slot could block the steps that
// run beside it.
func checkAhead(steps []Step, held []string) error {
	var problems []error
	for _, s := range steps {
		if len(s.Uses) > 0 || s.Whole {
			problems = append(problems, errors.New("step \""+s.ID+"\" is Ahead of another step, so it can neither take slots nor be Whole"))
		}
	}
	return errors.Join(append(problems, checkSteps(steps, held))...)
}

// answers holds what goals have read since a step last did something.
type answers struct {
	mu    sync.Mutex
	known map[any]answer
}

type answer struct {
	asked time.Time
	value any
	err   error
}

type answersKey struct{}

// Once returns what read returns. Nothing happens between the check of a step's goal after its end and the check of
// the next step's goal before its start: what both read under the same key is read once. A Do always reads.
func Once[T any](ctx context.Context, key any, read func() (T, error)) (T, error) {
	a, _ := ctx.Value(answersKey{}).(*answers)
	if a == nil {
		return read()
	}
	a.mu.Lock()
	known, there := a.known[key]
	a.mu.Unlock()
	if there && wait.Elapsed(known.asked) < time.Second { // so that a wait in between asks again
		value, _ := known.value.(T)
		return value, known.err
	}
	asked := time.Now()
	value, err := read()
	if ctx.Err() == nil {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.known == nil {
			a.known = map[any]answer{}
		}
		a.known[key] = answer{asked, value, err}
	}
	return value, err
}

func (a *answers) forget() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.known = nil
}

// slots are counted permits, shared over a whole tree.
type slots struct {
	room map[string]int // Runner.Slots

	mu     sync.Mutex
	byName map[string]chan struct{} // a token for each step that holds the slot
}

func (s *slots) slot(name string) chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, ok := s.byName[name]
	if !ok {
		room := 1
		if n, listed := s.room[name]; listed {
			room = n
		}
		c = make(chan struct{}, room)
		s.byName[name] = c
	}
	return c
}

// take waits for every named slot, one after the other. It returns true if it holds all
// of them, and false if the wait was ended; then it holds none.
func (s *slots) take(ctx context.Context, names []string, ended <-chan struct{}) bool {
	for i, name := range names {
		select {
		case s.slot(name) <- struct{}{}:
			continue
		case <-ended:
		case <-ctx.Done():
		}
		s.release(names[:i])
		return false
	}
	// An end that has come already takes precedence over a free slot.
	select {
	case <-ended:
	case <-ctx.Done():
	default:
		return true
	}
	s.release(names)
	return false
}

func (s *slots) release(names []string) {
	for _, name := range names {
		<-s.slot(name)
	}
}

func without(uses, held []string) []string {
	names := slices.DeleteFunc(slices.Clone(uses), func(name string) bool { return slices.Contains(held, name) })
	slices.Sort(names)
	return slices.Compact(names)
}

func checkSlots(room map[string]int) error {
	var problems []error
	for _, name := range slices.Sorted(maps.Keys(room)) {
		if room[name] < 1 {
			problems = append(problems, fmt.Errorf("slot %q has room for %d steps: nothing could ever take it", name, room[name]))
		}
	}
	return errors.Join(problems...)
}
