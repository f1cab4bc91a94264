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

	"github.com/google/go-cmp/cmp"
	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/claim"
	"github.com/recast-sh/recast/cluster/hook"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/journal"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/story"
)

// shelf is a list in memory.
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

// machine is one that shares its runs on that shelf.
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
		"hooks/beforerun/1": hook.HookRun{Point: cluster.BeforeRun, Output: "the password is hunter2"}, "node/wk1/vm-config": "of no concern to others",
	})
	dir := filepath.Join(ci.Runs.Dir, shared)
	for name, text := range map[string]string{story.LogName: `{"time":"x","msg":"hunter2"}`, "wk1~config.secret": "hunter2", "notes.txt": "x"} {
		must.Do(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	must.Do(t, ci.Share(t.Context(), shared))
	r, err := fetched(t, laptop).Find("", Options{})
	if err != nil || r.ID != shared || r.Result != "running or killed" || r.About.By != by || len(r.Took) != 1 || len(r.Plan.Nodes) != 1 || len(r.Problems) > 0 {
		t.Errorf("%+v, %v", r, err)
	}
	must.Equal(t, "a hook said", "the password is [redacted]", r.Hooks[0].Output)
	var names []string
	for _, file := range filesIn(t, r.Dirs[0]) {
		text, err := os.ReadFile(filepath.Join(r.Dirs[0], file))
		if err != nil || strings.Contains(string(text), "hunter2") {
			t.Errorf("%s: %s, %v", file, text, err)
		}
		names = append(names, file)
	}
	if diff := cmp.Diff([]string{"RUN", "about.json", "before.lock", "hooks~beforerun~1.json", "log.jsonl", "plan.json", "recast.lock", "record", "wk1~took.json"}, names); diff != "" {
		t.Errorf("what is shared (-want +got):\n%s", diff)
	}
	must.Equal(t, "locks", "[lock new lock old]", fmt.Sprintf("%s", laptop.Runs.locks()))
	if laptop.Runs.Has(shared) {
		t.Error("a copy counts as a journal")
	}
	// What has not changed is not read again, and what the machine has itself not at all.
	fetched(t, laptop)
	fetched(t, ci)
	if s.reads != 1 {
		t.Errorf("%d records were read", s.reads)
	}
	must.Do(t, ci.Share(t.Context(), shared))
	fetched(t, laptop)
	if s.reads != 2 {
		t.Errorf("%d records were read after it was shared again", s.reads)
	}
}

func filesIn(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries := must.Get(os.ReadDir(dir))(t)
	for _, e := range entries {
		names = append(names, e.Name())
	}
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
		if len(runs) != 1 || len(problems) > 0 {
			t.Fatalf("%s: %d runs, %q", name, len(runs), problems)
		}
		r := runs[0]
		node, seconds := r.Longest()
		done, planned := r.Counted()
		got := fmt.Sprint(r.Result, r.About.By, r.About.GoneOn, node, seconds, done, planned, *r.Fates, len(r.Dirs), r.Started.After(r.Finished))
		if want := fmt.Sprint("done", first, []claim.Holder{second}, "wk2", 90, 2, 3, cluster.Fates{Done: []string{"wk1", "wk2"}, Failed: []string{}, Left: []string{"wk3"}}, 2, false); got != want {
			t.Errorf("%s tells %s, want %s", name, got, want)
		}
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
		if _, err := unpacked(content, most); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// TestFetchIsCareful: what a registry says cannot leave its directory, fill the disk or hide the other runs.
func TestFetchIsCareful(t *testing.T) {
	t.Parallel()
	good := must.Get(packed(map[string][]byte{"RUN": []byte(`{"started":"2026-01-01T00:00:00Z"}`)}))(t)
	pack := func(files map[string][]byte) []byte {
		b := must.Get(packed(files))(t)
		return b
	}
	for title, tc := range map[string]struct {
		name    string
		content []byte
		want    string
	}{
		"a part that leads out":     {shared + "/../..", good, "not that of a run"},
		"no part":                   {shared, good, "not that of a run"},
		"a run that leads out":      {"../x/first", good, "not that of a run"},
		"a name of no run":          {"X/first", good, "a run ID is made of"},
		"no archive":                {shared + "/first", []byte("no"), "EOF"},
		"a file that leads out":     {shared + "/first", pack(map[string][]byte{"RUN": nil, "../../x": nil}), "not a part of a run"},
		"a secret":                  {shared + "/first", pack(map[string][]byte{"RUN": nil, "wk1~config.secret": nil}), "not a part of a run"},
		"a fact that none is shown": {shared + "/first", pack(map[string][]byte{"RUN": nil, "node~wk1~vm-config.json": nil}), "not a part of a run"},
		"no beginning":              {shared + "/first", pack(map[string][]byte{"about.json": []byte("{}")}), "RUN"},
	} {
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			s := &shelf{content: map[string][]byte{"bad": tc.content, "good": good}, list: []images.Record{{Name: tc.name, Digest: "bad"}, {Name: "20260101-0000-bbbb/first", Digest: "good"}}}
			m := machine(t, s)
			var warned []string
			must.Do(t, m.Fetch(t.Context(), 0, func(text string) { warned = append(warned, text) }))
			if len(warned) != 1 || !strings.Contains(warned[0], tc.want) {
				t.Errorf("warnings %q, want %q", warned, tc.want)
			}
			if runs, problems := m.Runs.All(Options{}); len(runs) != 1 || len(problems) > 0 {
				t.Errorf("%d runs, %q", len(runs), problems)
			}
			if got := filesIn(t, filepath.Join(m.Runs.Elsewhere, "..")); !slices.Equal(got, []string{".gitignore", "elsewhere"}) {
				t.Errorf("beside the copies: %q", got)
			}
		})
	}
	away := errors.New("no route to host")
	m := machine(t, &shelf{err: away})
	if err := m.Fetch(t.Context(), 0, nil); !errors.Is(err, away) {
		t.Errorf("a mirror that is away: %v", err)
	}
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
	if infos, err := fetched(t, machine(t, s)).List(); len(infos) != keepShared || err != nil {
		t.Errorf("%d runs, %v", len(infos), err)
	}
	s.reads = 0
	m := machine(t, s)
	must.Do(t, os.WriteFile(filepath.Dir(m.Runs.Dir), nil, 0o600))
	if err := m.Fetch(t.Context(), 0, func(text string) { t.Error(text) }); err == nil || s.reads > 0 {
		t.Errorf("%v after %d reads", err, s.reads)
	}
}
