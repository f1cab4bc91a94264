package ui

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/claim"
	"github.com/recast-sh/recast/cluster/etcd"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/survey"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/story"
	"github.com/recast-sh/recast/pipeline"
	"github.com/recast-sh/recast/pipeline/adopt"
	"github.com/recast-sh/recast/pipeline/checkup"
	"github.com/recast-sh/recast/pipeline/past"
	"github.com/recast-sh/recast/pipeline/setup"
	"github.com/recast-sh/recast/schematics"
)

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
	got := p.Fared().Nodes
	must.Hold(t, len(got) == 1 && got[0].Node == "wk1", "fared: %+v", got)
}

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

// late starts a little after its siblings: the order of events at the same moment is random.
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
			branch("bring-up", "bring wk1 up", branch("finish", "restore the settings of VM and node",
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
	must.Hold(t, r.Run(t.Context(), rollSteps(r.Note)) != nil, "the roll did not fail")
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

func explained() survey.Explanation {
	n := many(2, 1).Nodes[0]
	n.Slots = []string{"host/pve1"}
	n.System.NewSize = "20G"
	return survey.Explanation{
		Cluster: "c1", PlanID: "0123456789abcdef", Turn: 1, Of: 3, Batch: &planning.Batch{Phase: planning.Canary, Nodes: []string{"wk000"}, Limit: 1}, Plan: n, Asked: cluster.Recreate,
		Compared: []survey.Comparison{
			{What: "Talos", Found: "v1.13.9", Wanted: "v1.13.9", Same: true},
			{What: "build", Wanted: "abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789"},
			{What: "extension iscsi-tools", Found: "v0.2.0 sha256:000000000000", Wanted: "v0.2.0 sha256:111111111111"},
		},
		Strategies: []survey.StrategyChoice{
			{Strategy: cluster.Recreate, Taken: true, WillLose: []string{"PersistentVolume pvc-1 on the system disk will be lost"}},
			{Strategy: cluster.Reimage},
			{Strategy: cluster.InPlace, Against: []string{"build abcdef012345 came back as the old system once, and is never tried again with the same image"}},
		},
		Disks: []survey.DiskFate{
			{DiskPlan: *n.System, Owner: 10000, Fate: survey.FateReplaced, Does: "parked and kept; a blank disk takes its place"},
			{DiskPlan: n.Carried[0], Owner: 10000, Fate: survey.FateCarried, Does: "carried over"},
			{DiskPlan: planning.DiskPlan{Key: "ide2", Volid: "none"}, Fate: survey.FateMedium, Does: "a CD drive"},
		},
		Steps: []survey.StepOutline{
			{Path: "pull", Title: "have wk000 fetch the installer", Risk: "safe", Seconds: 12, SecondsFrom: "3 earlier rolls of it"},
			{Path: "take-down/drain", Title: "drain wk000", Risk: "disruptive", Seconds: 65, SecondsFrom: "3 earlier rolls of it", TimeoutSeconds: 600},
			{Path: "take-down/delete-vm", Title: "delete the VM, which owns no disk any more", Risk: "destructive", SecondsFrom: "3 earlier rolls of it"},
		},
	}
}

func TestWriteExplanation(t *testing.T) {
	t.Parallel()
	idle := survey.Explanation{Of: 1, Asked: cluster.Auto, Plan: inSync("wk1"), Strategies: explained().Strategies[1:2]}
	for name, e := range map[string]survey.Explanation{"explain": explained(), "explain-in-sync": idle} {
		drawn(t, name, func(b *bytes.Buffer) error { return WriteExplanation(b, "text", e) })
	}
}

func TestExplanationAtEveryWidth(t *testing.T) {
	t.Parallel()
	for _, columns := range []int{40, 80} {
		var out bytes.Buffer
		p := &page{w: &out, columns: columns}
		drawExplanation(p, explained())
		drawn(t, fmt.Sprintf("explain-%d-columns", columns), func(b *bytes.Buffer) error { b.Write(out.Bytes()); return p.err })
		tooWide(t, out.String(), columns)
	}
}

// kubectl commands run anywhere; the others as root on the VM's host.
func TestToRecreateSaysWhereCommandsAreTyped(t *testing.T) {
	t.Parallel()
	evict := cluster.Obstacle{Text: "replicas", Command: "kubectl patch x"}
	snapshot := cluster.Obstacle{Text: "snapshots", Command: "qm delsnapshot 9032 before"}
	words := cluster.Obstacle{Text: "something else"}
	for name, tc := range map[string]struct {
		obstacles []cluster.Obstacle
		want      string
	}{
		"kubectl":           {[]cluster.Obstacle{evict, evict}, "kubectl patch x"},
		"the host":          {[]cluster.Obstacle{snapshot}, "as root on pve2: qm delsnapshot 9032 before"},
		"both":              {[]cluster.Obstacle{snapshot, evict}, "kubectl patch x; as root on pve2: qm delsnapshot 9032 before"},
		"kubectl and words": {[]cluster.Obstacle{evict, words}, "kubectl patch x; and something else"},
	} {
		must.Equal(t, name, tc.want, (toRecreate{node: "wk2", host: "pve2", obstacles: tc.obstacles}).line())
	}
}

// Every node has a row, whatever a roll would do with it.
func TestStrategiesOf(t *testing.T) {
	t.Parallel()
	snapshot := cluster.Obstacle{Text: "it has snapshots", Command: "qm delsnapshot 9032 before"}
	impossible := map[cluster.Strategy][]string{cluster.Recreate: {"it has snapshots", "and more"}}
	for name, tc := range map[string]struct {
		a    survey.Assessment
		want string
	}{
		"recreate":       {survey.Assessment{Strategy: cluster.Recreate}, "recreate: –"},
		"made":           {survey.Assessment{Strategy: cluster.Create}, "create: –"},
		"reimage":        {survey.Assessment{Strategy: cluster.Reimage, Host: "pve2", Against: impossible, ToRecreate: []cluster.Obstacle{snapshot}}, "reimage: as root on pve2: qm delsnapshot 9032 before"},
		"asked":          {survey.Assessment{Strategy: cluster.InPlace}, "in-place: in recast.yaml strategy: auto"},
		"asked, blocked": {survey.Assessment{Strategy: cluster.InPlace, Against: impossible}, "in-place: in recast.yaml strategy: auto; and it has snapshots"},
		"refused":        {survey.Assessment{Strategy: cluster.Recreate, Refused: []string{"it has snapshots"}, ToRecreate: []cluster.Obstacle{snapshot}}, "refused: as root on its host: qm delsnapshot 9032 before"},
		"nothing":        {survey.Assessment{Refused: []string{"no way"}}, "refused: no way"},
		"unread":         {survey.Assessment{Unread: true}, "not known: its machine could not be read: see above"},
	} {
		row := strategiesOf([]survey.Assessment{tc.a})[0]
		must.Equal(t, name, tc.want, row.strategy+": "+row.line())
	}
}

func TestWriteDoctor(t *testing.T) {
	t.Parallel()
	res := checkup.Result{
		Cluster: "c1",
		Checks: []checkup.Check{
			{Group: checkup.GroupProxmox, What: "quorum", State: checkup.OK, Seen: "the cluster is quorate", Remedy: []string{"not shown"}},
			{Group: checkup.GroupPrivileges, What: "VM.Audit on /vms", State: checkup.Problem, Seen: "missing; needed to see", Remedy: []string{"do that"}},
			{Group: checkup.GroupNodes, What: "wk1", State: checkup.OK, Seen: "VM 9011 on pve1: reimage"},
			{Group: checkup.GroupNodes, What: "wk2", State: checkup.Warning, Seen: "can't be seen"},
		},
		Caution: "Mind that.", Grants: []string{"pveum role add RecastVMs", "pveum acl modify /vms --roles RecastVMs"},
		Nodes: []survey.Assessment{
			{Node: "wk1", VMID: 9011, Host: "pve1", Strategy: cluster.Reimage, ToRecreate: []cluster.Obstacle{{Text: "snapshots", Command: "qm delsnapshot 9011 before"}}, Against: map[cluster.Strategy][]string{cluster.Recreate: {"it has a tie", "and another"}}},
			{Node: "wk2", Unread: true},
		},
	}
	want := `Proxmox
  ok      quorum: the cluster is quorate

privileges
  problem VM.Audit on /vms: missing; needed to see
            → do that

nodes
  ok      wk1: VM 9011 on pve1: reimage
            recreate: impossible: it has a tie; and another
            reimage, in-place: possible
  warning wk2: can't be seen

To grant what is missing, as root on any Proxmox node (the same for VE 8 and 9):
  pveum role add RecastVMs
  pveum acl modify /vms --roles RecastVMs
Mind that.
A token with privilege separation has only privileges that both it and its user have. An entry of the access control list replaces entries above it, so each path gets everything that is needed there, and by RecastKeep roles what was granted there before. It does not matter if a role exists already. Then run recast doctor again: it could not check what the token can't see yet.

What a roll would use today, and what makes it recreate (recast plan --explain NODE shows every reason):
  wk1  reimage    as root on pve1: qm delsnapshot 9011 before
  wk2  not known  its machine could not be read: see above

4 checks: 1 problem, 1 warning
`
	var b strings.Builder
	must.Do(t, WriteDoctor(&b, "text", res))
	must.Equal(t, "value", want, b.String())
	b.Reset()
	if err := WriteDoctor(&b, "json", res); err != nil || !strings.Contains(b.String(), `"grants": [`) {
		t.Errorf("%v: %s", err, b.String())
	}
}

func TestWriteInit(t *testing.T) {
	t.Parallel()
	build := strings.Repeat("3f", 32)
	found := setup.InitResult{
		Cluster: "homelab", Talos: "v1.13.9", Kubernetes: "v1.35.4", Platform: "nocloud", Arch: "amd64", Dir: ".",
		Nodes: []setup.InitNode{
			{Name: "cp1", ControlPlane: true, VMID: 101, Host: "pve1", Firmware: "UEFI", Schematic: "control-plane", SystemDisk: "scsi0 32G"},
			{Name: "wk1", VMID: 111, Host: "pve2", Firmware: "BIOS", Schematic: "worker", SystemDisk: "scsi0 32G", Persistent: []string{"scsi1 100G of VM 9201"}, Holder: 9201},
		},
		Schematics: []setup.InitSchematic{
			{Name: "control-plane", File: "schematics/control-plane.yaml", Extensions: []string{}, Nodes: []string{"cp1"}},
			{Name: "worker", File: "schematics/worker.yaml", Extensions: []string{"iscsi-tools", "qemu-guest-agent"}, Nodes: []string{"wk1"}},
		},
		Files: []string{"recast.yaml", "recast.lock", "schematics/worker.yaml", "schematics/control-plane.yaml"},
	}
	unknown := cluster.Reason{Code: "unknown-build", Text: "its schematic was not locked by recast: extension digests unknown"}
	inSync, foreign := found, found
	inSync.Drift = []observe.Drift{{Node: "cp1", Build: build}, {Node: "wk1", Build: build}}
	foreign.Drift = []observe.Drift{
		{Node: "cp1", Build: build, Stale: true, Reasons: []cluster.Reason{unknown}}, {Node: "wk1", Build: build, Stale: true, Reasons: []cluster.Reason{unknown}},
	}
	foreign.Left, foreign.Warnings = []string{"metal1"}, []string{"schematics/worker.yaml: the image of wk1 carries no schematic"}
	half := found
	half.Dir = "../found/"
	half.Drift = []observe.Drift{
		{Node: "cp1", Build: build},
		{Node: "wk1", Build: build, Stale: true, Reasons: []cluster.Reason{{Code: "lock", Text: "extensions of another lock: sha256-aa → sha256-bb"}}},
	}
	secret := inSync
	secret.Secret, secret.Warnings = []string{"recast.lock", "schematics/worker.yaml"}, []string{"schematics/worker.yaml and recast.lock hold secrets"}
	fresh := setup.InitResult{
		New: true, Cluster: "homelab", Talos: "v1.13.9", Kubernetes: "v1.35.4", Platform: "nocloud", Arch: "amd64", Dir: "home", Endpoint: "https://10.0.0.11:6443",
		Nodes: []setup.InitNode{
			{Name: "cp1", ControlPlane: true, Host: "pve1", Address: "10.0.0.11", Firmware: "UEFI", Schematic: "default", SystemDisk: "scsi0 20G"},
			{Name: "wk1", Host: "pve2", Address: "10.0.0.12", Firmware: "UEFI", Schematic: "default", SystemDisk: "scsi0 20G", Persistent: []string{"scsi1 100G"}},
		},
		Schematics: []setup.InitSchematic{{Name: "default", File: "schematics/default.yaml", Extensions: []string{"qemu-guest-agent"}, Nodes: []string{"cp1", "wk1"}}},
		Warnings:   []string{"secrets.yaml is not encrypted: keep it out of git"}, Secret: []string{"secrets.yaml"},
		Files: []string{"recast.yaml", "recast.lock", "secrets.yaml", "schematics/default.yaml"},
	}
	encrypted := fresh
	encrypted.Dir, encrypted.Encrypted, encrypted.Secret, encrypted.Warnings = ".", "age", nil, nil
	for name, res := range map[string]setup.InitResult{"init-in-sync": inSync, "init-foreign": foreign, "init-half": half, "init-secret": secret, "init-new": fresh, "init-new-encrypted": encrypted} {
		drawn(t, name, func(out *bytes.Buffer) error { return WriteInit(out, "text", res) })
	}
}

func TestWriteAdopt(t *testing.T) {
	t.Parallel()
	res := adopt.Result{
		Cluster: "home", Talos: "v1.13.9", Dir: "git", Written: []string{"schematics/default.yaml", "recast.yaml"},
		Nodes: []adopt.Node{
			{Name: "cp1", Role: "control plane", VMID: 101, Host: "pve1", Class: "control-plane", Disks: []string{"scsi0 20G on fast"}},
			{Name: "wk1", VMID: 111, Host: "pve2", Disks: []string{"scsi0 20G on fast", "scsi1 100G on fast"}},
		},
		Left:      []string{"proxmox_vm_qemu.dns (VM 120): nothing says that it runs Talos"},
		Questions: []adopt.Question{{Text: "is wk1 a control plane or a worker?", Command: "talosctl -n 192.0.2.21 get machinetype"}},
		Keep: []adopt.Keep{
			{Resource: "proxmox_vm_qemu.node", Nodes: []string{"cp1", "wk1"}, Ignore: "resource \"proxmox_vm_qemu\" \"node\" {\n}\n", Removed: "removed {\n  from = proxmox_vm_qemu.node\n}\n", Frees: true},
			{Resource: "talos_machine_configuration_apply.this", Nodes: []string{"cp1"}, Removed: "removed {\n  from = talos_machine_configuration_apply.this\n}\n", Resets: true},
		},
	}
	drawn(t, "adopt", func(out *bytes.Buffer) error { return WriteAdopt(out, "text", res) })
}

func TestWriteVerdict(t *testing.T) {
	t.Parallel()
	threat := adopt.Threat{
		Node: "wk1", VMID: 111, Host: "pve1", Address: `proxmox_vm_qemu.node["wk1"]`, What: "replaces", Loses: []string{"VM 111 on pve1", "scsi0 20G"},
		Because: "replace because tainted", Prevents: "resource \"proxmox_vm_qemu\" \"node\" {\n}\n",
	}
	reset := adopt.Threat{Node: "the machine 192.0.2.9", Address: "talos_machine_configuration_apply.this", What: "resets", Loses: []string{"everything"}, Prevents: "removed {\n}\n"}
	for name, v := range map[string]adopt.Verdict{
		"verdict-bad":  {Cluster: "home", File: "plan.json", Nodes: 3, Managed: []string{"wk1"}, Threats: []adopt.Threat{threat, reset}},
		"verdict-good": {Cluster: "home", File: "plan.json", Nodes: 3, Managed: []string{"cp1", "wk1"}},
		"verdict-outage": {Cluster: "home", File: "plan.json", Nodes: 3, Managed: []string{"cp1"}, TooMany: "it would take 2 control planes down in one apply (cp1, cp2): etcd loses its quorum", Outages: []adopt.Outage{
			{Node: "cp1", VMID: 101, Address: "proxmox_virtual_environment_vm.cp1", What: "reboots", Why: []string{"memory"}},
			{Node: "cp2", Address: "talos_machine.cp2", What: "upgrades", Why: []string{"image: a:v1 → a:v2"}},
		}},
		"verdict-warning": {Cluster: "home", File: "plan.json", Nodes: 3, Managed: []string{"cp1"}, Outages: []adopt.Outage{
			{Node: "cp1", Address: "talos_machine_configuration_apply.cp1", What: "may reboot", Why: []string{"config_patches"}},
		}},
		"verdict-none": {Cluster: "home", File: "plan.json", Nodes: 1},
	} {
		drawn(t, name, func(out *bytes.Buffer) error { return WriteVerdict(out, "text", v) })
	}
}

func TestWriteLock(t *testing.T) {
	t.Parallel()
	changes := []pipeline.LockChange{
		{Change: schematics.Change{
			Schematic: "bgp", OldBuild: strings.Repeat("1", 64), NewBuild: strings.Repeat("2", 64),
			Reasons: []string{"extension frr 1.7.15: sha256:aa → sha256:bb"},
		}, Nodes: []string{"wk1", "wk2"}},
		{Change: schematics.Change{Schematic: "new", NewBuild: strings.Repeat("3", 64), Reasons: []string{"added"}}, Nodes: []string{"wk3"}},
		{Change: schematics.Change{Schematic: "unused", OldBuild: strings.Repeat("4", 64), NewBuild: strings.Repeat("5", 64), Reasons: []string{"unused.yaml changed"}}},
	}
	const moved = `schematic bgp: build 111111111111 → 222222222222
  extension frr 1.7.15: sha256:aa → sha256:bb
  makes stale: wk1, wk2
schematic new: build none → 333333333333
  added
schematic unused: build 444444444444 → 555555555555
  unused.yaml changed
`
	for name, tc := range map[string]struct {
		res  pipeline.LockResult
		want string
	}{
		"nothing":           {pipeline.LockResult{Newest: true}, "recast.lock is up to date\n"},
		"not looked for":    {pipeline.LockResult{}, "recast.lock is unchanged; recast lock --check looks for newer digests\n"},
		"written":           {pipeline.LockResult{Differs: true, Written: true, Changes: changes}, moved + "recast.lock written; next: recast plan\n"},
		"checked":           {pipeline.LockResult{Differs: true, Changes: changes}, moved + "recast.lock would change: recast lock --update\n"},
		"no build, written": {pipeline.LockResult{Differs: true, Written: true}, "recast.lock written: every build is the same as before\n"},
		"no build, checked": {pipeline.LockResult{Differs: true}, "recast.lock would change: recast lock --update\n"},
	} {
		var out bytes.Buffer
		must.Do(t, WriteLock(&out, "text", tc.res))
		must.Equal(t, name, tc.want, out.String())
	}
	var out bytes.Buffer
	warning := schematics.Warning{Kind: schematics.TagMoved, Subject: "ghcr.io/acme/frr:1.7", Locked: "sha256:aa", Found: "sha256:bb", Text: "t", Hint: "h"}
	must.Do(t, WriteLock(&out, "json", pipeline.LockResult{Differs: true, Changes: changes[:1], Warnings: []schematics.Warning{warning}}))
	var got struct {
		Differs, Written bool
		Changes          []struct {
			Schematic string
			Nodes     []string
		}
		Warnings []map[string]string
	}
	must.Do(t, json.Unmarshal(out.Bytes(), &got))
	want := got
	want.Differs, want.Written = true, false
	want.Changes = want.Changes[:0:0]
	want.Changes = append(want.Changes, struct {
		Schematic string
		Nodes     []string
	}{"bgp", []string{"wk1", "wk2"}})
	want.Warnings = []map[string]string{{"kind": "tag-moved", "subject": "ghcr.io/acme/frr:1.7", "locked": "sha256:aa", "found": "sha256:bb", "text": "t", "hint": "h"}}
	must.Equal(t, "JSON", want, got)
}

func TestWriteBackup(t *testing.T) {
	t.Parallel()
	snapshot := etcd.Snapshot{SizeBytes: 61472, SHA256: "6bac", Revision: 80, Members: []string{"cp1", "cp2"}}
	res := pipeline.BackupResult{
		Backup:  etcd.Backup{File: "etcd/a.db", Member: "cp2", Address: netip.MustParseAddr("10.0.0.2"), Snapshot: snapshot, Warnings: []string{"cp1 knows no leader"}},
		Removed: []string{"old.db", "older.db"},
	}
	var b strings.Builder
	must.Do(t, WriteBackup(&b, "text", res))
	const want = `etcd/a.db
  size      61472 bytes
  revision  80
  sha256    6bac
  members   cp1, cp2
  from      cp2 (10.0.0.2)
  removed   old.db, older.db
  warning   cp1 knows no leader
`
	must.Equal(t, "", want, b.String())
}

func TestWriteRestore(t *testing.T) {
	t.Parallel()
	began := time.Date(2026, 11, 21, 4, 0, 0, 0, time.UTC)
	rep := pipeline.RestoreReport{
		Target: etcd.Target{Node: "cp1", Addr: netip.MustParseAddr("10.0.0.1")}, VM: `VM 101 "cp1" on pve1`,
		File: "a.db", Snapshot: etcd.Snapshot{SizeBytes: 1, SHA256: "6b", Revision: 2}, Resumes: true, Started: began, Ended: began.Add(90 * time.Second),
	}
	rep.Afterwards = []string{"restart operators"}
	resumed := rep
	resumed.Bootstrapped, resumed.Warnings = began, []string{"is it of this cluster?"}
	cases := map[string]struct {
		rep                pipeline.RestoreReport
		run, outcome, want string
	}{
		"to be confirmed": {rep, "", "", "restore cp1, VM 101 \"cp1\" on pve1 at 10.0.0.1, from a.db\n  size      1 bytes\n  revision  2\n  sha256    6b\n  members   none\n" +
			"  continues an earlier restore\n"},
		"to be waited for": {resumed, "", "", "restore cp1, VM 101 \"cp1\" on pve1 at 10.0.0.1, from a.db\n  size      1 bytes\n  revision  2\n  sha256    6b\n  members   none\n" +
			"  continues a restore whose data etcd has since 2026-11-21 04:00:00: it only waits for the rest\n  warning   is it of this cluster?\n"},
		"waited for": {resumed, "r1", "done", "run r1: cp1 runs etcd from a.db, which was restored at 2026-11-21 04:00:00; nothing was done now\nafterwards: restart operators\n" +
			"next: recast drift; to restore it again, recast backup saves what it runs now, then wipe etcd: talosctl reset --system-labels-to-wipe EPHEMERAL --reboot --graceful=false (ETCD where the machine has that volume)\n"},
		"done":   {rep, "r1", "done", "run r1: cp1 runs etcd from a.db, after 1m30s\nafterwards: restart operators\nnext: recast drift\n"},
		"failed": {rep, "r1", "failed: etcd on cp1: gave up", "run r1: failed; run the same command again to continue\n"},
	}
	for name, c := range cases {
		c.rep.Run, c.rep.Outcome = c.run, c.outcome
		var b strings.Builder
		must.Do(t, WriteRestore(&b, "text", c.rep))
		must.Equal(t, name, c.want, b.String())
	}
}
