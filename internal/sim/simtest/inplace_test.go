package simtest

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/kubeupgrade"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/talosapi"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/pipeline"
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

// upgradeCalls are the calls of an upgrade in place since a call, in order; evictions are listed once.
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
	return valueOf(cluster.ReadMachine(l.t.Context(), s.machines.Talos, l.node(name).Addr))(l.t)
}

// requireServing: the node is Ready, schedulable and unmarked.
func (l *Lab) requireServing(name string) {
	l.t.Helper()
	node := l.kubeNode(name)
	require(l.t, !node.Spec.Unschedulable && isReady(node),
		"%s: unschedulable %t, Ready %t", name, node.Spec.Unschedulable, isReady(node))
	requireNone(l.t, l.status().Marked, "marks")
}

// TestInPlaceUpgrade upgrades with the API of the node's version; afterwards the configuration names the new installer.
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

// TestEntryOfTheBootBefore: a machine whose kernel can't write EFI variables reports, after a kexec, the previous boot
// entry as its own. Its upgrade completes and is not repeated, and there is no warning of a pending reboot.
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

// TestRollbackAfterAnUpgradeInPlace: a system disk that was upgraded in place has two boot entries of the same version
// of Talos. The EFI disk says which one boots, and the replacement's installation has since written its own entry
// there, which has the name of the older one.
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

const (
	talos12 = "v1.12.6"
	talos14 = "v1.14.1"
)

// wantTalos locks another version of Talos than the lab runs.
func (l *Lab) wantTalos(from, to string) {
	l.t.Helper()
	l.Replace("recast.yaml", "version: "+from, "version: "+to)
	must(l.t, errOf(l.Client().Lock(l.t.Context(), pipeline.LockOptions{Update: true})))
}

// TestVersions rolls nodes of every release that recast supports, to itself and to every
// release to which Talos supports the upgrade, with every strategy.
func TestVersions(t *testing.T) {
	for name, c := range map[string]struct {
		from, to string // "": the same, another build
		strategy cluster.Strategy
		node     string
		short    bool
		back     cluster.Strategy // then to the release before; "": it stays
	}{
		"1.12, recreate":              {talos12, "", cluster.Recreate, "wk1", false, ""},
		"1.12, reimage":               {talos12, "", cluster.Reimage, "cp2", false, ""},
		"1.12 to 1.13, recreate":      {talos12, sim.TalosVersion, cluster.Recreate, "cp2", false, ""},
		"1.12 to 1.13 and back":       {talos12, sim.TalosVersion, cluster.InPlace, "wk1", false, cluster.InPlace},
		"1.13 to 1.14 and back":       {sim.TalosVersion, talos14, cluster.InPlace, "wk1", false, cluster.Recreate},
		"1.14 back to 1.13, in place": {sim.TalosVersion, talos14, cluster.Recreate, "wk1", false, cluster.InPlace},
		"1.12 to 1.14, reimage":       {talos12, talos14, cluster.Reimage, "wk1", false, ""},
		"1.12 to 1.14, in-place":      {talos12, talos14, cluster.InPlace, "wk1", false, ""},
		"1.13 to 1.14, recreate":      {sim.TalosVersion, talos14, cluster.Recreate, "cp2", false, ""},
		"1.13 to 1.14, in-place":      {sim.TalosVersion, talos14, cluster.InPlace, "wk1", true, ""},
		"1.13 back to 1.12, recreate": {sim.TalosVersion, talos12, cluster.Recreate, "wk1", false, ""},
		"1.14, recreate":              {talos14, "", cluster.Recreate, "cp2", false, ""},
		"1.14, in-place":              {talos14, "", cluster.InPlace, "wk1", false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if !c.short {
				long(t)
			}
			o := sim.Options{Workers: 1, TalosVersion: c.from, NextTalos: c.to}
			if c.node == "cp2" {
				o.ControlPlanes = 3
			}
			if c.to == sim.TalosVersion {
				o.NextTalos = ""
			}
			inLab(t, o, func(t *testing.T, lab *Lab) {
				lab.setRoll("strategy: " + string(c.strategy))
				want := c.to
				if want == "" {
					want = c.from
					lab.Patch(everywhere)
				} else {
					lab.wantTalos(c.from, c.to)
				}
				before := lab.machine(c.node)
				must(t, lab.Client().roll(policyFor(c.node))(t.Context()))
				m := lab.machine(c.node)
				if m.TalosVersion != want || m.BootID == before.BootID || m.FromISO || m.Schematic.LockHash() != lab.locked(c.node).LockHash {
					t.Errorf("before %+v, now %+v", before, m)
				}
				lab.requireUpgraded(t, c.node)
				if c.back == "" {
					return
				}
				lab.Replace("recast.yaml", "strategy: "+string(c.strategy), "strategy: "+string(c.back))
				lab.wantTalos(c.to, c.from)
				must(t, lab.as("20000101-0000-bacc").roll(policyFor(c.node))(t.Context()))
				if m := lab.machine(c.node); m.TalosVersion != c.from || m.Schematic.LockHash() != lab.locked(c.node).LockHash {
					t.Errorf("back, it runs %+v", m)
				}
				lab.RequireIntact()
			})
		})
	}
}

// TestAReleaseThatBreaks: a node that runs a release with a configuration that it can't have is named by plan and drift, and no
// roll brings that release again.
func TestAReleaseThatBreaks(t *testing.T) {
	inLab(t, sim.Options{Workers: 1, TalosVersion: "v1.13.3"}, func(t *testing.T, lab *Lab) {
		const says = "Talos v1.13.3 starts no static pod of a control plane with an integer in cluster.scheduler.config"
		named := func(texts []string) bool {
			return slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(text, says) })
		}
		plan := lab.plan(planning.Policy{})
		require(t, !named(plan.Warn), "without an integer: %q", plan.Warn)
		lab.editConfig("cp1", "    scheduler:\n", "    scheduler:\n        config: {parallelism: 16}\n")
		plan = lab.plan(planning.Policy{})
		require(t, named(plan.Warn) && len(plan.Work()) == 0, "the plan warns %q, and does %+v", plan.Warn, plan.Work())
		res := lab.drift()
		if !named(res.Nodes[0].Notes) || !res.InSync {
			t.Errorf("drift notes %q", res.Nodes[0].Notes)
		}
		lab.Patch(everywhere)
		n := lab.planOf(lab.Client(), "cp1", policyFor("cp1"))
		require(t, named(n.Refused), "another image of the same release: %q", n.Refused)
	})
}

// TestUnsupportedVersions: what Talos does not support is refused before anything is
// touched, and drift reports it too. TestUnsupported has each reason.
func TestUnsupportedVersions(t *testing.T) {
	for name, c := range map[string]struct {
		to   string
		plan string // reason of the plan's refusal; "": none
		roll string
		long bool
	}{
		"too far back": {to: talos12, plan: "Talos does not support v1.14.1 → v1.12.6 (host version 1.14.1 is too new to downgrade to Talos 1.12.6)"},
		"a configuration of 1.14 for 1.13": {
			to: sim.TalosVersion, plan: "Talos v1.13.9 would refuse it: DiscoveryServiceConfig, DiscoveryIdentityConfig, UnattendedInstallConfig, ",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if c.long {
				long(t)
			}
			o := sim.Options{Workers: 1, TalosVersion: talos14}
			if c.to != sim.TalosVersion {
				o.NextTalos = c.to
			}
			inLab(t, o, func(t *testing.T, lab *Lab) {
				lab.setRoll("strategy: recreate")
				lab.wantTalos(talos14, c.to)
				plan := lab.plan(policyFor("wk1"))
				if got := strings.Join(plan.Refused(), "\n"); !strings.Contains(got, c.plan) || c.plan == "" && got != "" {
					t.Errorf("the plan refuses %q", got)
				}
				notes := requireDrift(t, lab, "cp1", "wk1").Nodes[1].Notes
				told := slices.ContainsFunc(notes, func(n string) bool { return strings.Contains(n, c.plan) })
				require(t, told == (c.plan != ""), "drift notes %q", notes)
				before := lab.machine("wk1")
				requireRefused(t, lab.Client().roll(policyFor("wk1"))(t.Context()), c.plan+c.roll)
				m := lab.machine("wk1")
				require(t, m.BootID == before.BootID && m.TalosVersion == talos14, "before %+v, now %+v", before, m)
				lab.requireServing("wk1")
				lab.RequireIntact()
			})
		})
	}
}

// UpgradeKubernetes is recast upgrade-k8s --yes --to VERSION.
func (c *Client) UpgradeKubernetes(ctx context.Context, to string, dryRun bool) (pipeline.UpgradeKubernetesReport, error) {
	s, err := c.connect(ctx)
	if err != nil {
		return pipeline.UpgradeKubernetesReport{}, err
	}
	defer s.end()
	c.Runner.Emit = c.emit
	return checked[pipeline.UpgradeKubernetesReport](c.lab)(pipeline.UpgradeKubernetes(ctx, s.project, s.machines, &c.Runner, pipeline.UpgradeKubernetesOptions{
		To: to, DryRun: dryRun, Claim: c.rollOptions(planning.Policy{}),
		Confirm: func(p kubeupgrade.Plan) (bool, error) {
			if c.Upgrades == nil {
				return true, nil
			}
			return c.Upgrades(p)
		},
	}))
}

// upgradeKubernetes upgrades everything to nextKubernetes.
func (c *Client) upgradeKubernetes(ctx context.Context) error {
	_, err := c.UpgradeKubernetes(ctx, nextKubernetes, false)
	return err
}

// The Kubernetes of a new lab, and the one after it.
const (
	labKubernetes  = "v1.35.4"
	nextKubernetes = "v1.36.1"
)

// mustUpgradeKubernetes is an upgrade that must succeed.
func (l *Lab) mustUpgradeKubernetes() {
	l.t.Helper()
	c := l.as("20000101-0002-feed")
	must(l.t, c.upgradeKubernetes(l.t.Context()))
	l.requireKubernetes(nextKubernetes)
}

// versions are the Talos and Kubernetes versions of every node, and the DaemonSet's.
func (l *Lab) versions() map[string]string {
	l.t.Helper()
	s := l.session()
	defer s.end()
	nodes := valueOf(s.machines.Kube.Nodes(l.t.Context()))(l.t)
	pods := valueOf(s.machines.Kube.StaticPods(l.t.Context()))(l.t)
	out := map[string]string{}
	note := func(node, what, version string) { out[node] += fmt.Sprintf("%s=%s ", what, version) }
	for _, n := range nodes {
		m := valueOf(s.machines.Talos.Kubernetes(l.t.Context(), n.Addresses[0]))(l.t)
		for _, c := range cluster.Components {
			if image := m.Images.Of(c); image != "" {
				note(n.Name, strings.TrimPrefix(string(c), "kube-"), image[strings.LastIndex(image, ":")+1:])
			}
		}
		note(n.Name, "node", n.KubeletVersion)
	}
	for _, p := range pods {
		note(p.Node, "pod", p.Image[strings.LastIndex(p.Image, "/")+1:])
	}
	set := valueOf(s.machines.Kube.ProxySet(l.t.Context()))(l.t)
	out["kube-proxy"] = set.Image[strings.LastIndex(set.Image, ":")+1:]
	return out
}

// requireKubernetes fails the test unless everything runs that version.
func (l *Lab) requireKubernetes(version string) {
	l.t.Helper()
	for node, what := range l.versions() {
		for one := range strings.FieldsSeq(what) {
			if !strings.HasSuffix(one, version) {
				l.t.Errorf("%s: %s, want all %s", node, what, version)
				break
			}
		}
	}
}

// TestUpgradeKubernetes: everything gets the next minor version, nothing reboots, and then there is nothing to do.
func TestUpgradeKubernetes(t *testing.T) {
	longParts(t)
	inLab(t, sim.Options{ControlPlanes: 3, Workers: 2}, func(t *testing.T, lab *Lab) {
		boots := lab.boots()
		from := len(lab.Recorder.Calls())
		rep, err := lab.Client().UpgradeKubernetes(t.Context(), nextKubernetes, true)
		if err != nil || rep.Run != "" || rep.Plan.From != labKubernetes || len(rep.Plan.Nodes) != 5 || len(rep.Plan.Nodes[0].Changes) != 5 || len(rep.Plan.Nodes[4].Changes) != 1 || rep.Plan.Proxy == nil {
			t.Fatalf("dry run %+v, %v", rep, err)
		}
		for _, call := range lab.Recorder.Calls()[from:] {
			require(t, !call.Mutation, "a dry run has changed something: %s %s", call.Method, call.Path)
		}
		rep, err = lab.Client().UpgradeKubernetes(t.Context(), nextKubernetes, false)
		mustBe(t, err == nil && rep.Outcome == "done", "%+v, %v\nhints %q", rep, err, fault.Hints(err))
		lab.requireKubernetes(nextKubernetes)
		after := lab.boots()
		require(t, slices.Equal(boots, after), "boots %q, then %q", boots, after)
		if rep, err = lab.Client().UpgradeKubernetes(t.Context(), nextKubernetes, false); err != nil || rep.Outcome != "nothing to do" || rep.Run != "" {
			t.Errorf("again: %+v, %v", rep, err)
		}
		lab.RequireIntact()
	})
}

// boots are the boot IDs of the nodes in Kubernetes.
func (l *Lab) boots() (out []string) {
	l.t.Helper()
	for _, n := range l.Nodes {
		k := l.kubeNode(n.Name)
		out = append(out, n.Name+" "+k.Status.NodeInfo.BootID)
	}
	return out
}
