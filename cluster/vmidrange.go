package cluster

import "fmt"

// VMIDRange is the range of numbers that a recast.yaml gives recast: proxmox.vmids.
type VMIDRange struct{ First, Last VMID }

// String is as recast.yaml has it, "9000-9099"; "" of no range.
func (r VMIDRange) String() string {
	if r == (VMIDRange{}) {
		return ""
	}
	return fmt.Sprintf("%d-%d", r.First, r.Last)
}

// Contains says whether a number is in the range.
func (r VMIDRange) Contains(id VMID) bool { return r.First <= id && id <= r.Last }
