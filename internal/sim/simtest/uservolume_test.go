package simtest

import (
	"slices"
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
)

const userVolume = "apiVersion: v1alpha1\nkind: UserVolumeConfig\nname: data\n"

// TestUserVolumeIsAwaited: what is on a worker's data disk is a volume of its configuration. A node
// that gets one without it has the partition and does not mount it, so that its pods would write
// elsewhere: it is not healthy before Talos manages the volume again.
func TestUserVolumeIsAwaited(t *testing.T) {
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		if v := lab.userVolume(t); v.Phase != "ready" || v.Disk != "sdb" {
			t.Fatalf("u-data of a worker is %+v", v)
		}
		files := staleFile(t, lab)
		whole := string(files["wk1"])
		_, rest, found := strings.Cut(whole, userVolume)
		if !found {
			t.Fatalf("no user volume in\n%s", whole)
		}
		rest, _, _ = strings.Cut(rest, "---\n")
		files["wk1"] = cluster.Secret(strings.Replace(whole, "---\n"+userVolume+rest, "", 1))
		user := with(lab.Client(), "20000101-0000-feed", files)
		err := user.roll(onlyWorker)(t.Context())
		if err == nil || !strings.Contains(err.Error(), "persistent volume u-data is none") {
			t.Fatalf("a roll that leaves the volume unmounted: %v", err)
		}
		lab.RequireIntact()

		lab.editConfig("wk1", "version: v1alpha1\n", userVolume+rest+"---\nversion: v1alpha1\n")
		must(t, with(lab.Client(), "20000101-0000-beef", configFiles{"wk1": cluster.Secret(whole)}).roll(onlyWorker)(t.Context()))
		if v := lab.userVolume(t); v.Phase != "ready" || v.Disk != "sdb" {
			t.Errorf("u-data is %+v", v)
		}
		lab.RequireIntact()
	})
}

// userVolume is how Talos has the volume on wk1's data disk.
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
