package sim

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/internal/sim/talosapi"
)

// Trouble sets the faults of a node's machine; the zero Trouble clears them.
func (l *Lab) Trouble(node string, t talosapi.Trouble) error {
	i := slices.IndexFunc(l.Nodes, func(n Node) bool { return n.Name == node })
	if i < 0 {
		return fmt.Errorf("make trouble: no node is called %s", node)
	}
	l.machines.Trouble(l.Nodes[i].VMID, t)
	return nil
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
