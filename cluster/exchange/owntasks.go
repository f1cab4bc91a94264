package exchange

import (
	"context"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/internal/wait"
)

// TouchedBy returns whether an earlier run of this cluster may have sent Proxmox a request for a
// VM. It accepts recast's own VMIDs, the VMIDs and names of the nodes, and every VM that a record
// of the cluster names. A run of another cluster may use the same token at the same time; its tasks
// do not count.
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
	parkings, err := parking.Readable(vms, clusterName)
	for _, p := range parkings {
		ids[p.VM.ID], ids[p.Record.VMID] = true, true
		for _, d := range p.Record.Disks {
			ids[d.Holder] = true
		}
	}
	return func(id cluster.VMID) bool { return ids[id] || own(id) }, err
}

// AwaitOwnTasks waits until Proxmox has finished the tasks of an earlier recast process, killed
// since, for the VMs that of accepts; see TouchedBy. Such a task could change a VM during this run.
func AwaitOwnTasks(ctx context.Context, px cluster.Tasks, of func(cluster.VMID) bool, poll time.Duration, say func(string)) error {
	w := wait.For{Name: "tasks of an earlier recast to end", Every: poll, Timeout: OwnTasksTimeout, Seen: say}
	return cluster.AwaitTasks(ctx, w, func(ctx context.Context) ([]string, error) { return px.OwnTasks(ctx, of) })
}
