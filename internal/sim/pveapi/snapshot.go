package pveapi

import (
	"fmt"
	"net/http"

	"github.com/recast-sh/recast/internal/sim/world"
)

// snapshots lists the snapshots and the VM's present state, "current".
func snapshots(c *call) (any, error) {
	vm, err := c.look()
	if err != nil {
		return nil, err
	}
	list := []object{}
	for _, s := range vm.Snapshots {
		entry := object{"name": s.Name, "description": s.Description, "snaptime": s.Time.Unix(), "vmstate": bit(s.Memory)}
		addText(entry, map[string]string{"parent": s.Parent})
		list = append(list, entry)
	}
	now := object{"name": "current", "description": "You are here!", "running": bit(vm.Running), "digest": vm.Digest}
	addText(now, map[string]string{"parent": vm.Config["parent"]})
	return append(list, now), nil
}

func snapshotConfig(c *call) (any, error) {
	if err := c.Check(c.user, vmPath(c.vmid()), "VM.Snapshot", "VM.Snapshot.Rollback", "VM.Audit"); err != nil {
		return nil, err
	}
	vm, err := c.LookupVM(c.node(), c.vmid())
	if err != nil {
		return nil, err
	}
	return snapshotOf(vm, c.vars["snapname"])
}

func snapshotOf(vm world.VM, name string) (any, error) {
	for _, s := range vm.Snapshots {
		if s.Name == name {
			return configObject(vm, s.Config), nil
		}
	}
	return nil, &world.Error{Status: http.StatusInternalServerError, Message: fmt.Sprintf("snapshot '%s' does not exist", name)}
}
