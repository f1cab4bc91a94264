package simtest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/sim/artefact"
)

// TestConfigurationOnACD: an ISO with cloud-init data can't configure a blank machine,
// because it is out of its drive meanwhile; it is back at the end if it still exists.
func TestConfigurationOnACD(t *testing.T) {
	long(t)
	type story struct {
		strategy cluster.Strategy
		killed   moment
		recover  bool
		gone     bool // the ISO is deleted meanwhile
	}
	eachInLab(t, oneWorker(), map[string]story{
		"recreate":                   {strategy: cluster.Recreate},
		"recreate, killed":           {strategy: cluster.Recreate, killed: before("bring-up/configure")},
		"recreate, given up":         {strategy: cluster.Recreate, killed: before("bring-up/configure"), recover: true},
		"recreate, and the ISO goes": {strategy: cluster.Recreate, killed: before("bring-up/configure"), gone: true},
		"reimage":                    {strategy: cluster.Reimage},
		"reimage, killed":            {strategy: cluster.Reimage, killed: before("finish/restore-settings")},
		"reimage, given up":          {strategy: cluster.Reimage, killed: before("bring-up/configure"), recover: true},
	}, func(t *testing.T, lab *Lab, tc story) {
		strategy(tc.strategy)(lab)
		s, err := lab.Client().connect(t.Context())
		must(t, err)
		config, err := s.machines.Talos.MachineConfig(t.Context(), lab.Nodes[1].Addr)
		must(t, err)
		s.end()
		// It would install on an arbitrary disk, the first one.
		must(t, lab.World.AddISO("local", "pve1", "user-data-9031.iso", artefact.CloudInitISO([]byte(config))))
		whileOff(change("ide2=none,media=cdrom", "ide3=local:iso/user-data-9031.iso,media=cdrom"))(lab)
		lab.Patch(everywhere)
		media := func() string {
			vm, err := lab.World.LookupVM("pve1", wk1)
			must(t, err)
			volid, _, _ := strings.Cut(vm.Config["ide3"], ",")
			return fmt.Sprint(strings.Contains(vm.Config["ide2"], "recast-"), " ", volid)
		}
		policy := planning.Policy{Only: []string{"wk1"}}
		const note = "ide3 is empty until its node is healthy: local:iso/user-data-9031.iso is taken out, so that it does not configure the blank machine"
		if n := planOf(t, lab, "wk1"); !slices.Contains(n.Notes, note) || len(n.Refused) > 0 {
			t.Errorf("refused %q, notes %q", n.Refused, n.Notes)
		}
		if tc.killed != (moment{}) {
			c := lab.Client()
			c.killedAt(t, tc.killed, c.roll(policy))
			time.Sleep(time.Minute)
			if got := media(); !strings.HasSuffix(got, " none") {
				t.Errorf("where it was killed: %s", got)
			}
		}
		want := "false local:iso/user-data-9031.iso"
		if tc.gone {
			_, err := lab.World.DeleteVolume("root@pam", "pve1", "local:iso/user-data-9031.iso")
			must(t, err)
			want = "false none"
		}
		if tc.recover {
			_, err := lab.Client().Recover(t.Context(), "wk1")
			must(t, err)
		} else {
			_, err := lab.Client().Roll(t.Context(), policy)
			must(t, err)
			requireDrift(t, lab, "cp1")
		}
		if diff := cmp.Diff(want, media()); diff != "" {
			t.Errorf("in the drives (-want +got): %s", diff)
		}
		lab.RequireIntact()
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
		_, err := lab.Shell("pve1").Run(strings.Fields(n.ToRecreate[0].Command))
		must(t, err)
		if n = planOf(t, lab, "wk1"); n.Strategy != cluster.Recreate || !slices.Contains(n.Renewed, "arch (left out: its host is x86_64)") {
			t.Errorf("lifted: %s: %s; renewed %q", n.Strategy, n.Why, n.Renewed)
		}
		_, err = lab.Client().Roll(t.Context(), planning.Policy{Only: []string{"wk1"}})
		must(t, err)
		requireDrift(t, lab, "cp1")
		if s := lab.settings(); s["affinity"] != "" || s["arch"] != "" {
			t.Errorf("affinity %q, arch %q", s["affinity"], s["arch"])
		}
		lab.RequireIntact()
	})
}
