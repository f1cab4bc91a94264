package cluster

import (
	"maps"
	"slices"
)

// UsersOf lists the drives of a VM that name a volume.
func UsersOf(volid string, vm VM) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(vm.Config)), func(key string) bool {
		d, err := ParseDisk(key, vm.Config[key])
		return err != nil || d.Volid != volid
	})
}
