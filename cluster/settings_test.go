package cluster

import (
	"slices"
	"testing"
)

func TestCDKeyIsFree(t *testing.T) {
	t.Parallel()
	config := map[string]string{"ide2": "fast:vm-1-cloudinit,media=cdrom", "ide0": "fast:vm-1-disk-0"}
	disks, err := VM{Config: config}.Disks()
	if err != nil {
		t.Fatal(err)
	}
	if key := CDKey(config, disks); key != "ide1" {
		t.Errorf("the boot ISO would go into %s", key)
	}
}

func TestRootOnlyIsSorted(t *testing.T) {
	t.Parallel()
	if !slices.IsSorted(RootOnly) || !slices.IsSorted(Reassigns) {
		t.Error("the lists are compared by eye with Proxmox's source: keep them sorted")
	}
}
