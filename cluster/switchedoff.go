package cluster

import (
	"fmt"

	"github.com/recast-sh/recast/internal/fault"
)

// SwitchedOff adds to what can't be had of a machine that its VM is off, which it was not meant to be.
func SwitchedOff(vm VMState, err error) error {
	return fault.WithHint(fmt.Errorf("%s is switched off: %w", vm, err), "start %s in Proxmox", vm)
}
