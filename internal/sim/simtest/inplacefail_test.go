package simtest

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/talosapi"
)

// eachFault plays each fault in its own world.
func eachFault(t *testing.T, faults map[string]*talosFault) {
	t.Helper()
	for name, f := range faults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, f.run)
		})
	}
}

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
		old, since := lab.builds(), len(lab.Recorder.Calls())
		err := lab.as(firstRun).roll(policyFor("wk1"))(t.Context())
		if requireFault(t, err, c.kind, c.text); len(fault.Hints(err)) == 0 {
			t.Errorf("no hint: %v", err)
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
		err = lab.as(secondRun).roll(policyFor("wk1"))(t.Context())
		if c.again {
			must(t, err)
			requireDrift(t, lab, "cp1")
			return
		}
		requireRefused(t, err, "came back as the old system once, and is never tried again with the same image")
		if calls := lab.upgradeCalls(since); len(calls) > 0 {
			t.Errorf("again: %q", calls)
		}
		lab.Patch(everywhere) // another build
		must(t, lab.as(thirdRun).roll(policyFor("wk1"))(t.Context()))
		lab.requireUpgraded(t, "wk1")
	})
}

// TestInPlaceUnderAuto: after a build has failed in place once, auto chooses another strategy for
// it.
func TestInPlaceUnderAuto(t *testing.T) {
	long(t)
	inBubble(t, (&talosFault{
		strategy: cluster.InPlace, begins: breakImage(talosapi.RollsBack), mends: breakImage(talosapi.Sound), parks: true,
		says: []string{"it came back as its old system"}, stands: untouched,
		remedy: func(s *talosScene) {
			s.Replace("recast.yaml", "strategy: in-place", "strategy: auto")
			if p := s.planOf(s.Client(), "wk1", s.only()); p.Strategy != cluster.Recreate || len(p.Refused) > 0 {
				s.t.Errorf("planned as %s: %s; %q", p.Strategy, p.Why, p.Refused)
			}
			must(s.t, s.as(secondRun).roll(s.only())(s.t.Context()))
		},
	}).run)
}

// foreseen requires that the plan has such a note.
func foreseen(note string) func(*talosScene) {
	return func(s *talosScene) {
		if notes := strings.Join(s.planOf(s.Client(), s.rolls, s.only()).Notes, "\n"); !strings.Contains(notes, note) {
			s.t.Errorf("notes %q lack %q", notes, note)
		}
	}
}

// TestInPlaceThatDoesNotComeBack: the policy decides what happens at the boot deadline.
// faultsInPlace has stop, and reimage of one that hangs.
func TestInPlaceThatDoesNotComeBack(t *testing.T) {
	long(t)
	var old string // the build that it ran
	repaired := inTurn(breakImage(talosapi.Sound), switchedOff, poweredOn)
	eachFault(t, map[string]*talosFault{
		"rollback": {
			strategy: cluster.InPlace, roll: []string{"bootFailure: rollback"}, first: published, begins: breakImage(talosapi.Loops), mends: repaired,
			says: []string{"and it can't be asked to roll back", "with roll.bootFailure: reimage recast would have reinstalled its build"}, stands: "on, cordoned",
		},
		"reimage, it loops": {
			strategy: cluster.InPlace, roll: []string{"bootFailure: reimage"}, parks: true,
			first:  func(s *talosScene) { published(s); old = s.machine("wk1").Schematic.LockHash() },
			begins: inTurn(breakImage(talosapi.Loops), foreseen("should it not come back within the boot deadline, its system disk is parked and build ")),
			says:   []string{"it was reimaged and runs build ", "the disk with the system that does not boot is parked"}, stands: untouched,
			remedy: func(s *talosScene) {
				s.requireServing("wk1")
				s.requireKept(1)
				if m := s.machine("wk1"); m.Schematic.LockHash() != old {
					s.t.Errorf("it runs lock %s", m.Schematic.LockHash())
				}
				if p := s.planOf(s.Client(), "wk1", s.only()); len(p.Refused) == 0 || !strings.Contains(p.Refused[0], "never tried again") {
					s.t.Errorf("planned again as %s: %q", p.Strategy, p.Refused)
				}
				s.again()
			},
		},
		"reimage, but its build is nowhere": {
			strategy: cluster.InPlace, roll: []string{"bootFailure: reimage"}, mends: repaired,
			begins: inTurn(breakImage(talosapi.Hangs), foreseen("should it not come back, a reimage is not possible: the build that it runs is in no past lock that is here")),
			says:   []string{"and it can't be asked to roll back", "look at its console in Proxmox"}, stands: "on, cordoned",
		},
	})
}

// TestInPlaceBackButNotHealthy: a control plane came back as its old system, whose etcd
// does not start. A rollback would boot the broken system again.
func TestInPlaceBackButNotHealthy(t *testing.T) {
	long(t)
	inBubble(t, (&talosFault{
		o: threePlanes, rolls: "cp2", strategy: cluster.InPlace, at: "upgrade/reboot",
		begins: inTurn(breakImage(talosapi.RollsBack), breakEtcd(talosapi.EtcdFault{Down: true}, "cp2")),
		says:   []string{"it came back as its old system, but that is not healthy"}, stands: untouched,
		mends: func(s *talosScene) {
			if slices.Contains(s.upgradeCalls(0), "MachineService/Rollback") {
				s.t.Error("it was asked to roll back")
			}
			s.breakEtcd(talosapi.EtcdFault{}, "cp2")
			time.Sleep(5 * time.Minute)
			s.requireServing("cp2")
		},
		remedy: (*talosScene).again,
	}).run)
}
