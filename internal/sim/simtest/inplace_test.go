package simtest

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/kubeupgrade"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/talosapi"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/pipeline"
	"github.com/recast-sh/recast/schematics"
)

func (l *Lab) inPlace() { strategy(cluster.InPlace)(l) }

func (l *Lab) locked(node string) schematics.Locked {
	return readLock(l.t, l).Schematics[l.node(node).Schematic]
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

func (l *Lab) machine(name string) cluster.Machine {
	s := l.session()
	defer s.end()
	return valueOf(cluster.ReadMachine(l.t.Context(), s.machines.Talos, l.node(name).Addr))(l.t)
}

func (l *Lab) requireServing(name string) {
	node := l.kubeNode(name)
	require(l.t, !node.Spec.Unschedulable && isReady(node),
		"%s: unschedulable %t, Ready %t", name, node.Spec.Unschedulable, isReady(node))
	requireNone(l.t, l.status().Marked, "marks")
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
				lab.patch(everywhere, "strategy: in-place")
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

// TestInPlaceBesideTheSameInstallation: the build that runs is installed once more, as another entry, and not booted.
func TestInPlaceBesideTheSameInstallation(t *testing.T) {
	inLongLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		must(t, lab.Client().Publish(t.Context()))
		lab.installBy(t, "wk1", lab.locked("wk1").Installer)
		r := lab.drift().Nodes[1].Reasons
		require(t, len(r) != 0 && r[0].Code == "pending-reboot", "reasons %+v", r)
	})
}

// installBy installs a system beside the running one, like talosctl without the reboot.
func (l *Lab) installBy(t *testing.T, node, installer string) {
	s := l.session()
	defer s.end()
	n, quiet := l.node(node), func(string) {}
	must(t, errOf(s.machines.Talos.PullInstaller(t.Context(), n.Addr, n.UUID, installer, quiet)))
	must(t, errOf(s.machines.Talos.Install(t.Context(), n.Addr, n.UUID, installer, "", quiet)))
}

// TestEntryOfTheBootBefore: a machine whose kernel can't write EFI variables reports, after a kexec, the previous boot
// entry as its own. Its upgrade completes and is not repeated, and there is no warning of a pending reboot.
func TestEntryOfTheBootBefore(t *testing.T) {
	long(t)
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.setRoll("strategy: in-place", "reboot: kexec")
		must(t, lab.Trouble("wk1", talosapi.Trouble{NoOneShot: true}))
		lab.Patch(sim.PatchedExtension)
		said := ""
		lab.Client().hears(func(e step.Event) { said += e.Text + "\n" }).mustRoll(planning.Policy{})
		requireSays(t, said, "it says that it booted")
		requireDrift(t, lab)
		requireSame(t, "nothing to do", lab.as(secondRun).mustRoll(planning.Policy{}).Outcome, "the next roll (-want +got)")
		whileOff()(lab)
		requireDrift(t, lab)
	})
}

// TestRollbackAfterAnUpgradeInPlace: a system disk that was upgraded in place has two boot entries of the same version
// of Talos. The EFI disk says which one boots, and the replacement's installation has since written its own entry
// there, which has the name of the older one.
func TestRollbackAfterAnUpgradeInPlace(t *testing.T) {
	eachLong(t, oneWorker(), newDisks, func(t *testing.T, lab *Lab, s cluster.Strategy) {
		lab.patch(everywhere, "strategy: in-place")
		must(t, lab.as(firstRun).roll(onlyWorker)(t.Context()))
		upgraded, m := lab.builds(), lab.machine("wk1")
		mustBe(t, strings.HasSuffix(m.BootEntry, "~1.efi"), "boots %s", m.BootEntry)
		lab.Replace("recast.yaml", "strategy: in-place", "strategy: "+string(s))
		lab.Patch(everywhere)
		must(t, lab.as(secondRun).roll(onlyWorker)(t.Context()))
		must(t, lab.as(thirdRun).goBack("wk1")(t.Context()))
		requireSame(t, upgraded, lab.builds(), "builds after the rollback")
	})
}

const talos12, talos14 = "v1.12.6", "v1.14.1"

func (l *Lab) wantTalos(from, to string) {
	l.Replace("recast.yaml", "version: "+from, "version: "+to)
	must(l.t, errOf(l.Client().Lock(l.t.Context(), pipeline.LockOptions{Update: true})))
}

type version struct {
	from, to string // "": the same, another build
	strategy cluster.Strategy
	node     string
	back     cluster.Strategy // then to the release before; "": it stays
	calls    []string         // those of an upgrade in place; nil: any
	format   string           // of the data disk; "": as ever
	short    bool
}

// TestVersions rolls nodes of every release that recast supports, to itself and to every release to which Talos
// supports the upgrade, with every strategy; in place with the API of the node's version. A persistent disk in a format
// that only one of two releases detects survives.
func TestVersions(t *testing.T) {
	const talos13, recreate, reimage, inPlace = sim.TalosVersion, cluster.Recreate, cluster.Reimage, cluster.InPlace
	apart := []string{"ImageService/Pull", "evict", "ImageService/Pull", "LifecycleService/Upgrade", "MachineService/Reboot", "MachineService/ApplyConfiguration"}
	legacy := []string{"evict", "MachineService/Upgrade", "MachineService/ApplyConfiguration"}
	for name, v := range map[string]version{
		"1.12, recreate":         {from: talos12, strategy: recreate, node: "wk1"},
		"1.12, reimage":          {from: talos12, strategy: reimage, node: "cp2"},
		"1.12, in-place":         {from: talos12, strategy: inPlace, node: "wk1", calls: legacy},
		"1.12 to 1.13, recreate": {from: talos12, to: talos13, strategy: recreate, node: "cp2"},
		"1.12 to 1.13, in-place": {from: talos12, to: talos13, strategy: inPlace, node: "cp2", calls: legacy[1:]},
		"1.12 to 1.13, back":     {from: talos12, to: talos13, strategy: inPlace, node: "wk1", calls: legacy, back: inPlace},
		"1.12 to 1.13, btrfs":    {from: talos12, to: talos13, strategy: recreate, node: "wk1", format: "btrfs", short: true},
		"1.12 to 1.14, reimage":  {from: talos12, to: talos14, strategy: reimage, node: "wk1"},
		"1.12 to 1.14, in-place": {from: talos12, to: talos14, strategy: inPlace, node: "wk1"},
		"1.13, in-place":         {from: talos13, strategy: inPlace, node: "wk1", calls: apart},
		"1.13, one of three":     {from: talos13, strategy: inPlace, node: "cp2", calls: apart[2:]},
		"1.13, the only one":     {from: talos13, strategy: inPlace, node: "cp1", calls: apart},
		"1.13 to 1.14, recreate": {from: talos13, to: talos14, strategy: recreate, node: "cp2"},
		"1.13 to 1.14, in-place": {from: talos13, to: talos14, strategy: inPlace, node: "wk1", short: true},
		"1.13 to 1.14, back":     {from: talos13, to: talos14, strategy: inPlace, node: "wk1", back: recreate},
		"1.13 to 1.14, md":       {from: talos13, to: talos14, strategy: recreate, node: "wk1", format: "linux_raid_member"},
		"1.14 back, in-place":    {from: talos13, to: talos14, strategy: recreate, node: "wk1", back: inPlace},
		"1.13 back to 1.12":      {from: talos13, to: talos12, strategy: recreate, node: "wk1"},
		"1.13 back, btrfs":       {from: talos13, to: talos12, strategy: recreate, node: "wk1", format: "btrfs"},
		"1.14, recreate":         {from: talos14, strategy: recreate, node: "cp2"},
		"1.14, in-place":         {from: talos14, strategy: inPlace, node: "wk1"},
	} {
		t.Run(name, func(t *testing.T) {
			if !v.short {
				long(t)
			}
			inLab(t, v.options(), v.roll)
		})
	}
}

func (v version) options() sim.Options {
	o := sim.Options{ControlPlanes: 1, Workers: 1, TalosVersion: v.from}
	if v.node == "cp2" {
		o.ControlPlanes = 3
	}
	if v.to != sim.TalosVersion {
		o.NextTalos = v.to
	}
	if v.format != "" {
		o.Layouts = []sim.Layout{{Data: 1, Filesystem: v.format}}
	}
	return o
}

func (v version) roll(t *testing.T, lab *Lab) {
	strategy(v.strategy)(lab)
	want := cmp.Or(v.to, v.from)
	if v.to == "" {
		lab.Patch(everywhere)
	} else {
		lab.wantTalos(v.from, v.to)
	}
	members, old, since := lab.EtcdMembers(), lab.machine(v.node), len(lab.Recorder.Calls())
	must(t, lab.Client().roll(policyFor(v.node))(t.Context()))
	m, locked := lab.machine(v.node), lab.locked(v.node)
	require(t, m.TalosVersion == want && m.BootID != old.BootID && !m.FromISO && m.Schematic.LockHash() == locked.LockHash,
		"before %+v, now %+v", old, m)
	lab.requireUpgraded(t, v.node)
	if v.strategy == cluster.InPlace {
		require(t, v.calls == nil || slices.Equal(v.calls, lab.upgradeCalls(since)), "calls %q", lab.upgradeCalls(since))
		require(t, m.InstallImage == locked.Installer && strings.Contains(locked.Installer, "@sha256:"),
			"the configuration names %s, want %s", m.InstallImage, locked.Installer)
		require(t, m.BootEntry != old.BootEntry, "it boots %s still", m.BootEntry)
		lab.requireKept(0)
	}
	if v.strategy == cluster.InPlace && v.node == "cp2" {
		requireMembers(t, lab, fmt.Sprint(members), true)
	}
	if v.back != "" {
		lab.Replace("recast.yaml", "strategy: "+string(v.strategy), "strategy: "+string(v.back))
		lab.wantTalos(v.to, v.from)
		must(t, lab.as("20000101-0000-bacc").roll(policyFor(v.node))(t.Context()))
		m = lab.machine(v.node)
		require(t, m.TalosVersion == v.from && m.Schematic.LockHash() == lab.locked(v.node).LockHash, "back, it runs %+v", m)
	}
}

// TestAReleaseThatBreaks: plan and drift name a node whose release can't have its configuration.
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
		require(t, named(res.Nodes[0].Notes) && res.InSync, "drift notes %q", res.Nodes[0].Notes)
		lab.Patch(everywhere)
		n := lab.planOf(lab.Client(), "cp1", policyFor("cp1"))
		require(t, named(n.Refused), "another image of the same release: %q", n.Refused)
	})
}

// TestUnsupportedVersions: refused before anything is touched, and told by drift. TestUnsupported has each reason.
func TestUnsupportedVersions(t *testing.T) {
	o := func(to string) sim.Options { return version{from: talos14, to: to}.options() }
	eachIn(t, o, storiesOf(talos12, sim.TalosVersion), func(t *testing.T, lab *Lab, to string) {
		reason := "Talos v1.13.9 would refuse it: DiscoveryServiceConfig, DiscoveryIdentityConfig, UnattendedInstallConfig, "
		if to == talos12 {
			reason = "Talos does not support v1.14.1 → v1.12.6 (host version 1.14.1 is too new to downgrade to Talos 1.12.6)"
		}
		strategy(cluster.Recreate)(lab)
		lab.wantTalos(talos14, to)
		requireSays(t, strings.Join(lab.plan(policyFor("wk1")).Refused(), "\n"), reason)
		requireSays(t, strings.Join(requireDrift(t, lab, "cp1", "wk1").Nodes[1].Notes, "\n"), reason)
		before := lab.machine("wk1")
		requireRefused(t, lab.Client().roll(policyFor("wk1"))(t.Context()), reason)
		m := lab.machine("wk1")
		require(t, m.BootID == before.BootID && m.TalosVersion == talos14, "before %+v, now %+v", before, m)
		lab.requireServing("wk1")
	})
}

// UpgradeKubernetes is recast upgrade-k8s --yes --to VERSION.
func (c *Client) UpgradeKubernetes(ctx context.Context, to string, dryRun bool) (pipeline.UpgradeKubernetesReport, error) {
	return connected(ctx, c, func(s *session) (pipeline.UpgradeKubernetesReport, error) {
		c.Runner.Emit = c.emit
		claim := c.rollOptions(planning.Policy{})
		o := pipeline.UpgradeKubernetesOptions{To: to, DryRun: dryRun, Claim: claim, Confirm: c.Upgrades}
		if o.Confirm == nil {
			o.Confirm = func(kubeupgrade.Plan) (bool, error) { return true, nil }
		}
		return pipeline.UpgradeKubernetes(ctx, s.project, s.machines, &c.Runner, o)
	})
}

func (c *Client) upgradeKubernetes(ctx context.Context) error {
	return errOf(c.UpgradeKubernetes(ctx, nextKubernetes, false))
}

// The Kubernetes of a new lab, and the one after it.
const labKubernetes, nextKubernetes = "v1.35.4", "v1.36.1"

func (l *Lab) mustUpgradeKubernetes() {
	must(l.t, l.as("20000101-0002-feed").upgradeKubernetes(l.t.Context()))
	l.requireKubernetes(nextKubernetes)
}

func (l *Lab) versions() map[string]string {
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

func (l *Lab) requireKubernetes(version string) {
	for node, what := range l.versions() {
		for one := range strings.FieldsSeq(what) {
			require(l.t, strings.HasSuffix(one, version), "%s: %s, want all %s", node, one, version)
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
		mustBe(t, err == nil && rep.Run == "" && rep.Plan.From == labKubernetes && rep.Plan.Proxy != nil && len(rep.Plan.Nodes) == 5 &&
			len(rep.Plan.Nodes[0].Changes) == 5 && len(rep.Plan.Nodes[4].Changes) == 1, "dry run %+v, %v", rep, err)
		for _, call := range lab.Recorder.Calls()[from:] {
			require(t, !call.Mutation, "a dry run has changed something: %s %s", call.Method, call.Path)
		}
		rep, err = lab.Client().UpgradeKubernetes(t.Context(), nextKubernetes, false)
		mustBe(t, err == nil && rep.Outcome == "done", "%+v, %v\nhints %q", rep, err, fault.Hints(err))
		lab.requireKubernetes(nextKubernetes)
		requireSame(t, boots, lab.boots(), "boots (-before +after)")
		rep, err = lab.Client().UpgradeKubernetes(t.Context(), nextKubernetes, false)
		require(t, err == nil && rep.Outcome == "nothing to do" && rep.Run == "", "again: %+v, %v", rep, err)
	})
}

func (l *Lab) boots() []string {
	return ofEach(l.Nodes, func(n sim.Node) string { return n.Name + " " + l.bootID(n.Name) })
}

// TestInPlaceThatChangesNothing: after any fault before the new system boots, the node serves with its old system.
func TestInPlaceThatChangesNothing(t *testing.T) {
	type story struct {
		version string
		defect  talosapi.Defect
		kind    fault.Kind
		text    string
		calls   []string
		again   bool // the same build may be retried
	}
	eachLongIn(t, func(c story) sim.Options { return sim.Options{Workers: 1, TalosVersion: c.version} }, map[string]story{
		"the installer can't be pulled": {"", talosapi.Unpullable, fault.Refused, "wk1 can't fetch the installer ", []string{"ImageService/Pull"}, true},
		"the new system gives up": {
			"", talosapi.RollsBack, fault.Failed, "it came back as its old system",
			[]string{"ImageService/Pull", "evict", "ImageService/Pull", "LifecycleService/Upgrade", "MachineService/Reboot"},
			false,
		},
		"the old API refuses":           {"v1.12.6", talosapi.Unpullable, fault.Failed, "install ", []string{"evict", "MachineService/Upgrade"}, true},
		"the old API's installer fails": {"v1.12.6", talosapi.InstallerFails, fault.Failed, "it came back as its old system", []string{"evict", "MachineService/Upgrade"}, false},
	}, func(t *testing.T, lab *Lab, c story) {
		lab.patch(everywhere, "strategy: in-place")
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
			begins: inTurn(breakImage(talosapi.Hangs), foreseen("should it not come back, a reimage is not possible: no past lock here has the build that it runs")),
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
	inLongLab(t, sim.Options{Workers: 1, TalosVersion: talos12}, func(t *testing.T, lab *Lab) {
		lab.patch(everywhere, "strategy: in-place")
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

// TestInstallerGoneWhileItDrains: Talos removes unused images after an hour (controllers/cri/image_gc.go).
func TestInstallerGoneWhileItDrains(t *testing.T) {
	inLongLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.patch(everywhere, "strategy: in-place")
		c := lab.Client().hears(whenStarted("upgrade/install", func() { time.Sleep(80 * time.Minute) }))
		must(t, c.roll(policyFor("wk1"))(t.Context()))
		lab.requireUpgraded(t, "wk1")
	})
}

// TestInstallerAtWorkUnseen: that another installer's progress can't be read for a while is not its failure.
func TestInstallerAtWorkUnseen(t *testing.T) {
	inLongLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.patch(everywhere, "strategy: in-place")
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

// TestConfigureWithLostAnswers cuts recast off after each change of a machine, for a moment or for longer than a trial.
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
			lab.patch(everywhere, "canary: false", "strategy: in-place")
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

// TestWhoComesBackAppliesNothing: who loses its claim in a trial, or with a configuration staged, changes nothing more.
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
