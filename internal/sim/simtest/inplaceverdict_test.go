package simtest

import (
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/step"
)

// TestOldUpgradeCutOffInItsPull: before 1.13 the one call first pulls the installer, and
// an interruption there installs nothing. The next run repeats it, and does not mistake
// the old system for a failed upgrade that has come back.
func TestOldUpgradeCutOffInItsPull(t *testing.T) {
	long(t)
	inLab(t, sim.Options{Workers: 1, TalosVersion: talos12}, func(t *testing.T, lab *Lab) {
		lab.inPlace()
		lab.Patch(everywhere)
		first := lab.as(firstRun)
		first.killedAt(t, moment{server: "MachineService/Upgrade", unsent: true}, first.roll(policyFor("wk1")))
		since := len(lab.Recorder.Calls())
		must(t, lab.as(secondRun).roll(policyFor("wk1"))(t.Context()))
		if calls := lab.upgradeCalls(since); !slices.Contains(calls, "MachineService/Upgrade") || slices.Contains(calls, "MachineService/Reboot") {
			t.Errorf("calls %q", calls)
		}
		lab.requireUpgraded(t, "wk1")
	})
}

// TestInPlaceThatNeverLeftItsBoot: a run finds the machine marked and unreachable and
// assumes a reboot. If it comes back in the same boot, the new system was never tried, and
// the build does not count as failed.
func TestInPlaceThatNeverLeftItsBoot(t *testing.T) {
	long(t)
	inLab(t, sim.Options{Workers: 1, TalosVersion: talos12}, func(t *testing.T, lab *Lab) {
		lab.inPlace()
		lab.Patch(everywhere)
		first := lab.as(firstRun)
		first.killedAt(t, moment{server: "MachineService/Upgrade", unsent: true}, first.roll(policyFor("wk1")))

		var away atomic.Bool
		c := lab.as(secondRun)
		c.Reroute = func(addr string) string {
			if away.Load() && strings.HasPrefix(addr, lab.node("wk1").Addr.String()+":") {
				return lab.node("cp1").Addr.String() + ":50000"
			}
			return addr
		}
		gone, back := whenStarted("wk1/gate", func() { away.Store(true) }), whenStarted("wk1/wait-healthy", func() { away.Store(false) })
		c.Emit = func(e step.Event) { gone(e); back(e) }
		err := c.roll(policyFor("wk1"))(t.Context())
		if fault.KindOf(err) != fault.Failed || strings.Contains(err.Error(), "came back as its old system") {
			t.Errorf("kind %d: %v, %q", fault.KindOf(err), err, fault.Hints(err))
		}
		must(t, lab.as(thirdRun).roll(policyFor("wk1"))(t.Context()))
		lab.requireUpgraded(t, "wk1")
	})
}

// TestInstallerGoneWhileItDrains: Talos removes unused images after an hour
// (controllers/cri/image_gc.go), and a drain may last longer.
func TestInstallerGoneWhileItDrains(t *testing.T) {
	long(t)
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.inPlace()
		lab.Patch(everywhere)
		c := lab.Client()
		c.Emit = whenStarted("upgrade/install", func() { time.Sleep(80 * time.Minute) })
		must(t, c.roll(policyFor("wk1"))(t.Context()))
		lab.requireUpgraded(t, "wk1")
	})
}

// TestInstallerAtWorkUnseen: another installer is running, and for a while its progress
// can't be read. That must not count as its failure.
func TestInstallerAtWorkUnseen(t *testing.T) {
	long(t)
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.inPlace()
		lab.Patch(everywhere)
		must(t, lab.Client().Publish(t.Context()))
		c := lab.as(firstRun)
		installed := make(chan struct{})
		c.Emit = whenStarted("upgrade/install", func() {
			go func() {
				defer close(installed)
				lab.installBy(t, "wk1", lab.locked("wk1").Installer)
			}()
			time.Sleep(time.Second)
		})
		var busy atomic.Int64 // since when, and number of queries
		lab.Recorder.Hooks(func(r record.Call) error {
			now := time.Now().Unix()
			switch first := busy.Load(); {
			case strings.HasSuffix(r.Method, "LifecycleService/Upgrade"):
				if !busy.CompareAndSwap(0, 1) {
					busy.CompareAndSwap(1, now)
				}
			case first > 1 && now <= first+1 && r.Proto == "talos" && strings.HasSuffix(r.Method, "/Version"):
				return errKilled
			}
			return nil
		}, nil)
		err := c.roll(policyFor("wk1"))(t.Context())
		lab.Recorder.Hooks(nil, nil)
		<-installed
		must(t, err)
		if busy.Load() < 2 {
			t.Error("no other installer was met")
		}
		lab.requireUpgraded(t, "wk1")
	})
}

// TestLeaveWithoutAnAnswer: etcd removes the member before Talos deletes its data, and the
// call was interrupted in between. The roll continues; the old system disk, which could
// never join again, is no rollback target.
func TestLeaveWithoutAnAnswer(t *testing.T) {
	long(t)
	inLab(t, threePlanes, func(t *testing.T, lab *Lab) {
		lab.Patch(everywhere)
		left := false
		lab.Recorder.Hooks(func(r record.Call) error {
			if left || !strings.HasSuffix(r.Method, "EtcdLeaveCluster") {
				return nil
			}
			left = true
			lab.removeMember(lab.memberIDs()["cp2"])
			return errKilled
		}, nil)
		err := lab.as(firstRun).roll(policyFor("cp2"))(t.Context())
		lab.Recorder.Hooks(nil, nil)
		must(t, err)
		if !left {
			t.Error("it was not asked to leave")
		}
		requireDrift(t, lab, "cp1", "cp3", "wk1")
		requireMembers(t, lab, "", false)
		requireRefused(t, lab.as(secondRun).goBack("cp2")(t.Context()), "its old system disk holds the data of an etcd member that did not leave")
		lab.RequireIntact()
	})
}
