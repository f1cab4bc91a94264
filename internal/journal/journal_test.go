package journal_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/journal"
)

const run = "20261121-0421-3f2a"

type fact struct {
	Slot string `json:"slot"`
	Size int    `json:"size"`
}

func open(t *testing.T, dir string, o journal.Options) *journal.Journal {
	t.Helper()
	if o.Run == "" {
		o.Run = run
	}
	j, err := journal.Open(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = j.Close() }) // most tests close it themselves
	return j
}

func closeNow(t *testing.T, j *journal.Journal) {
	t.Helper()
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestResume(t *testing.T) {
	t.Parallel()
	j, err := journal.Open(t.TempDir(), journal.Options{Run: "r"})
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	before, err := j.Info()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(j.Resume(), j.Finish("failed: x"), j.Resume()); err != nil {
		t.Fatal(err)
	}
	if after, err := j.Info(); err != nil || !after.Unfinished() || after != before {
		t.Errorf("%+v, was %+v; %v", after, before, err)
	}
}

func TestFactsOutliveTheProcess(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "state", "journal")
	j := open(t, dir, journal.Options{})
	secret := []byte("token: \x00\xff[redacted]\n")
	if err := errors.Join(
		j.Put("node/wk1/disk", fact{"scsi0", 9}),
		j.Put("node/wk1/disk", fact{"scsi1", 10}),
		j.Put("node/wk2/disk", fact{}),
		j.Put("nodes", 2),
		j.PutSecret("node/wk1/machine-config", secret),
		j.PutSecret("node/wk2/disk", secret),
		j.Delete("node/wk2/disk"),
		j.Delete("never/was"),
	); err != nil {
		t.Fatal(err)
	}
	closeNow(t, j)

	j = open(t, dir, journal.Options{})
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
		if diff := cmp.Diff(want, keys); diff != "" || err != nil {
			t.Errorf("Keys(%q): %v (-want +got):\n%s", prefix, err, diff)
		}
	}
}

func TestOnlyTheOwnerMayRead(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "journal")
	j := open(t, dir, journal.Options{})
	if err := errors.Join(j.Put("a", 1), j.PutSecret("b", []byte("x")), j.Finish("done")); err != nil {
		t.Fatal(err)
	}
	got := map[string]fs.FileMode{}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		name, _ := filepath.Rel(dir, path)
		got[name] = info.Mode()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]fs.FileMode{
		".": fs.ModeDir | 0o700, run: fs.ModeDir | 0o700, run + ".lock": 0o600,
		run + "/RUN": 0o600, run + "/a.json": 0o600, run + "/b.secret": 0o600,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("modes (-want +got):\n%s", diff)
	}
}

// TestKeptOutOfGit: "git add" does not add machine configurations.
func TestKeptOutOfGit(t *testing.T) {
	t.Parallel()
	state := filepath.Join(t.TempDir(), ".recast")
	file := filepath.Join(state, ".gitignore")
	read := func() string {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Error(err)
		}
		return string(b)
	}
	open(t, filepath.Join(state, "runs"), journal.Options{})
	if got := read(); got != "*\n" {
		t.Errorf(".gitignore is %q", got)
	}
	for _, c := range []struct{ was, want string }{{"", "*\n"}, {"*\n!locks\n", "*\n!locks\n"}} {
		if err := os.WriteFile(file, []byte(c.was), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := journal.KeepOutOfGit(state); err != nil {
			t.Fatal(err)
		}
		if got := read(); got != c.want {
			t.Errorf("where it was %q it is %q", c.was, got)
		}
	}
	if err := journal.KeepOutOfGit(file); err == nil {
		t.Error("a file was taken for the directory")
	}
}

func TestOneWriterPerRun(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j := open(t, dir, journal.Options{})
	if err := j.Put("a", 1); err != nil {
		t.Fatal(err)
	}
	_, err := journal.Open(dir, journal.Options{Run: run})
	if fault.KindOf(err) != fault.Claimed || err.Error() != `journal of run "20261121-0421-3f2a": another process has it open` {
		t.Errorf("second writer: %v", err)
	}
	open(t, dir, journal.Options{Run: "another"})

	reader := open(t, dir, journal.Options{ReadOnly: true})
	var got int
	if found, err := reader.Get("a", &got); !found || err != nil || got != 1 {
		t.Errorf("reader: %d, %t, %v", got, found, err)
	}
	for name, err := range map[string]error{
		"Put": reader.Put("b", 1), "PutSecret": reader.PutSecret("b", []byte("x")), "Delete": reader.Delete("a"), "Finish": reader.Finish("done"),
	} {
		if err == nil || !strings.HasSuffix(err.Error(), "opened read-only") {
			t.Errorf("%s by a reader: %v", name, err)
		}
	}
	closeNow(t, j)
	open(t, dir, journal.Options{})
}

func TestReadOnlyMakesNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if _, err := journal.Open(dir, journal.Options{Run: run, ReadOnly: true}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("err = %v", err)
	}
	entries, err := os.ReadDir(dir)
	if len(entries) != 0 || err != nil {
		t.Errorf("made %v, %v", entries, err)
	}
}

// secret marshals like the real type.
type secret string

func (secret) MarshalText() ([]byte, error) { return []byte("[redacted]"), nil }

func TestRefusedWrites(t *testing.T) {
	t.Parallel()
	j := open(t, t.TempDir(), journal.Options{})
	badKey := ` is not a valid key: words of a-z, 0-9, dot, dash and underscore, joined by slashes, 200 bytes at most`
	cases := map[string]struct {
		err  error
		want string
	}{
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
	if err := j.Delete("quote"); err != nil {
		t.Error(err)
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if c.err == nil || c.err.Error() != c.want {
				t.Errorf("err = %v, want %q", c.err, c.want)
			}
		})
	}
	if keys, err := j.Keys(""); keys != nil || err != nil {
		t.Errorf("Keys = %q, %v", keys, err)
	}
}

func TestDamageIsNamed(t *testing.T) {
	t.Parallel()
	cases := map[string]struct{ content, want string }{
		"cut off":       {`{"slot": "scsi`, "unexpected EOF"},
		"empty":         {"", "EOF"},
		"unknown field": {`{"slot": "scsi0", "bus": 1}`, `this recast does not know the field "bus": a newer one wrote it, or it was edited`},
		"two values":    {"{}{}", "more than one value"},
		"wrong type":    {`[]`, "json: cannot unmarshal array into Go value of type journal_test.fact"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			j := open(t, dir, journal.Options{})
			file := filepath.Join(dir, run, "node~wk1.json")
			if err := os.WriteFile(file, []byte(c.content), 0o600); err != nil {
				t.Fatal(err)
			}
			found, err := j.Get("node/wk1", &fact{})
			if want := "journal node/wk1: " + file + ": " + c.want; found || err == nil || err.Error() != want {
				t.Errorf("Get = %t, %v, want %q", found, err, want)
			}
		})
	}
	t.Run("a secret without content", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		j := open(t, dir, journal.Options{})
		file := filepath.Join(dir, run, "a.secret")
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if b, found, err := j.Secret("a"); b != nil || found || err == nil || err.Error() != "journal a: "+file+" is empty" {
			t.Errorf("Secret = %q, %t, %v", b, found, err)
		}
	})
	t.Run("a directory in its place", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		j := open(t, dir, journal.Options{})
		file := filepath.Join(dir, run, "a.json")
		if err := os.Mkdir(file, 0o700); err != nil {
			t.Fatal(err)
		}
		if _, err := j.Get("a", new(int)); err == nil || err.Error() != "journal a: "+file+": is a directory" {
			t.Errorf("err = %v", err)
		}
	})
}
