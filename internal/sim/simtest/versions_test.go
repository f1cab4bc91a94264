package simtest

import (
	"slices"
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/pipeline"
)

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
