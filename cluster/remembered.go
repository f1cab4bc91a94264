package cluster

import (
	"fmt"
	"strings"
)

// Remembered is the node's VM as it was before the replacement that the record
// is about. What it had in its drives is needed to put it back.
func (r Record) Remembered() (VM, error) {
	m, err := UnpackMemory(r.Memory)
	if err != nil {
		return VM{}, fmt.Errorf("record of node %s: what it remembers of VM %d can't be read: %w", r.Node, r.VMID, err)
	}
	return m.VM, nil
}

// MadeFrom returns the ID of the build that a run of recast made the VM from,
// "" if none did.
func (vm VM) MadeFrom() string {
	for line := range strings.Lines(vm.Config["description"]) {
		if rest, ok := strings.CutPrefix(strings.TrimSpace(line), RunMark); ok {
			_, build, _ := strings.Cut(rest, " build=")
			build, _, _ = strings.Cut(build, " ")
			return build
		}
	}
	return ""
}
