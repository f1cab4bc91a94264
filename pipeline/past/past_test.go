package past

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/claim"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/journal"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/story"
	"github.com/recast-sh/recast/schematics"
)

func runsOf(t *testing.T) Runs { return Runs{Dir: filepath.Join(t.TempDir(), ".recast", "runs")} }

// runWith creates the journal of a run; with "" as the outcome it has no end.
func runWith(t *testing.T, r Runs, id, outcome string, facts map[string]any) {
	t.Helper()
	j := must.Get(journal.Open(r.Dir, journal.Options{Run: id}))(t)
	for key, v := range facts {
		must.Do(t, j.Put(key, v))
	}
	if outcome != "" {
		must.Do(t, j.Finish(outcome))
	}
	must.Do(t, j.Close())
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

	r := must.Get(p.Find("aaaa", Options{}))(t)
	node, seconds := r.Longest()
	done, planned := r.Counted()
	got := fmt.Sprintln(r.Result, "|", r.Error, "|", node, seconds, done, planned, len(r.Hooks), r.What(), r.Problems)
	must.Equal(t, "told", "failed | roll/workers/wk1: no quorum: gone | wk1 90 0 1 2 iscsi-tools v0.2.0, new digest []\n", got)
	dead := func(h claim.Holder) bool { return h == other }
	for o, want := range map[*Options]string{
		{Dead: dead}:                      "killed",
		{Holder: claim.Holder{Boot: "b"}}: "running",
		{}:                                "running or killed",
	} {
		must.Equal(t, fmt.Sprintf("%+v", o), want, must.Get(p.Find("20260102-0000-bbbb", *o))(t).Result)
	}
	if r, err := p.Find("cccc", Options{}); err != nil || r.About == nil || r.Plan != nil || len(r.Problems) != 1 {
		t.Errorf("of another recast: %+v, %v", r, err)
	}
	for id, want := range map[string]string{"2026": "is a part of several runs", "nope": "no run \"nope\""} {
		must.FailAs(t, must.Err(p.Find(id, Options{})), fault.Config, want)
	}
	// One that can't be read takes nothing from the others.
	must.Do(t, os.WriteFile(filepath.Join(p.Dir, "20260101-0000-aaaa", "RUN"), nil, 0o600))
	if runs, problems := p.All(Options{}); len(runs) != 2 || len(problems) != 1 {
		t.Errorf("%d runs, problems %q", len(runs), problems)
	}
	// Which one is the last, nobody knows then.
	must.Contain(t, "the last", strings.Join(must.Get(p.Find("", Options{}))(t).Problems, "\n"), `this may not be the last run: run "20260101-0000-aaaa": `)
	must.Equal(t, "problems of one by its ID", 0, len(must.Get(p.Find("bbbb", Options{}))(t).Problems))
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
	must.Hold(t, here && err == nil && r.ID == "r1" && r.Dir == filepath.Join(p.Dir, "r1") && r.Plan == nil,
		"%+v, %t, %v", r, here, err)
	must.Do(t, j.Put("plan", planning.Plan{Cluster: "c1", TotalSeconds: 60}))
	if r, here, err = p.Running(); !here || err != nil || r.Plan == nil || r.Plan.TotalSeconds != 60 {
		t.Errorf("%+v, %t, %v", r, here, err)
	}
	must.Equal(t, "outcome", "", must.Get(p.Outcome("r1"))(t))
	must.Do(t, j.Finish("done"))
	must.Equal(t, "outcome", "done", must.Get(p.Outcome("r1"))(t))
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
	type row struct {
		journals []func(*testing.T, Runs)
		at       [2]time.Time // as recorded in Proxmox, of first and second
		sure     bool
		last     string
	}
	must.Each(t, map[string]row{
		"by their journals":                    {journals: []func(*testing.T, Runs){here(first, "h", at), here(second, "h", at.Add(time.Millisecond))}, last: second, sure: true},
		"by what other machines have shared":   {journals: []func(*testing.T, Runs){there(first, "h", at), there(second, "h", at.Add(time.Millisecond))}, last: second, sure: true},
		"of two machines, at almost one time":  {journals: []func(*testing.T, Runs){here(first, "h", at), there(second, "ci", at.Add(5*time.Minute))}, last: second},
		"of two machines, long apart":          {journals: []func(*testing.T, Runs){here(first, "h", at), there(second, "ci", at.Add(time.Hour))}, last: second, sure: true},
		"without journals":                     {at: [2]time.Time{at, at.Add(time.Hour)}, last: second, sure: true},
		"without journals, at almost one time": {at: [2]time.Time{at, at.Add(time.Minute)}, last: second},
		"without journals or times":            {last: first},
		"one journal is here":                  {journals: []func(*testing.T, Runs){here(second, "h", at.Add(time.Minute))}, at: [2]time.Time{at, {}}, last: second},
	}, func(t *testing.T, c row) {
		dir := t.TempDir()
		r := Runs{Dir: dir + "/.recast/runs", Elsewhere: dir + "/.recast/elsewhere"}
		for _, write := range c.journals {
			write(t, r)
		}
		got, sure := r.Order([]planning.Replacing{{Run: first, At: c.at[0]}, {Run: second, At: c.at[1]}})
		must.Hold(t, got[0].Run == c.last && sure == c.sure, "%v, sure: %t", got, sure)
		if one, sure := r.Order(got[:1]); !sure || len(one) != 1 {
			t.Errorf("of one run: %v, %t", one, sure)
		}
	})
	none := Runs{Dir: t.TempDir()}
	got, sure := none.Order([]planning.Replacing{{Run: "20261120-0300-aaaa"}, {Run: "20261121-0421-3f2a", At: at}})
	must.Hold(t, !sure && got[0].Run == "20261121-0421-3f2a",
		"one time is not recorded, and the IDs are a day apart: %v, %t", got, sure)
	if began := journal.RunBegan(first); !began.Equal(at.Truncate(time.Minute)) {
		t.Error(began)
	}
}

func backdate(t *testing.T, dir, id string, began time.Time) {
	t.Helper()
	text := `{"started":"` + began.Format(time.RFC3339Nano) + `","finished":"` + began.Add(time.Second).Format(time.RFC3339Nano) + `","outcome":"done"}`
	must.Do(t, os.WriteFile(filepath.Join(dir, id, "RUN"), []byte(text), 0o600))
}

type shelf struct {
	list    []images.Record
	content map[string][]byte // by digest
	reads   int
	err     error
}

func (s *shelf) List(context.Context, string) ([]images.Record, error) { return s.list, s.err }

func (s *shelf) Read(_ context.Context, _ string, r images.Record) ([]byte, error) {
	s.reads++
	return s.content[r.Digest], nil
}

func (s *shelf) Keep(_ context.Context, _ string, r images.Record, content []byte, most int) error {
	r.Digest = fmt.Sprintf("%x", len(s.content))
	s.list = slices.DeleteFunc(s.list, func(known images.Record) bool { return known.Name == r.Name })
	s.list = append([]images.Record{r}, s.list...)
	s.list = s.list[:min(most, len(s.list))]
	if s.content == nil {
		s.content = map[string][]byte{}
	}
	s.content[r.Digest] = bytes.Clone(content)
	return nil
}

func (s *shelf) ForAnyone(context.Context, string) (bool, error) { return false, nil }

func machine(t *testing.T, s *shelf) Sharing {
	dir := filepath.Join(t.TempDir(), ".recast")
	return Sharing{
		Runs: Runs{filepath.Join(dir, "runs"), filepath.Join(dir, "elsewhere")}, Records: s, List: "mirror:list",
		Lock: func(key string) []byte { return []byte("lock " + key) },
		Hide: func(b []byte) []byte { return bytes.ReplaceAll(b, []byte("hunter2"), []byte("[redacted]")) },
	}
}

func fetched(t *testing.T, m Sharing) Runs {
	t.Helper()
	must.Do(t, m.Fetch(t.Context(), 0, func(text string) { t.Error(text) }))
	return m.Runs
}

const shared = "20260101-0000-aaaa"

// TestShare: another machine sees of a run what history and reports read, and nothing else.
func TestShare(t *testing.T) {
	t.Parallel()
	s := &shelf{}
	ci, laptop := machine(t, s), machine(t, s)
	by := claim.Holder{Host: "ci", Boot: "b", PID: 7}
	runWith(t, ci.Runs, shared, "", map[string]any{
		AboutKey: About{Command: "roll", By: by, Talos: "v1.13.9", Lock: "new", Before: "old"},
		PlanKey:  planning.Plan{Nodes: []planning.NodePlan{{Node: "wk1", Strategy: cluster.Recreate}}}, "wk1/took": cluster.Took{Node: "wk1", OutageSeconds: 9},
		"hooks/beforerun/1": planning.HookRun{Point: cluster.BeforeRun, Output: "the password is hunter2"}, "node/wk1/vm-config": "of no concern to others",
	})
	dir := filepath.Join(ci.Runs.Dir, shared)
	for name, text := range map[string]string{story.LogName: `{"time":"x","msg":"hunter2"}`, "wk1~config.secret": "hunter2", "notes.txt": "x"} {
		must.Do(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	must.Do(t, os.WriteFile(filepath.Join(filepath.Dir(ci.Runs.Dir), ParkingsName), []byte("9001 u\n"), 0o600))
	must.Do(t, ci.Share(t.Context(), shared))
	r, err := fetched(t, laptop).Find("", Options{})
	if err != nil || r.ID != shared || r.Result != "running or killed" || r.About.By != by || len(r.Took) != 1 || len(r.Plan.Nodes) != 1 || len(r.Problems) > 0 {
		t.Errorf("%+v, %v", r, err)
	}
	must.Equal(t, "a hook said", "the password is [redacted]", r.Hooks[0].Output)
	var names []string
	for _, file := range filesIn(t, r.Dirs[0]) {
		text, err := os.ReadFile(filepath.Join(r.Dirs[0], file))
		must.Hold(t, err == nil && !strings.Contains(string(text), "hunter2"), "%s: %s, %v", file, text, err)
		names = append(names, file)
	}
	must.Equal(t, "what is shared", []string{"RUN", "about.json", "before.lock", "hooks~beforerun~1.json", "log.jsonl", "parkings", "plan.json", "recast.lock", "record", "wk1~took.json"}, names)
	must.Equal(t, "locks", "[lock new lock old]", fmt.Sprintf("%s", laptop.Runs.locks()))
	must.Equal(t, "a copy counts as a journal", false, laptop.Runs.Has(shared))
	// What has not changed is not read again, and what the machine has itself not at all.
	fetched(t, laptop)
	fetched(t, ci)
	must.Equal(t, "records read", 1, s.reads)
	must.Do(t, ci.Share(t.Context(), shared))
	fetched(t, laptop)
	must.Equal(t, "records read after it was shared again", 2, s.reads)
}

func filesIn(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries := must.Get(os.ReadDir(dir))(t)
	names = append(names, cluster.Each(entries, os.DirEntry.Name)...)
	return names
}

// TestARunOfTwoMachines: a run that was killed on one machine and finished on another is one run, on both of them and on a
// third.
func TestARunOfTwoMachines(t *testing.T) {
	t.Parallel()
	s := &shelf{}
	ci, laptop, other := machine(t, s), machine(t, s), machine(t, s)
	both := planning.Plan{Nodes: []planning.NodePlan{{Node: "wk1", Strategy: cluster.Recreate}, {Node: "wk2", Strategy: cluster.Recreate}, {Node: "wk3", Strategy: cluster.Recreate}}}
	first, second := claim.Holder{Host: "ci", Boot: "b", PID: 7}, claim.Holder{Host: "laptop", Boot: "c", PID: 8}
	runWith(t, ci.Runs, shared, "", map[string]any{AboutKey: About{Command: "roll", By: first, Talos: "v1.13.9"}, PlanKey: both, "wk1/took": cluster.Took{Node: "wk1", OutageSeconds: 60}})
	runWith(t, laptop.Runs, shared, "done", map[string]any{
		AboutKey: About{Command: "roll", By: second, Elsewhere: true}, "wk2/took": cluster.Took{Node: "wk2", OutageSeconds: 90},
		PlanKey: planning.Plan{Run: shared, Nodes: both.Nodes[1:2]}, FatesKey: cluster.Fates{Done: []string{"wk2"}, Failed: []string{}, Left: []string{}},
	})
	for _, m := range []Sharing{ci, laptop} {
		must.Do(t, m.Share(t.Context(), shared))
	}
	for name, m := range map[string]Sharing{"the first": ci, "the second": laptop, "another": other} {
		runs, problems := fetched(t, m).All(Options{})
		must.Be(t, len(runs) == 1 && len(problems) == 0, "%s: %d runs, %q", name, len(runs), problems)
		r := runs[0]
		node, seconds := r.Longest()
		done, planned := r.Counted()
		got := fmt.Sprint(r.Result, r.About.By, r.About.GoneOn, node, seconds, done, planned, *r.Fates, len(r.Dirs), r.Started.After(r.Finished))
		fates := cluster.Fates{Done: []string{"wk1", "wk2"}, Failed: []string{}, Left: []string{"wk3"}}
		must.Equal(t, name+" tells", fmt.Sprint("done", first, []claim.Holder{second}, "wk2", 90, 2, 3, fates, 2, false), got)
	}
}

// TestJoined: the machine that had the last word says how a run ended.
func TestJoined(t *testing.T) {
	t.Parallel()
	at := func(minute int) (z time.Time) {
		if minute == 0 {
			return z
		}
		return time.Date(2026, 1, 1, 0, minute, 0, 0, time.UTC)
	}
	info := func(started, finished int, outcome string) journal.RunInfo {
		return journal.RunInfo{Started: at(started), Finished: at(finished), Outcome: outcome}
	}
	for name, tc := range map[string]struct{ a, b, want journal.RunInfo }{
		"killed, then finished":         {info(1, 0, ""), info(5, 6, "done"), info(1, 6, "done")},
		"failed, then finished":         {info(1, 3, "failed"), info(5, 6, "done"), info(1, 6, "done")},
		"failed, then killed":           {info(1, 3, "failed"), info(5, 0, ""), info(1, 0, "")},
		"killed twice":                  {info(1, 0, ""), info(5, 0, ""), info(1, 0, "")},
		"killed there, finished here":   {info(1, 9, "done"), info(5, 0, ""), info(1, 9, "done")},
		"failed there, finished here":   {info(1, 9, "done"), info(5, 6, "failed"), info(1, 9, "done")},
		"finished there, once more too": {info(1, 6, "failed"), info(5, 9, "done"), info(1, 9, "done")},
	} {
		for _, got := range []journal.RunInfo{joined(tc.a, tc.b), joined(tc.b, tc.a)} {
			must.Equal(t, name, tc.want, got)
		}
	}
}

// TestUnpackedIsBounded: of headers, too, a few bytes of an archive can stand for millions.
func TestUnpackedIsBounded(t *testing.T) {
	t.Parallel()
	const most = 8 << 10
	large := must.Get(packed(map[string][]byte{"RUN": make([]byte, most+1)}))(t)
	for want, content := range map[string][]byte{"too large": large, "unexpected EOF": zipped(bytes.Repeat(header("RUN"), most/512+2))} {
		must.Fail(t, must.Err(unpacked(content, most)), want)
	}
}

// TestFetchIsCareful: what a registry says cannot leave its directory, fill the disk or hide the other runs.
func TestFetchIsCareful(t *testing.T) {
	t.Parallel()
	good := must.Get(packed(map[string][]byte{"RUN": []byte(`{"started":"2026-01-01T00:00:00Z"}`)}))(t)
	pack := func(files map[string][]byte) []byte {
		return must.Get(packed(files))(t)
	}
	type row struct {
		name    string
		content []byte
		want    string
	}
	must.Each(t, map[string]row{
		"a part that leads out":     {shared + "/../..", good, "not that of a run"},
		"no part":                   {shared, good, "not that of a run"},
		"a run that leads out":      {"../x/first", good, "not that of a run"},
		"a name of no run":          {"X/first", good, "a run ID is made of"},
		"no archive":                {shared + "/first", []byte("no"), "EOF"},
		"a file that leads out":     {shared + "/first", pack(map[string][]byte{"RUN": nil, "../../x": nil}), "not a part of a run"},
		"a secret":                  {shared + "/first", pack(map[string][]byte{"RUN": nil, "wk1~config.secret": nil}), "not a part of a run"},
		"a fact that none is shown": {shared + "/first", pack(map[string][]byte{"RUN": nil, "node~wk1~vm-config.json": nil}), "not a part of a run"},
		"no beginning":              {shared + "/first", pack(map[string][]byte{"about.json": []byte("{}")}), "RUN"},
	}, func(t *testing.T, tc row) {
		s := &shelf{content: map[string][]byte{"bad": tc.content, "good": good}, list: []images.Record{{Name: tc.name, Digest: "bad"}, {Name: "20260101-0000-bbbb/first", Digest: "good"}}}
		m := machine(t, s)
		var warned []string
		must.Do(t, m.Fetch(t.Context(), 0, func(text string) { warned = append(warned, text) }))
		must.Hold(t, len(warned) == 1 && strings.Contains(warned[0], tc.want), "warnings %q, want %q", warned, tc.want)
		if runs, problems := m.Runs.All(Options{}); len(runs) != 1 || len(problems) > 0 {
			t.Errorf("%d runs, %q", len(runs), problems)
		}
		must.Equal(t, "beside", []string{".gitignore", "elsewhere"}, filesIn(t, filepath.Join(m.Runs.Elsewhere, "..")))
	})
	away := errors.New("no route to host")
	m := machine(t, &shelf{err: away})
	must.FailIs(t, m.Fetch(t.Context(), 0, nil), away)
}

// TestSharedLocks: each is read once, and no other file for one.
func TestSharedLocks(t *testing.T) {
	t.Parallel()
	r := Runs{Elsewhere: t.TempDir()}
	for name, text := range map[string]string{"1/recast.lock": "a", "2/before.lock": "a", "2/recast.lock": "b", "3/recast.lock": strings.Repeat("x", maxLock+1)} {
		file := filepath.Join(r.Elsewhere, firstPart, name)
		must.Do(t, errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte(text), 0o600)))
	}
	must.Equal(t, "locks", "[b a]", fmt.Sprintf("%s", r.locks()))
}

func header(name string) []byte {
	var b bytes.Buffer
	_ = tar.NewWriter(&b).WriteHeader(&tar.Header{Name: name}) // to memory
	return b.Bytes()
}

func zipped(b []byte) []byte {
	var out bytes.Buffer
	w, _ := gzip.NewWriterLevel(&out, gzip.BestSpeed) // a valid level
	_, errWrite := w.Write(b)
	if err := errors.Join(errWrite, w.Close()); err != nil {
		panic(err)
	}
	return out.Bytes()
}

// TestFetchIsBounded: a list on which others have put more than recast keeps, and a directory that can't be written.
func TestFetchIsBounded(t *testing.T) {
	t.Parallel()
	good := must.Get(packed(map[string][]byte{"RUN": []byte(`{"started":"2026-01-01T00:00:00Z"}`)}))(t)
	s := &shelf{content: map[string][]byte{"good": good}}
	for i := range keepShared + 5 {
		s.list = append(s.list, images.Record{Name: fmt.Sprintf("20260101-0000-%04x/first", i), Digest: "good"})
	}
	must.Equal(t, "runs", keepShared, len(must.Get(fetched(t, machine(t, s)).List())(t)))
	s.reads = 0
	m := machine(t, s)
	must.Do(t, os.WriteFile(filepath.Dir(m.Runs.Dir), nil, 0o600))
	err := m.Fetch(t.Context(), 0, func(text string) { t.Error(text) })
	must.Hold(t, err != nil && s.reads <= 0, "%v after %d reads", err, s.reads)
}
