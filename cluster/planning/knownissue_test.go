package planning

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster/clustertest"
)

// TestAWithdrawnReleaseIsNamed once, if a node is to get it.
func TestAWithdrawnReleaseIsNamed(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]string{
		"v1.13.1": "Talos v1.13.1 was withdrawn by its makers as a broken release (https://github.com/siderolabs/talos/issues/13312): set talos.version to v1.13.2 or later",
		"v1.13.2": "", "v1.13.3": "", // a refusal of the nodes that it breaks
	} {
		wanted, o := paused(nil)
		for i := range wanted {
			wanted[i].Build.TalosVersion = version
		}
		plan, err := New("c1", wanted, o, clustertest.Past, Policy{})
		if err != nil {
			t.Fatal(err)
		}
		named := slices.DeleteFunc(slices.Clone(plan.Warn), func(w string) bool { return !strings.Contains(w, "Talos v1.13") })
		if want == "" && len(named) > 0 || want != "" && !slices.Equal(named, []string{want}) {
			t.Errorf("%s: %q", version, plan.Warn)
		}
	}
}

// TestAReleaseThatNodesGoOnToRunIsNamed with the nodes that run it and that nothing is done to, whether recast's own table has
// it, or the Image Factory had marked it when recast lock asked.
func TestAReleaseThatNodesGoOnToRunIsNamed(t *testing.T) {
	t.Parallel()
	const (
		withdrawn = "Talos v1.13.1 was withdrawn by its makers as a broken release (https://github.com/siderolabs/talos/issues/13312): set talos.version to v1.13.2 or later"
		integers  = "Talos v1.13.3 starts no static pod of a control plane with an integer in cluster.scheduler.config (https://github.com/siderolabs/talos/issues/13473): set talos.version to v1.13.4 or later"
		broken    = "Talos v1.13.9 was marked broken by the Image Factory: choose another version; the release notes of Talos say which one fixes it"
	)
	for name, c := range map[string]struct {
		runs, wanted string
		broken       bool
		refused      error // on cp1
		want         []string
	}{
		"withdrawn, and it stays":  {"v1.13.1", "v1.13.1", false, nil, []string{withdrawn + " (on cp1, wk1, wk2 now)"}},
		"withdrawn, and it goes":   {"v1.13.1", "v1.13.9", false, nil, nil},
		"withdrawn, and it comes":  {"v1.13.9", "v1.13.1", false, nil, []string{withdrawn}},
		"one configuration breaks": {"v1.13.3", "v1.13.3", false, errors.New("integers"), []string{integers + " (on cp1 now)"}},
		"no configuration does":    {"v1.13.3", "v1.13.3", false, nil, nil},
		"marked, and it stays":     {"v1.13.9", "v1.13.9", true, nil, []string{broken + " (on cp1, wk1, wk2 now)"}},
		"marked, and it comes":     {"v1.13.8", "v1.13.9", true, nil, []string{broken}},
		"neither":                  {"v1.13.9", "v1.13.9", false, nil, nil},
	} {
		wanted, o := paused(nil)
		for i := range wanted {
			wanted[i].Build.TalosVersion, wanted[i].Build.Broken = c.wanted, c.broken
			m := clustertest.InSync()
			m.Disks, m.SystemDisk, m.ControlPlane, m.UUID = o.Found[i].Machine.Disks, o.Found[i].Machine.SystemDisk, o.Found[i].Machine.ControlPlane, o.Found[i].Machine.UUID
			m.TalosVersion = c.runs
			o.Found[i].Machine = &m
		}
		o.Found[0].ConfigRefused = c.refused
		plan, err := New("c1", wanted, o, clustertest.Past, Policy{})
		if err != nil {
			t.Fatal(err)
		}
		if named := slices.DeleteFunc(slices.Clone(plan.Warn), func(w string) bool { return !strings.HasPrefix(w, "Talos v1.13") }); !slices.Equal(named, c.want) {
			t.Errorf("%s:\n%q, want\n%q", name, named, c.want)
		}
	}
}
