package sim

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/internal/sim/talosapi"
	"github.com/recast-sh/recast/internal/sim/world"
)

// Trouble sets the faults of a node's machine; the zero Trouble clears them.
func (l *Lab) Trouble(node string, t talosapi.Trouble) error {
	id, err := l.vmid(node)
	if err != nil {
		return fmt.Errorf("make trouble: %w", err)
	}
	l.machines.Trouble(id, t)
	return nil
}

// vmid is the VMID of one of the lab's own nodes, or of a VM of that name in an empty lab.
func (l *Lab) vmid(node string) (int, error) {
	if i := slices.IndexFunc(l.Nodes, func(n Node) bool { return n.Name == node }); i >= 0 {
		return l.Nodes[i].VMID, nil
	}
	vms := l.World.VMs()
	i := slices.IndexFunc(vms, func(vm world.VM) bool { return l.o.Empty && vm.Config["name"] == node })
	if i < 0 {
		return 0, fmt.Errorf("no node is called %s", node)
	}
	return vms[i].ID, nil
}

// SlowServers are the arguments that Slow accepts.
var SlowServers = []string{"proxmox", "talos", "kubernetes"}

// Slow stalls the API of Proxmox, of all machines, or of Kubernetes for d of simulated
// time; see record.Recorder.
func (l *Lab) Slow(server string, d time.Duration) error {
	if !slices.Contains(SlowServers, server) {
		return fmt.Errorf("make an API slow: %q is none of %s", server, strings.Join(SlowServers, ", "))
	}
	l.Recorder.Slow(server, time.Duration(float64(d)/l.o.Speed))
	return nil
}

// Silence makes the machines never answer the requests that silent selects; see
// talosapi.Firmware.
func (l *Lab) Silence(silent func(talosapi.Request) bool) { l.machines.Silence(silent) }
