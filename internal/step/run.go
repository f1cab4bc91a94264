package step

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/wait"
	"golang.org/x/sync/errgroup"
)

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
	t := &tree{Runner: r, slots: newSlots(r.Slots)}
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
func (r *Runner) Note(path, text string) {
	r.Tell(Event{Path: path, Status: Note, Text: text})
}

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

// tree is one Run in progress.
type tree struct {
	*Runner
	slots *slots
}

// place is the position of a step in the tree.
type place struct {
	path  string
	scope *scope
	held  []string // slots that the step's ancestors hold
	code  fault.Code

	answers *answers // shared by steps that run one after the other
}

// run runs the Ahead steps of a step, then the step.
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
	goals := at.answers.within(ctx)
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

// beside returns how many of the first steps may run at the same time.
func beside(steps []Step) int {
	next := slices.IndexFunc(steps, func(s Step) bool { return s.Alone })
	switch next {
	case -1:
		return len(steps)
	case 0:
		return 1
	}
	return next
}

// finish checks whether the goal of a step that reports success is met.
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

// emitUnlessQuiet emits e unless s is Quiet.
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

// ahead runs the Ahead steps of a step. If they fail, or may no longer start, the step itself is not started.
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

// sharedFor is how long goals share an answer while no step does anything. It is short, so that a wait in between
// asks again.
const sharedFor = time.Second

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
	if there && wait.Elapsed(known.asked) < sharedFor {
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

// within returns the context of goals, which share their answers.
func (a *answers) within(ctx context.Context) context.Context {
	return context.WithValue(ctx, answersKey{}, a)
}

// forget makes goals read again: a step has done something.
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

func newSlots(room map[string]int) *slots {
	return &slots{room: room, byName: map[string]chan struct{}{}}
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
		case <-ended:
			s.release(names[:i])
			return false
		case <-ctx.Done():
			s.release(names[:i])
			return false
		}
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

// without returns the slots of uses that are not held, sorted and once each.
func without(uses, held []string) []string {
	var names []string
	for _, name := range uses {
		if !slices.Contains(held, name) {
			names = append(names, name)
		}
	}
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
