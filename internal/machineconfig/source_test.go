package machineconfig

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
	"github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"go.yaml.in/yaml/v4"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
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
	memory := must.Get(os.MkdirTemp(inMemory(), "machineconfig-test-"))(t) // other tests make directories there, too
	t.Cleanup(func() { _ = os.RemoveAll(memory) })                         // it is empty, or the test has failed
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
	must.Do(w.t, os.WriteFile(filepath.Join(w.bin, name), []byte("#!/bin/sh\n"+script), 0o700)) //nolint:gosec // it is run
}

// inDir keeps the file of wk1 in a directory.
func (w *world) inDir(text string) *world {
	w.t.Helper()
	w.options.Dir = w.t.TempDir()
	must.Do(w.t, os.WriteFile(filepath.Join(w.options.Dir, "c1-wk1.yaml"), []byte(text), 0o600))
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
	return must.Get(New(w.options))(w.t)
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
				must.Do(w.t, os.WriteFile(filepath.Join(w.bin, "render"), []byte("#!/no/such/shell\n"), 0o700)) //nolint:gosec // it is run
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
				must.Do(t, w.then())
			}
			text, found, err := source.Config(t.Context(), "wk1")
			switch {
			case c.err != "":
				must.Hold(t, err != nil && strings.Contains(err.Error(), c.err) && fault.KindOf(err) == c.kind && strings.Contains(strings.Join(fault.Hints(err), ";"), c.hint) && !found,
					"kind %v, hints %q: %v", fault.KindOf(err), fault.Hints(err), err)
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
	must.Hold(t, err == nil && len(left) == 0, "%q, %v are left", left, err)
}

// A program runs once, however many nodes ask, and fails once.
func TestRunsOnce(t *testing.T) {
	for name, exit := range map[string]string{"it writes": "0", "it fails": "1"} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t).written(`echo run >> runs; for n in 1 2 3; do echo $n > "$1/c1-wk$n.yaml"; done; exit ` + exit)
			s := w.open()
			for _, node := range []string{"wk1", "wk2", "wk3", "wk1"} {
				text, _, err := s.Config(t.Context(), node)
				must.Hold(t, (err != nil) == (exit == "1") && (err != nil || string(text) == strings.TrimPrefix(node, "wk")+"\n"),
					"%s: %q, %v", node, text, err)
			}
			runs, err := os.ReadFile(filepath.Join(w.options.Base, "runs"))
			must.Hold(t, string(runs) == "run\n", "it ran: %q, %v", runs, err)
		})
	}
}

// TestEncrypt has a program in the place of sops, which is called as sops takes its arguments; what it
// writes is used if it has no secret any more.
func TestEncrypt(t *testing.T) {
	const (
		plain = "machine:\n    type: worker\n    token: planted.0123456789\n    ca:\n        key: \"\"\n"
		calls = `[ "$*" = "--encrypt --input-type yaml --output-type yaml --filename-override $PWD/wk1.yaml /dev/stdin" ] || exit 9; cat >in; `
	)
	for name, tc := range map[string]struct {
		script    string // of sops; "": there is none
		err, hint string
	}{
		"encrypted":            {script: calls + `printf 'machine:\n    token: ENC[AES256_GCM,data:b,type:str]\n    ca:\n        key: ""\nsops:\n    mac: ENC[AES256_GCM,data:y,type:str]\n'`},
		"a secret left out":    {calls + `printf 'machine:\n    type: ENC[AES256_GCM,data:b,type:str]\n    token: planted.0123456789\nsops:\n    mac: ENC[AES256_GCM,data:y,type:str]\n'`, "sops leaves a secret in the clear", "encrypted_regex"},
		"not encrypted at all": {calls + "cat in", "sops leaves a secret in the clear", "nothing was written"},
		"no rule for it":       {calls + "echo 'error loading config: no matching creation rules found; planted.0123456789' >&2; exit 1", "no matching creation rules found; [redacted]", ".sops.yaml"},
		"no sops":              {"", "there is no sops in PATH", "install sops"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			if tc.script != "" {
				w.program("sops", tc.script)
			}
			text, err := w.options.Encrypt(t.Context(), w.options.Base+"/wk1.yaml", cluster.Secret(plain))
			switch {
			case tc.err == "" && (err != nil || encryption(text) != "sops"):
				t.Errorf("%s, %v", text, err)
			case tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err) || !strings.Contains(strings.Join(fault.Hints(err), "\n"), tc.hint) || text != nil):
				t.Errorf("%s, %v, hints %q", text, err, fault.Hints(err))
			}
		})
	}
}

func TestKubernetesFor(t *testing.T) {
	t.Parallel()
	newest := "v" + constants.DefaultKubernetesVersion
	for name, tc := range map[string]struct{ talos, wanted, want, err string }{
		"the newest":            {NewestTalos(), "", newest, ""},
		"given":                 {"v1.13.9", "v1.35.4", "v1.35.4", ""},
		"without its v":         {"v1.13.9", "1.35.4", "v1.35.4", ""},
		"none is known":         {"v1.13.9", "", "", ""},
		"too new for it":        {"v1.13.9", newest, "", "is too new to be used with Talos"},
		"too old for it":        {NewestTalos(), "v1.28.0", "", "is too old to be used with Talos"},
		"no version":            {NewestTalos(), "latest", "", "Kubernetes latest with Talos"},
		"a Talos too old":       {"v1.11.0", "v1.31.0", "", "Talos v1.11.0 is not a version of which this recast can make a cluster"},
		"a Talos of the future": {"v1.99.0", "", "", "Talos v1.99.0 is not a version"},
		"no Talos":              {"newest", "", "", "Talos newest is not a version"},
	} {
		got, err := KubernetesFor(tc.talos, tc.wanted)
		must.Hold(t, got == tc.want && (err != nil) == (tc.err != "") && strings.Contains(fmt.Sprint(err), tc.err) && (err == nil || fault.KindOf(err) == fault.Config),
			"%s: %q, %v; want %q, %q", name, got, err, tc.want, tc.err)
	}
}

// mode is a machine that is no container, as nocloud and metal are.
type mode struct{}

func (mode) String() string        { return "nocloud" }
func (mode) RequiresInstall() bool { return false }
func (mode) InContainer() bool     { return false }

// TestNewSecrets: configurations that are rendered of new secrets are valid in Talos' eyes, with a patch
// for an address that the control planes share.
func TestNewSecrets(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	vip := filepath.Join(dir, "vip.yaml")
	must.Do(t, os.WriteFile(vip, []byte("machine:\n  network:\n    interfaces:\n      - deviceSelector: {physical: true}\n        vip: {ip: 10.0.0.10}\n"), 0o600))
	for _, talos := range []string{"v1.12.0", "v1.13.9", NewestTalos()} {
		text := must.Get(NewSecrets(talos))(t)
		file := filepath.Join(dir, talos+".yaml")
		must.Do(t, os.WriteFile(file, text, 0o600))
		s := must.Get(New(Options{Place: "recast.yaml", Render: &Render{
			Cluster: "home", Endpoint: "https://10.0.0.10:6443", Secrets: file, Talos: talos, Kubernetes: "v1.35.4", Installer: "ghcr.io/siderolabs/installer:" + talos,
			ControlPlanes: []string{"cp1"}, OfControls: []string{vip},
		}}))(t)
		for _, node := range []string{"cp1", "wk1"} {
			text, _, err := s.Config(t.Context(), node)
			must.Do(t, err)
			cfg := must.Get(configloader.NewFromBytes(text))(t)
			warnings, err := cfg.ValidateAsClient(mode{})
			must.Hold(t, err == nil, "%s of Talos %s: %v; %q", node, talos, err, warnings)
			must.Equal(t, node+" of Talos "+talos+" has the shared address", node == "cp1", strings.Contains(string(text), "ip: 10.0.0.10"))
		}
	}
}

// TestProtect has programs in the places of sops and age.
func TestProtect(t *testing.T) {
	const (
		plain = "secrets:\n    bootstraptoken: planted.0123456789\n"
		sops  = `cat >/dev/null; printf 'secrets: ENC[AES256_GCM,data:b,type:str]\nsops:\n    mac: ENC[AES256_GCM,data:y,type:str]\n'`
		age   = `[ "$*" = "--encrypt --armor --recipient age1a --recipient age1b" ] || exit 9; grep -q planted && printf -- '-----BEGIN AGE ENCRYPTED FILE-----\nx\n'`
		all   = "creation_rules:\n  - age: age1a\n"
	)
	for name, tc := range map[string]struct {
		rules, above string // .sops.yaml of the directory, and of the one above
		recipients   []string
		sops, age    string // scripts; "": there is none
		by, err      string
	}{
		"nothing says so":       {sops: sops},
		"a rule for all":        {rules: all, sops: sops, by: "sops"},
		"a rule above":          {above: "creation_rules:\n  - {path_regex: '^wt/secrets\\.yaml$', age: age1a}\n", sops: sops, by: "sops"},
		"a rule for others":     {rules: "creation_rules:\n  - {path_regex: machine/.*, age: age1a}\n", sops: sops},
		"the nearest file":      {rules: "destination_rules: []\n", above: all, sops: sops},
		"a rule, and no sops":   {rules: all, err: "there is no sops in PATH"},
		"rules that are none":   {rules: "creation_rules: all\n", err: ".sops.yaml: "},
		"a pattern that is not": {rules: "creation_rules:\n  - {path_regex: '*'}\n", err: ".sops.yaml: "},
		"age":                   {rules: all, recipients: []string{"age1a", "age1b"}, age: age, by: "age"},
		"age refuses":           {recipients: []string{"age1a"}, age: `echo "malformed recipient" >&2; exit 1`, err: "age: exit status 1: malformed recipient"},
		"age writes plaintext":  {recipients: []string{"age1a"}, age: "cat", err: "age wrote something else"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			top := t.TempDir()
			w.options.Base = filepath.Join(top, "wt")
			must.Do(t, os.Mkdir(w.options.Base, 0o700))
			for dir, rules := range map[string]string{w.options.Base: tc.rules, top: tc.above} {
				if rules != "" {
					must.Do(t, os.WriteFile(filepath.Join(dir, ".sops.yaml"), []byte(rules), 0o600))
				}
			}
			for program, script := range map[string]string{"sops": tc.sops, "age": tc.age} {
				if script != "" {
					w.program(program, script)
				}
			}
			text, by, err := w.options.Protect(t.Context(), filepath.Join(w.options.Base, "secrets.yaml"), tc.recipients, cluster.Secret(plain))
			switch {
			case tc.err != "":
				must.Fail(t, err, tc.err)
				must.Hold(t, text == nil && fault.KindOf(err) != fault.Failed, "%q, %v", text, err)
			case err != nil || by != tc.by || encryption(text) != tc.by || tc.by == "" && string(text) != plain:
				t.Errorf("%q by %q, %v", text, by, err)
			}
		})
	}
}

// TestAge encrypts by the real age, and reads it back as a configuration's secrets are read.
func TestAge(t *testing.T) {
	if _, err := exec.LookPath("age-keygen"); err != nil {
		t.Skip("needs age")
	}
	dir := t.TempDir()
	keys := filepath.Join(dir, "keys.txt")
	said := must.Get(exec.CommandContext(t.Context(), "age-keygen", "-o", keys).CombinedOutput())(t)
	_, recipient, _ := strings.Cut(strings.TrimSpace(string(said)), "Public key: ")
	o := Options{Base: dir, Env: append(os.Environ(), "SOPS_AGE_KEY_FILE="+keys), Dir: dir, File: func(node string) string { return node + ".yaml" }}
	text, by, err := o.Protect(t.Context(), filepath.Join(dir, "wk1.yaml"), []string{recipient}, cluster.Secret("token: planted\n"))
	if err != nil || by != "age" {
		t.Fatal(by, err)
	}
	must.Do(t, os.WriteFile(filepath.Join(dir, "wk1.yaml"), text, 0o600))
	s := must.Get(New(o))(t)
	back, _, err := s.Config(t.Context(), "wk1")
	must.Hold(t, err == nil && string(back) == "token: planted\n", "%q, %v", back, err)
}

// A program that is interrupted leaves nothing, and is run again by who asks next.
func TestInterrupted(t *testing.T) {
	w := newWorld(t).written(`echo secret > "$1/c1-wk1.yaml"; [ -e again ] || { touch again; sleep 60; }`)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		for {
			if _, err := os.Stat(filepath.Join(w.options.Base, "again")); err == nil {
				cancel()
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
	}()
	s := w.open()
	_, _, err := s.Config(ctx, "wk1")
	must.FailIs(t, err, context.Canceled)
	requireNoOutput(t)
	text, _, err := s.Config(t.Context(), "wk1")
	must.Hold(t, string(text) == "secret\n", "%q, %v", text, err)
	requireNoOutput(t)
}

// The directory of a process that was killed is removed by the next one, that of one that runs is not.
func TestLeftBehind(t *testing.T) {
	newWorld(t)
	running := must.Get(newOutputDir())(t)
	killed := must.Get(newOutputDir())(t)
	must.Do(t, killed.lock.Close())
	for _, dir := range []string{running.path, killed.path} {
		info, err := os.Stat(dir)
		must.Hold(t, err == nil && info.Mode().Perm() == 0o700, "%s: %v, %v", dir, info, err)
		old := time.Now().Add(-time.Hour)
		must.Do(t, os.Chtimes(dir, old, old))
	}
	fresh := must.Get(newOutputDir())(t)
	must.FailIs(t, must.Err(os.Stat(killed.path)), os.ErrNotExist)
	must.Do(t, errors.Join(running.remove(), fresh.remove()))
	requireNoOutput(t)
}

// TestRender: patches are applied in their order, all nodes get the same secrets, and what can't be
// rendered names its file and quotes nothing of it. What talosctl makes is compared in e2e-talosctl.
func TestRender(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		must.Do(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	bundle := must.Get(secrets.NewBundle(secrets.NewClock(), nil))(t)
	text := must.Get(yaml.Marshal(bundle))(t)
	r := Render{
		Cluster: "home", Endpoint: "https://10.0.0.1:6443", Secrets: write("secrets.yaml", string(text)), Talos: "v1.13", Kubernetes: "v1.35.4", ControlPlanes: []string{"cp1"},
		All:        []string{write("all.yaml", "machine:\n  nodeLabels: {a: all, b: all, c: all}\n")},
		OfControls: []string{write("cp.yaml", "machine:\n  nodeLabels: {b: role}\n")},
		OfNode:     map[string][]string{"cp1": {write("cp1.yaml", "machine:\n  nodeLabels: {c: node}\n")}},
	}
	read := func(r Render, node string) (string, error) {
		t.Helper()
		s := must.Get(New(Options{Place: "recast.yaml:5:3", Render: &r}))(t)
		got, found, err := s.Config(t.Context(), node)
		must.Hold(t, err != nil || found, "no configuration for %s", node)
		return string(got), err
	}
	for node, says := range map[string][]string{
		"cp1": {"type: controlplane", "a: all", "b: role", "c: node", "token: " + bundle.TrustdInfo.Token, "endpoint: https://10.0.0.1:6443", "kubelet:v1.35.4"},
		"wk1": {"type: worker", "b: all", "c: all", "token: " + bundle.TrustdInfo.Token},
	} {
		must.Contain(t, node, must.Get(read(r, node))(t), says...)
	}
	for want, change := range map[string]func(*Render){
		"secrets.yaml: no such file": func(r *Render) { r.Secrets = filepath.Join(dir, "gone", "secrets.yaml") },
		"none.yaml has no secrets":   func(r *Render) { r.Secrets = write("none.yaml", "token: hushhush\n") },
		"bad.yaml is not a patch":    func(r *Render) { r.All = []string{write("bad.yaml", "machine: hushhush\n")} },
		"unknown keys found during decoding:\nmachine:\n    pasword:": func(r *Render) {
			r.All = []string{write("typo.yaml", "machine:\n  pasword: hushhush\n")}
		},
		"json.yaml can't be applied": func(r *Render) {
			r.OfWorkers = []string{write("json.yaml", `[{"op":"remove","path":"/machine/none"}]`)}
		},
		"error parsing version": func(r *Render) { r.Talos = "hush" },
		"is encrypted with sops": func(r *Render) {
			r.All = []string{write("sops.yaml", "machine: ENC[x]\nsops:\n    mac: ENC[y]\n")}
		},
	} {
		changed := r
		change(&changed)
		if _, err := read(changed, "wk1"); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hushhush") {
			t.Errorf("err = %v, want %q", err, want)
		}
	}
}
