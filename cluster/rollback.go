package cluster

import (
	"fmt"
	"slices"
)

// PreviousLock is the way back that needs no kept disk. A lock is refused unless it is
// that of recast.yaml and of the schematics beside it.
const PreviousLock = "put the previous lock back, with what it is of (git checkout COMMIT -- recast.yaml recast.lock schematics/), and recast roll"

// LastKept is the system disk that a node had before its present one, and the
// parking VM that it is on, wherever its VM was then.
func (f *Found) LastKept() (last KeptDisk, on VM, found bool) {
	for _, p := range f.Parkings() { // the one on the VM's host first
		for _, k := range slices.Backward(p.Record.Kept) {
			if k.GivenUp {
				continue
			}
			if !found || k.Nth > last.Nth {
				last, on, found = k, p.VM, true
			}
			break
		}
	}
	return last, on, found
}

// KeptElsewhere says where the node's last system disk is if that is on another
// host than its VM, and what brings them together.
func (f *Found) KeptElsewhere(kept KeptDisk, on VM) string {
	if on.Host == f.VM.Host {
		return ""
	}
	together := fmt.Sprintf("on %s: %s", on.Host, MigrateCommand(on, f.VM.Host))
	if f.Parking != nil { // a host has room for one parking VM of a node
		together = fmt.Sprintf("on %s: %s", f.VM.Host, MigrateCommand(*f.VM, on.Host))
	}
	return fmt.Sprintf("the system disk that run %s replaced is %s of %s, and %s was moved since: %s brings them together; or %s",
		kept.Run, kept.Key, on, *f.VM, together, PreviousLock)
}
