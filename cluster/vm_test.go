package cluster

import (
	"slices"
	"strings"
	"testing"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
)

// TestHalfMade: what looks like the rest of a creation is to be deleted only if a delete would free nothing.
func TestHalfMade(t *testing.T) {
	t.Parallel()
	type testCase struct {
		change  func(*VM)
		deletes bool
	}
	must.Each(t, map[string]testCase{
		"nothing but its lock": {func(*VM) {}, true},
		"a drive":              {func(vm *VM) { vm.Config["scsi0"] = "fast:vm-9000-disk-0" }, false},
		"a detached one":       {func(vm *VM) { vm.Config["unused0"] = "fast:vm-9000-disk-0" }, false},
		"a snapshot":           {func(vm *VM) { vm.Config["parent"] = "a" }, false},
		"a saved state":        {func(vm *VM) { vm.Config["vmstate"] = "fast:vm-9000-state-a" }, false},
		"its power not read":   {func(vm *VM) { vm.Running = true }, true}, // see VMConfig
		"a template":           {func(vm *VM) { vm.Template = true }, false},
	}, func(t *testing.T, c testCase) {
		vm := VM{ID: 9000, Host: "pve1", Lock: "create", Config: map[string]string{"lock": "create"}}
		c.change(&vm)
		hint := strings.Join(fault.Hints(HalfMade(vm)), "\n")
		if strings.Contains(hint, "qm destroy") != c.deletes || !strings.HasPrefix(hint, "pvesh get /nodes/pve1/tasks --source active --vmid 9000 lists") {
			t.Error(hint)
		}
	})
}

// TestUnlock: the hint looks first, and keeps a saved state.
func TestUnlock(t *testing.T) {
	t.Parallel()
	for lock, want := range map[string]string{
		"backup":    "pvesh get /nodes/pve1/tasks --source active --vmid 101 lists its tasks that still run; where none does, its task has died, and qm unlock 101 on pve1 takes the lock away",
		"suspended": "it is suspended: qm resume 101 has it go on; qm unlock 101 throws the saved state away",
	} {
		must.Equal(t, lock, want, (VM{ID: 101, Host: "pve1", Lock: lock}).Unlock())
	}
}

func TestCDKeyIsFree(t *testing.T) {
	t.Parallel()
	config := map[string]string{"ide2": "fast:vm-1-cloudinit,media=cdrom", "ide0": "fast:vm-1-disk-0"}
	disks := must.Get(VM{Config: config}.Disks())(t)
	must.Equal(t, "the boot ISO goes into", "ide1", CDKey(config, disks))
}

func TestRootOnlyIsSorted(t *testing.T) {
	t.Parallel()
	if !slices.IsSorted(RootOnly) || !slices.IsSorted(Reassigns) {
		t.Error("the lists are compared by eye with Proxmox's source: keep them sorted")
	}
}
