package access

import (
	"slices"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/planning"
)

func TestFreeingNeeds(t *testing.T) {
	t.Parallel()
	idle := planning.NodePlan{Node: "wk1", Strategy: cluster.InPlace, Host: "pve1"}
	tidy := idle
	tidy.Frees = []parking.FreePlan{{Key: "scsi30", Volid: "fast:vm-9900-disk-0"}}
	for name, tc := range map[string]struct {
		needs Needs
		want  bool
	}{
		"a roll that frees":     {NeedsOf(planning.Plan{Nodes: []planning.NodePlan{tidy}}, false), true},
		"a roll that does not":  {NeedsOf(planning.Plan{Nodes: []planning.NodePlan{idle}}, false), false},
		"prune":                 {NeedsToFree([]string{"fast"}), true},
		"prune without a disk":  {NeedsToFree(nil), false},
		"prune of ISOs":         {NeedsToPrune([]string{"fast"}), false},
		"prune of other disks'": {NeedsToFree([]string{"slow"}), false},
	} {
		has := func(path, privilege string) bool {
			return slices.ContainsFunc(tc.needs, func(n Need) bool { return n.Path == path && n.Privilege == privilege })
		}
		if got := has("/vms", "VM.Config.Disk") && has("/storage/fast", "Datastore.AllocateSpace"); got != tc.want {
			t.Errorf("%s: freeing is %t among %v", name, got, tc.needs)
		}
	}
}
