package pipeline

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/claim"
	"github.com/recast-sh/recast/cluster/hook"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/config"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/journal"
	"github.com/recast-sh/recast/schematics"
)

func projectOf(t *testing.T) Project {
	return Project{Config: &config.Config{Dir: t.TempDir(), Cluster: "c1"}}
}

// runWith creates the journal of a run; with "" as the outcome it has no end.
func runWith(t *testing.T, p Project, id, outcome string, facts map[string]any) {
	t.Helper()
	j, err := journal.Open(p.Runs().Dir, journal.Options{Run: id})
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
	p := projectOf(t)
	if _, err := p.Runs().Find("", PastOptions{}); fault.KindOf(err) != fault.Config || len(fault.Hints(err)) == 0 {
		t.Errorf("of none: %v", err)
	}
	me, other := claim.Holder{Host: "h", Boot: "b", PID: 1}, claim.Holder{Host: "h", Boot: "b", PID: 2}
	plan := planning.Plan{Cluster: "c1", Nodes: []planning.NodePlan{{Node: "wk1", Strategy: cluster.Recreate}, {Node: "wk2"}}}
	about := About{
		Command: "roll", By: me, Talos: "v1.13.9", Was: "v1.13.9",
		Changes: []schematics.Change{{Moved: []schematics.Moved{{Old: schematics.Extension{Name: "iscsi-tools", Version: "v0.2.0"}, New: schematics.Extension{Name: "iscsi-tools", Version: "v0.2.0"}}}}},
	}
	runWith(t, p, "20260101-0000-aaaa", "failed: roll/workers/wk1: no quorum: gone", map[string]any{
		PlanKey: plan, aboutKey: about, fatesKey: cluster.Fates{Done: []string{}, Failed: []string{"wk1"}, Left: []string{}},
		"wk1/took": cluster.Took{Node: "wk1", OutageSeconds: 90}, "hooks/beforerun/1": hook.HookRun{Point: cluster.BeforeRun},
		"wk1/hooks/beforenode/1": hook.HookRun{Point: cluster.BeforeNode, Node: "wk1"},
	})
	about.GoneOn = []claim.Holder{other}
	runWith(t, p, "20260102-0000-bbbb", "", map[string]any{aboutKey: about})
	runWith(t, p, "20260103-0000-cccc", "", map[string]any{aboutKey: map[string]any{"command": "roll", "ofTheFuture": true}, PlanKey: "no plan"})

	r, err := p.Runs().Find("aaaa", PastOptions{})
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
	for o, want := range map[*PastOptions]string{
		{Dead: dead}:                      "killed",
		{Holder: claim.Holder{Boot: "b"}}: "running",
		{}:                                "running or killed",
	} {
		if r, err := p.Runs().Find("20260102-0000-bbbb", *o); err != nil || r.Result != want {
			t.Errorf("%+v: %q, want %q; %v", o, r.Result, want, err)
		}
	}
	if r, err := p.Runs().Find("cccc", PastOptions{}); err != nil || r.About == nil || r.Plan != nil || len(r.Problems) != 1 {
		t.Errorf("of another recast: %+v, %v", r, err)
	}
	for id, want := range map[string]string{"2026": "is a part of several runs", "nope": "no run \"nope\""} {
		if _, err := p.Runs().Find(id, PastOptions{}); fault.KindOf(err) != fault.Config || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", id, err)
		}
	}
	// One that can't be read takes nothing from the others.
	if err := os.WriteFile(filepath.Join(p.Runs().Dir, "20260101-0000-aaaa", "RUN"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if runs, problems := p.Runs().All(PastOptions{}); len(runs) != 2 || len(problems) != 1 {
		t.Errorf("%d runs, problems %q", len(runs), problems)
	}
	// Which one is the last, nobody knows then.
	if r, err := p.Runs().Find("", PastOptions{}); err != nil || !strings.Contains(strings.Join(r.Problems, "\n"), `this may not be the last run: run "20260101-0000-aaaa": `) {
		t.Errorf("the last: %q, %v", r.Problems, err)
	}
	if r, err := p.Runs().Find("bbbb", PastOptions{}); err != nil || len(r.Problems) > 0 {
		t.Errorf("one by its ID: %q, %v", r.Problems, err)
	}
}

func TestKeepAbout(t *testing.T) {
	t.Parallel()
	p := projectOf(t)
	lock := schematics.Lock{Version: 1, Talos: "v1.13.9", Schematics: map[string]schematics.Locked{"base": {BuildID: strings.Repeat("b", 64)}}}
	for _, pid := range []int{1, 1, 2} {
		j, err := journal.Open(p.Runs().Dir, journal.Options{Run: "r"})
		if err != nil {
			t.Fatal(err)
		}
		w := &work{Project: p, command: "roll", o: RollOptions{Holder: claim.Holder{PID: pid}, Origin: Origin{Recast: "v1"}}}
		if err := errors.Join(w.keepAbout(j, lock), j.Close()); err != nil {
			t.Fatal(err)
		}
	}
	r, err := p.Runs().Find("r", PastOptions{})
	if err != nil {
		t.Fatal(err)
	}
	want := &About{
		Command: "roll", Cluster: "c1", By: claim.Holder{PID: 1}, GoneOn: []claim.Holder{{PID: 2}}, Origin: Origin{Recast: "v1"},
		Talos: "v1.13.9", Lock: lock.Key(),
	}
	if diff := cmp.Diff(want, r.About); diff != "" {
		t.Errorf("about (-want +got):\n%s", diff)
	}
}

// TestOldRunsGo removes the oldest finished runs, unless a parking VM refers to them.
func TestOldRunsGo(t *testing.T) {
	t.Parallel()
	p := projectOf(t)
	made := func(n int) string { return fmt.Sprintf("20260101-0000-%04d", n) }
	for n := range keepRuns + 5 {
		outcome := "done"
		if n == 1 {
			outcome = ""
		}
		runWith(t, p, made(n), outcome, nil)
		// Their order is that of their beginning.
		info := fmt.Sprintf(`{"started":%q%s}`, time.Date(2026, 1, 1, 0, 0, n, 0, time.UTC).Format(time.RFC3339),
			map[bool]string{true: `,"finished":"2026-01-02T00:00:00Z","outcome":"done"`}[outcome != ""])
		if err := os.WriteFile(filepath.Join(p.Runs().Dir, made(n), "RUN"), []byte(info), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Dir(p.Page(made(0))), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p.Page(made(0)), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	away := fmt.Errorf("pve2 does not answer")
	if err := forgetRuns(p, func() (map[string]bool, error) { return nil, away }); !errors.Is(err, away) {
		t.Errorf("with a host away: %v", err)
	}
	if err := forgetRuns(p, func() (map[string]bool, error) { return map[string]bool{made(2): true}, nil }); err != nil {
		t.Fatal(err)
	}
	gone := map[string]bool{made(0): true, made(3): true, made(4): true} // 1 has no end, 2 is needed
	for n := range 6 {
		if here := p.Runs().Has(made(n)); here == gone[made(n)] {
			t.Errorf("%s is here: %t", made(n), here)
		}
	}
	if _, err := os.Stat(p.Page(made(0))); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its report: %v", err)
	}
	if err := forgetRuns(p, func() (map[string]bool, error) { return map[string]bool{made(2): true}, nil }); err != nil {
		t.Errorf("once more: %v", err)
	}
}
