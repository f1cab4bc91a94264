package simtest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/sim/artefact"
)

// TestConfigurationOnACD: an ISO with cloud-init data can't configure a blank machine,
// because it is out of its drive meanwhile; it is back at the end if it still exists.
func TestConfigurationOnACD(t *testing.T) {
	long(t)
	type story struct {
		renewal
		gone bool // the ISO is deleted meanwhile
	}
	unconfigured := renewal{strategy: cluster.Recreate, killed: before("bring-up/configure")}
	eachInLab(t, oneWorker(), map[string]story{
		"recreate":                   {renewal: renewal{strategy: cluster.Recreate}},
		"recreate, killed":           {renewal: unconfigured},
		"recreate, given up":         {renewal: renewal{cluster.Recreate, unconfigured.killed, true}},
		"recreate, and the ISO goes": {renewal: unconfigured, gone: true},
		"reimage":                    {renewal: renewal{strategy: cluster.Reimage}},
		"reimage, killed":            {renewal: renewal{strategy: cluster.Reimage, killed: before("finish/restore-settings")}},
		"reimage, given up":          {renewal: renewal{cluster.Reimage, unconfigured.killed, true}},
	}, func(t *testing.T, lab *Lab, tc story) {
		strategy(tc.strategy)(lab)
		// It would install on an arbitrary disk, the first one.
		must(t, lab.World.AddISO("local", "pve1", "user-data-9031.iso", artefact.CloudInitISO([]byte(lab.configOf("wk1")))))
		whileOff(change("ide2=none,media=cdrom", "ide3=local:iso/user-data-9031.iso,media=cdrom"))(lab)
		lab.Patch(everywhere)
		media := func() string {
			config := lab.vmConfig(wk1)
			volid, _, _ := strings.Cut(config["ide3"], ",")
			return fmt.Sprint(strings.Contains(config["ide2"], "recast-"), " ", volid)
		}
		want := "false local:iso/user-data-9031.iso"
		const note = "ide3 is empty until its node is healthy: local:iso/user-data-9031.iso is taken out, so that it does not configure the blank machine"
		tc.play(t, lab, note, func() {
			if got := media(); !strings.HasSuffix(got, " none") {
				t.Errorf("where it was killed: %s", got)
			}
			if tc.gone {
				must(t, errOf(lab.World.DeleteVolume("root@pam", "pve1", "local:iso/user-data-9031.iso")))
				want = "false none"
			}
		})
		if diff := cmp.Diff(want, media()); diff != "" {
			t.Errorf("in the drives (-want +got): %s", diff)
		}
	})
}

// TestSettingsOfRootThatChangeNothing: the plan says how to remove affinity, which the
// machine does not see, and leaves out an arch that is the host's default.
func TestSettingsOfRootThatChangeNothing(t *testing.T) {
	long(t)
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		whileOff(change("arch=x86_64", "affinity=0-3"))(lab)
		lab.Patch(everywhere)
		n := planOf(t, lab, "wk1")
		if len(n.ToRecreate) != 1 || n.ToRecreate[0].Command != "qm set 9031 --delete affinity" {
			t.Fatalf("to recreate: %+v", n.ToRecreate)
		}
		must(t, errOf(lab.Shell("pve1").Run(strings.Fields(n.ToRecreate[0].Command))))
		if n = planOf(t, lab, "wk1"); n.Strategy != cluster.Recreate || !slices.Contains(n.Renewed, "arch (left out: its host is x86_64)") {
			t.Errorf("lifted: %s: %s; renewed %q", n.Strategy, n.Why, n.Renewed)
		}
		must(t, lab.Client().roll(onlyWorker)(t.Context()))
		requireInSync(t, lab, "cp1")
		if s := lab.settings(); s["affinity"] != "" || s["arch"] != "" {
			t.Errorf("affinity %q, arch %q", s["affinity"], s["arch"])
		}
	})
}
