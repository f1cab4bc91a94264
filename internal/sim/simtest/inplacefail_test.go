package simtest

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/talosapi"
	"github.com/recast-sh/recast/internal/step"
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
		requireFault(t, err, c.kind, c.text)
		require(t, len(fault.Hints(err)) != 0, "no hint: %v", err)
		requireSame(t, c.calls, lab.upgradeCalls(since), "calls")
		time.Sleep(time.Minute) // the kubelet has yet to see it
		lab.requireServing("wk1")
		requireSame(t, old, lab.builds(), "builds")
		requireDrift(t, lab, "cp1", "wk1")

		since = len(lab.Recorder.Calls())
		lab.BreakImage(broken, talosapi.Sound)
		if c.again {
			lab.as(secondRun).rollTo(t, policyFor("wk1"), "cp1")
			return
		}
		err = lab.as(secondRun).roll(policyFor("wk1"))(t.Context())
		requireRefused(t, err, "came back as the old system once, and is never tried again with the same image")
		requireSame(t, 0, len(lab.upgradeCalls(since)), "calls for the same build again")
		lab.Patch(everywhere) // another build
		must(t, lab.as(thirdRun).roll(policyFor("wk1"))(t.Context()))
		lab.requireUpgraded(t, "wk1")
	})
}

// foreseen requires that the plan has such a note.
func foreseen(note string) func(*talosScene) {
	return func(s *talosScene) {
		requireSays(s.t, strings.Join(s.planOf(s.Client(), s.rolls, s.only()).Notes, "\n"), note)
	}
}

// TestInPlaceThatDoesNotComeBack: the policy decides what happens at the boot deadline (faultsInPlace has stop, and
// reimage of one that hangs), and of what comes back as its old system the same build is not tried in place again.
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
				requireSame(s.t, old, s.machine("wk1").Schematic.LockHash(), "the build (-before +now)")
				requireSays(s.t, strings.Join(s.planOf(s.Client(), "wk1", s.only()).Refused, "\n"), "never tried again")
				s.again()
			},
		},
		"reimage, but its build is nowhere": {
			strategy: cluster.InPlace, roll: []string{"bootFailure: reimage"}, mends: repaired,
			begins: inTurn(breakImage(talosapi.Hangs), foreseen("should it not come back, a reimage is not possible: the build that it runs is in no past lock that is here")),
			says:   []string{"and it can't be asked to roll back", "look at its console in Proxmox"}, stands: "on, cordoned",
		},
		"the old system, and then auto": { // which chooses another strategy
			strategy: cluster.InPlace, begins: breakImage(talosapi.RollsBack), mends: breakImage(talosapi.Sound), parks: true,
			says: []string{"it came back as its old system"}, stands: untouched,
			remedy: func(s *talosScene) {
				s.Replace("recast.yaml", "strategy: in-place", "strategy: auto")
				requirePlanned(s.t, s.planOf(s.Client(), "wk1", s.only()), cluster.Recreate)
				must(s.t, s.as(secondRun).roll(s.only())(s.t.Context()))
			},
		},
		"the old system, whose etcd does not start": { // a rollback would boot the broken system again
			o: threePlanes, rolls: "cp2", strategy: cluster.InPlace, at: "upgrade/reboot",
			begins: inTurn(breakImage(talosapi.RollsBack), breakEtcd(talosapi.EtcdFault{Down: true}, "cp2")),
			says:   []string{"it came back as its old system, but that is not healthy"}, stands: untouched,
			mends: func(s *talosScene) {
				require(s.t, !slices.Contains(s.upgradeCalls(0), "MachineService/Rollback"), "it was asked to roll back")
				s.breakEtcd(talosapi.EtcdFault{}, "cp2")
				time.Sleep(5 * time.Minute)
				s.requireServing("cp2")
			},
			remedy: (*talosScene).again,
		},
	})
}

// inLabCutOff has a worker with the old API whose upgrade was cut off before its one call.
func inLabCutOff(t *testing.T, f func(t *testing.T, lab *Lab)) {
	t.Helper()
	inLongLab(t, sim.Options{Workers: 1, TalosVersion: talos12}, func(t *testing.T, lab *Lab) {
		lab.inPlace()
		lab.Patch(everywhere)
		lab.as(firstRun).rollKilled(moment{server: "MachineService/Upgrade", unsent: true}, policyFor("wk1"))
		f(t, lab)
	})
}

// TestOldUpgradeCutOffInItsPull: before 1.13 the one call first pulls the installer, and an interruption there installs
// nothing. The next run repeats it, and does not mistake the old system for a failed upgrade that has come back.
func TestOldUpgradeCutOffInItsPull(t *testing.T) {
	inLabCutOff(t, func(t *testing.T, lab *Lab) {
		since := len(lab.Recorder.Calls())
		must(t, lab.as(secondRun).roll(policyFor("wk1"))(t.Context()))
		calls := lab.upgradeCalls(since)
		require(t, slices.Contains(calls, "MachineService/Upgrade") && !slices.Contains(calls, "MachineService/Reboot"),
			"calls %q", calls)
		lab.requireUpgraded(t, "wk1")
	})
}

// TestInPlaceThatNeverLeftItsBoot: a run finds the machine marked and unreachable and assumes a reboot. If it comes
// back in the same boot, the new system was never tried, and the build does not count as failed.
func TestInPlaceThatNeverLeftItsBoot(t *testing.T) {
	inLabCutOff(t, func(t *testing.T, lab *Lab) {
		var away atomic.Bool
		c := lab.as(secondRun)
		c.Reroute = func(addr string) string {
			if away.Load() && strings.HasPrefix(addr, lab.node("wk1").Addr.String()+":") {
				return lab.node("cp1").Addr.String() + ":50000"
			}
			return addr
		}
		c.Emit = allOf(whenStarted("wk1/gate", func() { away.Store(true) }), whenStarted("wk1/wait-healthy", func() { away.Store(false) }))
		err := c.roll(policyFor("wk1"))(t.Context())
		require(t, fault.KindOf(err) == fault.Failed && !strings.Contains(err.Error(), "came back as its old system"),
			"kind %d: %v, %q", fault.KindOf(err), err, fault.Hints(err))
		must(t, lab.as(thirdRun).roll(policyFor("wk1"))(t.Context()))
		lab.requireUpgraded(t, "wk1")
	})
}

// TestInstallerGoneWhileItDrains: Talos removes unused images after an hour
// (controllers/cri/image_gc.go), and a drain may last longer.
func TestInstallerGoneWhileItDrains(t *testing.T) {
	inLongLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.inPlace()
		lab.Patch(everywhere)
		c := lab.Client().hears(whenStarted("upgrade/install", func() { time.Sleep(80 * time.Minute) }))
		must(t, c.roll(policyFor("wk1"))(t.Context()))
		lab.requireUpgraded(t, "wk1")
	})
}

// TestInstallerAtWorkUnseen: another installer is running, and for a while its progress
// can't be read. That must not count as its failure.
func TestInstallerAtWorkUnseen(t *testing.T) {
	inLongLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
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
		require(t, busy.Load() >= 2, "no other installer was met")
		lab.requireUpgraded(t, "wk1")
	})
}

// TestLeaveWithoutAnAnswer: etcd removes the member before Talos deletes its data, and the call was interrupted in
// between. The roll continues; the old system disk, which could never join again, is no rollback target.
func TestLeaveWithoutAnAnswer(t *testing.T) {
	inLongLab(t, threePlanes, func(t *testing.T, lab *Lab) {
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
		require(t, left, "it was not asked to leave")
		requireDrift(t, lab, "cp1", "cp3", "wk1")
		requireMembers(t, lab, "", false)
		requireRefused(t, lab.as(secondRun).goBack("cp2")(t.Context()), "its old system disk holds the data of an etcd member that did not leave")
	})
}

// TestConfigureWithLostAnswers cuts recast off right after each change that it makes to a machine: for a
// moment, so that the answer is lost; and for longer than a trial lasts.
func TestConfigureWithLostAnswers(t *testing.T) {
	type story struct {
		line string
		away time.Duration
	}
	eachLong(t, oneWorker(), map[string]story{
		"without a reboot":                {noReboot, 5 * time.Second},
		"with a reboot":                   {needsReboot, 5 * time.Second},
		"without a reboot, away for long": {noReboot, 20 * time.Minute},
		"with a reboot, away for long":    {needsReboot, 20 * time.Minute},
	}, func(t *testing.T, lab *Lab, s story) {
		files := lab.keptConfigs()
		files.set(t, "wk1", s.line)
		start := files["wk1"]
		for cut := 1; ; cut++ {
			user := files.user(lab, fmt.Sprintf("20000101-0000-%04d", 2*cut))
			var changes atomic.Int64
			lab.Recorder.Hooks(nil, func(c record.Call) {
				if c.Proto == "talos" && c.Mutation && changes.Add(1) == int64(cut) {
					user.Cut()
					time.AfterFunc(s.away, user.Mend)
				}
			})
			err := user.roll(onlyWorker)(t.Context())
			lab.Recorder.Hooks(nil, nil)
			if changes.Load() < int64(cut) {
				must(t, err)
				require(t, cut >= 4, "only %d changes", cut-1)
				return
			}
			if err != nil {
				require(t, fault.KindOf(err) != fault.Config && len(fault.Hints(err)) != 0,
					"change %d: %v, hints %q", cut, err, fault.Hints(err))
				must(t, files.user(lab, fmt.Sprintf("20000101-0000-%04d", 2*cut+1)).roll(onlyWorker)(t.Context()))
			}
			files.user(lab, firstRun).requireStale(t)
			lab.requireServing("wk1")
			lab.RequireIntact()
			files["wk1"] = cluster.Secret(strings.Replace(string(start), s.line, strings.NewReplacer(`"1"`, fmt.Sprintf("%q", fmt.Sprint(cut+1)), "renderD*", fmt.Sprint("renderD", cut)).Replace(s.line), 1))
		}
	})
}

// TestKilledBeforeItIsHealthy: the next run gives a node its old configuration back, too.
func TestKilledBeforeItIsHealthy(t *testing.T) {
	type story struct {
		node, from, to string
		upgrade        bool
	}
	const server, other = "registry.k8s.io/kube-apiserver", "registry.k8s.io/kube-apiserver-amd64"
	eachLong(t, threePlanes, map[string]story{
		"a control plane without its API server": {"cp2", server, other, false},
		"and after an upgrade in place":          {"cp2", server, other, true},
		"a control plane without its kubelet":    {"cp2", "ghcr.io/siderolabs/kubelet", "ghcr.io/nobody/kubelet", false},
	}, func(t *testing.T, lab *Lab, s story) {
		files := lab.keptConfigs()
		was := string(files[s.node])
		files.set(t, s.node, needsReboot)
		files[s.node] = cluster.Secret(strings.Replace(string(files[s.node]), s.from, s.to, 1))
		lab.brokenImage(s.node, s.to+":v1.35.4", talosapi.Unready)
		at := before("wait-healthy")
		if s.upgrade {
			at = before("configure/wait-healthy")
			lab.setRoll("canary: false", "strategy: in-place")
			lab.Patch(everywhere)
		}
		user := files.user(lab, firstRun)
		user.killedAt(t, at, user.rollNode(s.node))
		time.Sleep(5 * time.Minute)
		err := files.user(lab, secondRun).rollNode(s.node)(t.Context())
		requireFault(t, err, fault.Failed, s.node+" is not healthy with its new configuration", "it was given its old configuration back, and serves again")
		lab.requireServing(s.node)
		requireSame(t, was, string(lab.configOf(s.node)), "the configuration of %s (-before +now)", s.node)
	})
}

// TestARefusalAfterTheDrain: a node that does not get its configuration takes pods again.
func TestARefusalAfterTheDrain(t *testing.T) {
	inLongLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		files := lab.keptConfigs()
		files.set(t, "wk1", needsReboot)
		user := files.user(lab, firstRun).hears(func(e step.Event) {
			if after("drain").is(e) {
				files.set(t, "wk1", noReboot)
			}
		})
		requireRefused(t, user.roll(onlyWorker)(t.Context()), "its file in talos.machineConfigs was changed")
		lab.requireServing("wk1")
		must(t, files.user(lab, secondRun).roll(onlyWorker)(t.Context()))
		files.user(lab, thirdRun).requireStale(t)
	})
}

// TestWhoComesBackAppliesNothing: a run that is cut off right after it has begun a trial, or staged a
// configuration, loses its claim to one with another recast.yaml, and changes nothing when it is back.
func TestWhoComesBackAppliesNothing(t *testing.T) {
	type story struct{ line, other string }
	eachLong(t, oneWorker(), map[string]story{
		"without a reboot": {noReboot, `sysctls: {vm.swappiness: "9"}`},
		"with a reboot":    {needsReboot, strings.Replace(needsReboot, "0666", "0600", 1)},
	}, func(t *testing.T, lab *Lab, s story) {
		mine, theirs := lab.keptConfigs(), lab.keptConfigs()
		mine.set(t, "wk1", s.line)
		theirs.set(t, "wk1", s.other)
		first, second := mine.user(lab, firstRun), lab.second()
		second.Elsewhere, second.MachineConfig = true, theirs.read
		var changes atomic.Int64
		gone, back := make(chan struct{}), make(chan struct{})
		lab.Recorder.Hooks(nil, func(c record.Call) {
			if c.Proto == "talos" && c.Mutation && changes.Add(1) == 3 {
				first.Cut()
				close(gone)
				time.AfterFunc(150*time.Second, func() { first.Mend(); close(back) })
			}
		})
		ended := inRoll(t.Context(), first, onlyWorker)
		<-gone
		must(t, second.roll(onlyWorker)(t.Context()))
		<-back
		requireFault(t, (<-ended).err, fault.Claimed, "lost the claim")
		second.requireStale(t)
		lab.requireServing("wk1")
		requireNoClaim(t, lab)
	})
}
