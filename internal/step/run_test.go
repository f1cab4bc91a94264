package step_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
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
	must.Equal(t, "error", s.err, message(err))
	must.Equal(t, "kind", s.kind, fault.KindOf(err))
}

func message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
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

func whole(s step.Step) step.Step {
	s.Whole = true
	return s
}

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
		must.Equal(t, "error", c.err, message((&step.Runner{Slots: c.slots}).Run(t.Context(), c.root)))
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
	defer func() {
		must.Equal(t, "recovered", "a bug", fmt.Sprint(recover()))
	}()
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
	if each := allocated() / uint64(b.N); each > maxRunAllocations {
		b.Errorf("%d allocations for 100 steps, more than %d", each, maxRunAllocations)
	}
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
	fails := func(err error) func(context.Context) error {
		return func(context.Context) error { return err }
	}
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
		must.Not(t, fault.CodeOf(err) != c.want || fault.CodeOf(seen) != c.want,
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
	must.Not(t, err == nil, "nothing failed")
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
		must.Not(t, (err != nil) != c.err, "error %v", err)
		have := "\n" + strings.ReplaceAll(strings.Join(l.lines, "\n"), " r/", " ") + "\n"
		for want := range strings.SplitSeq(c.want, ";") {
			must.Not(t, !strings.Contains(have, "\n"+want+"\n"), "no %q in:%s", want, have)
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
