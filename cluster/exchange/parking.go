package exchange

import (
	"context"
	"fmt"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
)

// CreationTakes bounds how long Proxmox takes to create a VM without disks, unless a task of ours
// shows that it still does.
const CreationTakes = 30 * time.Second

// LateParking returns the record of a parking VM of the cluster to which no disk was ever handed
// over.
func LateParking(vm cluster.VM, clusterName string) (parking.Record, bool) {
	rec, found, err := parking.ReadRecord(vm)
	return rec, found && err == nil && rec.Cluster == clusterName && parking.Parking{VM: vm, Record: rec}.Empty()
}

// MakeParking creates the parking VM of a record under a VMID, protected and never started.
func MakeParking(ctx context.Context, px cluster.Proxmox, vm cluster.VM, rec parking.Record, id cluster.VMID) error {
	rec.Parking = id
	description, err := rec.Description()
	if err != nil {
		return err
	}
	config := map[string]string{"name": cluster.ParkingName(rec.Node), "memory": "16", "protection": "1", "onboot": "0", "description": description}
	if vm.Pool != "" {
		config["pool"] = vm.Pool
	}
	if err := px.CreateVM(ctx, vm.Host, id, config); err != nil {
		return fmt.Errorf("create parking VM %d on %s: %w", id, vm.Host, err)
	}
	return nil
}
