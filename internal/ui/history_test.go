package ui

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/claim"
	"github.com/recast-sh/recast/cluster/hook"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/story"
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
	cases := map[string]struct {
		of   History
		want string
	}{
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
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var b bytes.Buffer
			must.Do(t, WriteHistory(&b, "text", c.of))
			must.Equal(t, "history", c.want[1:], b.String())
		})
	}
}

func TestWriteRun(t *testing.T) {
	t.Parallel()
	run := pastRuns()[1]
	began := run.Started
	run.Problems = []string{"abc"}
	run.Hooks = []hook.HookRun{{Point: cluster.BeforeRun, Command: []string{"h", "abc"}, Output: "token=abc", Description: "abc"}}
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
	for _, want := range []string{`"output": "token=[redacted]"`, `"report": "r.html"`, `"stage": "drain"`, `"awaySeconds": 192`, `"notBack": true`} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %s in %s", want, b.String())
		}
	}
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
		if strings.Join(got, " | ") != want {
			t.Errorf("%s: %s\n%s", result, strings.Join(got, " | "), b.String())
		}
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
