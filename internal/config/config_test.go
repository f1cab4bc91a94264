package config_test

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/recast-sh/recast/internal/config"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
)

const example = "../../examples/recast.yaml"

// small is the shortest valid file; its line numbers appear in the tests.
const small = `version: 1
cluster: home
talos:
  version: v1.13.9
images:
  iso:
    storage: [isos]
schematics:
  default: base.yaml
proxmox:
  endpoints: ["https://pve1:8006"]
  vmids: 9000-9099
nodes:
  - name: cp1
    schematic: default
`

func want() *config.Config {
	return &config.Config{
		Version: 1, Cluster: "home", Dir: "/etc/recast",
		Talos: config.Talos{Version: "v1.13.9", Config: "/home/me/.talos/config"},
		Images: config.Images{
			Builder: "auto", Factory: "https://factory.talos.dev", Extensions: "ghcr.io/siderolabs",
			Platform: "nocloud", Arch: "amd64", Signature: "auto", Imager: config.Imager{Image: "ghcr.io/siderolabs/imager"},
			ISO: config.ISO{Storage: []string{"isos"}, Delivery: "auto"}, Boot: "iso",
		},
		Schematics: map[string]config.Schematic{"default": {File: "base.yaml", Path: "/etc/recast/base.yaml"}},
		Proxmox: config.Proxmox{
			Endpoints: []string{"https://pve1:8006"},
			VMIDs:     config.VMIDRange{First: 9000, Last: 9099},
			Publish:   config.Publish{Verify: "own"},
		},
		Nodes: []config.Node{{Name: "cp1", Schematic: "default", Strategy: "auto"}},
		Roll: config.Roll{
			Strategy: "auto", Order: "control-planes-first", Canary: config.Canary{On: true}, Reboot: "canary",
			MaxUnavailable: config.MaxUnavailable{Workers: config.Share{Count: 1}, PerHost: 1},
			Drain:          config.Drain{Timeout: minutes(10), OnTimeout: "stop"},
			Settle:         config.Duration(30 * time.Second),
			Poll:           config.Duration(2 * time.Second),
			Timeouts:       config.Timeouts{Stop: minutes(5), Boot: minutes(10), Join: minutes(10), Try: minutes(2), Storage: minutes(60)},
			BootFailure:    "rollback",
			Storage:        config.Storage{Longhorn: "on", Ceph: "on", LINSTOR: "on", Mayastor: "on"},
			KeepDisks:      1,
			EtcdSnapshot:   "/etc/recast/.recast/etcd",
		},
		History: config.History{Share: "auto"},
	}
}

func minutes(n int) config.Duration { return config.Duration(time.Duration(n) * time.Minute) }

func options(env map[string]string) config.Options {
	return config.Options{Dir: "/etc/recast", Getenv: func(k string) string { return env[k] }}
}

// parseCase is a file and an environment, and how the configuration differs from want.
type parseCase struct {
	data string
	env  map[string]string
	edit func(*config.Config)
}

func TestParse(t *testing.T) {
	t.Parallel()
	home := map[string]string{"HOME": "/home/me"}
	cases := map[string]parseCase{
		"defaults": {data: small, env: home, edit: func(*config.Config) {}},
		"TALOSCONFIG wins over HOME": {
			data: small, env: map[string]string{"HOME": "/home/me", "TALOSCONFIG": "tc"},
			edit: func(c *config.Config) { c.Talos.Config = "tc" },
		},
		"no environment": {data: small, edit: func(c *config.Config) { c.Talos.Config = "" }},
		"the file wins over both": {
			data: change("  version: v1.13.9", "  version: v1.14.0-alpha.1\n  config: ./talosconfig\n  machineConfigs: ~/machine"),
			env:  map[string]string{"HOME": "/home/me", "TALOSCONFIG": "tc"},
			edit: func(c *config.Config) {
				c.Talos = config.Talos{Version: "v1.14.0-alpha.1", Config: "/etc/recast/talosconfig", MachineConfigs: config.MachineConfigs{Dir: "~/machine", Names: "{node}.yaml", Path: "/home/me/machine"}}
			},
		},
		"long form of a schematic, absolute": {
			data: change("default: base.yaml", "default: {file: /srv/base.yaml}"), env: home,
			edit: func(c *config.Config) {
				c.Schematics["default"] = config.Schematic{File: "/srv/base.yaml", Path: "/srv/base.yaml"}
			},
		},
		"values are brought into one form": {
			data: change(`["https://pve1:8006"]`, `["https://pve1:8006/"]`+"\n  fingerprint: \""+strings.Repeat("ab:", 31)+"ab\""), env: home,
			edit: func(c *config.Config) { c.Proxmox.Fingerprint = strings.Repeat("AB:", 31) + "AB" },
		},
		"a node's strategy is the roll's": {
			data: small + "    vmid: 101\n    systemDisk: {slot: scsi0, sizeGiB: 10}\n  - {name: wk1, schematic: default, strategy: auto}\nroll:\n  strategy: recreate\n  canary: false\n",
			env:  home,
			edit: func(c *config.Config) {
				c.Roll.Strategy, c.Roll.Canary = "recreate", config.Canary{}
				c.Nodes = []config.Node{
					{Name: "cp1", Schematic: "default", VMID: 101, Strategy: "recreate", SystemDisk: config.SystemDisk{Slot: "scsi0", SizeGiB: 10}},
					{Name: "wk1", Schematic: "default", Strategy: "auto"},
				}
			},
		},
		"what may be left out, given": {
			data: withImages("mirror: 127.0.0.1:5000/talos") + "    strategy: in-place\n    vmid: 101\n    holder: 9101\n    acceptLoss: [pv/a, longhorn/var/lib/longhorn]\n" +
				"kubernetes: {version: v1.35.4}\nroll:\n  strategy: reimage\n  bootFailure: reimage\n  etcdSnapshot: backups\n  keepDisks: 3\n  maxUnavailable: {workers: 20%, perHost: 3}\n",
			env: home,
			edit: func(c *config.Config) {
				c.Images.Mirror = "127.0.0.1:5000/talos"
				c.Kubernetes.Version = "v1.35.4"
				c.Nodes = []config.Node{{
					Name: "cp1", Schematic: "default", VMID: 101, Strategy: "in-place", Holder: 9101,
					AcceptLoss: []string{"pv/a", "longhorn/var/lib/longhorn"},
				}}
				c.Roll.Strategy, c.Roll.BootFailure, c.Roll.EtcdSnapshot = "reimage", "reimage", "/etc/recast/backups"
				c.Roll.KeepDisks = 3
				c.Roll.MaxUnavailable = config.MaxUnavailable{Workers: config.Share{Percent: 20}, PerHost: 3}
			},
		},
		"an alias stands for its anchor": {
			data: strings.Replace(small, "  - name: cp1", "  - &n\n    name: cp1", 1) + "roll:\n  settle: &d 1h\n  poll: *d\n", env: home,
			edit: func(c *config.Config) {
				c.Roll.Settle, c.Roll.Poll = config.Duration(time.Hour), config.Duration(time.Hour)
			},
		},
	}
	maps.Copy(cases, imageParseCases(home))
	must.Each(t, cases, func(t *testing.T, c parseCase) {
		got := must.Get(config.Parse("recast.yaml", []byte(c.data), options(c.env)))(t)
		w := want()
		c.edit(w)
		must.Equal(t, "value", w, got, cmpopts.IgnoreUnexported(config.Config{}))
	})
}

func change(old, by string) string { return strings.Replace(small, old, by, 1) }

func TestExampleIsRight(t *testing.T) {
	t.Parallel()
	c := must.Get(config.Load(example, config.Options{}))(t)
	want := config.Schematic{File: "../testdata/schematics/storage.yaml", Path: "../../testdata/schematics/storage.yaml"}
	must.Equal(t, "schematic", want, c.Schematics["storage"])
	data := must.Get(os.ReadFile(example))(t)
	before, _, _ := strings.Cut(string(data), "    vmid: 112")
	line := strings.Count(before, "\n") + 1
	must.Equal(t, "Place(nodes[4].vmid)", fmt.Sprintf("%s:%d:5", example, line), c.Place("nodes[4].vmid"))
	parent := fmt.Sprintf("%s:%d:5", example, line)
	must.Equal(t, "place of what is not there", parent, c.Place("nodes[4].vmid.nothing[3].there"))
}

// The example says that it shows the defaults.
func TestExampleShowsDefaults(t *testing.T) {
	t.Parallel()
	data := must.Get(os.ReadFile(example))(t)
	got := must.Get(config.Parse("recast.yaml", data, options(nil)))(t)
	w := want()
	must.Equal(t, "roll", w.Roll, got.Roll)
	must.Equal(t, "images", w.Images, got.Images)
}

func TestMarshalIsReadBackTheSame(t *testing.T) {
	t.Parallel()
	data := must.Get(os.ReadFile(example))(t)
	c := must.Get(config.Parse("recast.yaml", data, options(nil)))(t)
	out := must.Get(c.Marshal())(t)
	must.Contain(t, "the configuration", string(out), "vmids: 9000-9099\n", "poll: 2s\n", "boot: 10m\n", "signature: auto\n", "canary: true\n", "workers: 1\n")
	again, err := config.Parse("effective.yaml", out, options(nil))
	must.Be(t, err == nil, "%v\n%s", err, out)
	must.Equal(t, "again", c, again, cmpopts.IgnoreUnexported(config.Config{}))
}

var block = regexp.MustCompile("(?s)```yaml\n(.*?)```")

// What the notes show of recast.yaml can be pasted into one.
func TestNotes(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"hooks", "notify", "gates"} {
		text := must.Get(os.ReadFile("../../docs/notes/" + name + ".md"))(t)
		found := block.FindAllSubmatch(text, -1)
		must.Hold(t, len(found) != 0, "%s.md shows nothing", name)
		for _, b := range found {
			if _, err := config.Parse(name+".md", []byte(small+string(b[1])), config.Options{}); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestDurationString(t *testing.T) {
	t.Parallel()
	for want, d := range map[string]time.Duration{
		"0s": 0, "2s": 2 * time.Second, "10s": 10 * time.Second, "1m": time.Minute, "10m": 10 * time.Minute,
		"1h": time.Hour, "1h30m": 90 * time.Minute, "1h0m5s": time.Hour + 5*time.Second, "20h": 20 * time.Hour,
		"1m30s": 90 * time.Second, "1.5s": 1500 * time.Millisecond, "-10m": -10 * time.Minute,
	} {
		must.Equal(t, d.String(), want, config.Duration(d).String())
	}
}

func TestVMIDRange(t *testing.T) {
	t.Parallel()
	var r config.VMIDRange
	must.Do(t, r.UnmarshalText([]byte("9000-9002")))
	must.Equal(t, "All", []int{9000, 9001, 9002}, slices.Collect(r.All()))
	first := 0
	for id := range r.All() { // a loop that is left early stops the iteration
		first = id
		break
	}
	must.Equal(t, "first", 9000, first)
	for id, want := range map[int]bool{8999: false, 9000: true, 9002: true, 9003: false} {
		must.Equal(t, fmt.Sprint(id), want, r.Contains(id))
	}
	if r.Len() != 3 || r.String() != "9000-9002" {
		t.Errorf("Len = %d, String = %q", r.Len(), r)
	}
}

func TestShareOf(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		share       string
		nodes, want int
	}{
		{"1", 10, 1},
		{"3", 10, 3},
		{"3", 2, 3}, // a limit, not a demand
		{"20%", 10, 2},
		{"20%", 14, 2},
		{"20%", 4, 1},
		{"1%", 1, 1},
		{"1%", 99, 1},
		{"99%", 100, 99},
		{"100%", 7, 7},
		{"50%", 0, 1},
	} {
		var s config.Share
		must.Do(t, s.UnmarshalText([]byte(c.share)))
		must.Equal(t, fmt.Sprintf("%s of %d", c.share, c.nodes), c.want, s.Of(c.nodes))
		must.Equal(t, c.share+" prints", c.share, s.String())
	}
}

func TestMarshalShare(t *testing.T) {
	t.Parallel()
	c := must.Get(config.Parse("recast.yaml", []byte(withRoll("maxUnavailable: {workers: 20%}")), options(nil)))(t)
	out := must.Get(c.Marshal())(t)
	again := must.Get(config.Parse("recast.yaml", out, options(nil)))(t)
	must.Equal(t, "the section roll of "+string(out), c.Roll, again.Roll)
}

// check compares the whole message of an error, which must be of kind Config.
func check(t *testing.T, err error, want string) {
	t.Helper()
	must.Be(t, err != nil, "no problem, want\n%s", want)
	must.Equal(t, "value", want, err.Error())
	must.Equal(t, "kind", fault.Config, fault.KindOf(err))
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
lab/recast.yaml:13:5: nodes[1].name: "a" already exists (line 10)
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
	c := must.Get(config.Load(path, config.Options{}))(t)
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
	must.Equal(t, "hints", want, fault.Hints(err))
	_, err = config.Load(large, config.Options{})
	check(t, err, large+": larger than 1024 KiB: this is not a recast.yaml")
	_, err = config.Load(dir, config.Options{})
	check(t, err, "read the configuration: read "+dir+": is a directory")
}

func write(t *testing.T, path, data string) {
	t.Helper()
	must.Do(t, os.WriteFile(path, []byte(data), 0o600))
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
		must.Be(t, ok && len(ps) != 0 && fault.KindOf(err) == fault.Config, "not a list of problems: %v", err)
		lines := strings.Count(string(data), "\n") + strings.Count(string(data), "\r") + strings.Count(string(data), "\u0085") +
			strings.Count(string(data), "\u2028") + strings.Count(string(data), "\u2029") + 1
		for _, p := range ps {
			if p.Line < 1 || p.Line > lines+1 || p.Column < 1 || p.Message == "" || strings.ContainsAny(p.String(), "\n\r") {
				t.Errorf("problem %+v of %q", p, data)
			}
		}
	})
}
