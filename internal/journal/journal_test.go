package journal

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
)

const run = "20261121-0421-3f2a"

type fact struct {
	Slot string `json:"slot"`
	Size int    `json:"size"`
}

func opened(t *testing.T, dir string, o Options) *Journal {
	t.Helper()
	if o.Run == "" {
		o.Run = run
	}
	j := must.Get(Open(dir, o))(t)
	t.Cleanup(func() { _ = j.Close() }) // most tests close it themselves
	return j
}

func closeNow(t *testing.T, j *Journal) {
	t.Helper()
	must.Do(t, j.Close())
}

func TestResume(t *testing.T) {
	t.Parallel()
	j := must.Get(Open(t.TempDir(), Options{Run: "r"}))(t)
	defer j.Close()
	before := must.Get(j.Info())(t)
	must.Do(t, errors.Join(j.Resume(), j.Finish("failed: x"), j.Resume()))
	after, err := j.Info()
	must.Hold(t, err == nil && after.Unfinished() && after == before, "%+v, was %+v; %v", after, before, err)
}

func TestFactsOutliveTheProcess(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "state", "journal")
	j := opened(t, dir, Options{})
	secret := []byte("token: \x00\xff[redacted]\n")
	must.Do(t, errors.Join(
		j.Put("node/wk1/disk", fact{"scsi0", 9}),
		j.Put("node/wk1/disk", fact{"scsi1", 10}),
		j.Put("node/wk2/disk", fact{}),
		j.Put("nodes", 2),
		j.PutSecret("node/wk1/machine-config", secret),
		j.PutSecret("node/wk2/disk", secret),
		j.Delete("node/wk2/disk"),
		j.Delete("never/was"),
	))
	closeNow(t, j)

	j = opened(t, dir, Options{})
	var got fact
	if found, err := j.Get("node/wk1/disk", &got); !found || err != nil || got != (fact{"scsi1", 10}) {
		t.Errorf("Get = %+v, %t, %v", got, found, err)
	}
	if b, found, err := j.Secret("node/wk1/machine-config"); !found || err != nil || string(b) != string(secret) {
		t.Errorf("Secret = %q, %t, %v", b, found, err)
	}
	if found, err := j.Get("node/wk2/disk", &got); found || err != nil {
		t.Errorf("deleted fact: %t, %v", found, err)
	}
	if b, found, err := j.Secret("node/wk2/disk"); found || err != nil || b != nil {
		t.Errorf("deleted secret: %q, %t, %v", b, found, err)
	}
	for prefix, want := range map[string][]string{
		"":          {"node/wk1/disk", "node/wk1/machine-config", "nodes"},
		"node/wk1/": {"node/wk1/disk", "node/wk1/machine-config"},
		"node/wk2/": nil,
	} {
		keys, err := j.Keys(prefix)
		diff := cmp.Diff(want, keys)
		must.Hold(t, diff == "" && err == nil, "Keys(%q): %v (-want +got):\n%s", prefix, err, diff)
	}
}

func TestOnlyTheOwnerMayRead(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "journal")
	j := opened(t, dir, Options{})
	must.Do(t, errors.Join(j.Put("a", 1), j.PutSecret("b", []byte("x")), j.Finish("done")))
	got := map[string]fs.FileMode{}
	must.Do(t, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		name, _ := filepath.Rel(dir, path)
		got[name] = info.Mode()
		return err
	}))
	want := map[string]fs.FileMode{
		".": fs.ModeDir | 0o700, run: fs.ModeDir | 0o700, run + ".lock": 0o600,
		run + "/RUN": 0o600, run + "/a.json": 0o600, run + "/b.secret": 0o600,
	}
	must.Equal(t, "modes", want, got)
}

// TestKeptOutOfGit: "git add" does not add machine configurations.
func TestKeptOutOfGit(t *testing.T) {
	t.Parallel()
	state := filepath.Join(t.TempDir(), ".recast")
	file := filepath.Join(state, ".gitignore")
	read := func() string {
		b := must.Get(os.ReadFile(file))(t)
		return string(b)
	}
	opened(t, filepath.Join(state, "runs"), Options{})
	must.Equal(t, ".gitignore", "*\n", read())
	for _, c := range []struct{ was, want string }{{"", "*\n"}, {"*\n!locks\n", "*\n!locks\n"}} {
		must.Do(t, os.WriteFile(file, []byte(c.was), 0o600))
		must.Do(t, KeepOutOfGit(state))
		must.Equal(t, "where it was "+c.was, c.want, read())
	}
	if err := KeepOutOfGit(file); err == nil {
		t.Error("a file was taken for the directory")
	}
}

func TestOneWriterPerRun(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j := opened(t, dir, Options{})
	must.Do(t, j.Put("a", 1))
	_, err := Open(dir, Options{Run: run})
	must.Hold(t, fault.KindOf(err) == fault.Claimed && err.Error() == `journal of run "20261121-0421-3f2a": another process has it open`,
		"second writer: %v", err)
	opened(t, dir, Options{Run: "another"})

	reader := opened(t, dir, Options{ReadOnly: true})
	var got int
	if found, err := reader.Get("a", &got); !found || err != nil || got != 1 {
		t.Errorf("reader: %d, %t, %v", got, found, err)
	}
	for name, err := range map[string]error{
		"Put": reader.Put("b", 1), "PutSecret": reader.PutSecret("b", []byte("x")), "Delete": reader.Delete("a"), "Finish": reader.Finish("done"),
	} {
		must.Hold(t, err != nil && strings.HasSuffix(err.Error(), "opened read-only"), "%s by a reader: %v", name, err)
	}
	closeNow(t, j)
	opened(t, dir, Options{})
}

func TestReadOnlyMakesNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if _, err := Open(dir, Options{Run: run, ReadOnly: true}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("err = %v", err)
	}
	entries, err := os.ReadDir(dir)
	must.Hold(t, len(entries) == 0 && err == nil, "made %v, %v", entries, err)
}

// secret marshals like the real type.
type secret string

func (secret) MarshalText() ([]byte, error) { return []byte("[redacted]"), nil }

func TestRefusedWrites(t *testing.T) {
	t.Parallel()
	j := opened(t, t.TempDir(), Options{})
	badKey := ` is not a valid key: words of a-z, 0-9, dot, dash and underscore, joined by slashes, 200 bytes at most`
	type example struct {
		err  error
		want string
	}
	cases := map[string]example{
		"a redacted secret": {j.Put("a", struct{ Config secret }{"key"}), "journal a: contains a secret, which is not stored as a fact"},
		"no JSON":           {j.Put("a", func() {}), "journal a: json: unsupported type: func()"},
		"empty secret":      {j.PutSecret("a", nil), "journal a: the secret is empty"},
		"no key":            {j.Put("", 1), `journal : ""` + badKey},
		"escape":            {j.Put("../a", 1), `journal ../a: "../a"` + badKey},
		"absolute":          {j.PutSecret("/etc/passwd", []byte("x")), `journal /etc/passwd: "/etc/passwd"` + badKey},
		"hidden":            {j.Put("a/.b", 1), `journal a/.b: "a/.b"` + badKey},
		"separator":         {j.Put("a~b", 1), `journal a~b: "a~b"` + badKey},
		"upper case":        {j.Delete("A"), `journal A: "A"` + badKey},
	}
	if err := j.Put("quote", "Talos quotes: `[redacted]`, \"[redacted]\""); err != nil {
		t.Errorf("an error that quotes: %v", err)
	}
	must.Do(t, j.Delete("quote"))
	must.Each(t, cases, func(t *testing.T, c example) {
		must.Hold(t, c.err != nil && c.err.Error() == c.want, "err = %v, want %q", c.err, c.want)
	})
	if keys, err := j.Keys(""); keys != nil || err != nil {
		t.Errorf("Keys = %q, %v", keys, err)
	}
}

func TestDamageIsNamed(t *testing.T) {
	t.Parallel()
	type example struct{ content, want string }
	cases := map[string]example{
		"cut off":       {`{"slot": "scsi`, "unexpected EOF"},
		"empty":         {"", "EOF"},
		"unknown field": {`{"slot": "scsi0", "bus": 1}`, `this recast does not know the field "bus": a newer one wrote it, or it was edited`},
		"two values":    {"{}{}", "more than one value"},
		"wrong type":    {`[]`, "json: cannot unmarshal array into Go value of type journal.fact"},
	}
	must.Each(t, cases, func(t *testing.T, c example) {
		dir := t.TempDir()
		j := opened(t, dir, Options{})
		file := filepath.Join(dir, run, "node~wk1.json")
		must.Do(t, os.WriteFile(file, []byte(c.content), 0o600))
		found, err := j.Get("node/wk1", &fact{})
		want := "journal node/wk1: " + file + ": " + c.want
		must.Hold(t, !found && err != nil && err.Error() == want, "Get = %t, %v, want %q", found, err, want)
	})
	t.Run("a secret without content", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		j := opened(t, dir, Options{})
		file := filepath.Join(dir, run, "a.secret")
		must.Do(t, os.WriteFile(file, nil, 0o600))
		if b, found, err := j.Secret("a"); b != nil || found || err == nil || err.Error() != "journal a: "+file+" is empty" {
			t.Errorf("Secret = %q, %t, %v", b, found, err)
		}
	})
	t.Run("a directory in its place", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		j := opened(t, dir, Options{})
		file := filepath.Join(dir, run, "a.json")
		must.Do(t, os.Mkdir(file, 0o700))
		_, err := j.Get("a", new(int))
		must.Equal(t, "error", "journal a: "+file+": is a directory", fmt.Sprint(err))
	})
}

var errKilled = errors.New("killed")

// killAt succeeds n times and then fails.
func killAt(n int) func(string) error {
	return func(string) error {
		if n == 0 {
			return errKilled
		}
		n--
		return nil
	}
}

// life is everything that a run does in this test.
func life(dir string, sync func(string) error) error {
	j, err := Open(dir, Options{Run: run, Sync: sync})
	if err != nil {
		return err
	}
	for _, do := range []func() error{
		func() error { return j.Put("a", 1) },
		func() error { return j.Put("a", 2) },
		func() error { return j.PutSecret("b", []byte("secret")) },
		func() error { return j.Delete("a") },
		func() error { return j.Finish("done") },
	} {
		if err := do(); err != nil {
			return errors.Join(err, j.Close())
		}
	}
	return j.Close()
}

// state is what a later process reads.
type state struct {
	A        int
	B        string
	Finished bool
	Runs     int
}

func read(t *testing.T, dir string) state {
	t.Helper()
	runs := must.Get(Runs(dir))(t)
	s := state{Runs: len(runs)}
	j := opened(t, dir, Options{})
	defer closeNow(t, j)
	_, errA := j.Get("a", &s.A)
	b, _, errB := j.Secret("b")
	info, errInfo := j.Info()
	must.Do(t, errors.Join(errA, errB, errInfo))
	s.B, s.Finished = string(b), !info.Unfinished()
	return s
}

func TestCrashAtEverySyncPoint(t *testing.T) {
	t.Parallel()
	var points []string
	must.Do(t, life(t.TempDir(), func(p string) error { points = append(points, p); return nil }))
	wantPoints := []string{
		"write start", "written start", "write a", "written a", "write a", "written a",
		"write b", "written b", "delete a", "deleted a", "write finish", "written finish",
	}
	if diff := cmp.Diff(wantPoints, points); diff != "" {
		t.Fatalf("points (-want +got):\n%s", diff)
	}
	after := []state{ // killed before and after each commit
		{},
		{Runs: 1},
		{Runs: 1},
		{Runs: 1, A: 1},
		{Runs: 1, A: 1},
		{Runs: 1, A: 2},
		{Runs: 1, A: 2},
		{Runs: 1, A: 2, B: "secret"},
		{Runs: 1, A: 2, B: "secret"},
		{Runs: 1, B: "secret"},
		{Runs: 1, B: "secret"},
		{Runs: 1, B: "secret", Finished: true},
	}
	for n, want := range after {
		dir := t.TempDir()
		if err := life(dir, killAt(n)); !errors.Is(err, errKilled) {
			t.Fatalf("killed at %d (%s): err = %v", n, points[n], err)
		}
		if diff := cmp.Diff(want, read(t, dir)); diff != "" {
			t.Errorf("killed at %d (%s) (-want +got):\n%s", n, points[n], diff)
		}
	}
}

// A killed process leaves half-written files; the next process removes them.
func TestLeftoversAreRemoved(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	half := filepath.Join(dir, ".new-"+run, "half")
	must.Do(t, os.MkdirAll(half, 0o700))
	runs, err := Runs(dir)
	must.Hold(t, runs == nil && err == nil, "Runs = %v, %v", runs, err)
	closeNow(t, opened(t, dir, Options{}))
	must.Do(t, os.WriteFile(filepath.Join(dir, run, ".tmp-1"), []byte("{"), 0o600))
	j := opened(t, dir, Options{})
	must.Do(t, j.Put("a", 1))
	var names []string
	for _, d := range []string{dir, filepath.Join(dir, run)} {
		entries := must.Get(os.ReadDir(d))(t)
		for _, e := range entries {
			names = append(names, e.Name())
		}
	}
	want := []string{run, run + ".lock", "RUN", "a.json"}
	must.Equal(t, "files", want, names)
}

// TestCheckPrivate: whatever another user could have created or could change is refused.
func TestCheckPrivate(t *testing.T) {
	t.Parallel()
	must := func(t *testing.T, err error) {
		t.Helper()
		must.Do(t, err)
	}
	for name, c := range map[string]struct {
		spoil func(t *testing.T, state string)
		want  string // "": accepted
	}{
		"none":         {func(t *testing.T, state string) { must(t, os.RemoveAll(state)) }, ""},
		"as is":        {func(*testing.T, string) {}, ""},
		"open to read": {func(t *testing.T, state string) { must(t, os.Chmod(state, 0o755)) }, ""},
		"what a container left": {func(t *testing.T, state string) {
			deep := filepath.Join(state, "cache", "imager", "base-1", "out")
			must(t, os.MkdirAll(deep, 0o700))
			must(t, os.Chmod(deep, 0o777))
		}, ""},
		"a link": {func(t *testing.T, state string) {
			must(t, os.Rename(state, state+"-there"))
			must(t, os.Symlink(state+"-there", state))
		}, ".recast is a symbolic link"},
		"a file": {func(t *testing.T, state string) {
			must(t, os.RemoveAll(state))
			must(t, os.WriteFile(state, nil, 0o600))
		}, ".recast is not a directory"},
		"group may write":  {func(t *testing.T, state string) { must(t, os.Chmod(state, 0o770)) }, "other users may write to .recast (mode 0770)"},
		"others may write": {func(t *testing.T, state string) { must(t, os.Chmod(filepath.Join(state, "runs", run), 0o702)) }, "may write to .recast/runs/" + run + " (mode 0702)"},
		"a linked run": {func(t *testing.T, state string) {
			must(t, os.Rename(filepath.Join(state, "runs", run), state+"-run"))
			must(t, os.Symlink(state+"-run", filepath.Join(state, "runs", run)))
		}, ".recast/runs/" + run + " is a symbolic link"},
		"a linked secret": {func(t *testing.T, state string) {
			must(t, os.Symlink("/dev/null", filepath.Join(state, "runs", run, "wk1~machine-config.secret")))
		}, "machine-config.secret is a symbolic link"},
		"a pipe": {func(t *testing.T, state string) { must(t, syscall.Mkfifo(filepath.Join(state, "reports"), 0o600)) }, ".recast/reports is neither a file nor a directory"},
		"another user's": {func(t *testing.T, state string) {
			if os.Geteuid() != 0 {
				t.Skip("only root can change the owner")
			}
			must(t, os.Chown(filepath.Join(state, "runs"), 4242, -1))
		}, ".recast/runs belongs to user 4242, and recast runs as user 0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			state := filepath.Join(t.TempDir(), ".recast")
			closeNow(t, opened(t, filepath.Join(state, "runs"), Options{}))
			c.spoil(t, state)
			err := CheckPrivate(state)
			switch {
			case c.want == "" && err != nil, c.want != "" && (err == nil || !strings.Contains(strings.ReplaceAll(err.Error(), filepath.Dir(state)+"/", ""), c.want)):
				t.Errorf("err = %v", err)
			case err != nil && (fault.KindOf(err) != fault.Refused || len(fault.Hints(err)) == 0):
				t.Errorf("kind %v, hints %q", fault.KindOf(err), fault.Hints(err))
			}
		})
	}
}

// TestOpenFollowsNoLink: a symbolic link is not a run directory.
func TestOpenFollowsNoLink(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	closeNow(t, opened(t, filepath.Join(dir, "there"), Options{}))
	here := filepath.Join(dir, "here")
	must.Do(t, os.MkdirAll(here, 0o700))
	must.Do(t, os.Symlink(filepath.Join(dir, "there", run), filepath.Join(here, run)))
	for _, o := range []Options{{Run: run, ReadOnly: true}, {Run: run}} {
		j, err := Open(here, o)
		if err == nil {
			_ = j.Close()
		}
		must.Contain(t, "error", fmt.Sprint(err), "is a symbolic link")
	}
}

func TestRuns(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		start := time.Now().UTC() // the bubble's
		dir := t.TempDir()
		for _, id := range []string{"b", "a"} {
			j := opened(t, dir, Options{Run: id})
			time.Sleep(time.Minute)
			if id == "b" {
				must.Do(t, j.Finish("done"))
			}
			closeNow(t, j)
		}
		runs := must.Get(Runs(dir))(t)
		killed := RunInfo{ID: "a", Started: start.Add(time.Minute)}
		done := RunInfo{ID: "b", Started: start, Finished: start.Add(time.Minute), Outcome: "done"}
		must.Equal(t, "Runs", []RunInfo{killed, done}, runs)
		unfinished, err := Unfinished(dir)
		diff := cmp.Diff([]RunInfo{killed}, unfinished)
		must.Hold(t, diff == "" && err == nil, "Unfinished: %v (-want +got):\n%s", err, diff)
	})
}

func TestRunsNamesEveryDamagedRun(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	none, err := Runs(filepath.Join(dir, "none"))
	must.Hold(t, none == nil && err == nil, "of a missing directory: %v, %v", none, err)
	closeNow(t, opened(t, dir, Options{Run: "good"}))
	for id, content := range map[string]string{"cut": `{"started`, "old": "{}"} {
		must.Do(t, errors.Join(
			os.Mkdir(filepath.Join(dir, id), 0o700),
			os.WriteFile(filepath.Join(dir, id, "RUN"), []byte(content), 0o600),
		))
	}
	must.Do(t, os.Mkdir(filepath.Join(dir, "empty"), 0o700))
	runs, err := Runs(dir)
	must.Hold(t, len(runs) == 1 && runs[0].ID == "good", "Runs = %v", runs)
	want := strings.Join([]string{
		`run "cut": ` + filepath.Join(dir, "cut", "RUN") + ": unexpected EOF",
		`run "empty": ` + filepath.Join(dir, "empty", "RUN") + ": no such file or directory",
		`run "old": ` + filepath.Join(dir, "old", "RUN") + ": no start time",
	}, "\n")
	must.Equal(t, "error", want, fmt.Sprint(err))
	if _, err := Open(dir, Options{Run: "cut"}); err == nil {
		t.Error("a damaged run was opened")
	}
}

func TestOpenRefusesBadIDs(t *testing.T) {
	t.Parallel()
	for _, id := range []string{"", ".", "..", "a/b", "../a", "A", ".new-a", strings.Repeat("a", 201)} {
		dir := t.TempDir()
		if _, err := Open(dir, Options{Run: id}); err == nil {
			t.Errorf("Open of run %q succeeded", id)
		}
		if entries, err := os.ReadDir(dir); len(entries) != 0 || err != nil {
			t.Errorf("Open of run %q made %v, %v", id, entries, err)
		}
	}
}

func TestNewRunID(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 21, 5, 21, 7, 0, time.FixedZone("CET", 3600))
	id, err := NewRunID(now, bytes.NewReader([]byte{0x3f, 0x2a}))
	must.Hold(t, id == run && err == nil, "NewRunID = %q, %v", id, err)
	if _, err := NewRunID(now, bytes.NewReader([]byte{1})); err == nil {
		t.Error("an ID without randomness")
	}
}

func TestRunBegan(t *testing.T) {
	t.Parallel()
	for id, want := range map[string]time.Time{
		run:                   time.Date(2026, 11, 21, 4, 21, 0, 0, time.UTC),
		"20261321-0421-3f2a":  {},
		"20261121":            {},
		"":                    {},
		"a-run-of-my-own-who": {},
	} {
		got := RunBegan(id)
		must.Hold(t, got.Equal(want), "RunBegan(%q) = %s, want %s", id, got, want)
	}
}

func TestRemove(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j := opened(t, dir, Options{})
	must.Do(t, j.PutSecret("wk1/machine-config", []byte("secret")))
	must.Equal(t, "kind of the error while it is open", fault.Claimed, fault.KindOf(Remove(dir, run)))
	closeNow(t, j)
	must.Equal(t, "error", `remove run "20261121-0421-3f2a": it has not finished`, fmt.Sprint(Remove(dir, run)))
	j = opened(t, dir, Options{})
	must.Do(t, j.Finish("done"))
	closeNow(t, j)
	// An interrupted removal may have left this.
	must.Do(t, os.MkdirAll(filepath.Join(dir, ".old-"+run, "half"), 0o700))
	must.Do(t, Remove(dir, run))
	if files, err := os.ReadDir(dir); len(files) != 0 || err != nil {
		t.Errorf("left: %v, %v", files, err)
	}
	if err := Remove(dir, "../"+run); err == nil {
		t.Error("it removes something that is not a run")
	}
	if err := Remove(dir, run); err == nil {
		t.Error("what is not there was removed")
	}
}

// TestForget: secrets are deleted from all runs except one that is open.
func TestForget(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(run string) *Journal {
		j := opened(t, dir, Options{Run: run})
		must.Do(t, errors.Join(j.PutSecret("wk1/machine-config", []byte("x")), j.PutSecret("wk2/machine-config", []byte("x")), j.Put("wk1/memory", 1)))
		return j
	}
	closeNow(t, write("older"))
	held := write("held")
	var points []string
	must.Do(t, Forget(dir, []string{"wk1/machine-config"}, func(p string) error { points = append(points, p); return nil }))
	closeNow(t, held)
	files := must.Get(filepath.Glob(filepath.Join(dir, "*", "wk1*")))(t)
	for i, f := range files {
		files[i], _ = filepath.Rel(dir, f)
	}
	want := []string{"held/wk1~machine-config.secret", "held/wk1~memory.json", "older/wk1~memory.json"}
	must.Hold(t, slices.Equal(files, want) && slices.Equal(points, []string{"delete wk1/machine-config", "deleted wk1/machine-config"}),
		"%q; %q", files, points)
	err := Forget(filepath.Join(dir, "none"), []string{"wk1/machine-config"}, nil)
	must.Hold(t, err == nil, "where no run was: %v", err)
}

// TestUnlockBesideAProgramThatStarts: a forked process has all files open until its exec.
func TestUnlockBesideAProgramThatStarts(t *testing.T) {
	t.Parallel()
	root := must.Get(os.OpenRoot(t.TempDir()))(t)
	defer root.Close()
	f := must.Get(lock(root, "run.lock"))(t)
	forked := must.Get(syscall.Dup(int(f.Fd())))(t)
	defer syscall.Close(forked)
	must.Do(t, unlock(f))
	again := must.Get(lock(root, "run.lock"))(t)
	must.Do(t, unlock(again))
}
