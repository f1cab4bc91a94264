package simtest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/artefact"
	"github.com/recast-sh/recast/internal/sim/talosapi"
)

// TestBootOrderThatNoStrategyMends: a running node boots from its network card before its system disk, and
// that change is pending: recreate and reimage are impossible, and in-place changes no boot order. The plan
// leaves that node as it is, with the one command, and the others are rolled.
func TestBootOrderThatNoStrategyMends(t *testing.T) {
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		change("boot=order=net0;scsi0")(lab)
		requireDrift(t, lab, "wk1")
		const command = "qm set 9031 --boot 'order=scsi0;net0'"
		n := lab.planOf(lab.Client(), "wk1", planning.Policy{})
		require(t, n.Strategy == "" && len(n.Refused) == 0 && n.ByHand == command,
			"strategy %q, refused %q, by hand %q", n.Strategy, n.Refused, n.ByHand)
		plan := lab.plan(planning.Policy{})
		require(t, slices.ContainsFunc(plan.Warn, func(w string) bool {
			return strings.Contains(w, "wk1 is left as it is: it boots from net0") && strings.HasSuffix(w, command)
		}), "warnings %q", plan.Warn)
		must(t, lab.Client().roll(planning.Policy{})(t.Context()))
		lab.RequireIntact()

		// A node that was named is refused, with the same command, and so is its roll.
		refusedWith := func() {
			t.Helper()
			n := lab.planOf(lab.Client(), "wk1", onlyWorker)
			require(t, slices.ContainsFunc(n.Refused, func(r string) bool { return strings.HasSuffix(r, command) }),
				"refused %q", n.Refused)
			requireRefused(t, lab.Client().roll(onlyWorker)(t.Context()), command)
		}
		refusedWith()

		// With an image to install, too, the others go on, and the report has the command.
		lab.Patch(everywhere)
		if n := lab.planOf(lab.Client(), "wk1", planning.Policy{}); n.Strategy != "" || len(n.Refused) > 0 || n.ByHand != command {
			t.Errorf("strategy %q, refused %q, by hand %q", n.Strategy, n.Refused, n.ByHand)
		}
		refusedWith()
		before := lab.machine("wk1")
		rep := lab.Client().mustRoll(planning.Policy{})
		require(t, slices.ContainsFunc(rep.Afterwards, func(text string) bool {
			return strings.HasPrefix(text, "wk1 is left as it is") && strings.HasSuffix(text, command)
		}), "afterwards %q", rep.Afterwards)
		m := lab.machine("wk1")
		require(t, m.BootID == before.BootID, "wk1 was rebooted")
		res := valueOf(lab.Client().Drift(t.Context()))(t)
		require(t, !res.Nodes[0].Stale && res.Nodes[1].Stale, "%+v", res.Nodes)
		change("boot=order=scsi0;net0")(lab)
		if n := planOf(t, lab, "wk1"); len(n.Refused) > 0 {
			t.Errorf("afterwards refused %q", n.Refused)
		}
	})
}

// TestConfigurationOnACD: an ISO with cloud-init data can't configure a blank machine,
// because it is out of its drive meanwhile; it is back at the end if it still exists.
func TestConfigurationOnACD(t *testing.T) {
	type story struct {
		renewal
		gone bool // the ISO is deleted meanwhile
	}
	unconfigured := renewal{strategy: cluster.Recreate, killed: before("bring-up/configure")}
	eachLong(t, oneWorker(), map[string]story{
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
			got := media()
			require(t, strings.HasSuffix(got, " none"), "where it was killed: %s", got)
			if tc.gone {
				must(t, errOf(lab.World.DeleteVolume("root@pam", "pve1", "local:iso/user-data-9031.iso")))
				want = "false none"
			}
		})
		requireSame(t, want, media(), "in the drives (-want +got)")
	})
}

// TestSettingsOfRootThatChangeNothing: the plan says how to remove affinity, which the
// machine does not see, and leaves out an arch that is the host's default.
func TestSettingsOfRootThatChangeNothing(t *testing.T) {
	inLongLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		whileOff(change("arch=x86_64", "affinity=0-3"))(lab)
		lab.Patch(everywhere)
		n := planOf(t, lab, "wk1")
		mustBe(t, len(n.ToRecreate) == 1 && n.ToRecreate[0].Command == "qm set 9031 --delete affinity",
			"to recreate: %+v", n.ToRecreate)
		must(t, errOf(lab.Shell("pve1").Run(strings.Fields(n.ToRecreate[0].Command))))
		if n = planOf(t, lab, "wk1"); n.Strategy != cluster.Recreate || !slices.Contains(n.Renewed, "arch (left out: its host is x86_64)") {
			t.Errorf("lifted: %s: %s; renewed %q", n.Strategy, n.Why, n.Renewed)
		}
		must(t, lab.Client().roll(onlyWorker)(t.Context()))
		requireInSync(t, lab, "cp1")
		s := lab.settings()
		require(t, s["affinity"] == "" && s["arch"] == "", "affinity %q, arch %q", s["affinity"], s["arch"])
	})
}

// TestAnImageThatBootsByKexecOnly stops the roll at its first node, which boots through the firmware. With
// roll.reboot: kexec nobody would notice until the next power failure.
func TestAnImageThatBootsByKexecOnly(t *testing.T) {
	type story struct {
		reboot, talos string
		hangs         bool
	}
	o := func(tc story) sim.Options { return sim.Options{Workers: 3, ControlPlanes: 1, TalosVersion: tc.talos} }
	eachIn(t, o, map[string]story{
		"canary": {"canary", "", true}, "powercycle": {"powercycle", "", true}, "kexec": {"kexec", "", false}, "1.12, which reboots by itself": {"canary", "v1.12.6", true},
	}, func(t *testing.T, lab *Lab, tc story) {
		lab.inPlace()
		lab.Replace("recast.yaml", "roll:\n", "roll:\n  reboot: "+tc.reboot+"\n  maxUnavailable: {workers: 3, perHost: 3}\n")
		lab.Patch(sim.PatchedExtension)
		build := lab.planOf(lab.Client(), "wk1", planning.Policy{}).Wanted.Build
		lab.BreakImage(build.SchematicID, talosapi.KexecOnly)
		workers := planning.Policy{Only: []string{"wk1", "wk2", "wk3"}}
		before := lab.boots()
		err := lab.Client().roll(workers)(t.Context())
		changed := 0
		for i, boot := range lab.boots() {
			if boot != before[i] {
				changed++
			}
		}
		switch {
		case !tc.hangs && (err != nil || changed != 3):
			t.Errorf("%d nodes rebooted: %v", changed, err)
		case tc.hangs && (err == nil || changed > 1 || !strings.Contains(err.Error(), "did not come back from its upgrade")):
			t.Errorf("%d nodes rebooted: %v", changed, err)
		}
	})
}

// TestAKilledFirstBootIsNoProof: the run after one that was killed while its first node rebooted still
// boots another one through the firmware before the rest.
func TestAKilledFirstBootIsNoProof(t *testing.T) {
	inLab(t, sim.Options{ControlPlanes: 1, Workers: 3}, func(t *testing.T, lab *Lab) {
		lab.inPlace()
		lab.Patch(sim.PatchedExtension)
		workers := planning.Policy{Only: []string{"wk1", "wk2", "wk3"}}
		lab.as(firstRun).rollKilled(after("upgrade/reboot"), workers)
		plan := lab.plan(workers)
		var firmware []string
		for _, n := range plan.Nodes {
			if n.Reboot == cluster.ByFirmware {
				firmware = append(firmware, string(n.Phase)+"/"+n.Node)
			}
		}
		requireSame(t, []string{"unfinished/wk1", "canary/wk2"}, firmware, "through the firmware (-want +got)")
		must(t, lab.as(secondRun).roll(workers)(t.Context()))
		requireInSync(t, lab)
	})
}
