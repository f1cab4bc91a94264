package roll

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/clustertest"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/observe/observetest"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
)

func TestPlanOfANodeOnAHostThatIsAway(t *testing.T) {
	t.Parallel()
	wanted, o := observetest.World()
	o.VMs, o.Away = o.VMs[:2], &cluster.HostsAway{Hosts: []cluster.AwayHost{{Name: "pve2", Why: "is offline"}}, VMs: []cluster.VM{{ID: 9003, Host: "pve2"}}}
	o.Nodes = []cluster.KubeNode{{Name: "wk2", UUID: "u-wk2", Ready: true}}
	type testCase struct {
		vmid  cluster.VMID
		where string
	}
	must.Each(t, map[string]testCase{
		"which VM is known":     {9003, "its VM 9003 is on pve2"},
		"which VM is not known": {0, "its VM, or the parking VM with disks of it, is not among those that can be read"},
	}, func(t *testing.T, tc testCase) {
		o, wanted := o, append([]cluster.Wanted(nil), wanted...)
		o.Found = append([]observe.Found(nil), o.Found...)
		wanted[2].VMID = tc.vmid
		o.Found[2] = must.Get(observe.MatchNodes(wanted[2], &o, nil))(t)
		plan := must.Get(planning.New("c1", wanted, o, clustertest.Past, planning.Policy{}))(t)
		want := []string{"wk2: " + tc.where + ", and Proxmox host pve2 is offline: bring pve2 back, or leave the node out with --exclude"}
		if diff := cmp.Diff(want, plan.Refused()); diff != "" || plan.Nodes[2].Host != "pve2" {
			t.Errorf("host %s: %s", plan.Nodes[2].Host, diff)
		}
		_, _, err := planning.ForUndo(t.Context(), "c1", wanted, o, nil, nil, planning.Policy{Only: []string{"wk2"}}, planning.Undone{Way: planning.Cancel})
		if fault.KindOf(err) != fault.Refused || err.Error() != "node wk2: no VM that can be read has its SMBIOS UUID u-wk2: Proxmox host pve2 is offline, so VM 9003 can't be read" {
			t.Errorf("cancel: %v", err)
		}
		if drift := plan.Nodes[2].Drift; drift.Stale || len(drift.Unread) != 1 {
			t.Errorf("drift %+v", drift)
		}
	})
}

// TestFallbackISOIsPublished: if a later upgrade in place fails, the node is reimaged to the build
// that this upgrade installs, so the ISO of that build must be published.
func TestFallbackISOIsPublished(t *testing.T) {
	t.Parallel()
	for policy, want := range map[cluster.BootFailure]int{cluster.StopOnBootFailure: 0, cluster.RollbackOnBootFailure: 0, cluster.ReimageOnBootFailure: 1} {
		wanted, o := observetest.World()
		wanted[1].Strategy = cluster.InPlace
		plan := must.Get(planning.New("c1", wanted, o, clustertest.Past, planning.Policy{Only: []string{"wk1"}, BootFailure: policy}))(t)
		must.Equal(t, string(policy)+": hosts the ISO goes to", want, len(plan.ISOHosts()))
	}
}
