package machineconfig

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/recast-sh/recast/internal/fault"
)

const (
	sopsFile = "machine:\n    type: ENC[AES256_GCM,data:x,type:str]\nsops:\n    mac: ENC[AES256_GCM,data:y,type:str]\n    version: 3.13.2\n"
	ageFile  = "-----BEGIN AGE ENCRYPTED FILE-----\nYWdl\n-----END AGE ENCRYPTED FILE-----\n"
)

// world is a directory with programs that PATH names, and a Source.
type world struct {
	t       *testing.T
	bin     string
	options Options
	then    func() error // after it is opened
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, bin: t.TempDir()}
	path := w.bin + string(filepath.ListSeparator) + "/usr/bin" + string(filepath.ListSeparator) + "/bin"
	t.Setenv("PATH", path)
	memory, err := os.MkdirTemp(inMemory(), "machineconfig-test-") // other tests make directories there, too
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(memory) }) // it is empty, or the test has failed
	t.Setenv("XDG_RUNTIME_DIR", memory)
	t.Setenv("TMPDIR", memory)
	w.options = Options{
		Place: "recast.yaml:6:3: talos.machineConfigs", Base: t.TempDir(), Env: []string{"PATH=" + path, "HOME=" + t.TempDir(), "TOKEN=planted", "SOPS_AGE_KEY=k"},
		File: func(node string) string { return "c1-" + node + ".yaml" },
	}
	return w
}

func (w *world) program(name, script string) {
	w.t.Helper()
	if err := os.WriteFile(filepath.Join(w.bin, name), []byte("#!/bin/sh\n"+script), 0o700); err != nil { //nolint:gosec // it is run
		w.t.Fatal(err)
	}
}

// inDir keeps the file of wk1 in a directory.
func (w *world) inDir(text string) *world {
	w.t.Helper()
	w.options.Dir = w.t.TempDir()
	if err := os.WriteFile(filepath.Join(w.options.Dir, "c1-wk1.yaml"), []byte(text), 0o600); err != nil {
		w.t.Fatal(err)
	}
	return w
}

// written has a script write the files to $1.
func (w *world) written(script string) *world {
	w.t.Helper()
	w.program("render", script)
	w.options.Command = []string{"render", "{out}"}
	return w
}

func (w *world) open() *Source {
	w.t.Helper()
	s, err := New(w.options)
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

// configCase is how a configuration is kept, and what Config makes of it.
type configCase struct {
	of   func(w *world)
	want string
	err  string // what its beginning or end is
	hint string
	kind fault.Kind
}

func keptCases() map[string]configCase {
	return map[string]configCase{
		"a file":  {of: func(w *world) { w.inDir("machine: {}\n") }, want: "machine: {}\n"},
		"no file": {of: func(w *world) { w.inDir("").options.File = func(string) string { return "other.yaml" } }},
		"written": {of: func(w *world) { w.written(`mkdir -p "$1" && echo "machine: {}" > "$1/c1-wk1.yaml"`) }, want: "machine: {}\n"},
		"written deeper": {of: func(w *world) {
			w.written(`mkdir -p "$1/wk1" && echo deep > "$1/wk1/worker.yaml"`).options.File = func(node string) string { return node + "/worker.yaml" }
		}, want: "deep\n"},
		"of another node":   {of: func(w *world) { w.written(`echo "machine: {}" > "$1/c1-wk2.yaml"`) }},
		"its environment":   {of: func(w *world) { w.written(`echo "${TOKEN-none} $SOPS_AGE_KEY" > "$1/c1-wk1.yaml"`) }, want: "none k\n"},
		"one that it names": {of: func(w *world) { w.written(`echo "$TOKEN" > "$1/c1-wk1.yaml"`).options.Pass = []string{"TOKEN"} }, want: "planted\n"},
		"it fails":          {of: func(w *world) { w.written(`echo "token: abcdefghijklmnop"; echo no secrets here; exit 3`) }, err: "render: exit status 3: token: [redacted]; no secrets here", hint: "run it by hand", kind: fault.Refused},
		"it writes nothing": {of: func(w *world) { w.written(`exit 0`) }, err: "render wrote no file to {out}", hint: "{out} in command", kind: fault.Config},
		"it is not there":   {of: func(w *world) { w.options.Command = []string{"nowhere"} }, err: "run nowhere: exec:", hint: "has to name a program", kind: fault.Config},
		"its interpreter is not there": {
			of: func(w *world) {
				w.written("")
				if err := os.WriteFile(filepath.Join(w.bin, "render"), []byte("#!/no/such/shell\n"), 0o700); err != nil { //nolint:gosec // it is run
					w.t.Fatal(err)
				}
			},
			err: "run render: ", hint: "has to name a program", kind: fault.Config,
		},
		"it says what it has written": {
			of: func(w *world) {
				w.written(`echo "cluster: {secret: hush-hush}" > "$1/x"; echo "no hush-hush for you"; exit 3`)
			},
			err: "render: exit status 3: no [redacted] for you", hint: "run it by hand", kind: fault.Refused,
		},
		"the directory is gone": {
			of: func(w *world) {
				w.inDir("x")
				w.then = func() error { return os.RemoveAll(w.options.Dir) }
			},
			err: "talos.machineConfigs: open ", kind: fault.Config,
		},
		"a link leads nowhere": {
			of: func(w *world) {
				w.inDir("x")
				w.options.File = func(string) string { return "link.yaml" }
				w.then = func() error { return os.Symlink("nowhere", filepath.Join(w.options.Dir, "link.yaml")) }
			},
			err: "link.yaml: no such file",
		},
		"a link leads out": {of: func(w *world) { w.written(`ln -s /etc/hostname "$1/c1-wk1.yaml"`) }, err: "the output of render:", kind: fault.Refused},
	}
}

func encryptedCases() map[string]configCase {
	return map[string]configCase{
		"of SOPS": {
			of:   func(w *world) { w.inDir(sopsFile).program("sops", `grep -q ENC && echo "plain $*"; echo noise >&2`) },
			want: "plain --decrypt --input-type yaml --output-type yaml /dev/stdin\n",
		},
		"written by SOPS": {
			of: func(w *world) {
				w.written("cat > \"$1/c1-wk1.yaml\" <<'X'\n"+sopsFile+"X\n").program("sops", `cat >/dev/null; echo plain`)
			}, want: "plain\n",
		},
		"no sops": {of: func(w *world) { w.inDir(sopsFile) }, err: "c1-wk1.yaml is encrypted with sops, and there is no sops in PATH", hint: "install sops", kind: fault.Config},
		"sops has no key": {of: func(w *world) {
			w.inDir(sopsFile).program("sops", `cat >/dev/null; echo "no identity matched" >&2; exit 128`)
		}, err: "sops: exit status 128: no identity matched", hint: "the key has to be where sops finds it", kind: fault.Refused},
		"of age without a key": {of: func(w *world) { w.inDir(ageFile).program("age", `exit 1`) }, err: "is encrypted with age: stat ", hint: "SOPS_AGE_KEY_FILE names", kind: fault.Config},
		"of age": {
			of: func(w *world) {
				w.inDir(ageFile).program("age", `cat >/dev/null; echo "plain $3"`)
				w.options.Env = append(w.options.Env, "SOPS_AGE_KEY_FILE=/dev/null")
			},
			want: "plain /dev/null\n",
		},
		"about SOPS": {of: func(w *world) { w.inDir("# sops:\nmachine: {}\nsops:\n  age: none\n") }, want: "# sops:\nmachine: {}\nsops:\n  age: none\n"},
	}
}

func TestConfig(t *testing.T) {
	cases := keptCases()
	maps.Copy(cases, encryptedCases())
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			c.of(w)
			source := w.open()
			if w.then != nil {
				if err := w.then(); err != nil {
					t.Fatal(err)
				}
			}
			text, found, err := source.Config(t.Context(), "wk1")
			switch {
			case c.err != "":
				if err == nil || !strings.Contains(err.Error(), c.err) || fault.KindOf(err) != c.kind || !strings.Contains(strings.Join(fault.Hints(err), ";"), c.hint) || found {
					t.Errorf("kind %v, hints %q: %v", fault.KindOf(err), fault.Hints(err), err)
				}
			case err != nil || string(text) != c.want || found != (c.want != ""):
				t.Errorf("%q, %t, %v; want %q", text, found, err, c.want)
			}
			requireNoOutput(t)
		})
	}
}

// requireNoOutput requires that no directory with plaintext is left.
func requireNoOutput(t *testing.T) {
	t.Helper()
	left, err := filepath.Glob(filepath.Join(inMemory(), outputPrefix+"*"))
	if err != nil || len(left) > 0 {
		t.Errorf("%q, %v are left", left, err)
	}
}

// A program runs once, however many nodes ask, and fails once.
func TestRunsOnce(t *testing.T) {
	for name, exit := range map[string]string{"it writes": "0", "it fails": "1"} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t).written(`echo run >> runs; for n in 1 2 3; do echo $n > "$1/c1-wk$n.yaml"; done; exit ` + exit)
			s := w.open()
			for _, node := range []string{"wk1", "wk2", "wk3", "wk1"} {
				text, _, err := s.Config(t.Context(), node)
				if (err != nil) != (exit == "1") || err == nil && string(text) != strings.TrimPrefix(node, "wk")+"\n" {
					t.Errorf("%s: %q, %v", node, text, err)
				}
			}
			if runs, err := os.ReadFile(filepath.Join(w.options.Base, "runs")); string(runs) != "run\n" {
				t.Errorf("it ran: %q, %v", runs, err)
			}
		})
	}
}
