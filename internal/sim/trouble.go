package sim

import (
	"fmt"
	"slices"

	"github.com/recast-sh/recast/internal/sim/talosapi"
)

// Trouble sets what is wrong with a node's machine; the zero trouble is nothing.
func (l *Lab) Trouble(node string, t talosapi.Trouble) error {
	i := slices.IndexFunc(l.Nodes, func(n Node) bool { return n.Name == node })
	if i < 0 {
		return fmt.Errorf("make trouble: no node is called %s", node)
	}
	l.machines.Trouble(l.Nodes[i].VMID, t)
	return nil
}

// Silence has the nodes' machines never answer what silent names; see talosapi.Firmware.
func (l *Lab) Silence(silent func(talosapi.Request) bool) { l.machines.Silence(silent) }
