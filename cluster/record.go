package cluster

import (
	"strings"
)

const (
	RunMark = "recast: run="
	// MaxDescription is Proxmox's limit for a VM's description, in characters.
	MaxDescription = 8192
)

// MadeBy returns the run that created the VM, "" if no run of recast did.
func (vm VM) MadeBy() string {
	for line := range strings.Lines(vm.Config["description"]) {
		if rest, ok := strings.CutPrefix(strings.TrimSpace(line), RunMark); ok {
			run, _, _ := strings.Cut(rest, " ")
			return run
		}
	}
	return ""
}
