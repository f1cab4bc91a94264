package simtest

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/talosapi"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/schematics"
)

// inPlace selects upgrades in place, with further settings of the roll.
func (l *Lab) inPlace(more ...string) {
	l.t.Helper()
	l.Replace("recast.yaml", "roll:\n", "roll:\n  strategy: in-place\n"+strings.Join(more, ""))
}

// locked is the lock's entry for the image of workers, or of control planes.
func (l *Lab) locked(node string) schematics.Locked {
	l.t.Helper()
	lock := valueOf(schematics.ReadLock(filepath.Join(l.Dir, "recast.lock")))(l.t)
	if strings.HasPrefix(node, "cp") {
		return lock.Schematics["default"]
	}
	return lock.Schematics["storage"]
}

// upgradeCalls are the calls of an upgrade in place since a call, in order; evictions are
// listed once.
func (l *Lab) upgradeCalls(since int) []string {
	var out []string
	for _, c := range l.Recorder.Calls()[since:] {
		_, name, _ := strings.Cut(strings.TrimPrefix(c.Method, "/machine."), "/")
		switch {
		case c.Proto == "talos" && slices.Contains([]string{"Pull", "Upgrade", "Reboot", "Rollback", "ApplyConfiguration"}, name):
			out = append(out, strings.TrimPrefix(c.Method, "/machine."))
		case c.Proto == "kubernetes" && strings.Contains(c.Path, "/eviction"):
			out = append(out, "evict")
		}
	}
	return slices.Compact(out)
}

// machine reads one node's machine.
func (l *Lab) machine(name string) cluster.Machine {
	l.t.Helper()
	s := l.session()
	defer s.end()
	m := valueOf(s.machines.Talos.Machine(l.t.Context(), l.node(name).Addr))(l.t)
	return m
}

// requireServing: the node is Ready, schedulable and unmarked.
func (l *Lab) requireServing(name string) {
	l.t.Helper()
	node := l.kubeNode(name)
	require(l.t, !node.Spec.Unschedulable && isReady(node),
		"%s: unschedulable %t, Ready %t", name, node.Spec.Unschedulable, isReady(node))
	res := valueOf(l.Client().Status(l.t.Context()))(l.t)
	require(l.t, len(res.Marked) == 0, "marks %+v", res.Marked)
}

// TestInPlaceUpgrade upgrades with the API of the node's version; afterwards the
// configuration names the new installer.
func TestInPlaceUpgrade(t *testing.T) {
	apart := []string{"ImageService/Pull", "evict", "ImageService/Pull", "LifecycleService/Upgrade", "MachineService/Reboot", "MachineService/ApplyConfiguration"}
	legacy := []string{"evict", "MachineService/Upgrade", "MachineService/ApplyConfiguration"}
	type story struct {
		o     sim.Options
		node  string
		to    string // another version of Talos
		calls []string
	}
	eachLongIn(t, func(c story) sim.Options { return c.o }, map[string]story{
		"1.13, worker":                 {oneWorker(), "wk1", "", apart},
		"1.13, control plane":          {sim.Options{ControlPlanes: 3, Workers: 1}, "cp2", "", apart[2:]},
		"1.13, the only control plane": {oneWorker(), "cp1", "", apart},
		"1.12, worker":                 {sim.Options{Workers: 1, TalosVersion: talos12}, "wk1", "", legacy},
		"1.12 to 1.13":                 {sim.Options{Workers: 1, TalosVersion: talos12}, "wk1", sim.TalosVersion, legacy},
		"1.12 to 1.13 cp":              {sim.Options{ControlPlanes: 3, Workers: 1, TalosVersion: talos12}, "cp2", sim.TalosVersion, legacy[1:]},
	}, func(t *testing.T, lab *Lab, c story) {
		members := lab.EtcdMembers()
		lab.inPlace()
		if c.to != "" {
			lab.wantTalos(talos12, c.to)
		} else {
			lab.Patch(everywhere)
		}
		old, since := lab.machine(c.node), len(lab.Recorder.Calls())
		must(t, lab.Client().roll(policyFor(c.node))(t.Context()))
		requireSame(t, c.calls, lab.upgradeCalls(since), "calls")
		m, want := lab.machine(c.node), lab.locked(c.node)
		require(t, m.InstallImage == want.Installer && strings.Contains(want.Installer, "@sha256:"),
			"the configuration names %s, want %s", m.InstallImage, want.Installer)
		require(t, m.BootID != old.BootID && m.BootEntry != old.BootEntry && m.Schematic.LockHash() == want.LockHash,
			"before %+v, now %+v", old, m)
		lab.requireUpgraded(t, c.node)
		lab.requireKept(0)
		if c.o.ControlPlanes == 3 {
			requireMembers(t, lab, fmt.Sprint(members), true)
		}
	})
}

// TestInPlaceKilled: the next roll continues; nothing is installed twice.
func TestInPlaceKilled(t *testing.T) {
	long(t)
	moments := []moment{
		after("upgrade/drain"), onServer("LifecycleService/Upgrade"), after("upgrade/install"), onServer("MachineService/Reboot"),
		before("wait-healthy"), before("finish/set-installer"), before("finish/uncordon"),
	}
	type kill struct {
		at             moment
		journal, usual bool
	}
	var kills []kill
	for i, at := range moments {
		usual := i >= 1 && i <= 3
		kills = append(kills, kill{at, true, usual && i == 1}, kill{at, false, usual && i != 1})
	}
	for _, k := range chosenKills(t, kills, 1, func(k kill) bool { return k.usual }) {
		t.Run(fmt.Sprintf("%s/journal=%t", k.at, k.journal), func(t *testing.T) {
			inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
				lab.inPlace()
				lab.Patch(everywhere)
				since := len(lab.Recorder.Calls())
				lab.Client().rollKilled(k.at, policyFor("wk1"))
				if !k.journal {
					lab.loseJournal()
				}
				must(t, lab.Client().roll(policyFor("wk1"))(t.Context()))
				calls := lab.upgradeCalls(since)
				installs := strings.Count(strings.Join(calls, " "), "LifecycleService/Upgrade")
				require(t, installs == 1, "installed %d times: %q", installs, calls)
				lab.requireUpgraded(t, "wk1")
				lab.requireKept(0)
			})
		})
	}
}

// TestInPlaceBesideTheSameInstallation: a person has installed the build that runs once more, as
// another entry, and not booted it. faultsInPlace has another build.
func TestInPlaceBesideTheSameInstallation(t *testing.T) {
	inLongLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		must(t, lab.Client().Publish(t.Context()))
		lab.installBy(t, "wk1", lab.locked("wk1").Installer)
		res := lab.drift()
		r := res.Nodes[1].Reasons
		require(t, len(r) != 0 && r[0].Code == "pending-reboot", "reasons %+v", r)
	})
}

// installBy installs a system beside the running one, like talosctl without the reboot.
func (l *Lab) installBy(t *testing.T, node, installer string) {
	t.Helper()
	s := l.session()
	defer s.end()
	n, quiet := l.node(node), func(string) {}
	must(t, errOf(s.machines.Talos.PullInstaller(t.Context(), n.Addr, n.UUID, installer, quiet)))
	must(t, errOf(s.machines.Talos.Install(t.Context(), n.Addr, n.UUID, installer, "", quiet)))
}

// TestEntryOfTheBootBefore: a machine whose kernel can't write EFI variables reports,
// after a kexec, the previous boot entry as its own. Its upgrade completes and is not
// repeated, and there is no warning of a pending reboot.
func TestEntryOfTheBootBefore(t *testing.T) {
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.setRoll("strategy: in-place", "reboot: kexec")
		must(t, lab.Trouble("wk1", talosapi.Trouble{NoOneShot: true}))
		lab.Patch(sim.PatchedExtension)
		c, said := lab.Client(), ""
		c.Emit = func(e step.Event) { said += e.Text + "\n" }
		must(t, c.roll(planning.Policy{})(t.Context()))
		require(t, strings.Contains(said, "it says that it booted"), "nothing was said of the entry")
		requireDrift(t, lab)
		rep := valueOf(lab.as(secondRun).Roll(t.Context(), planning.Policy{}))(t)
		require(t, rep.Outcome == "nothing to do", "the next roll: %s", rep.Outcome)
		whileOff()(lab)
		requireDrift(t, lab)
	})
}

// TestRollbackAfterAnUpgradeInPlace: a system disk that was upgraded in place has two boot
// entries of the same version of Talos. The EFI disk says which one boots, and the
// replacement's installation has since written its own entry there, which has the name of
// the older one.
func TestRollbackAfterAnUpgradeInPlace(t *testing.T) {
	eachLong(t, oneWorker(), newDisks, func(t *testing.T, lab *Lab, s cluster.Strategy) {
		lab.inPlace()
		lab.Patch(everywhere)
		must(t, lab.as(firstRun).roll(onlyWorker)(t.Context()))
		upgraded, m := lab.builds(), lab.machine("wk1")
		mustBe(t, strings.HasSuffix(m.BootEntry, "~1.efi"), "boots %s", m.BootEntry)
		lab.Replace("recast.yaml", "strategy: in-place", "strategy: "+string(s))
		lab.Patch(everywhere)
		must(t, lab.as(secondRun).roll(onlyWorker)(t.Context()))
		must(t, lab.as(thirdRun).goBack("wk1")(t.Context()))
		requireSame(t, upgraded, lab.builds(), "builds after the rollback")
		lab.RequireIntact()
	})
}
