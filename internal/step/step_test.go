package step_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/heap"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/step"
)

var errBroken = errors.New("broken")

// log collects events as lines. A Runner emits one at a time.
type log []string

func (l *log) add(e step.Event) {
	line := e.Status.String() + " " + e.Path
	if e.Text != "" {
		line += ": " + e.Text
	}
	if e.Err != nil {
		line += ": " + e.Err.Error()
	}
	*l = append(*l, line)
}

func work(context.Context) error  { return nil }
func fails(context.Context) error { return errBroken }

func leaf(id string, do func(context.Context) error) step.Step { return step.Step{ID: id, Do: do} }

func branch(id string, steps ...step.Step) step.Step {
	return step.Step{ID: id, Steps: func(context.Context) ([]step.Step, error) { return steps, nil }}
}

// withGoal gives s a Skip whose goal Do reaches, or that is met from the start.
func withGoal(s step.Step, met bool) step.Step {
	s.Skip = func(context.Context) (string, error) {
		if met {
			return "as wanted", nil
		}
		return "", nil
	}
	if do := s.Do; do != nil {
		s.Do = func(ctx context.Context) error {
			met = true
			return do(ctx)
		}
	}
	return s
}

func skips(s step.Step, answers ...func() (string, error)) step.Step {
	s.Skip = func(context.Context) (string, error) {
		answer := answers[0]
		answers = answers[1:]
		return answer()
	}
	return s
}

func says(reason string, err error) func() (string, error) {
	return func() (string, error) { return reason, err }
}

// lacking is a step that misses its goal; instead says what is there.
func lacking(instead func() (string, error)) step.Step {
	s := skips(step.Step{ID: "a", Title: "paint it green", Do: work}, says("", nil), says("", nil))
	s.Lacks = func(context.Context) (string, error) { return instead() }
	return s
}

// story is a tree, the events of its run, and its result.
type story struct {
	root   step.Step
	slots  map[string]int
	stop   time.Duration // when Stop is called
	cancel time.Duration // when the context is cancelled
	events []string
	err    string // "": that of the root's failure
	kind   fault.Kind
}

func inOrder(t *testing.T, s story) {
	t.Helper()
	var got log
	s.run(t, got.add)
	must.Equal(t, "events", s.events, []string(got))
}

func (s story) run(t *testing.T, see func(step.Event)) {
	t.Helper()
	r := step.Runner{Emit: see, Slots: s.slots}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if s.stop > 0 {
		defer time.AfterFunc(s.stop, r.Stop).Stop()
	}
	if s.cancel > 0 {
		defer time.AfterFunc(s.cancel, cancel).Stop()
	}
	err := r.Run(ctx, s.root)
	for _, event := range s.events {
		if _, why, failed := strings.Cut(" "+event, " failed "+s.root.ID+": "); failed {
			s.err = cmp.Or(s.err, why)
		}
	}
	must.Equal(t, "error", s.err, must.Text(err))
	must.Equal(t, "kind", s.kind, fault.KindOf(err))
}

func TestRunOrderAndGoals(t *testing.T) {
	t.Parallel()
	stories := map[string]story{
		"in source order": {
			root: branch("roll", leaf("b", work), leaf("a", work)),
			events: []string{
				"started roll", "started roll/b", "done roll/b", "started roll/a", "done roll/a", "done roll",
			},
		},
		"goal already met": {
			root:   branch("roll", withGoal(leaf("a", fails), true)),
			events: []string{"started roll", "skipped roll/a: as wanted", "done roll"},
		},
		"goal met by the work": {
			root:   withGoal(leaf("a", work), false),
			events: []string{"started a", "done a: as wanted"},
		},
		"goal unmet after the work": {
			root:   skips(leaf("a", work), says("", nil), says("", nil)),
			events: []string{"started a", "failed a: a: \"a\" was done, and its goal is not reached"},
		},
		"another thing is there instead": {
			root:   lacking(says("it is red", nil)),
			events: []string{"started a", `failed a: a: "paint it green" was done, and its goal is not reached: it is red`},
		},
		"what is there instead cannot be read": {
			root:   lacking(says("", errBroken)),
			events: []string{"started a", `failed a: a: "paint it green" was done, and its goal is not reached; what is there instead can't be read: broken`},
		},
		"nothing is there instead": {
			root:   lacking(says("", nil)),
			events: []string{"started a", `failed a: a: "paint it green" was done, and its goal is not reached`},
		},
		"the world cannot be asked before": {
			root:   skips(leaf("a", work), says("", errBroken)),
			events: []string{"failed a: a: check whether it is needed: broken"},
		},
		"the world cannot be asked after": {
			root:   skips(leaf("a", work), says("", nil), says("", errBroken)),
			events: []string{"started a", "failed a: a: check its goal: broken"},
		},
		"a step with nothing to do": {
			root:   step.Step{ID: "a"},
			events: []string{"started a", "done a"},
		},
		"a branch whose goal is met lists no steps": {
			root: skips(step.Step{ID: "a", Steps: func(context.Context) ([]step.Step, error) {
				panic("asked for steps")
			}}, says("nothing to do", nil)),
			events: []string{"skipped a: nothing to do"},
		},
		"a branch's goal unmet after its steps": {
			root: skips(branch("a", leaf("b", work)), says("", nil), says("", nil)),
			events: []string{
				"started a", "started a/b", "done a/b", "failed a: a: \"a\" was done, and its goal is not reached",
			},
		},
		"steps cannot be listed": {
			root:   step.Step{ID: "a", Steps: func(context.Context) ([]step.Step, error) { return nil, errBroken }},
			events: []string{"started a", "failed a: a: list its steps: broken"},
		},
	}
	must.Each(t, stories, inOrder)
}

func TestRunFailures(t *testing.T) {
	t.Parallel()
	stories := map[string]story{
		"a failure starts nothing after it": {
			root: branch("roll", branch("wk1", leaf("park", fails), leaf("delete", work)), branch("wk2", leaf("park", work))),
			events: []string{
				"started roll", "started roll/wk1", "started roll/wk1/park", "failed roll/wk1/park: roll/wk1/park: broken",
				"not started roll/wk1/delete", "failed roll/wk1: roll/wk1/park: broken", "not started roll/wk2",
				"failed roll: roll/wk1/park: broken",
			},
		},
		"a failure ends the whole branch it is in, and those around it": {
			root: branch("roll",
				whole(branch("wk1", whole(branch("take-down", leaf("park", fails), leaf("delete", work))), leaf("create", work))),
				leaf("report", work)),
			events: []string{
				"started roll", "started roll/wk1", "started roll/wk1/take-down", "started roll/wk1/take-down/park",
				"failed roll/wk1/take-down/park: roll/wk1/take-down/park: broken", "not started roll/wk1/take-down/delete",
				"failed roll/wk1/take-down: roll/wk1/take-down/park: broken", "not started roll/wk1/create",
				"failed roll/wk1: roll/wk1/take-down/park: broken", "not started roll/report",
				"failed roll: roll/wk1/take-down/park: broken",
			},
		},
		"a failure keeps its kind": {
			root:   leaf("gate", func(context.Context) error { return fault.Refusedf("no quorum") }),
			events: []string{"started gate", "failed gate: gate: no quorum"},
			kind:   fault.Refused,
		},
	}
	must.Each(t, stories, inOrder)
}

func with(change func(*step.Step)) func(step.Step) step.Step {
	return func(s step.Step) step.Step {
		change(&s)
		return s
	}
}

var (
	whole     = with(func(s *step.Step) { s.Whole = true })
	yields    = with(func(s *step.Step) { s.Yields = true })
	closes    = with(func(s *step.Step) { s.Alone, s.Closes = true, true })
	alone     = with(func(s *step.Step) { s.Alone = true })
	lookAhead = with(func(s *step.Step) { s.LookAhead = 1 })
)

func TestRunChecksStepsBeforeAnyRuns(t *testing.T) {
	t.Parallel()
	ran := func(context.Context) error { panic("ran") }
	type example struct {
		root  step.Step
		slots map[string]int
		err   string
	}
	cases := map[string]example{
		"closes beside others": {
			root: branch("r", step.Step{ID: "close", Closes: true, Do: ran}),
			err:  `r: step "close" closes its branch: it must be Alone, without Ahead steps`,
		},
		"no ID":        {root: step.Step{Title: "create it"}, err: `step 1 ("create it") has no ID`},
		"slash":        {root: leaf("a/b", ran), err: `step "a/b": an ID is one part of a path and has no slash`},
		"same ID":      {root: branch("r", leaf("a", ran), leaf("a", ran)), err: `r: two steps have the ID "a"`},
		"Do and Steps": {root: step.Step{ID: "a", Do: ran, Steps: branch("a").Steps}, err: `step "a" has both Do and Steps`},
		"a slot without room": {
			root: leaf("a", ran), slots: map[string]int{"host/pve1": 0},
			err: `slot "host/pve1" has room for 0 steps: nothing could ever take it`,
		},
		"slots out of order": {
			root: uses(branch("a", uses(leaf("b", ran), "control-plane")), "host/pve1"),
			err:  `a: step "b" takes slot "control-plane" while an ancestor holds "host/pve1": slots are taken in name order, so take it in the ancestor`,
		},
		"every problem at once": {
			root: branch("r", leaf("", ran), leaf("a/b", ran)),
			err:  "r: step 1 (\"\") has no ID\nstep \"a/b\": an ID is one part of a path and has no slash",
		},
	}
	must.Each(t, cases, func(t *testing.T, c example) {
		must.Equal(t, "error", c.err, must.Text((&step.Runner{Slots: c.slots}).Run(t.Context(), c.root)))
	})
}

func uses(s step.Step, slots ...string) step.Step {
	s.Uses = slots
	return s
}

func TestRunDescribesEvents(t *testing.T) {
	t.Parallel()
	var got []step.Event
	r := step.Runner{Emit: func(e step.Event) { got = append(got, e) }}
	s := step.Step{ID: "delete-vm", Title: "delete VM 101", Risk: step.Destructive}
	s.Do = func(context.Context) error {
		r.Note("delete-vm", "task is running")
		return nil
	}
	must.Do(t, r.Run(t.Context(), s))
	want := []step.Event{
		{Path: "delete-vm", Kind: "delete-vm", Title: "delete VM 101", Risk: step.Destructive, Status: step.Started},
		{Path: "delete-vm", Status: step.Note, Text: "task is running"},
		{Path: "delete-vm", Kind: "delete-vm", Title: "delete VM 101", Risk: step.Destructive, Status: step.Done},
	}
	must.Equal(t, "events", want, got)
}

func TestRunDoesNotCatchPanics(t *testing.T) {
	t.Parallel()
	defer func() { must.Equal(t, "recovered", "a bug", fmt.Sprint(recover())) }()
	var r step.Runner
	err := r.Run(t.Context(), branch("a", leaf("b", func(context.Context) error { panic("a bug") })))
	t.Errorf("Run returned %v", err)
}

// maxRunAllocations limits a tree of 100 steps, with what it takes to list them.
const maxRunAllocations = 1_700

// This measures the engine alone: a tree of 100 steps whose goals are all unmet at first.
func BenchmarkRun(b *testing.B) {
	b.ReportAllocs()
	allocated := heap.Count()
	for b.Loop() {
		var nodes []step.Step
		for i := range 10 {
			var steps []step.Step
			for j := range 10 {
				steps = append(steps, withGoal(uses(leaf(fmt.Sprint("step", j), work), "host"), false))
			}
			nodes = append(nodes, whole(limit(2, branch(fmt.Sprint("node", i), steps...))))
		}
		must.Do(b, (&step.Runner{Slots: map[string]int{"host": 2}}).Run(b.Context(), branch("roll", nodes...)))
	}
	each := allocated() / uint64(b.N)
	must.Hold(b, each <= maxRunAllocations, "%d allocations for 100 steps, more than %d", each, maxRunAllocations)
}

// An event has the kind of its step, and none for a branch.
func TestKinds(t *testing.T) {
	t.Parallel()
	got := map[string]string{}
	r := step.Runner{Emit: func(e step.Event) { got[e.Path] = e.Kind }}
	park := step.Step{ID: "scsi1", Kind: "park-disk", Do: work}
	must.Do(t, r.Run(t.Context(), branch("roll", branch("wk1", leaf("drain", work), park), whole(branch("none")))))
	want := map[string]string{"roll": "", "roll/wk1": "", "roll/wk1/drain": "drain", "roll/wk1/scsi1": "park-disk", "roll/none": ""}
	must.Equal(t, "kinds", want, got)
}

func TestFailuresHaveTheCodeOfTheirStep(t *testing.T) {
	t.Parallel()
	fails := func(err error) func(context.Context) error { return func(context.Context) error { return err } }
	what := errors.New("what")
	type example struct {
		child step.Step
		want  fault.Code
	}
	cases := map[string]example{
		"of the branch":       {step.Step{ID: "a", Do: fails(what)}, fault.ParkedHalf},
		"of its own":          {step.Step{ID: "a", Code: fault.DrainBlocked, Do: fails(what)}, fault.DrainBlocked},
		"of the error itself": {step.Step{ID: "a", Code: fault.DrainBlocked, Do: fails(fault.NoQuorum.Of(what))}, fault.NoQuorum},
		"of a failing Skip":   {step.Step{ID: "a", Code: fault.NoBoot, Skip: func(context.Context) (string, error) { return "", what }}, fault.NoBoot},
		"of an unmet goal":    {step.Step{ID: "a", Code: fault.NoBoot, Skip: func(context.Context) (string, error) { return "", nil }}, fault.NoBoot},
	}
	must.Each(t, cases, func(t *testing.T, c example) {
		var seen error
		run := &step.Runner{Emit: func(e step.Event) {
			if e.Path == "root/a" && e.Status == step.Failed {
				seen = e.Err
			}
		}}
		err := run.Run(t.Context(), step.Step{ID: "root", Code: fault.ParkedHalf, Steps: func(context.Context) ([]step.Step, error) {
			return []step.Step{c.child}, nil
		}})
		must.Hold(t, fault.CodeOf(err) == c.want && fault.CodeOf(seen) == c.want,
			"code %q, of the event %q, want %q", fault.CodeOf(err), fault.CodeOf(seen), c.want)
	})
}

// TestContextOfSteps: Skip and Do of a step get its context, below that of its branch, and one event ends it.
func TestContextOfSteps(t *testing.T) {
	t.Parallel()
	type key struct{}
	within := func(ctx context.Context) string { text, _ := ctx.Value(key{}).(string); return text }
	var said log
	asks := func(id string) step.Step {
		return step.Step{
			ID:   id,
			Skip: func(ctx context.Context) (string, error) { return "asked in" + within(ctx), nil },
		}
	}
	does := leaf("does", func(ctx context.Context) error { return fmt.Errorf("done in%s", within(ctx)) })
	r := step.Runner{
		Emit: said.add,
		Context: func(ctx context.Context, path string) context.Context {
			return context.WithValue(ctx, key{}, within(ctx)+" "+path)
		},
	}
	err := r.Run(t.Context(), branch("roll", asks("asks"), does, leaf("late", work)))
	must.Hold(t, err != nil, "nothing failed")
	want := log{
		"started roll",
		"skipped roll/asks: asked in roll roll/asks",
		"started roll/does", "failed roll/does: roll/does: done in roll roll/does",
		"not started roll/late",
		"failed roll: roll/does: done in roll roll/does",
	}
	must.Equal(t, "events", want, said)
}

// diary records when steps start and end, in seconds.
type diary struct {
	start time.Time

	mu    sync.Mutex
	lines []string
}

func (l *diary) see(e step.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, fmt.Sprintf("%.0f %s %s", time.Since(l.start).Seconds(), e.Path, e.Status))
}

func takes(id string, seconds int, err error) step.Step {
	return step.Step{ID: id, Do: func(context.Context) error {
		time.Sleep(time.Duration(seconds) * time.Second)
		return err
	}}
}

func nodeStep(id string, pull int, err error) step.Step {
	return step.Step{
		ID: id, Whole: true, Uses: []string{"turn"}, Ahead: []step.Step{takes("pull", pull, err)},
		Steps: func(context.Context) ([]step.Step, error) { return []step.Step{takes("roll", 10, nil)}, nil },
	}
}

// Ahead steps run while earlier siblings run, for at most LookAhead children, and the
// order of the children does not change.
func TestAhead(t *testing.T) {
	t.Parallel()
	failed := errors.New("no such image")
	type example struct {
		root step.Step
		want string
		err  bool
	}
	cases := map[string]example{
		"one ahead": {
			root: step.Step{ID: "r", LookAhead: 1, Steps: step.List(nodeStep("a", 3, nil), nodeStep("b", 8, nil), nodeStep("c", 1, nil))},
			want: "0 a/pull started;3 a/roll started;13 b/roll started;23 c/roll started;0 b/pull started;13 c/pull started",
		},
		"the order stays": {
			root: step.Step{ID: "r", LookAhead: 2, Steps: step.List(nodeStep("a", 3, nil), nodeStep("b", 30, nil), nodeStep("c", 1, nil))},
			want: "3 a/roll started;30 b/roll started;40 c/roll started;0 c/pull started",
		},
		"a failure lets what was begun end, and no other begin": {
			root: step.Step{ID: "r", LookAhead: 1, Steps: step.List(nodeStep("a", 3, nil), nodeStep("b", 8, failed), nodeStep("c", 1, nil))},
			want: "13 a done;8 b/pull failed;8 b failed;13 c not started", err: true,
		},
		"beside": {
			root: step.Step{ID: "r", Steps: step.List(takes("a", 5, nil), takes("b", 7, nil), step.Step{ID: "c", Beside: true, Do: takes("", 3, nil).Do}, takes("d", 1, nil))},
			want: "5 b started;5 c started;8 c done;12 b done;12 d started",
		},
	}
	must.Bubbles(t, cases, func(t *testing.T, c example) {
		l := &diary{start: time.Now()}
		err := (&step.Runner{Emit: l.see}).Run(t.Context(), c.root)
		must.Hold(t, (err != nil) == c.err, "error %v", err)
		have := "\n" + strings.ReplaceAll(strings.Join(l.lines, "\n"), " r/", " ") + "\n"
		for want := range strings.SplitSeq(c.want, ";") {
			must.Hold(t, strings.Contains(have, "\n"+want+"\n"), "no %q in:%s", want, have)
		}
	})
}

// A quiet branch emits only the events of its children.
func TestQuiet(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		l := &diary{start: time.Now()}
		root := step.Step{ID: "r", Steps: step.List(step.Step{ID: "n", Quiet: true, Steps: step.List(takes("a", 1, nil))})}
		must.Do(t, (&step.Runner{Emit: l.see}).Run(t.Context(), root))
		must.Equal(t, "events", []string{"0 r started", "0 r/n/a started", "1 r/n/a done", "1 r done"}, l.lines)
	})
}

func TestRunSlots(t *testing.T) {
	t.Parallel()
	stories := map[string]story{
		"as many as the limit": {
			root: limit(2, branch("r", leaf("a", lasts(1*second)), leaf("b", lasts(3*second)), leaf("c", lasts(1*second)))),
			events: []string{
				"0s started r", "0s started r/a", "0s started r/b", "1s done r/a", "1s started r/c", "2s done r/c",
				"3s done r", "3s done r/b",
			},
		},
		"one at a time in a slot": {
			root: limit(2, branch("r", uses(leaf("a", lasts(1*second)), "host/pve1"), late(uses(leaf("b", lasts(1*second)), "host/pve1", "host/pve1")))),
			events: []string{
				"0s started r", "0s started r/a", "0s started r/late", "0s started r/late/wait", "1ms done r/late/wait",
				"1s done r/a", "1s started r/late/b", "2s done r", "2s done r/late", "2s done r/late/b",
			},
		},
		"slots are shared over the tree and have room": {
			root: limit(2, branch("r",
				limit(2, branch("x", uses(leaf("a", lasts(1*second)), "disk"), uses(leaf("b", lasts(1*second)), "disk"))),
				branch("y", leaf("wait", lasts(second/2)), uses(leaf("c", lasts(1*second)), "disk")))),
			slots: map[string]int{"disk": 2},
			events: []string{
				"0s started r", "0s started r/x", "0s started r/x/a", "0s started r/x/b", "0s started r/y", "0s started r/y/wait",
				"500ms done r/y/wait", "1s done r/x", "1s done r/x/a", "1s done r/x/b", "1s started r/y/c",
				"2s done r", "2s done r/y", "2s done r/y/c",
			},
		},
		"a slot is taken before the world is asked": {
			root: limit(2, branch("r", uses(leaf("a", lasts(1*second)), "s"), late(uses(sleepy(leaf("b", work), 2*second), "s")))),
			events: []string{
				"0s started r", "0s started r/a", "0s started r/late", "0s started r/late/wait", "1ms done r/late/wait",
				"1s done r/a", "3s skipped r/late/b: slept", "3s done r/late", "3s done r",
			},
		},
		"what a step around holds is not taken again": {
			root: uses(branch("r", uses(leaf("a", lasts(1*second)), "s", "t"), uses(leaf("b", work), "s")), "s"),
			events: []string{
				"0s started r", "0s started r/a", "1s done r", "1s done r/a", "1s done r/b", "1s started r/b",
			},
		},
		"many slots in opposite order do not block each other": {
			root: limit(2, branch("r", uses(leaf("a", lasts(1*second)), "s", "t"), late(uses(leaf("b", lasts(1*second)), "t", "s")))),
			events: []string{
				"0s started r", "0s started r/a", "0s started r/late", "0s started r/late/wait", "1ms done r/late/wait",
				"1s done r/a", "1s started r/late/b", "2s done r", "2s done r/late", "2s done r/late/b",
			},
		},
	}
	must.Each(t, stories, inBubble)
}

// timed collects events with the time since the start: "3s done roll/a".
type timed struct {
	start time.Time
	log
}

func newTimed() *timed { return &timed{start: time.Now()} }

func (l *timed) add(e step.Event) {
	l.log.add(e)
	last := &l.log[len(l.log)-1]
	*last = fmt.Sprintf("%s %s", time.Since(l.start), *last)
}

// sorted orders events of the same instant by their text.
func (l *timed) sorted() []string {
	at := func(s string) time.Duration {
		var d string
		_, _ = fmt.Sscan(s, &d) // every line starts with one
		v, _ := time.ParseDuration(d)
		return v
	}
	slices.SortStableFunc(l.log, func(a, b string) int { return cmp.Or(cmp.Compare(at(a), at(b)), cmp.Compare(a, b)) })
	return l.log
}

func lasts(d time.Duration) func(context.Context) error {
	return func(ctx context.Context) error {
		select {
		case <-time.After(d):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func then(do, next func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		if err := do(ctx); err != nil {
			return err
		}
		return next(ctx)
	}
}

func limit(n int, s step.Step) step.Step {
	s.Limit = n
	return s
}

// late is a branch that sleeps for a millisecond, so that its sibling is first.
func late(s step.Step) step.Step { return branch("late", leaf("wait", lasts(ms)), s) }

const (
	second = time.Second
	ms     = time.Millisecond
)

// inBubble checks a story with the times of its events; those of the same instant may be in any order.
func inBubble(t *testing.T, s story) {
	synctest.Test(t, func(t *testing.T) {
		got, want := newTimed(), timed{log: s.events}
		s.run(t, got.add)
		must.Equal(t, "events", want.sorted(), got.sorted())
	})
}

func refuses(context.Context) error { return fault.Refusedf("no quorum") }

func sleepy(s step.Step, d time.Duration) step.Step {
	s.Skip = func(context.Context) (string, error) {
		time.Sleep(d)
		return "slept", nil
	}
	return s
}

// TestOnce: goals that follow each other directly read once; after something was done, after a
// while, beside others and within a Do everything is read.
func TestOnce(t *testing.T) {
	t.Parallel()
	var reads []string
	goal := func(by, reason string) func(context.Context) (string, error) {
		return func(ctx context.Context) (string, error) {
			_, err := step.Once(ctx, "vm", func() (int, error) {
				reads = append(reads, by)
				return 1, nil
			})
			return reason, err
		}
	}
	again := func(by string, lasts time.Duration) step.Step { // its goal is met once it was done
		done := false
		return step.Step{
			ID: by,
			Skip: func(ctx context.Context) (string, error) {
				reason, err := goal(by, "met")(ctx)
				if !done {
					reason = ""
				}
				return reason, err
			},
			Do: func(ctx context.Context) error {
				time.Sleep(lasts)
				done = true
				_, err := goal(by+" at work", "")(ctx)
				return err
			},
		}
	}
	for name, tc := range map[string]struct {
		steps []step.Step
		limit int
		want  string
	}{
		"nothing to do":     {[]step.Step{{ID: "a", Skip: goal("a", "met")}, {ID: "b", Skip: goal("b", "met")}}, 0, "r"},
		"done":              {[]step.Step{again("a", 0), again("b", 0)}, 0, "r, a at work, a, b at work, b"},
		"beside each other": {[]step.Step{{ID: "a", Alone: true, Skip: goal("a", "met")}, {ID: "b", Skip: goal("b", "met")}}, 2, "r, a, b, r"},
		"listed, then later": {[]step.Step{{ID: "a", Do: func(context.Context) error { return nil }}, {ID: "b", Skip: func(ctx context.Context) (string, error) {
			if _, err := goal("b", "")(ctx); err != nil {
				return "", err
			}
			time.Sleep(time.Second)
			return goal("b later", "met")(ctx)
		}}}, 0, "r, b, b later"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				reads = nil
				met := false
				root := step.Step{ID: "r", Limit: tc.limit, Steps: step.List(tc.steps...), Skip: func(ctx context.Context) (string, error) {
					reason, err := goal("r", "met")(ctx)
					if !met {
						met, reason = true, ""
					}
					return reason, err
				}}
				must.Do(t, new(step.Runner).Run(t.Context(), root))
				must.Equal(t, "read by", tc.want, strings.Join(reads, ", "))
			})
		})
	}
}

// TestOnceSharesErrors: the next goal gets the same error, and outside of steps everything is read.
func TestOnceSharesErrors(t *testing.T) {
	t.Parallel()
	gone, reads := errors.New("gone"), 0
	read := func(ctx context.Context) (string, error) {
		_, err := step.Once(ctx, "vm", func() (int, error) {
			reads++
			return 0, gone
		})
		if errors.Is(err, gone) {
			return "it is gone", nil
		}
		return "", err
	}
	root := step.Step{ID: "r", Steps: step.List(step.Step{ID: "a", Skip: read}, step.Step{ID: "b", Skip: read})}
	if err := new(step.Runner).Run(t.Context(), root); err != nil || reads != 1 {
		t.Errorf("%v, read %d times", err, reads)
	}
	for range 2 {
		must.Get(read(t.Context()))(t)
	}
	must.Hold(t, reads == 3, "read %d times", reads)
}

func TestRunFailuresAmongSiblings(t *testing.T) {
	t.Parallel()
	stories := map[string]story{
		"a failure lets started work end, but starts nothing": {
			root: limit(2, branch("r",
				leaf("bad", then(lasts(1*second), fails)),
				branch("x", leaf("a", lasts(2*second)), leaf("b", work)),
				leaf("c", work))),
			events: []string{
				"0s started r", "0s started r/bad", "0s started r/x", "0s started r/x/a", "1s failed r/bad: r/bad: broken",
				"1s not started r/c", "2s done r/x/a", "2s failed r: r/bad: broken", "2s not started r/x/b", "2s stopped r/x",
			},
		},
		"a failure lets a started whole branch run to its end, and starts no other": {
			root: limit(2, branch("r",
				whole(branch("wk1", leaf("a", lasts(2*second)), whole(branch("b", leaf("c", lasts(1*second)))))),
				whole(branch("wk2", leaf("a", then(lasts(1*second), fails)), leaf("b", work))),
				whole(branch("wk3", leaf("a", work))))),
			events: []string{
				"0s started r", "0s started r/wk1", "0s started r/wk1/a", "0s started r/wk2", "0s started r/wk2/a",
				"1s failed r/wk2/a: r/wk2/a: broken", "1s failed r/wk2: r/wk2/a: broken", "1s not started r/wk2/b", "1s not started r/wk3",
				"2s done r/wk1/a", "2s started r/wk1/b", "2s started r/wk1/b/c",
				"3s done r/wk1", "3s done r/wk1/b", "3s done r/wk1/b/c", "3s failed r: r/wk2/a: broken",
			},
		},
		"all failures are reported, and they agree on a kind": {
			root: limit(2, branch("r", leaf("a", then(lasts(2*second), refuses)), leaf("b", then(lasts(1*second), refuses)))),
			events: []string{
				"0s started r", "0s started r/a", "0s started r/b", "1s failed r/b: r/b: no quorum", "2s failed r/a: r/a: no quorum",
				"2s failed r: r/a: no quorum\nr/b: no quorum",
			},
			kind: fault.Refused,
		},
		"failures of two kinds": {
			root: limit(2, branch("r", leaf("a", then(lasts(1*second), refuses)), leaf("b", then(lasts(2*second), fails)))),
			events: []string{
				"0s started r", "0s started r/a", "0s started r/b", "1s failed r/a: r/a: no quorum", "2s failed r/b: r/b: broken",
				"2s failed r: r/a: no quorum\nr/b: broken",
			},
			kind: fault.Failed,
		},
	}
	must.Each(t, stories, inBubble)
}

func TestStop(t *testing.T) {
	t.Parallel()
	stories := map[string]story{
		"stop": {
			root: branch("r", whole(branch("wk1", leaf("a", lasts(2*second)), leaf("b", lasts(1*second)))), branch("wk2"), branch("wk3")),
			stop: 1 * second,
			events: []string{
				"0s started r", "0s started r/wk1", "0s started r/wk1/a", "2s done r/wk1/a", "2s started r/wk1/b",
				"3s done r/wk1", "3s done r/wk1/b", "3s not started r/wk2", "3s not started r/wk3", "3s stopped r",
			},
			err: "stopped; not started: r/wk2, r/wk3", kind: fault.Interrupted,
		},
		"stop while waiting for a slot": {
			root: limit(2, branch("r", uses(leaf("a", lasts(3*second)), "s", "t"), late(uses(leaf("b", work), "r", "t")))),
			stop: 1 * second,
			events: []string{
				"0s started r", "0s started r/a", "0s started r/late", "0s started r/late/wait", "1ms done r/late/wait",
				"1s not started r/late/b", "1s stopped r/late", "3s done r/a", "3s stopped r",
			},
			err: "stopped; not started: r/late/b", kind: fault.Interrupted,
		},
		"stop does not end the wait for a slot within a whole branch": {
			root: limit(2, branch("r", uses(leaf("a", lasts(3*second)), "s"), whole(late(uses(leaf("b", work), "s"))))),
			stop: 1 * second,
			events: []string{
				"0s started r", "0s started r/a", "0s started r/late", "0s started r/late/wait", "1ms done r/late/wait",
				"3s done r", "3s done r/a", "3s done r/late", "3s done r/late/b", "3s started r/late/b",
			},
		},
		"stop while the world is asked": {
			root: branch("r", whole(skips(branch("wk1", leaf("a", work)), func() (string, error) {
				time.Sleep(2 * second)
				return "", nil
			}))),
			stop:   1 * second,
			events: []string{"0s started r", "2s not started r/wk1", "2s stopped r"},
			err:    "stopped; not started: r/wk1", kind: fault.Interrupted,
		},
		"stop after everything has started": {
			root:   branch("r", leaf("a", lasts(2*second))),
			stop:   1 * second,
			events: []string{"0s started r", "0s started r/a", "2s done r", "2s done r/a"},
		},
		"a failure outweighs a stop": {
			root: branch("r", leaf("a", then(lasts(2*second), refuses)), leaf("b", work)),
			stop: 1 * second,
			events: []string{
				"0s started r", "0s started r/a", "2s failed r/a: r/a: no quorum", "2s failed r: r/a: no quorum", "2s not started r/b",
			},
			err: "r/a: no quorum\nstopped; not started: r/b", kind: fault.Refused,
		},
	}
	must.Each(t, stories, inBubble)
}

func TestCancel(t *testing.T) {
	t.Parallel()
	stories := map[string]story{
		"cancel ends whole branches too": {
			root:   branch("r", whole(branch("wk1", leaf("a", lasts(2*second)), leaf("b", work)))),
			stop:   second / 2,
			cancel: 1 * second,
			events: []string{
				"0s started r", "0s started r/wk1", "0s started r/wk1/a", "1s failed r/wk1/a: r/wk1/a: context canceled",
				"1s failed r/wk1: r/wk1/a: context canceled", "1s failed r: r/wk1/a: context canceled", "1s not started r/wk1/b",
			},
			err:  "r/wk1/a: context canceled\nnot started: r/wk1/b: context canceled",
			kind: fault.Interrupted,
		},
		"cancel while a step ends well, so that nobody can be asked about its goal": {
			root:   skips(leaf("a", func(context.Context) error { time.Sleep(2 * second); return nil }), says("", nil), says("", nil)),
			cancel: 1 * second,
			events: []string{"0s started a", "2s failed a: a: check its goal: context canceled"},
			kind:   fault.Interrupted,
		},
		"cancel while waiting for a slot within a whole branch": {
			root: limit(2, branch("r",
				uses(leaf("a", func(context.Context) error { time.Sleep(3 * second); return nil }), "s"),
				whole(late(uses(leaf("b", work), "s"))))),
			cancel: 1 * second,
			events: []string{
				"0s started r", "0s started r/a", "0s started r/late", "0s started r/late/wait", "1ms done r/late/wait",
				"1s not started r/late/b", "1s stopped r/late", "3s done r/a", "3s stopped r",
			},
			err: "not started: r/late/b: context canceled", kind: fault.Interrupted,
		},
	}
	must.Each(t, stories, inBubble)
}

func TestDeadlineIsAFailure(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 1*second)
		defer cancel()
		var r step.Runner
		err := r.Run(ctx, branch("r", leaf("a", func(context.Context) error { time.Sleep(2 * second); return nil }), leaf("b", work)))
		must.Hold(t, errors.Is(err, context.DeadlineExceeded) && fault.KindOf(err) == fault.Failed,
			"err = %v of kind %v", err, fault.KindOf(err))
	})
}

func TestStopHoldsForLaterRuns(t *testing.T) {
	t.Parallel()
	var got log
	r := step.Runner{Emit: got.add}
	r.Stop()
	err := r.Run(t.Context(), leaf("a", work))
	must.Equal(t, "events", log{"not started a"}, got)
	must.Hold(t, must.Text(err) == "stopped; not started: a" && fault.KindOf(err) == fault.Interrupted,
		"err = %v of kind %v", err, fault.KindOf(err))
}

// A failed Run does not affect the next one.
func TestRunAgainAfterFailure(t *testing.T) {
	t.Parallel()
	broken := true
	root := branch("r", uses(leaf("a", func(context.Context) error {
		if broken {
			return errBroken
		}
		return nil
	}), "s"))
	var r step.Runner
	err := r.Run(t.Context(), root)
	must.Be(t, errors.Is(err, errBroken), "err = %v", err)
	broken = false
	must.Do(t, r.Run(t.Context(), root))
}

// A step that only waits does not delay the end of a stopped run.
func TestYields(t *testing.T) {
	t.Parallel()
	stories := map[string]story{
		"it runs to its end": {
			root:   branch("r", whole(branch("wk1", yields(leaf("wait", lasts(2*second))), leaf("a", work)))),
			events: []string{"0s started r", "0s started r/wk1", "0s started r/wk1/wait", "2s done r", "2s done r/wk1", "2s done r/wk1/a", "2s done r/wk1/wait", "2s started r/wk1/a"},
		},
		"stop cuts it off, and what follows in its whole branch": {
			root: branch("r", whole(branch("wk1", yields(leaf("wait", lasts(2*second))), leaf("a", work))), whole(branch("wk2", leaf("a", work)))),
			stop: 1 * second,
			events: []string{
				"0s started r", "0s started r/wk1", "0s started r/wk1/wait", "1s failed r/wk1/wait: r/wk1/wait: context canceled",
				"1s failed r/wk1: r/wk1/wait: context canceled", "1s failed r: r/wk1/wait: context canceled", "1s not started r/wk1/a", "1s not started r/wk2",
			},
			err: "r/wk1/wait: context canceled\nstopped; not started: r/wk1/a, r/wk2", kind: fault.Interrupted,
		},
		"one that is stopped before is cut off at once": {
			root: branch("r", whole(branch("wk1", leaf("a", lasts(2*second)), yields(leaf("wait", lasts(2*second)))))),
			stop: 1 * second,
			events: []string{
				"0s started r", "0s started r/wk1", "0s started r/wk1/a", "2s done r/wk1/a", "2s failed r/wk1/wait: r/wk1/wait: context canceled",
				"2s failed r/wk1: r/wk1/wait: context canceled", "2s failed r: r/wk1/wait: context canceled", "2s started r/wk1/wait",
			},
			kind: fault.Interrupted,
		},
		"the failure of a sibling cuts it off, and decides": {
			root: limit(2, branch("r",
				whole(branch("wk1", yields(leaf("wait", lasts(5*second))), leaf("a", work))),
				whole(branch("wk2", leaf("bad", then(lasts(1*second), refuses)))))),
			events: []string{
				"0s started r", "0s started r/wk1", "0s started r/wk1/wait", "0s started r/wk2", "0s started r/wk2/bad",
				"1s failed r/wk2/bad: r/wk2/bad: no quorum", "1s failed r/wk1/wait: r/wk1/wait: context canceled", "1s failed r/wk1: r/wk1/wait: context canceled",
				"1s failed r/wk2: r/wk2/bad: no quorum", "1s failed r: r/wk1/wait: context canceled\nr/wk2/bad: no quorum", "1s not started r/wk1/a",
			},
			kind: fault.Refused,
		},
	}
	must.Each(t, stories, inBubble)
}

// A step that closes a branch runs only if all siblings before it succeeded.
func TestCloses(t *testing.T) {
	t.Parallel()
	wk := func(id string) step.Step {
		return whole(branch(id, leaf("a", lasts(second)), leaf("b", lasts(second))))
	}
	stories := map[string]story{
		"stopped during the last one": {
			root: branch("r", leaf("open", work), wk("wk1"), closes(leaf("close", lasts(1*second))), leaf("next", work)),
			stop: 1 * second,
			events: []string{
				"0s started r", "0s started r/open", "0s done r/open", "0s started r/wk1", "0s started r/wk1/a", "1s done r/wk1/a", "1s started r/wk1/b",
				"2s done r/wk1/b", "2s done r/wk1", "2s started r/close", "3s done r/close", "3s not started r/next", "3s stopped r",
			},
			err: "stopped; not started: r/next", kind: fault.Interrupted,
		},
		"stopped with one to come": {
			root: branch("r", wk("wk1"), leaf("wk2", work), closes(leaf("close", work))),
			stop: 1 * second,
			events: []string{
				"0s started r", "0s started r/wk1", "0s started r/wk1/a", "1s done r/wk1/a", "1s started r/wk1/b",
				"2s done r/wk1/b", "2s done r/wk1", "2s not started r/wk2", "2s not started r/close", "2s stopped r",
			},
			err: "stopped; not started: r/wk2, r/close", kind: fault.Interrupted,
		},
		"several at a time": {
			root: limit(2, branch("r", wk("wk1"), wk("wk2"), closes(leaf("close", lasts(1*second))))),
			stop: 1 * second,
			events: []string{
				"0s started r", "0s started r/wk1", "0s started r/wk1/a", "0s started r/wk2", "0s started r/wk2/a", "1s done r/wk1/a", "1s started r/wk1/b",
				"1s done r/wk2/a", "1s started r/wk2/b", "2s done r/wk1", "2s done r/wk1/b", "2s done r/wk2", "2s done r/wk2/b", "2s started r/close", "3s done r/close", "3s done r",
			},
		},
		"another branch fails": {
			root: limit(2, branch("r", leaf("bad", then(lasts(1*second), fails)), lookAhead(branch("x", wk("wk1"), closes(leaf("close", lasts(1*second))))))),
			events: []string{
				"0s started r", "0s started r/bad", "0s started r/x", "0s started r/x/wk1", "0s started r/x/wk1/a", "1s failed r/bad: r/bad: broken",
				"1s done r/x/wk1/a", "1s started r/x/wk1/b", "2s done r/x/wk1/b", "2s done r/x/wk1", "2s started r/x/close", "3s done r/x/close", "3s done r/x", "3s failed r: r/bad: broken",
			},
		},
		"one before it fails": {
			root:   branch("r", leaf("bad", fails), closes(leaf("close", work))),
			events: []string{"0s started r", "0s started r/bad", "0s failed r/bad: r/bad: broken", "0s not started r/close", "0s failed r: r/bad: broken"},
		},
		"it fails itself": {
			root:   branch("r", branch("x", closes(leaf("close", fails))), leaf("next", work)),
			events: []string{"0s started r", "0s started r/x", "0s started r/x/close", "0s failed r/x/close: r/x/close: broken", "0s failed r/x: r/x/close: broken", "0s not started r/next", "0s failed r: r/x/close: broken"},
		},
		"cancelled": {
			root:   branch("r", leaf("a", func(ctx context.Context) error { <-ctx.Done(); return nil }), closes(leaf("close", work))),
			cancel: 1 * second,
			events: []string{"0s started r", "0s started r/a", "1s done r/a", "1s not started r/close", "1s stopped r"},
			err:    "not started: r/close: context canceled", kind: fault.Interrupted,
		},
	}
	must.Each(t, stories, inBubble)
}

// A step that runs Alone has no sibling beside it, whatever the Limit is.
func TestAlone(t *testing.T) {
	t.Parallel()
	stories := map[string]story{
		"before, between and behind": {
			root: limit(3, branch("r", alone(leaf("a", lasts(1*second))), leaf("b", lasts(2*second)), leaf("c", lasts(1*second)),
				alone(leaf("d", lasts(1*second))), leaf("e", work), alone(leaf("f", work)))),
			events: []string{
				"0s started r", "0s started r/a", "1s done r/a", "1s started r/b", "1s started r/c", "2s done r/c", "3s done r/b", "3s started r/d",
				"4s done r", "4s done r/d", "4s done r/e", "4s done r/f", "4s started r/e", "4s started r/f",
			},
		},
		"its failure starts no other": {
			root:   limit(2, branch("r", alone(leaf("a", refuses)), leaf("b", work), alone(leaf("c", work)))),
			events: []string{"0s failed r/a: r/a: no quorum", "0s failed r: r/a: no quorum", "0s not started r/b", "0s not started r/c", "0s started r", "0s started r/a"},
			kind:   fault.Refused,
		},
		"it is not started behind a failure": {
			root: limit(2, branch("r", leaf("a", then(lasts(1*second), refuses)), leaf("b", lasts(2*second)), alone(leaf("c", work)))),
			events: []string{
				"0s started r", "0s started r/a", "0s started r/b", "1s failed r/a: r/a: no quorum", "2s done r/b", "2s failed r: r/a: no quorum", "2s not started r/c",
			},
			kind: fault.Refused,
		},
	}
	must.Each(t, stories, inBubble)
}
