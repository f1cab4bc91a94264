package planning

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/clustertest"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/observe/observetest"
)

// A host that does not answer stops only what depends on its VMs.
func TestPlanWhileAHostIsAway(t *testing.T) {
	t.Parallel()
	const (
		down = "Proxmox host pve2 is offline, so VM 300 can't be read"
		used = down + ": whether one of them uses scsi0 (fast:vm-9002-disk-0), scsi1 (fast:vm-9002-disk-1) too, on a storage that is not known to be local, can't be determined: bring pve2 back first"
	)
	cases := map[string]struct {
		change   func(w []cluster.Wanted, o *observe.Observation)
		strategy cluster.Strategy
		want     []string
		notes    string
	}{
		"local storage":  {change: func([]cluster.Wanted, *observe.Observation) {}, strategy: cluster.Recreate},
		"shared storage": {change: func(_ []cluster.Wanted, o *observe.Observation) { o.Storages[0].Shared = true }, strategy: cluster.Recreate, want: []string{used}},
		"shared storage, in place": {
			change: func(w []cluster.Wanted, o *observe.Observation) {
				o.Storages[0].Shared, w[1].Strategy = true, cluster.InPlace
			}, strategy: cluster.InPlace,
			notes: "should it not come back, a reimage is not possible: " + used,
		},
		"a VM that may be a parking VM": {
			change: func(_ []cluster.Wanted, o *observe.Observation) { o.ParkingIDs = []cluster.VMID{300} }, strategy: cluster.Recreate,
			want: []string{"Proxmox host pve2 is offline: VM 300 may be a parking VM with an unfinished replacement of this node: bring pve2 back first"},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			wanted, o := observetest.World()
			o.Away = &cluster.HostsAway{Hosts: []cluster.AwayHost{{Name: "pve2", Why: "is offline"}}, VMs: []cluster.VM{{ID: 300, Host: "pve2"}}}
			tc.change(wanted, &o)
			o.PastBuilds = map[string]cluster.Build{"old": {ID: "old", SchematicID: "id-old", TalosVersion: "v1.13.9", Installer: "x@sha256:1"}}
			plan, err := New("c1", wanted, o, clustertest.Past, Policy{BootFailure: cluster.ReimageOnBootFailure})
			if err != nil {
				t.Fatal(err)
			}
			n := plan.Work()[0]
			if diff := cmp.Diff(tc.want, n.Refused); diff != "" || n.Strategy != tc.strategy || len(plan.Work()) != 1 {
				t.Errorf("%s: %s", n.Strategy, diff)
			}
			if !strings.HasPrefix(strings.Join(n.Notes, "\n"), tc.notes) {
				t.Errorf("notes: %q", n.Notes)
			}
			if !slices.Contains(plan.Warn, down) {
				t.Errorf("warnings: %q", plan.Warn)
			}
		})
	}
}
