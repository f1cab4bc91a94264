package access

import (
	"slices"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/clustertest"
	"github.com/recast-sh/recast/cluster/observe/observetest"
	"github.com/recast-sh/recast/cluster/planning"
)

// TestPlanTellsTheBlankMachineItsAddress: which setting is set, and which privileges that needs.
func TestPlanTellsTheBlankMachineItsAddress(t *testing.T) {
	t.Parallel()
	const note = "its blank machine gets the node's address from the VM's cloud-init drive: ipconfig1 is gw=10.0.0.1,ip=10.0.0.31/24 for that boot, and as before at the end"
	for _, s := range []cluster.Strategy{cluster.Recreate, cluster.Reimage} {
		wanted, o := observetest.World()
		wanted[1].Strategy, wanted[1].Build.Platform = s, "nocloud"
		o.Found[1].Machine.Platform = "nocloud"
		o.Found[1].VM.Config["ide0"] = "fast:vm-9002-cloudinit,media=cdrom"
		observetest.Static(&o.Found[1])
		p, err := planning.New("c1", wanted, o, clustertest.Past, planning.Policy{Only: []string{"wk1"}})
		if err != nil {
			t.Fatal(err)
		}
		if n := p.Nodes[0]; n.Strategy != s || !slices.Contains(n.Notes, note) || len(n.Refused) > 0 {
			t.Errorf("%s: %s, refused %q, notes %q", s, n.Strategy, n.Refused, n.Notes)
		}
		needs := NeedsOf(p, false)
		if !slices.ContainsFunc(needs, func(n Need) bool { return n.Privilege == "VM.Config.Network" }) {
			t.Errorf("%s: it does not ask for VM.Config.Network", s)
		}
	}
}
