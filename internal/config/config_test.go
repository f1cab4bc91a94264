package config_test

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/recast-sh/recast/internal/config"
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

// want is the configuration of small, with every default.
func want() *config.Config {
	return &config.Config{
		Version: 1, Cluster: "home", Dir: "/etc/recast",
		Talos: config.Talos{Version: "v1.13.9", Config: "/home/me/.talos/config"},
		Images: config.Images{
			Builder: "auto", Factory: "https://factory.talos.dev", Extensions: "ghcr.io/siderolabs",
			Platform: "nocloud", Arch: "amd64", Signature: "warn", Imager: config.Imager{Image: "ghcr.io/siderolabs/imager"},
			ISO: config.ISO{Storage: []string{"isos"}, Delivery: "auto"}, Boot: "iso",
		},
		Schematics: map[string]config.Schematic{"default": {File: "base.yaml", Path: "/etc/recast/base.yaml"}},
		Proxmox: config.Proxmox{
			Endpoints: []string{"https://pve1:8006"},
			VMIDs:     config.VMIDRange{First: 9000, Last: 9099},
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
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := config.Parse("recast.yaml", []byte(c.data), options(c.env))
			if err != nil {
				t.Fatal(err)
			}
			w := want()
			c.edit(w)
			if diff := cmp.Diff(w, got, cmpopts.IgnoreUnexported(config.Config{})); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}

// change returns small with the first old replaced by what replaces it.
func change(old, by string) string { return strings.Replace(small, old, by, 1) }

func TestExampleIsRight(t *testing.T) {
	t.Parallel()
	c, err := config.Load(example, config.Options{})
	if err != nil {
		t.Fatal(err)
	}
	want := config.Schematic{File: "../testdata/schematics/storage.yaml", Path: "../../testdata/schematics/storage.yaml"}
	if diff := cmp.Diff(want, c.Schematics["storage"]); diff != "" {
		t.Errorf("schematic: -want +got\n%s", diff)
	}
	data, err := os.ReadFile(example)
	if err != nil {
		t.Fatal(err)
	}
	before, _, _ := strings.Cut(string(data), "    vmid: 112")
	line := strings.Count(before, "\n") + 1
	if got, want := c.Place("nodes[4].vmid"), fmt.Sprintf("%s:%d:5", example, line); got != want {
		t.Errorf("Place(nodes[4].vmid) = %q, want %q", got, want)
	}
	if got, want := c.Place("nodes[4].vmid.nothing[3].there"), fmt.Sprintf("%s:%d:5", example, line); got != want {
		t.Errorf("Place of a path that is not there = %q, want its nearest parent's, %q", got, want)
	}
}

// The example says that it shows the defaults.
func TestExampleShowsDefaults(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile(example)
	if err != nil {
		t.Fatal(err)
	}
	got, err := config.Parse("recast.yaml", data, options(nil))
	if err != nil {
		t.Fatal(err)
	}
	w := want()
	if diff := cmp.Diff(w.Roll, got.Roll); diff != "" {
		t.Errorf("roll: -default +example\n%s", diff)
	}
	if diff := cmp.Diff(w.Images, got.Images); diff != "" {
		t.Errorf("images: -default +example\n%s", diff)
	}
}

func TestMarshalIsReadBackTheSame(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile(example)
	if err != nil {
		t.Fatal(err)
	}
	c, err := config.Parse("recast.yaml", data, options(nil))
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"vmids: 9000-9099\n", "poll: 2s\n", "boot: 10m\n", "signature: warn\n", "canary: true\n", "workers: 1\n"} {
		if !strings.Contains(string(out), line) {
			t.Errorf("lacks %q:\n%s", line, out)
		}
	}
	again, err := config.Parse("effective.yaml", out, options(nil))
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if diff := cmp.Diff(c, again, cmpopts.IgnoreUnexported(config.Config{})); diff != "" {
		t.Errorf("-before +after\n%s", diff)
	}
}

var block = regexp.MustCompile("(?s)```yaml\n(.*?)```")

// What the notes show of recast.yaml can be pasted into one.
func TestNotes(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"hooks", "notify", "gates"} {
		text, err := os.ReadFile("../../docs/notes/" + name + ".md")
		if err != nil {
			t.Fatal(err)
		}
		found := block.FindAllSubmatch(text, -1)
		if len(found) == 0 {
			t.Errorf("%s.md shows nothing", name)
		}
		for _, b := range found {
			if _, err := config.Parse(name+".md", []byte(small+string(b[1])), config.Options{}); err != nil {
				t.Error(err)
			}
		}
	}
}
