package ui

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/claim"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/story"
	"github.com/recast-sh/recast/pipeline"
	"github.com/recast-sh/recast/pipeline/past"
	"github.com/recast-sh/recast/schematics"
)

// pastRuns are a successful run and a killed one.
func pastRuns() []past.Run {
	at := time.Date(2026, 11, 21, 4, 21, 0, 0, time.Local)
	return []past.Run{
		{
			ID: "20261122-0421-beef", Started: at.Add(24 * time.Hour), Result: "killed",
			Plan: &planning.Plan{Nodes: []planning.NodePlan{{Node: "cp1", Strategy: cluster.InPlace}}},
		},
		{
			ID: "20261121-0421-3f2a", Started: at, Finished: at.Add(1871 * time.Second), Result: "done",
			About: &past.About{Command: "roll", By: claim.Holder{Host: "ci", PID: 7}, Origin: past.Origin{Recast: "v0.9.0"}, Was: "v1.13.8", Talos: "v1.13.9", Before: "a", Lock: "b"},
			Plan:  &planning.Plan{Nodes: []planning.NodePlan{{Node: "wk1", Strategy: cluster.Recreate}, {Node: "wk2"}}},
			Fates: &cluster.Fates{Done: []string{"wk1"}},
			Took:  []cluster.Took{{Node: "wk1", Strategy: cluster.Recreate, OutageSeconds: 192}},
		},
	}
}

func noLog(past.Run) story.Story { return story.Story{} }

// leftAway is the log of a run that was killed while a node was down.
func leftAway(r past.Run) story.Story {
	return story.Story{To: r.Started.Add(time.Hour), Turns: []*story.Turn{{Node: "cp1", Began: r.Started, AwayFrom: r.Started.Add(time.Minute)}}}
}

func TestWriteHistory(t *testing.T) {
	t.Parallel()
	type example struct {
		of   History
		want string
	}
	cases := map[string]example{
		"two": {HistoryOf(pastRuns(), []string{"run \"x\": RUN is empty"}, 0, noLog, strings.Clone), `
RUN                 BEGAN             COMMAND  RESULT  NODES  TOOK    AWAY   WHAT
20261122-0421-beef  2026-11-22 04:21  roll     killed  0/1    -       -
20261121-0421-3f2a  2026-11-21 04:21  roll     done    1/1    31m11s  3m12s  Talos v1.13.8 → v1.13.9
could not be read: run "x": RUN is empty
next: recast history RUN shows details, recast history RUN --open its report
`},
		"one of two": {HistoryOf(pastRuns(), nil, 1, noLog, strings.Clone), `
RUN                 BEGAN             COMMAND  RESULT  NODES  TOOK  AWAY  WHAT
20261122-0421-beef  2026-11-22 04:21  roll     killed  0/1    -     -
1 run before those: recast history --limit 0
next: recast history RUN shows details, recast history RUN --open its report
`},
		"one left away": {HistoryOf(pastRuns(), nil, 0, leftAway, strings.Clone), `
RUN                 BEGAN             COMMAND  RESULT  NODES  TOOK    AWAY           WHAT
20261122-0421-beef  2026-11-22 04:21  roll     killed  0/1    -       59m0s or more
20261121-0421-3f2a  2026-11-21 04:21  roll     done    1/1    31m11s  3m12s          Talos v1.13.8 → v1.13.9
next: recast history RUN shows details, recast history RUN --open its report
`},
		"none": {HistoryOf(nil, nil, 20, noLog, strings.Clone), `
no run is known: recast status shows what others have left in Proxmox
`},
	}
	must.Each(t, cases, func(t *testing.T, c example) {
		var b bytes.Buffer
		must.Do(t, WriteHistory(&b, "text", c.of))
		must.Equal(t, "history", c.want[1:], b.String())
	})
}

func TestWriteRun(t *testing.T) {
	t.Parallel()
	run := pastRuns()[1]
	began := run.Started
	run.Problems = []string{"abc"}
	run.Hooks = []planning.HookRun{{Point: cluster.BeforeRun, Command: []string{"h", "abc"}, Output: "token=abc", Description: "abc"}}
	run.About.Changes = []schematics.Change{{Schematic: "base", Reasons: []string{"abc"}}}
	told := story.Story{Turns: []*story.Turn{
		{
			Node: "wk1", Phase: "workers", Title: "recreate wk1 (VM 1 on pve1)", Began: began, Ended: began.Add(200 * time.Second), Status: "failed",
			Error: "no quorum", Hints: []string{"bring it back, abc"}, AwayFrom: began.Add(8 * time.Second),
			Stages: []*story.Stage{
				{Name: "gate", Began: began, Ended: began, Status: "done"},
				{Name: "drain", Began: began, Ended: began.Add(8 * time.Second), Status: "done"},
				{Name: "stop", Began: began.Add(8 * time.Second), Ended: began.Add(200 * time.Second), Status: "failed", Error: "no quorum"},
			},
		},
		{Node: "wk2", Phase: "workers"}, // its turn never came
	}}
	hide := func(s string) string { return strings.ReplaceAll(s, "abc", "[redacted]") }
	var b bytes.Buffer
	must.Do(t, WriteRun(&b, "text", Tell(run, told, "", hide)))
	want := `run 20261121-0421-3f2a: done
  roll by pid 7 on ci, recast v0.9.0
  began ` + clock(began) + `, ended ` + clock(run.Finished) + `, after 31m11s
  Talos v1.13.8 → v1.13.9
  schematic base: build none → none
    [redacted]
  1 of 1 node done
  wk1 recreate failed in 3m20s, away 3m12s, and not seen back by then: drain 8s, stop 3m12s (failed)
      error: no quorum
      hint: bring it back, [redacted]
  1 hook ran, for 0s in all
  could not be read: [redacted]
next: recast history 20261121-0421-3f2a --open shows its report
`
	must.Equal(t, "run", want, b.String())
	b.Reset()
	must.Do(t, WriteRun(&b, "json", Tell(run, told, "r.html", hide)))
	must.Contain(t, "the text", b.String(), `"output": "token=[redacted]"`, `"report": "r.html"`, `"stage": "drain"`, `"awaySeconds": 192`, `"notBack": true`)
	if strings.Contains(b.String(), "abc") {
		t.Errorf("a secret is in %s", b.String())
	}
	b.Reset()
	h := HistoryOf([]past.Run{{ID: "r", Result: "failed", Error: "abc"}}, []string{"abc"}, 0, noLog, hide)
	if err := WriteHistory(&b, "json", h); err != nil || strings.Contains(b.String(), "abc") {
		t.Errorf("a secret is in %s, %v", b.String(), err)
	}
}

// A step without an end is active while its run is, but not a step of another process.
func TestUnfinishedSteps(t *testing.T) {
	t.Parallel()
	run := pastRuns()[0]
	stage := func(cut bool) []*story.Stage { return []*story.Stage{{Name: "drain", Began: run.Started, CutOff: cut}} }
	told := story.Story{Turns: []*story.Turn{
		{Node: "cp1", Title: "in-place", Began: run.Started, Heard: run.Started, CutOff: true, Stages: stage(true)},
		{Node: "cp1", Title: "in-place", Began: run.Started, Heard: run.Started, Stages: stage(false)},
	}}
	for result, want := range map[string]string{
		"running": "cut off in 0s: drain 0s (cut off) | goes on in 0s: drain 0s (goes on)",
		"killed":  "cut off in 0s: drain 0s (cut off) | cut off in 0s: drain 0s (cut off)",
	} {
		run.Result = result
		var b bytes.Buffer
		must.Do(t, WriteRun(&b, "text", Tell(run, told, "", strings.Clone)))
		var got []string
		for line := range strings.Lines(b.String()) {
			if _, turn, found := strings.Cut(line, "cp1 in-place "); found {
				got = append(got, strings.TrimSpace(turn))
			}
		}
		must.Equal(t, "lines", want, strings.Join(got, " | "))
	}
}

// A node that only downloaded its installer in advance had no turn.
func TestFaredOfWhatIsAhead(t *testing.T) {
	t.Parallel()
	p := NewProgress(&bytes.Buffer{})
	p.Emit(step.Event{Path: "roll/workers/wk2/pull", Status: step.Started, Title: "have wk2 fetch the installer"})
	p.Emit(step.Event{Path: "roll/workers/wk2/pull", Status: step.Done})
	p.Emit(step.Event{Path: "roll/workers/wk1", Status: step.NotStarted, Title: "recreate wk1"})
	if got := p.Fared().Nodes; len(got) != 1 || got[0].Node != "wk1" {
		t.Errorf("fared: %+v", got)
	}
}

// branch is a step with others below it.
func branch(id, title string, below ...step.Step) step.Step {
	return step.Step{ID: id, Title: title, Steps: func(context.Context) ([]step.Step, error) { return below, nil }}
}

// lasting is a step that takes that long, after it has reported why.
func lasting(id, title string, d time.Duration, say func(string)) step.Step {
	return step.Step{ID: id, Title: title, Do: func(context.Context) error {
		if say != nil {
			say("this takes " + d.String())
			say("this takes " + d.String())
		}
		time.Sleep(d)
		return nil
	}}
}

// reached is a step whose goal is reached from the second check on, with these words.
func reached(s step.Step, goal string) step.Step {
	looked := false
	s.Skip = func(context.Context) (string, error) {
		defer func() { looked = true }()
		return map[bool]string{true: goal}[looked], nil
	}
	return s
}

// late starts a little after its siblings: the order of events at the same moment is
// random.
func late(s step.Step) step.Step {
	s = reached(s, "runs v1.13.9 build abcdef012345")
	skip := s.Skip
	s.Skip = func(ctx context.Context) (string, error) {
		time.Sleep(2 * time.Second)
		return skip(ctx)
	}
	return s
}

// rollSteps is a tree like the cluster's: a snapshot, leftovers, workers two at a time.
func rollSteps(note func(path, text string)) step.Step {
	say := func(path string) func(string) { return func(text string) { note(path, text) } }
	failing := step.Step{ID: "stop", Title: "stop VM 9033", Do: func(context.Context) error {
		time.Sleep(time.Minute)
		return errors.New("no quorum")
	}}
	workers := branch("workers", "4 workers, at most 2 at a time",
		reached(branch("wk1", "recreate wk1 (VM 9031 on pve1)",
			lasting("gate", "check that it is safe", 5*time.Second, nil),
			branch("take-down", "take wk1 down",
				lasting("drain", "drain wk1", 30*time.Second, say("roll/workers/wk1/take-down/drain")),
				lasting("stop", "stop VM 9031", 10*time.Second, nil)),
			branch("bring-up", "bring wk1 up", branch("finish", "put back what was taken away",
				reached(lasting("keep", "keep the old system disk parked", 0, nil), `the old system disk is on VM 9090 "recast-parking-wk1" on pve1`))),
		), "runs v1.13.9 build abcdef012345"),
		late(branch("control-02", "in-place control-02 (VM 9032 on pve2)",
			lasting("upgrade", "upgrade control-02", 0, nil),
			lasting("wait-healthy", "wait until control-02 is healthy", 20*time.Second, nil))),
		branch("wk3", "reimage wk3 (VM 9033 on pve1)", branch("take-down", "take wk3 down", failing)),
		branch("wk4", "recreate wk4 (VM 9034 on pve1)"),
	)
	workers.Limit = 2
	met := branch("wk5", "put-back wk5 (VM 9035 on pve1)")
	met.Skip = func(context.Context) (string, error) { return "its old system disk is back", nil }
	return branch("roll", "roll 5 of 6 nodes",
		reached(lasting("snapshot-etcd", "save a snapshot of etcd to backups", time.Second, nil), "saved as backups/etcd-c1-r1.db"),
		branch("unfinished", "finish what an earlier run left", met), workers)
}

// run runs the tree and returns its display.
func run(t *testing.T) (string, Fared) {
	t.Helper()
	var out bytes.Buffer
	p := NewProgress(&out)
	r := &step.Runner{Emit: p.Emit}
	if err := r.Run(t.Context(), rollSteps(r.Note)); err == nil {
		t.Error("the roll did not fail")
	}
	return out.String(), p.Fared()
}

func TestProgress(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		text, _ := run(t)
		drawn(t, "progress", func(b *bytes.Buffer) error { b.WriteString(text); return nil })
	})
}

func TestFared(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, got := run(t)
		want := Fared{Snapshot: "backups/etcd-c1-r1.db", Nodes: []NodeFared{
			{Node: "wk5", Phase: "unfinished", Strategy: "put-back", Outcome: NodeNotNeeded, Now: "its old system disk is back"},
			{
				Node: "wk1", Phase: "workers", Strategy: "recreate", Outcome: NodeDone, Now: "runs v1.13.9 build abcdef012345", AwaySeconds: 10,
				Kept: `the old system disk is on VM 9090 "recast-parking-wk1" on pve1`,
			},
			{Node: "control-02", Phase: "workers", Strategy: "in-place", Outcome: NodeDone, Now: "runs v1.13.9 build abcdef012345", AwaySeconds: 22},
			{Node: "wk3", Phase: "workers", Strategy: "reimage", Outcome: NodeFailed, AwaySeconds: 60},
			{Node: "wk4", Phase: "workers", Strategy: "recreate", Outcome: NodeDone},
		}}
		byName := func(a, b NodeFared) int { return strings.Compare(a.Node, b.Node) }
		slices.SortFunc(got.Nodes, byName)
		slices.SortFunc(want.Nodes, byName)
		must.Equal(t, "fared", want, got)
	})
}

// A node serves while its gates, and the volumes that other nodes need, are checked, before and after.
func TestFaredWithGates(t *testing.T) {
	t.Parallel()
	for _, id := range []string{"ask-gates", "await-storage", "await-served"} {
		t.Run(id, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				p := NewProgress(io.Discard)
				r := &step.Runner{Emit: p.Emit}
				ask := func(again string) step.Step { return lasting(id+again, "ask", time.Hour, nil) }
				waiting := step.Step{ID: id, Title: "ask", Yields: true, Do: func(ctx context.Context) error {
					time.AfterFunc(time.Minute, r.Stop)
					<-ctx.Done()
					return context.Cause(ctx)
				}}
				err := r.Run(t.Context(), branch("roll", "roll 2 of 2 nodes", branch("workers", "2 workers",
					branch("wk1", "recreate wk1", ask(""), branch("bring-up", "bring wk1 up", lasting("create", "create it", time.Minute, nil)), ask("-again")),
					branch("wk2", "recreate wk2", waiting))))
				must.Equal(t, "kind", fault.Interrupted, fault.KindOf(err))
				must.Equal(t, "fared", []NodeFared{
					{Node: "wk1", Phase: "workers", Strategy: "recreate", Outcome: NodeDone, AwaySeconds: 60},
					{Node: "wk2", Phase: "workers", Strategy: "recreate", Outcome: NodeStopped, Gates: "before"},
				}, p.Fared().Nodes)
			})
		})
	}
}

func TestWriteReport(t *testing.T) {
	t.Parallel()
	begun := time.Date(2026, 11, 21, 4, 21, 0, 0, time.UTC)
	work := node("wk1", 9031, planning.Workers, cluster.Recreate, 240)
	work.Drift.Build, work.Carried = "abcdef0123456789", []planning.DiskPlan{data}
	inPlace := node("cp1", 9001, planning.ControlPlanes, cluster.InPlace, 120)
	inPlace.Drift.Build = "abcdef0123456789"
	plan := planning.Plan{Nodes: []planning.NodePlan{work, inPlace, inSync("wk2")}}
	report := func(outcome string) pipeline.Report {
		return pipeline.Report{Run: "20261121-0421-3f2a", Started: begun, Ended: begun.Add(16 * time.Minute), Plan: plan, Outcome: outcome}
	}
	done := report("done")
	done.Resumed = []string{"20261120-0300-aaaa"}
	idle := pipeline.Report{Started: begun, Ended: begun.Add(2 * time.Second), Plan: plan, Outcome: "nothing to do"}
	for name, tc := range map[string]struct {
		rep   pipeline.Report
		fared Fared
	}{
		"report-nothing": {idle, Fared{}},
		"report-done": {done, Fared{Snapshot: "backups/etcd-c1-r1.db", Nodes: []NodeFared{
			{Node: "wk1", Phase: "unfinished", Strategy: "put-back", Outcome: NodeDone, AwaySeconds: 150},
			{Node: "cp1", Phase: "control-planes", Strategy: "in-place", Outcome: NodeDone, AwaySeconds: 95},
			{Node: "wk1", Phase: "workers", Strategy: "recreate", Outcome: NodeDone, AwaySeconds: 185, Kept: `the old system disk is on VM 9090 "recast-parking-wk1" on pve1`},
			{Node: "wk9", Phase: "workers", Strategy: "rollback", Outcome: NodeNotNeeded, Now: "it runs its earlier system again"},
		}}},
		"report-failed": {report("failed: roll/workers/wk1/stop: no quorum"), Fared{Nodes: []NodeFared{
			{Node: "wk1", Phase: "workers", Strategy: "recreate", Outcome: NodeFailed, AwaySeconds: 61},
			{Node: "wk2", Phase: "workers", Strategy: "recreate", Outcome: NodeStopped},
			{Node: "wk3", Phase: "workers", Strategy: "recreate", Outcome: NodeNotStarted},
		}}},
		"report-gates": {report("failed: roll/workers/wk1/ask-gates-again: gave up"), Fared{Nodes: []NodeFared{
			{Node: "wk1", Phase: "workers", Strategy: "recreate", Outcome: NodeFailed, AwaySeconds: 61, Gates: "after"},
			{Node: "cp1", Phase: "control-planes", Strategy: "in-place", Outcome: NodeStopped, AwaySeconds: 61, Gates: "after"},
			{Node: "wk2", Phase: "workers", Strategy: "recreate", Outcome: NodeFailed, Gates: "before"},
			{Node: "wk3", Phase: "workers", Strategy: "recreate", Outcome: NodeStopped, Gates: "before"},
		}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			drawn(t, name, func(b *bytes.Buffer) error { return WriteReport(b, "text", tc.rep, tc.fared) })
		})
	}
}
