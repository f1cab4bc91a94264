package simtest

import (
	"slices"
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
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
	}{
		"1.12, recreate":              {talos12, "", cluster.Recreate, "wk1", false},
		"1.12, reimage":               {talos12, "", cluster.Reimage, "cp2", false},
		"1.12 to 1.13, recreate":      {talos12, sim.TalosVersion, cluster.Recreate, "cp2", false},
		"1.12 to 1.14, reimage":       {talos12, talos14, cluster.Reimage, "wk1", false},
		"1.12 to 1.14, in-place":      {talos12, talos14, cluster.InPlace, "wk1", false},
		"1.13 to 1.14, recreate":      {sim.TalosVersion, talos14, cluster.Recreate, "cp2", false},
		"1.13 to 1.14, in-place":      {sim.TalosVersion, talos14, cluster.InPlace, "wk1", true},
		"1.13 back to 1.12, recreate": {sim.TalosVersion, talos12, cluster.Recreate, "wk1", false},
		"1.14, recreate":              {talos14, "", cluster.Recreate, "cp2", false},
		"1.14, in-place":              {talos14, "", cluster.InPlace, "wk1", false},
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
				must(t, lab.Client().roll(planning.Policy{Only: []string{c.node}})(t.Context()))
				m := lab.machine(c.node)
				if m.TalosVersion != want || m.BootID == before.BootID || m.FromISO || m.Schematic.LockHash() != lab.locked(c.node).LockHash {
					t.Errorf("before %+v, now %+v", before, m)
				}
				requireDrift(t, lab, lab.others(c.node)...)
				lab.requireServing(c.node)
				lab.RequireIntact()
			})
		})
	}
}

// TestUnsupportedVersions: what Talos does not support is refused before anything is
// touched, by every strategy, and drift reports it too.
func TestUnsupportedVersions(t *testing.T) {
	for name, c := range map[string]struct {
		o        sim.Options
		to       string
		plan     string // reason of the plan's refusal; "": none
		roll     string
		strategy cluster.Strategy
		short    bool
	}{
		"too far back, recreate": {
			o: sim.Options{TalosVersion: talos14, NextTalos: talos12}, to: talos12, strategy: cluster.Recreate, short: true,
			plan: "Talos does not support v1.14.1 → v1.12.6 (host version 1.14.1 is too new to downgrade to Talos 1.12.6)",
		},
		"too far back, in-place": {
			o: sim.Options{TalosVersion: talos14, NextTalos: talos12}, to: talos12, strategy: cluster.InPlace,
			plan: "Talos does not support v1.14.1 → v1.12.6",
		},
		"newer than recast knows": {
			o: sim.Options{NextTalos: "v1.15.0"}, to: "v1.15.0", strategy: cluster.Auto,
			plan: "this recast does not know Talos v1.15.0",
		},
		"a configuration of 1.14 for 1.13": {
			o: sim.Options{TalosVersion: talos14}, to: sim.TalosVersion, strategy: cluster.Recreate,
			roll: "Talos v1.13.9 would refuse it: DiscoveryServiceConfig, DiscoveryIdentityConfig, UnattendedInstallConfig, ",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if !c.short {
				long(t)
			}
			c.o.Workers = 1
			inLab(t, c.o, func(t *testing.T, lab *Lab) {
				lab.setRoll("strategy: " + string(c.strategy))
				from := c.o.TalosVersion
				if from == "" {
					from = sim.TalosVersion
				}
				lab.wantTalos(from, c.to)
				only := planning.Policy{Only: []string{"wk1"}}
				plan, err := lab.Client().Plan(t.Context(), only)
				must(t, err)
				if got := strings.Join(plan.Refused(), "\n"); !strings.Contains(got, c.plan) || c.plan == "" && got != "" {
					t.Errorf("the plan refuses %q", got)
				}
				notes := requireDrift(t, lab, "cp1", "wk1").Nodes[1].Notes
				if told := slices.ContainsFunc(notes, func(n string) bool { return strings.Contains(n, c.plan) }); told != (c.plan != "") {
					t.Errorf("drift notes %q", notes)
				}
				before := lab.machine("wk1")
				_, err = lab.Client().Roll(t.Context(), only)
				if fault.KindOf(err) != fault.Refused || !strings.Contains(err.Error(), c.plan+c.roll) {
					t.Errorf("roll: %v", err)
				}
				if m := lab.machine("wk1"); m.BootID != before.BootID || m.TalosVersion != from {
					t.Errorf("before %+v, now %+v", before, m)
				}
				lab.requireServing("wk1")
				lab.RequireIntact()
			})
		})
	}
}
