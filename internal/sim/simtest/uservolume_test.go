package simtest

import (
	"slices"
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/step"
)

const userVolume = "apiVersion: v1alpha1\nkind: UserVolumeConfig\nname: data\n"

// TestAFileThatCannotBeApplied is refused in the plan: Talos would not take it, or it lacks the
// volume on the data disk, whose partition the node would have without mounting it, so that pods
// would write elsewhere. The whole file is applied.
func TestAFileThatCannotBeApplied(t *testing.T) {
	long(t)
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		files := staleFile(t, lab)
		whole := string(files["wk1"])
		for want, text := range map[string]string{
			"can't be applied: Talos would refuse it: ":                                              strings.Replace(whole, "machine:\n", "machine:\n    nonsense: hush\n", 1),
			"lacks UserVolumeConfig data, whose volume is on the disk sdb: put that document back, ": strings.Replace(whole, "---\n"+userVolumeIn(t, whole), "", 1),
		} {
			files["wk1"] = cluster.Secret(text)
			all := strings.Join(lab.planOf(files.user(lab, firstRun), "wk1", onlyWorker).Refused, "\n")
			if !strings.Contains(all, "its file in talos.machineConfigs "+want) || strings.Contains(all, "hush") {
				t.Errorf("refused: %q, want %q", all, want)
			}
		}
		files["wk1"] = cluster.Secret(whole)
		must(t, files.user(lab, secondRun).roll(onlyWorker)(t.Context()))
		lab.requireUserVolume()
		lab.RequireIntact()
	})
}

// TestUserVolumeIsAwaited: a node with an unmounted partition is not healthy before Talos
// manages the volume again.
func TestUserVolumeIsAwaited(t *testing.T) {
	long(t)
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.Patch(sim.PatchedExtension)
		user, edited := lab.Client(), false
		document := userVolumeIn(t, string(lab.configOf("wk1")))
		user.Emit = func(e step.Event) {
			if !edited && strings.Contains(e.Text, cluster.Settling) {
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
		lab.requireUserVolume()
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

// requireUserVolume fails the test unless Talos manages the volume on wk1's data disk.
func (l *Lab) requireUserVolume() {
	l.t.Helper()
	volumes := l.machine("wk1").Volumes
	if !slices.ContainsFunc(volumes, func(v cluster.Volume) bool { return v.Label == "u-data" && v.Phase == "ready" && v.Disk == "sdb" }) {
		l.t.Errorf("u-data is not ready on sdb: %+v", volumes)
	}
}
