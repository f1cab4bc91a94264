package pipeline

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/claim"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/journal"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/pipeline/past"
	"github.com/recast-sh/recast/schematics"
)

// session is one process that works on a run.
type session struct {
	*work
	t *testing.T
	j *journal.Journal
}

// begin opens the journal of a run, like a roll that executes a plan.
func begin(t *testing.T, p Project, pid int, plan planning.Plan) session {
	t.Helper()
	j := must.Get(journal.Open(p.Runs().Dir, journal.Options{Run: "r"}))(t)
	w := &work{Project: p, command: "roll", o: RollOptions{Holder: claim.Holder{PID: pid, Boot: "b"}}, rep: Report{Plan: plan}}
	s := session{w, t, j}
	s.must(w.keepAbout(j, schematics.Lock{}), w.keepPlan(j), j.Resume())
	return s
}

func (s session) must(errs ...error) {
	s.t.Helper()
	if err := errors.Join(errs...); err != nil {
		s.t.Fatal(err)
	}
}

func (s session) saw(path string, status step.Status) {
	s.tally.see(step.Event{Path: path, Status: status})
}

func (s session) took(node string) {
	s.must(s.j.Put(cluster.TookKey(node), cluster.Took{Node: node, OutageSeconds: 60}))
}

// finish ends the session as carryOut does; without it, the session was killed.
func (s session) finish(outcome string) {
	s.t.Helper()
	s.must(s.keepFates(s.j), s.j.Finish(outcome))
}

// A continued run is reported completely: its original purpose, and the results of all
// sessions. While someone continues it, it has not ended.
func TestContinuedRun(t *testing.T) {
	t.Parallel()
	both := planning.Plan{Cluster: "c1", Nodes: []planning.NodePlan{
		{Node: "wk1", Strategy: cluster.Recreate, Why: "it is stale"}, {Node: "wk2", Strategy: cluster.Recreate, Why: "it is stale"},
	}}
	rest := planning.Plan{Cluster: "c1", Run: "r", Nodes: []planning.NodePlan{{Node: "wk2", Strategy: cluster.Recreate, Resume: true, Why: "run r began to recreate it and did not finish"}}}
	for name, ends := range map[string]bool{"after it failed": true, "after it was killed": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := projectOf(t)
			told := func(gone ...int) string {
				t.Helper()
				r, err := p.Runs().Find("r", past.Options{Holder: claim.Holder{Boot: "b"}, Dead: func(h claim.Holder) bool { return slices.Contains(gone, h.PID) }})
				if err != nil {
					t.Fatal(err)
				}
				done, planned := r.Counted()
				return fmt.Sprintf("%s, %d of %d, ended %t, first planned because %s; %s", r.Result, done, planned, !r.Finished.IsZero(), r.Plan.Nodes[0].Why, strings.Join(r.Problems, "; "))
			}
			require := func(got, want string) {
				t.Helper()
				if want += ", first planned because it is stale; "; got != want {
					t.Errorf("it is told as\n%s, want\n%s", got, want)
				}
			}
			first := begin(t, p, 1, both)
			first.saw("roll/workers/wk1", step.Done)
			first.took("wk1")
			first.saw("roll/workers/wk2", step.Failed)
			if ends {
				first.finish("failed: wk2: no quorum")
				require(told(1), "failed, 1 of 2, ended true")
			} else {
				require(told(1), "killed, 1 of 2, ended false")
			}
			first.must(first.j.Close())

			second := begin(t, p, 2, rest)
			require(told(1), "running, 1 of 2, ended false")
			second.must(second.j.Close())
			require(told(1, 2), "killed, 1 of 2, ended false")

			third := begin(t, p, 3, rest)
			third.saw("roll/unfinished/wk2", step.Done)
			third.finish("done")
			third.must(third.j.Close())
			require(told(1, 2, 3), "done, 2 of 2, ended true")
		})
	}
}

// A roll whose first plan was about reset machines is reported with its own plan, and a
// node that was put back does not count as one that the run has brought to its goal.
func TestTheRunsOwnPlan(t *testing.T) {
	t.Parallel()
	p := projectOf(t)
	reset := planning.Plan{Nodes: []planning.NodePlan{{Node: "wk1", Strategy: cluster.InstallReset}}}
	own := planning.Plan{Nodes: []planning.NodePlan{{Node: "wk2", Strategy: cluster.Recreate}, {Node: "wk3", Strategy: cluster.Recreate}}}
	back := planning.Plan{Run: "r", Nodes: []planning.NodePlan{{Node: "wk3", Strategy: cluster.PutBack}}}
	session := func(plan planning.Plan, fates map[string]step.Status, outcome string) {
		t.Helper()
		s := begin(t, p, 1, plan)
		for node, status := range fates {
			s.saw("roll/workers/"+node, status)
		}
		s.finish(outcome)
		s.must(s.j.Close())
	}
	require := func(want string) {
		t.Helper()
		r := must.Get(p.Runs().Find("r", past.Options{}))(t)
		done, planned := r.Counted()
		must.Equal(t, "it is told", want, fmt.Sprintf("%d of %d, %v", done, planned, *r.Fates))
	}
	session(reset, map[string]step.Status{"wk1": step.Done}, "done")
	session(own, map[string]step.Status{"wk2": step.Done, "wk3": step.Failed}, "failed: x")
	require("1 of 2, {[wk2] [wk3] []}")
	session(back, map[string]step.Status{"wk3": step.Done}, "done")
	require("1 of 2, {[wk2] [] [wk3]}")
}

// The last result of a node counts.
func TestTheLastFateOfANode(t *testing.T) {
	t.Parallel()
	p := projectOf(t)
	plan := planning.Plan{Nodes: []planning.NodePlan{{Node: "wk1", Strategy: cluster.InPlace}, {Node: "wk2", Strategy: cluster.InPlace}, {Node: "wk3", Strategy: cluster.InPlace}}}
	s := begin(t, p, 1, plan)
	s.saw("roll/workers/wk1", step.Done)
	s.saw("roll/workers/wk2", step.Failed)
	s.finish("failed: x")
	s.must(s.j.Close())
	s = begin(t, p, 2, planning.Plan{Run: "r", Nodes: plan.Nodes[:2]})
	s.saw("roll/unfinished/wk1", step.Failed)
	s.saw("roll/unfinished/wk2", step.Done)
	s.finish("failed: x")
	s.must(s.j.Close())
	r := must.Get(p.Runs().Find("r", past.Options{}))(t)
	must.Equal(t, "fates", "{[wk2] [wk1] [wk3]}", fmt.Sprint(*r.Fates))
}

// If a hook after the failed nodes fails, the run ends with that result, unless there
// was a worse one.
func TestAFailedHookAfterTheRun(t *testing.T) {
	t.Parallel()
	for was, want := range map[string]string{
		"done":                "failed: every node is done: hook x: it ended with 3",
		"failed: no quorum":   "failed: no quorum",
		"interrupted: Ctrl-C": "interrupted: Ctrl-C",
	} {
		p := projectOf(t)
		runWith(t, p, "r", was, nil)
		w := &work{Project: p}
		w.hooks.journal = "r"
		must.Do(t, w.noteFailed(errors.New("hook x: it ended with 3")))
		if got, err := p.Runs().Outcome("r"); err != nil || got != want {
			t.Errorf("%q became %q, want %q; %v", was, got, want, err)
		}
	}
}

func TestKeepAbout(t *testing.T) {
	t.Parallel()
	p := projectOf(t)
	lock := schematics.Lock{Version: 1, Talos: "v1.13.9", Schematics: map[string]schematics.Locked{"base": {BuildID: strings.Repeat("b", 64)}}}
	for _, pid := range []int{1, 1, 2} {
		j := must.Get(journal.Open(p.Runs().Dir, journal.Options{Run: "r"}))(t)
		w := &work{Project: p, command: "roll", o: RollOptions{Holder: claim.Holder{PID: pid}, Origin: past.Origin{Recast: "v1"}}}
		must.Do(t, errors.Join(w.keepAbout(j, lock), j.Close()))
	}
	r := must.Get(p.Runs().Find("r", past.Options{}))(t)
	want := &past.About{
		Command: "roll", Cluster: "c1", By: claim.Holder{PID: 1}, GoneOn: []claim.Holder{{PID: 2}}, Origin: past.Origin{Recast: "v1"},
		Talos: "v1.13.9", Lock: lock.Key(),
	}
	must.Equal(t, "about", want, r.About)
}
