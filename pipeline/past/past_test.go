package past

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/claim"
	"github.com/recast-sh/recast/cluster/hook"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/journal"
	"github.com/recast-sh/recast/internal/sim/must"
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
	must.Do(t, errors.Join(err, j.Close()))
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
		"wk1/took": cluster.Took{Node: "wk1", OutageSeconds: 90}, "hooks/beforerun/1": hook.HookRun{Point: cluster.BeforeRun},
		"wk1/hooks/beforenode/1": hook.HookRun{Point: cluster.BeforeNode, Node: "wk1"},
	})
	about.GoneOn = []claim.Holder{other}
	runWith(t, p, "20260102-0000-bbbb", "", map[string]any{AboutKey: about})
	runWith(t, p, "20260103-0000-cccc", "", map[string]any{AboutKey: map[string]any{"command": "roll", "ofTheFuture": true}, PlanKey: "no plan"})

	r := must.Get(p.Find("aaaa", Options{}))(t)
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
	must.Do(t, os.WriteFile(filepath.Join(p.Dir, "20260101-0000-aaaa", "RUN"), nil, 0o600))
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
	j := must.Get(journal.Open(p.Dir, journal.Options{Run: "r1"}))(t)
	defer j.Close()
	r, here, err := p.Running()
	if !here || err != nil || r.ID != "r1" || r.Dir != filepath.Join(p.Dir, "r1") || r.Plan != nil {
		t.Errorf("%+v, %t, %v", r, here, err)
	}
	must.Do(t, j.Put("plan", planning.Plan{Cluster: "c1", TotalSeconds: 60}))
	if r, here, err = p.Running(); !here || err != nil || r.Plan == nil || r.Plan.TotalSeconds != 60 {
		t.Errorf("%+v, %t, %v", r, here, err)
	}
	if outcome, err := p.Outcome("r1"); outcome != "" || err != nil {
		t.Errorf("%q, %v", outcome, err)
	}
	must.Do(t, j.Finish("done"))
	if outcome, err := p.Outcome("r1"); outcome != "done" || err != nil {
		t.Errorf("%q, %v", outcome, err)
	}
	if _, here, err := p.Running(); here || err != nil {
		t.Errorf("%t, %v", here, err)
	}
}

// ranAt writes the journal of a run that a machine started then.
func ranAt(t *testing.T, dir, id, host string, began time.Time) {
	t.Helper()
	r := Runs{Dir: dir}
	runWith(t, r, id, "done", map[string]any{AboutKey: About{Command: "roll", By: claim.Holder{Host: host}}})
	backdate(t, dir, id, began)
}

// TestOrderOfRuns: the last run is the one that started last, whatever its ID; and where that is not certain, it is said
// to be so.
func TestOrderOfRuns(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 21, 4, 21, 10, 0, time.UTC)
	// Of one minute: the later one has the ID that sorts first.
	const first, second = "20261121-0421-ffff", "20261121-0421-0000"
	here := func(id, host string, began time.Time) func(*testing.T, Runs) {
		return func(t *testing.T, r Runs) { ranAt(t, r.Dir, id, host, began) }
	}
	there := func(id, host string, began time.Time) func(*testing.T, Runs) {
		return func(t *testing.T, r Runs) { ranAt(t, r.Elsewhere+"/first", id, host, began) }
	}
	for name, c := range map[string]struct {
		journals []func(*testing.T, Runs)
		at       [2]time.Time // as recorded in Proxmox, of first and second
		sure     bool
		last     string
	}{
		"by their journals":                    {journals: []func(*testing.T, Runs){here(first, "h", at), here(second, "h", at.Add(time.Millisecond))}, last: second, sure: true},
		"by what other machines have shared":   {journals: []func(*testing.T, Runs){there(first, "h", at), there(second, "h", at.Add(time.Millisecond))}, last: second, sure: true},
		"of two machines, at almost one time":  {journals: []func(*testing.T, Runs){here(first, "h", at), there(second, "ci", at.Add(5*time.Minute))}, last: second},
		"of two machines, long apart":          {journals: []func(*testing.T, Runs){here(first, "h", at), there(second, "ci", at.Add(time.Hour))}, last: second, sure: true},
		"without journals":                     {at: [2]time.Time{at, at.Add(time.Hour)}, last: second, sure: true},
		"without journals, at almost one time": {at: [2]time.Time{at, at.Add(time.Minute)}, last: second},
		"without journals or times":            {last: first},
		"one journal is here":                  {journals: []func(*testing.T, Runs){here(second, "h", at.Add(time.Minute))}, at: [2]time.Time{at, {}}, last: second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			r := Runs{Dir: dir + "/.recast/runs", Elsewhere: dir + "/.recast/elsewhere"}
			for _, write := range c.journals {
				write(t, r)
			}
			got, sure := r.Order([]planning.Replacing{{Run: first, At: c.at[0]}, {Run: second, At: c.at[1]}})
			if got[0].Run != c.last || sure != c.sure {
				t.Errorf("%v, sure: %t", got, sure)
			}
			if one, sure := r.Order(got[:1]); !sure || len(one) != 1 {
				t.Errorf("of one run: %v, %t", one, sure)
			}
		})
	}
	none := Runs{Dir: t.TempDir()}
	got, sure := none.Order([]planning.Replacing{{Run: "20261120-0300-aaaa"}, {Run: "20261121-0421-3f2a", At: at}})
	if sure || got[0].Run != "20261121-0421-3f2a" {
		t.Errorf("one time is not recorded, and the IDs are a day apart: %v, %t", got, sure)
	}
	if began := journal.RunBegan(first); !began.Equal(at.Truncate(time.Minute)) {
		t.Error(began)
	}
}

// backdate sets when a run began.
func backdate(t *testing.T, dir, id string, began time.Time) {
	t.Helper()
	text := `{"started":"` + began.Format(time.RFC3339Nano) + `","finished":"` + began.Add(time.Second).Format(time.RFC3339Nano) + `","outcome":"done"}`
	must.Do(t, os.WriteFile(filepath.Join(dir, id, "RUN"), []byte(text), 0o600))
}
