package setup

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/survey"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/schematics"
)

func TestNameSchematics(t *testing.T) {
	t.Parallel()
	cp, wk := survey.Discovered{Name: "cp1", Machine: cluster.Machine{ControlPlane: true}}, survey.Discovered{Name: "wk1"}
	of := func(extension string, nodes ...survey.Discovered) plannedSchematic {
		text := "customization: {}\n"
		if extension != "" {
			text = "customization:\n  systemExtensions:\n    officialExtensions:\n      - siderolabs/qemu-guest-agent\n      - siderolabs/" + extension + "\n"
		}
		s, err := schematics.Parse("test", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return plannedSchematic{Schematic: s, nodes: nodes}
	}
	for name, c := range map[string]struct {
		plans []plannedSchematic
		want  []string
	}{
		"one":                   {[]plannedSchematic{of("", cp, wk)}, []string{"default"}},
		"one of workers":        {[]plannedSchematic{of("", wk)}, []string{"default"}},
		"by role":               {[]plannedSchematic{of("", cp), of("a", wk)}, []string{"control-plane", "worker"}},
		"both roles":            {[]plannedSchematic{of("", cp, wk), of("a", wk)}, []string{"default", "worker"}},
		"by extension":          {[]plannedSchematic{of("", cp), of("a", wk), of("b", wk)}, []string{"control-plane", "worker-a", "worker-b"}},
		"nothing tells":         {[]plannedSchematic{of("", wk), of("a", wk), of("a", wk)}, []string{"worker", "worker-qemu-guest-agent", "worker-qemu-guest-agent-2"}},
		"an extension and none": {[]plannedSchematic{of("", wk), of("a", wk)}, []string{"worker", "worker-qemu-guest-agent"}},
	} {
		nameSchematics(c.plans)
		var got []string
		for _, p := range c.plans {
			got = append(got, p.name)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestAMachineOfOmniIsNoted: drift compares it, and a roll refuses it.
func TestAMachineOfOmniIsNoted(t *testing.T) {
	t.Parallel()
	n := survey.Discovered{Name: "cp1"}
	in := &initial{found: survey.Discovery{Nodes: []survey.Discovered{n}}}
	if in.nodes(); len(in.res.Warnings) > 0 {
		t.Errorf("of no machine of Omni: %q", in.res.Warnings)
	}
	in.found.Nodes[0].Machine.ConfigArgs = []string{"siderolink.api=grpc://omni.example:8090"}
	if in.nodes(); len(in.res.Warnings) != 1 || !strings.Contains(in.res.Warnings[0], "cp1 is of Omni") {
		t.Errorf("of a machine of Omni: %q", in.res.Warnings)
	}
}

func TestCameFrom(t *testing.T) {
	t.Parallel()
	const id = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	for name, c := range map[string]struct {
		images          []string
		factory, mirror string
	}{
		"nobody says":    {nil, "https://factory.talos.dev", ""},
		"the public one": {[]string{"factory.talos.dev/nocloud-installer/" + id + ":v1.13.9"}, "https://factory.talos.dev", ""},
		"of before 1.10": {[]string{"factory.talos.dev/installer/" + id + ":v1.13.9"}, "https://factory.talos.dev", ""},
		"one's own":      {[]string{"f.example:8443/metal-installer-secureboot/" + id + "@sha256:aa", "", "ghcr.io/siderolabs/installer:v1.13.9"}, "https://f.example:8443", ""},
		"beside us":      {[]string{"127.0.0.1:8080/nocloud-installer/" + id + ":v1.13.9"}, "http://127.0.0.1:8080", ""},
		"a mirror":       {[]string{"ghcr.io/acme/talos:v1.13.9-abc@sha256:aa", "ghcr.io/acme/talos@sha256:bb", "r.example:5000/x"}, "https://factory.talos.dev", "ghcr.io/acme/talos"},
		"nobody's own":   {[]string{"ghcr.io/siderolabs/installer:v1.13.9"}, "https://factory.talos.dev", ""},
	} {
		in := initial{}
		for _, image := range c.images {
			in.found.Nodes = append(in.found.Nodes, survey.Discovered{Machine: cluster.Machine{InstallImage: image}})
		}
		in.cameFrom()
		if in.draft.Factory != c.factory || in.draft.Mirror != c.mirror {
			t.Errorf("%s: factory %q, mirror %q, want %q, %q", name, in.draft.Factory, in.draft.Mirror, c.factory, c.mirror)
		}
	}
}

func TestClusterName(t *testing.T) {
	t.Parallel()
	for context, want := range map[string]string{"homelab": "homelab", "admin@homelab": "homelab", "": "talos", "my cluster!": "my-cluster", "@": "talos"} {
		if got := clusterName(context); got != want {
			t.Errorf("context %q makes the cluster %q, want %q", context, got, want)
		}
	}
}

// TestKeepOldLock: an unreadable lock is not discarded.
func TestKeepOldLock(t *testing.T) {
	t.Parallel()
	in := &initial{InitOptions: InitOptions{Dir: t.TempDir()}}
	if err := in.keepOldLock(); err != nil {
		t.Errorf("without a lock: %v", err)
	}
	lock := filepath.Join(in.Dir, "recast.lock")
	if err := os.WriteFile(lock, []byte("version: 2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	err := in.keepOldLock()
	if hints := strings.Join(fault.Hints(err), "\n"); err == nil || !strings.Contains(hints, "move it elsewhere") {
		t.Errorf("of a newer recast: %v %q", err, hints)
	}
	if files, err := os.ReadDir(in.Dir); err != nil || len(files) != 1 {
		t.Errorf("there is %v now: %v", files, err)
	}
}

// TestMoveIn: if one file can't be moved to its place, nothing is changed.
func TestMoveIn(t *testing.T) {
	t.Parallel()
	stage, dir := t.TempDir(), t.TempDir()
	write := func(dir, name, text string) {
		t.Helper()
		if err := WriteSynced(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	read := func(name string) string {
		b, _ := os.ReadFile(filepath.Join(dir, name))
		return string(b)
	}
	write(dir, "a", "old a")
	write(stage, "a", "new a")
	write(stage, "b", "new b")
	if err := moveIn(stage, dir, []string{"a", "b", "c"}); err == nil {
		t.Error("c, which is not there, was moved")
	}
	if a, b := read("a"), read("b"); a != "old a" || b != "" {
		t.Errorf("after a failure a is %q, b %q", a, b)
	}
	write(stage, "c", "new c")
	if err := moveIn(stage, dir, []string{"a", "b", "c"}); err != nil {
		t.Fatal(err)
	}
	if a, b, c := read("a"), read("b"), read("c"); a != "new a" || b != "new b" || c != "new c" {
		t.Errorf("afterwards a is %q, b %q, c %q", a, b, c)
	}
}
