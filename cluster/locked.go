package cluster

import "slices"

func Locked(vm VM) bool { return slices.Contains(passing, vm.Lock) }

// passing are the locks of a VM's configuration that go with the task that set
// them (qemu-server, PVE/QemuServer.pm, $confdesc: lock).
var passing = []string{"backup", "clone", "migrate", "rollback", "snapshot", "snapshot-delete"}
