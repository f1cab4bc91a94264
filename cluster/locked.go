package cluster

import "slices"

func Locked(vm VM) bool { return slices.Contains(passing, vm.Lock) }
