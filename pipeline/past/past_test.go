package past

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/claim"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/journal"
	"github.com/recast-sh/recast/schematics"
)

func runsOf(t *testing.T) Runs { return Runs{Dir: filepath.Join(t.TempDir(), ".recast", "runs")} }

// runWith creates the journal of a run; with "" as the outcome it has no end.
func runWith(t *testing.T, r Runs, id, outcome string, facts map[string]any) {
	t.Helper()
	j, err := journal.Open(r.Dir, journal.Options{Run: id})
	if err != nil {
		t.Fatal(err)
	}
	for key, v := range facts {
		err = errors.Join(err, j.Put(key, v))
	}
	if outcome != "" {
		err = errors.Join(err, j.Finish(outcome))
	}
	if err := errors.Join(err, j.Close()); err != nil {
		t.Fatal(err)
	}
}

func TestPastRuns(t *testing.T) {
	t.Parallel()
	p := runsOf(t)
	if _, err := p.Find("", Options{}); fault.KindOf(err) != fault.Config || len(fault.Hints(err)) == 0 {
		t.Errorf("of none: %v", err)
	}
	me, other := claim.Holder{Host: "h", Boot: "b", PID: 1}, claim.Holder{Host: "h", Boot: "b", PID: 2}
	plan := planning.Plan{Cluster: "c1", Nodes: []planning.NodePlan{{Node: "wk1", Strategy: cluster.Recreate}, {Node: "wk2"}}}
	about := About{
		Command: "roll", By: me, Talos: "v1.13.9", Was: "v1.13.9",
		Changes: []schematics.Change{{Moved: []schematics.Moved{{Old: schematics.Extension{Name: "iscsi-tools", Version: "v0.2.0"}, New: schematics.Extension{Name: "iscsi-tools", Version: "v0.2.0"}}}}},
	}
	runWith(t, p, "20260101-0000-aaaa", "failed: roll/workers/wk1: no quorum: gone", map[string]any{
		PlanKey: plan, AboutKey: about, FatesKey: cluster.Fates{Done: []string{}, Failed: []string{"wk1"}, Left: []string{}},
		"wk1/took": cluster.Took{Node: "wk1", OutageSeconds: 90}, "hooks/beforerun/1": planning.HookRun{Point: cluster.BeforeRun},
		"wk1/hooks/beforenode/1": planning.HookRun{Point: cluster.BeforeNode, Node: "wk1"},
	})
	about.GoneOn = []claim.Holder{other}
	runWith(t, p, "20260102-0000-bbbb", "", map[string]any{AboutKey: about})
	runWith(t, p, "20260103-0000-cccc", "", map[string]any{AboutKey: map[string]any{"command": "roll", "ofTheFuture": true}, PlanKey: "no plan"})

	r, err := p.Find("aaaa", Options{})
	if err != nil {
		t.Fatal(err)
	}
	node, seconds := r.Longest()
	done, planned := r.Counted()
	got := fmt.Sprintln(r.Result, "|", r.Error, "|", node, seconds, done, planned, len(r.Hooks), r.What(), r.Problems)
	if want := "failed | roll/workers/wk1: no quorum: gone | wk1 90 0 1 2 iscsi-tools v0.2.0, new digest []\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	dead := func(h claim.Holder) bool { return h == other }
	for o, want := range map[*Options]string{
		{Dead: dead}:                      "killed",
		{Holder: claim.Holder{Boot: "b"}}: "running",
		{}:                                "running or killed",
	} {
		if r, err := p.Find("20260102-0000-bbbb", *o); err != nil || r.Result != want {
			t.Errorf("%+v: %q, want %q; %v", o, r.Result, want, err)
		}
	}
	if r, err := p.Find("cccc", Options{}); err != nil || r.About == nil || r.Plan != nil || len(r.Problems) != 1 {
		t.Errorf("of another recast: %+v, %v", r, err)
	}
	for id, want := range map[string]string{"2026": "is a part of several runs", "nope": "no run \"nope\""} {
		if _, err := p.Find(id, Options{}); fault.KindOf(err) != fault.Config || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", id, err)
		}
	}
	// One that can't be read takes nothing from the others.
	if err := os.WriteFile(filepath.Join(p.Dir, "20260101-0000-aaaa", "RUN"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if runs, problems := p.All(Options{}); len(runs) != 2 || len(problems) != 1 {
		t.Errorf("%d runs, problems %q", len(runs), problems)
	}
	// Which one is the last, nobody knows then.
	if r, err := p.Find("", Options{}); err != nil || !strings.Contains(strings.Join(r.Problems, "\n"), `this may not be the last run: run "20260101-0000-aaaa": `) {
		t.Errorf("the last: %q, %v", r.Problems, err)
	}
	if r, err := p.Find("bbbb", Options{}); err != nil || len(r.Problems) > 0 {
		t.Errorf("one by its ID: %q, %v", r.Problems, err)
	}
}

// A run is found while it is active, with its plan as soon as it has one.
func TestRunningHere(t *testing.T) {
	t.Parallel()
	p := runsOf(t)
	if r, here, err := p.Running(); here || err != nil {
		t.Errorf("%+v, %v", r, err)
	}
	j, err := journal.Open(p.Dir, journal.Options{Run: "r1"})
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	r, here, err := p.Running()
	if !here || err != nil || r.ID != "r1" || r.Dir != filepath.Join(p.Dir, "r1") || r.Plan != nil {
		t.Errorf("%+v, %t, %v", r, here, err)
	}
	if err := j.Put("plan", planning.Plan{Cluster: "c1", TotalSeconds: 60}); err != nil {
		t.Fatal(err)
	}
	if r, here, err = p.Running(); !here || err != nil || r.Plan == nil || r.Plan.TotalSeconds != 60 {
		t.Errorf("%+v, %t, %v", r, here, err)
	}
	if outcome, err := p.Outcome("r1"); outcome != "" || err != nil {
		t.Errorf("%q, %v", outcome, err)
	}
	if err := j.Finish("done"); err != nil {
		t.Fatal(err)
	}
	if outcome, err := p.Outcome("r1"); outcome != "done" || err != nil {
		t.Errorf("%q, %v", outcome, err)
	}
	if _, here, err := p.Running(); here || err != nil {
		t.Errorf("%t, %v", here, err)
	}
}
