package cluster

import (
	"maps"
	"slices"
)

// IsOver says whether nothing of a hand-over between two VMs, in either
// direction, is left to be done.
func (in Intent) IsOver(from, to VM) bool {
	if from.ID != in.From {
		from, to = to, from
	}
	_, arrived := to.Config[in.ToKey]
	return arrived && len(UsersOf(in.Volid, from)) == 0
}

// Same says whether it is the same hand-over.
func (in Intent) Same(as Intent) bool {
	return in.From == as.From && in.Key == as.Key && in.To == as.To && in.ToKey == as.ToKey
}

// UsersOf lists the drives of a VM that name a volume.
func UsersOf(volid string, vm VM) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(vm.Config)), func(key string) bool {
		d, err := ParseDisk(key, vm.Config[key])
		return err != nil || d.Volid != volid
	})
}
