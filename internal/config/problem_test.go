package config_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/internal/config"
	"github.com/recast-sh/recast/internal/fault"
)

// check compares the whole message of an error, which must be of kind Config.
func check(t *testing.T, err error, want string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no problem, want\n%s", want)
	}
	if diff := cmp.Diff(want, err.Error()); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	if fault.KindOf(err) != fault.Config {
		t.Errorf("kind = %v, want Config", fault.KindOf(err))
	}
}

// problemCase is a file with one problem; want lacks "recast.yaml:" in front and "1 problem" after it.
type problemCase struct{ data, want string }

func TestOneProblem(t *testing.T) {
	t.Parallel()
	for group, cases := range map[string]map[string]problemCase{
		"file": wholeFileCases(), "key": keyCases(), "type": typeCases(), "machine configs": machineConfigCases(), "enum": enumCases(), "images": imageCases(), "value": valueCases(), "node": nodeCases(), "roll": rollCases(), "rehearse": rehearseCases(), "gate": gateCases(), "hook": hookCases(), "webhook": webhookCases(), "vm": vmCases(), "surge": surgeCases(),
	} {
		for name, c := range cases {
			t.Run(group+"/"+name, func(t *testing.T) {
				t.Parallel()
				_, err := config.Parse("recast.yaml", []byte(c.data), config.Options{})
				check(t, err, "recast.yaml:"+c.want+"\n1 problem")
			})
		}
	}
}

// withRoll, withNode, withImages, withProxmox and withNodes return small with a line in that section.
func withRoll(line string) string    { return small + "roll:\n  " + line + "\n" }
func withNode(line string) string    { return small + "    " + line + "\n" }
func withImages(line string) string  { return change("images:", "images:\n  "+line) }
func withProxmox(line string) string { return change("proxmox:", "proxmox:\n  "+line) }
func withNodes(lines string) string  { return small[:strings.Index(small, "nodes:")] + lines + "\n" }

func TestAllProblemsAtOnce(t *testing.T) {
	t.Parallel()
	_, err := config.Parse("lab/recast.yaml", []byte(`cluster: [home]
talos: {version: "1"}
images:
  iso: {}
schematics: {}
proxmox:
  vmids: 9-8
  token: x
nodes:
  - name: a
    schematic: default
    vmid: 101
  - name: a
    vmid: 101
rolls: {}
`), config.Options{})
	check(t, err, `lab/recast.yaml:1:1: cluster: must be text, not a list
lab/recast.yaml:1:1: version: required
lab/recast.yaml:2:9: talos.version: "1" is not a version of Talos: write it like v1.13.9
lab/recast.yaml:4:3: images.iso.storage: required
lab/recast.yaml:5:1: schematics: is empty: name at least one schematic
lab/recast.yaml:6:1: proxmox.endpoints: required
lab/recast.yaml:7:3: proxmox.vmids: "9-8" is out of bounds: Proxmox allows 100-999999999
lab/recast.yaml:8:3: proxmox.token: secrets never live in this file: export PROXMOX_VE_API_TOKEN
lab/recast.yaml:13:5: nodes[1].name: "a" is there already (line 10)
lab/recast.yaml:13:5: nodes[1].schematic: required
lab/recast.yaml:14:5: nodes[1].vmid: 101 is already used by "a" (line 12)
lab/recast.yaml:15:1: rolls: unknown key, did you mean "roll"?
12 problems`)
}

// Nested aliases stay cheap: aliases of unknown keys are not expanded.
func TestAliasBomb(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	b.WriteString("version: 1\na: &a [x, x]\n")
	for c := 'b'; c <= 'z'; c++ {
		b.WriteString(string(c) + ": &" + string(c) + " [" + strings.Repeat("*"+string(c-1)+", ", 9) + "x]\n")
	}
	b.WriteString("nodes: &loop [*loop, *z]\n")
	_, err := config.Parse("recast.yaml", []byte(b.String()), config.Options{})
	ps, ok := errors.AsType[config.Problems](err)
	if !ok || len(ps) != 26+2+5 { // the letters, two nodes that are lists, what is missing
		t.Fatalf("got %d problems:\n%v", len(ps), err)
	}
}

func TestLoadChecksFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "recast.yaml")
	data := change("  version: v1.13.9", "  version: v1.13.9\n  config: .\n  machineConfigs: recast.yaml") + ""
	data = strings.Replace(data, "images:", "images:\n  caFile: images-ca.pem\n  signingKey: key.pem", 1)
	data = strings.Replace(data, "proxmox:", "proxmox:\n  caFile: ca.pem", 1) + "roll:\n  etcdSnapshot: recast.yaml\n"
	write(t, path, data)
	_, err := config.Load(path, config.Options{})
	check(t, err, path+":5:3: talos.config: "+dir+" is not a file\n"+
		path+":6:3: talos.machineConfigs: "+path+" is not a directory\n"+
		path+":8:3: images.caFile: no such file: "+filepath.Join(dir, "images-ca.pem")+"\n"+
		path+":9:3: images.signingKey: no such file: "+filepath.Join(dir, "key.pem")+"\n"+
		path+":13:3: schematics.default: no such file: "+filepath.Join(dir, "base.yaml")+"\n"+
		path+":15:3: proxmox.caFile: no such file: "+filepath.Join(dir, "ca.pem")+"\n"+
		path+":22:3: roll.etcdSnapshot: "+path+" is not a directory\n7 problems")
}

// Credentials of the cluster may be missing: building images does not need them.
func TestLoadWithoutCredentials(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "recast.yaml")
	write(t, path, change("  version: v1.13.9", "  version: v1.13.9\n  config: talosconfig\n  machineConfigs: configs"))
	write(t, filepath.Join(dir, "base.yaml"), "")
	c, err := config.Load(path, config.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if c.Talos.Config != filepath.Join(dir, "talosconfig") || c.Talos.MachineConfigs.Path != filepath.Join(dir, "configs") {
		t.Errorf("credentials at %q and %q", c.Talos.Config, c.Talos.MachineConfigs.Path)
	}
}

func TestLoadReadsOnlyFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	missing, large := filepath.Join(dir, "missing.yaml"), filepath.Join(dir, "large.yaml")
	write(t, large, strings.Repeat("#", 1<<20+1))
	_, err := config.Load(missing, config.Options{})
	check(t, err, missing+": no such file")
	want := []string{"recast init finds the cluster and writes one; or give its path with --config"}
	if diff := cmp.Diff(want, fault.Hints(err)); diff != "" {
		t.Errorf("hints: -want +got\n%s", diff)
	}
	_, err = config.Load(large, config.Options{})
	check(t, err, large+": larger than 1024 KiB: this is not a recast.yaml")
	_, err = config.Load(dir, config.Options{})
	check(t, err, "read the configuration: read "+dir+": is a directory")
}

func write(t *testing.T, path, data string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
		t.Fatal(err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(small))
	f.Add([]byte(small + "roll: {canary: no, settle: -1s}\n"))
	f.Add([]byte("version: 1\nnodes: &n [*n, {name: [a]}, ~]\n? {}\n: *n\n"))
	f.Add([]byte("\ufeff%YAML 1.2\n---\nversion: 2\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := config.Parse("f", data, config.Options{Dir: "d"})
		if err == nil {
			if _, err := c.Marshal(); err != nil {
				t.Fatalf("marshal: %v", err)
			}
			return
		}
		ps, ok := errors.AsType[config.Problems](err)
		if !ok || len(ps) == 0 || fault.KindOf(err) != fault.Config {
			t.Fatalf("not a list of problems: %v", err)
		}
		lines := strings.Count(string(data), "\n") + strings.Count(string(data), "\r") + strings.Count(string(data), "\u0085") +
			strings.Count(string(data), "\u2028") + strings.Count(string(data), "\u2029") + 1
		for _, p := range ps {
			if p.Line < 1 || p.Line > lines+1 || p.Column < 1 || p.Message == "" || strings.ContainsAny(p.String(), "\n\r") {
				t.Errorf("problem %+v of %q", p, data)
			}
		}
	})
}
