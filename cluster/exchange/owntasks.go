package exchange

import (
	"context"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/internal/wait"
)

// TouchedBy says of which VMs an earlier run of this cluster may have asked
// Proxmox for something: those with numbers of recast's own, the nodes' by number or
// name, and all that a record of the cluster names. Another cluster's run may use
// the same token at the same time, and its tasks are none of ours.
func TouchedBy(vms []cluster.VM, clusterName string, wanted []cluster.Wanted, own func(cluster.VMID) bool) (func(cluster.VMID) bool, error) {
	ids := map[cluster.VMID]bool{}
	for _, w := range wanted {
		ids[w.VMID], ids[w.Holder] = true, true
		for _, vm := range vms {
			if vm.Name == w.Name {
				ids[vm.ID] = true
			}
		}
	}
	parkings, err := parking.Parkings(vms, clusterName)
	for _, p := range parkings {
		ids[p.VM.ID], ids[p.Record.VMID] = true, true
		for _, d := range p.Record.Disks {
			ids[d.Holder] = true
		}
	}
	return func(id cluster.VMID) bool { return ids[id] || own(id) }, err
}

// AwaitOwnTasks waits until Proxmox has ended what an earlier process of ours,
// killed since, had asked for about the VMs that of accepts; see TouchedBy. Before
// that the world would change under our eyes.
func AwaitOwnTasks(ctx context.Context, px cluster.Tasks, of func(cluster.VMID) bool, poll time.Duration, say func(string)) error {
	w := wait.For{Name: "tasks of an earlier recast to end", Every: poll, Timeout: OwnTasksTimeout, Seen: say}
	return cluster.AwaitTasks(ctx, w, func(ctx context.Context) ([]string, error) { return px.OwnTasks(ctx, of) })
}
