package simtest

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/talosapi"
)

// TestInPlaceThatChangesNothing: after any fault before the new system boots, the node
// runs its old system and is schedulable again.
func TestInPlaceThatChangesNothing(t *testing.T) {
	long(t)
	type story struct {
		version string
		defect  talosapi.Defect
		kind    fault.Kind
		text    string
		calls   []string
		again   bool // the same build may be retried
	}
	eachIn(t, func(c story) sim.Options { return sim.Options{Workers: 1, TalosVersion: c.version} }, map[string]story{
		"the installer can't be pulled": {"", talosapi.Unpullable, fault.Refused, "wk1 can't fetch the installer ", []string{"ImageService/Pull"}, true},
		"the installer fails": {
			"", talosapi.InstallerFails, fault.Failed, "failed to copy boot assets: input/output error",
			[]string{"ImageService/Pull", "evict", "ImageService/Pull", "LifecycleService/Upgrade"},
			true,
		},
		"the new system gives up": {
			"", talosapi.RollsBack, fault.Failed, "it came back as its old system",
			[]string{"ImageService/Pull", "evict", "ImageService/Pull", "LifecycleService/Upgrade", "MachineService/Reboot"},
			false,
		},
		"the old API refuses":           {"v1.12.6", talosapi.Unpullable, fault.Failed, "install ", []string{"evict", "MachineService/Upgrade"}, true},
		"the old API's installer fails": {"v1.12.6", talosapi.InstallerFails, fault.Failed, "it came back as its old system", []string{"evict", "MachineService/Upgrade"}, false},
	}, func(t *testing.T, lab *Lab, c story) {
		lab.inPlace()
		lab.Patch(everywhere)
		broken := lab.locked("wk1").SchematicID
		lab.BreakImage(broken, c.defect)
		only := planning.Policy{Only: []string{"wk1"}}
		old, since := lab.builds(), len(lab.Recorder.Calls())
		err := lab.as(firstRun).roll(only)(t.Context())
		if fault.KindOf(err) != c.kind || !strings.Contains(err.Error(), c.text) || len(fault.Hints(err)) == 0 {
			t.Fatalf("kind %d, %v, hints %q", fault.KindOf(err), err, fault.Hints(err))
		}
		if diff := cmp.Diff(c.calls, lab.upgradeCalls(since)); diff != "" {
			t.Errorf("calls:\n%s", diff)
		}
		time.Sleep(time.Minute) // the kubelet has yet to see it
		lab.requireServing("wk1")
		if diff := cmp.Diff(old, lab.builds()); diff != "" {
			t.Errorf("builds:\n%s", diff)
		}
		requireDrift(t, lab, "cp1", "wk1")

		since = len(lab.Recorder.Calls())
		lab.BreakImage(broken, talosapi.Sound)
		err = lab.as(secondRun).roll(only)(t.Context())
		if c.again {
			must(t, err)
			requireDrift(t, lab, "cp1")
			return
		}
		if fault.KindOf(err) != fault.Refused || !strings.Contains(err.Error(), "came back as the old system once, and is never tried again with the same image") || len(lab.upgradeCalls(since)) > 0 {
			t.Errorf("again: kind %d, %v, %q", fault.KindOf(err), err, lab.upgradeCalls(since))
		}
		lab.Patch(everywhere) // another build
		must(t, lab.as(thirdRun).roll(only)(t.Context()))
		requireDrift(t, lab, "cp1")
		lab.requireServing("wk1")
	})
}

// TestInPlaceUnderAuto: after a build has failed in place once, auto chooses another strategy for
// it.
func TestInPlaceUnderAuto(t *testing.T) {
	long(t)
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.inPlace()
		lab.Patch(everywhere)
		broken := lab.locked("wk1").SchematicID
		lab.BreakImage(broken, talosapi.RollsBack)
		if err := lab.as(firstRun).roll(planning.Policy{Only: []string{"wk1"}})(t.Context()); err == nil {
			t.Fatal("the roll succeeded")
		}
		lab.BreakImage(broken, talosapi.Sound)
		lab.Replace("recast.yaml", "strategy: in-place", "strategy: auto")
		if p := lab.planOf(lab.Client(), "wk1", planning.Policy{Only: []string{"wk1"}}); p.Strategy != cluster.Recreate || len(p.Refused) > 0 {
			t.Errorf("planned as %s: %s; %q", p.Strategy, p.Why, p.Refused)
		}
		must(t, lab.as(secondRun).roll(planning.Policy{Only: []string{"wk1"}})(t.Context()))
		requireDrift(t, lab, "cp1")
		lab.requireServing("wk1")
	})
}

// TestInPlaceThatDoesNotComeBack: the policy decides what happens at the boot deadline.
func TestInPlaceThatDoesNotComeBack(t *testing.T) {
	long(t)
	type story struct {
		policy    string
		published bool // the ISO and installer of the running build exist
		defect    talosapi.Defect
		text      string
		hint      string
		note      string // of the plan
		serves    bool   // in the end
	}
	eachInLab(t, oneWorker(), map[string]story{
		"stop":     {"stop", true, talosapi.Hangs, "wk1 did not come back from its upgrade: wk1 healthy for 2s: gave up after 5m2s", "look at its console in Proxmox", "", false},
		"rollback": {"rollback", true, talosapi.Loops, "and it can't be asked to roll back", "with roll.bootFailure: reimage recast would have reinstalled its build", "", false},
		"reimage, it hangs": {
			"reimage", true, talosapi.Hangs, "it was reimaged and runs build ", "the disk with the system that does not boot is parked",
			"should it not come back within the boot deadline, its system disk is parked and build ", true,
		},
		"reimage, it loops": {
			"reimage", true, talosapi.Loops, "it was reimaged and runs build ", "the disk with the system that does not boot is parked", "its system disk is parked", true,
		},
		"reimage, but its build is nowhere": {
			"reimage", false, talosapi.Hangs, "and it can't be asked to roll back", "look at its console in Proxmox",
			"should it not come back, a reimage is not possible: the build that it runs is in no past lock that is here", false,
		},
	}, func(t *testing.T, lab *Lab, c story) {
		if c.published {
			must(t, lab.Client().Publish(t.Context()))
		}
		old := lab.machine("wk1").Schematic.LockHash()
		lab.inPlace("  bootFailure: " + c.policy + "\n")
		lab.Patch(everywhere)
		broken := lab.locked("wk1").SchematicID
		lab.BreakImage(broken, c.defect)
		only := planning.Policy{Only: []string{"wk1"}}
		if notes := strings.Join(lab.planOf(lab.Client(), "wk1", only).Notes, "\n"); !strings.Contains(notes, c.note) {
			t.Errorf("notes %q lack %q", notes, c.note)
		}
		began := time.Now()
		err := lab.as(firstRun).roll(only)(t.Context())
		if fault.KindOf(err) != fault.Failed || !strings.Contains(err.Error(), c.text) {
			t.Fatalf("kind %d: %v", fault.KindOf(err), err)
		}
		if hints := strings.Join(fault.Hints(err), "\n"); !strings.Contains(hints, c.hint) {
			t.Errorf("hints %q lack %q", hints, c.hint)
		}
		if took := time.Since(began); took < 5*time.Minute || took > 20*time.Minute {
			t.Errorf("it took %s", took)
		}
		if c.serves {
			lab.requireServing("wk1")
			lab.requireKept(1)
			requireDrift(t, lab, "cp1", "wk1")
			if m := lab.machine("wk1"); m.Schematic.LockHash() != old {
				t.Errorf("it runs lock %s", m.Schematic.LockHash())
			}
			if p := lab.planOf(lab.Client(), "wk1", only); len(p.Refused) == 0 || !strings.Contains(p.Refused[0], "never tried again") {
				t.Errorf("planned again as %s: %q", p.Strategy, p.Refused)
			}
		} else { // a person repairs it; then the roll continues
			lab.BreakImage(broken, talosapi.Sound)
			must(t, lab.World.PowerOff(9031))
			must(t, lab.World.PowerOn(9031))
			must(t, lab.as(secondRun).roll(only)(t.Context()))
			requireDrift(t, lab, "cp1")
			lab.requireServing("wk1")
		}
		lab.RequireIntact()
	})
}

// TestInPlaceBackButNotHealthy: a control plane came back as its old system, whose etcd
// does not start. A rollback would boot the broken system again.
func TestInPlaceBackButNotHealthy(t *testing.T) {
	long(t)
	inLab(t, sim.Options{ControlPlanes: 3, Workers: 1}, func(t *testing.T, lab *Lab) {
		lab.inPlace()
		lab.Patch(everywhere)
		lab.BreakImage(lab.locked("cp2").SchematicID, talosapi.RollsBack)
		since := len(lab.Recorder.Calls())
		c := lab.as(firstRun)
		c.Emit = whenStarted("upgrade/reboot", func() { must(t, lab.BreakEtcd("cp2", talosapi.EtcdFault{Down: true})) })
		err := c.roll(planning.Policy{Only: []string{"cp2"}})(t.Context())
		if fault.KindOf(err) != fault.Failed || !strings.Contains(err.Error(), "it came back as its old system, but that is not healthy") {
			t.Errorf("kind %d: %v", fault.KindOf(err), err)
		}
		for _, call := range lab.upgradeCalls(since) {
			if call == "MachineService/Rollback" {
				t.Error("it was asked to roll back")
			}
		}
		must(t, lab.BreakEtcd("cp2", talosapi.EtcdFault{}))
		time.Sleep(5 * time.Minute)
		lab.requireServing("cp2")
	})
}
