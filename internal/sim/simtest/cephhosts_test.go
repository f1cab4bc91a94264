package simtest

import (
	"slices"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/world"
)

// onCeph is a lab whose disks are on the hosts' own Ceph.
func onCeph() sim.Options {
	o := oneWorker()
	o.DiskType, o.SharedDisks = "rbd", true
	return o
}

// inactive is a Ceph that lets reads and writes wait.
var inactive = world.Ceph{Checks: map[string]world.CephCheck{
	"PG_AVAILABILITY": {Severity: "HEALTH_WARN", Message: "Reduced data availability: 3 pgs inactive"},
}}

const inactiveSays = "the Proxmox hosts' Ceph lets reads or writes wait: PG_AVAILABILITY (Reduced data availability: 3 pgs inactive)"

// TestPlanOnCephOfHosts: no node goes while its disks are on a Ceph that lets reads or writes wait, whatever the strategy.
func TestPlanOnCephOfHosts(t *testing.T) {
	check := func(code, severity, message string) *world.Ceph {
		return &world.Ceph{Checks: map[string]world.CephCheck{code: {Severity: severity, Message: message}}}
	}
	cases := map[string]struct {
		ceph     *world.Ceph // nil: not installed
		strategy cluster.Strategy
		refused  []string
		warn     string // "": nothing of Ceph
	}{
		"not installed":          {strategy: cluster.Recreate},
		"healthy":                {ceph: &world.Ceph{}, strategy: cluster.Recreate},
		"inactive":               {ceph: &inactive, strategy: cluster.Recreate, refused: []string{"storage fast has disks of its VM, and " + inactiveSays + ": wait until it has repaired that, or see what ceph health detail says on pve1"}},
		"inactive, and in place": {ceph: &inactive, strategy: cluster.InPlace, refused: []string{"storage fast has disks of its VM, and " + inactiveSays + ": wait until it has repaired that, or see what ceph health detail says on pve1"}},
		"nearly full":            {ceph: check("OSD_NEARFULL", "HEALTH_WARN", "1 nearfull osd(s)"), strategy: cluster.Recreate, warn: "the Proxmox hosts' Ceph says OSD_NEARFULL (1 nearfull osd(s))"},
		"its monitors are away": {
			ceph: &world.Ceph{Silent: true}, strategy: cluster.Recreate,
			refused: []string{"storage fast has disks of its VM, and the Proxmox hosts' Ceph does not say how it is (GET /nodes/pve1/ceph/status: 500 rados_connect failed - Connection timed out): " +
				"wait until it has repaired that, or see what ceph health detail says on pve1"},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			inLab(t, onCeph(), func(t *testing.T, lab *Lab) {
				lab.Patch(sim.PatchedExtension)
				lab.setRoll("strategy: " + string(tc.strategy))
				if tc.ceph != nil {
					lab.World.SetCeph(*tc.ceph)
				}
				plan, err := lab.Client().Plan(t.Context(), planning.Policy{})
				must(t, err)
				i := slices.IndexFunc(plan.Nodes, func(n planning.NodePlan) bool { return n.Node == "wk1" })
				requireSame(t, "refused", tc.refused, plan.Nodes[i].Refused)
				if warns := slices.Contains(plan.Warn, tc.warn); warns != (tc.warn != "") {
					t.Errorf("warnings %q", plan.Warn)
				}
			})
		})
	}
}

// TestCephOfHostsBeforeANode: what the plan found is asked again before the node goes.
func TestCephOfHostsBeforeANode(t *testing.T) {
	inLab(t, onCeph(), func(t *testing.T, lab *Lab) {
		lab.Patch(sim.PatchedExtension)
		lab.World.SetCeph(world.Ceph{})
		c := lab.Client()
		c.Emit = whenStarted("wk1/gate", func() { lab.World.SetCeph(inactive) })
		requireRefused(t, c.roll(planning.Policy{})(t.Context()), "wk1 has disks on storage fast: "+inactiveSays)
		requireDrift(t, lab, "wk1")
		lab.World.SetCeph(world.Ceph{})
		must(t, lab.second().roll(planning.Policy{})(t.Context()))
		requireInSync(t, lab)
	})
}

// TestRollbackOnCephOfHosts: a rollback takes its node out, too.
func TestRollbackOnCephOfHosts(t *testing.T) {
	inLab(t, onCeph(), func(t *testing.T, lab *Lab) {
		lab.Patch(sim.PatchedExtension)
		lab.setRoll("strategy: " + string(cluster.Recreate))
		must(t, lab.as(firstRun).roll(planning.Policy{Only: []string{"wk1"}})(t.Context()))
		lab.World.SetCeph(inactive)
		requireRefused(t, lab.as(secondRun).goBack("wk1")(t.Context()), "storage fast has disks of its VM, and "+inactiveSays)
		lab.World.SetCeph(world.Ceph{})
		must(t, lab.as(thirdRun).goBack("wk1")(t.Context()))
	})
}
