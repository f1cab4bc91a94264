package simtest

import (
	"slices"
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/rolling"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/step"
)

const userVolume = "apiVersion: v1alpha1\nkind: UserVolumeConfig\nname: data\n"

// TestAFileWithoutAUserVolume: with a file that lacks the volume on the data disk, the node would
// have the partition without mounting it, and pods would write elsewhere. The plan refuses the
// file, and accepts it with the document.
func TestAFileWithoutAUserVolume(t *testing.T) {
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		files := staleFile(t, lab)
		whole := string(files["wk1"])
		files["wk1"] = cluster.Secret(strings.Replace(whole, "---\n"+userVolumeIn(t, whole), "", 1))
		p := lab.planOf(with(lab.Client(), "20000101-0000-feed", files), "wk1", onlyWorker)
		const want = "its file in talos.machineConfigs lacks UserVolumeConfig data, whose volume is on the persistent disk sdb: put that document back, "
		if !slices.ContainsFunc(p.Refused, func(text string) bool { return strings.HasPrefix(text, want) }) {
			t.Errorf("refused: %q, want %q", p.Refused, want)
		}
		must(t, with(lab.Client(), "20000101-0000-beef", configFiles{"wk1": cluster.Secret(whole)}).roll(onlyWorker)(t.Context()))
		if v := lab.userVolume(t); v.Phase != "ready" || v.Disk != "sdb" {
			t.Errorf("u-data is %+v", v)
		}
		lab.RequireIntact()
	})
}

// TestUserVolumeIsAwaited: a node with an unmounted partition is not healthy before Talos
// manages the volume again.
func TestUserVolumeIsAwaited(t *testing.T) {
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.Patch(sim.PatchedExtension)
		user, edited := lab.Client(), false
		document := userVolumeIn(t, string(lab.configOf("wk1")))
		user.Emit = func(e step.Event) {
			if !edited && strings.Contains(e.Text, rolling.Settling) {
				edited = true
				lab.editConfig("wk1", "---\n"+document, "")
			}
		}
		err := user.roll(onlyWorker)(t.Context())
		if err == nil || !strings.Contains(err.Error(), "persistent volume u-data is none") {
			t.Fatalf("a roll whose node does not mount the volume: %v", err)
		}
		lab.RequireIntact()

		lab.editConfig("wk1", "version: v1alpha1\n", document+"---\nversion: v1alpha1\n")
		must(t, lab.Client().roll(onlyWorker)(t.Context()))
		if v := lab.userVolume(t); v.Phase != "ready" || v.Disk != "sdb" {
			t.Errorf("u-data is %+v", v)
		}
		lab.RequireIntact()
	})
}

// userVolumeIn is the document of the user volume in a configuration.
func userVolumeIn(t *testing.T, config string) string {
	t.Helper()
	_, rest, found := strings.Cut(config, userVolume)
	if !found {
		t.Fatalf("no user volume in\n%s", config)
	}
	rest, _, _ = strings.Cut(rest, "---\n")
	return userVolume + rest
}

// userVolume is Talos' state of the volume on wk1's data disk.
func (l *Lab) userVolume(t *testing.T) cluster.Volume {
	t.Helper()
	s, err := l.Client().connect(t.Context())
	must(t, err)
	defer s.end()
	m, err := s.machines.Talos.Machine(t.Context(), l.node("wk1").Addr)
	must(t, err)
	i := slices.IndexFunc(m.Volumes, func(v cluster.Volume) bool { return v.Label == "u-data" })
	if i < 0 {
		t.Fatalf("no u-data: %+v", m.Volumes)
	}
	return m.Volumes[i]
}
