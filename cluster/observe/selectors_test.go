package observe

import (
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/shape"
)

// TestSelectorsWhileDisksAreMissing: what matches nothing may match a disk that the VM is to get.
func TestSelectorsWhileDisksAreMissing(t *testing.T) {
	t.Parallel()
	none := cluster.DiskSelector{ID: "u-x", Document: "UserVolumeConfig x", Kind: cluster.ForPartition}
	vm := func(scsi1 string) cluster.VM {
		vm := cluster.VM{ID: 101, Config: map[string]string{"scsi0": "fast:vm-101-disk-0,size=10G"}}
		if scsi1 != "" {
			vm.Config["scsi1"] = scsi1
		}
		return vm
	}
	for name, tc := range map[string]struct {
		vm      cluster.VM
		shape   cluster.Shape
		unknown bool
	}{
		"a disk is added":       {vm(""), cluster.Shape{Disks: []cluster.ShapeDisk{{Key: "scsi1", Storage: "fast", SizeGiB: 20}}}, true},
		"a disk grows":          {vm("fast:vm-101-disk-1,size=10G"), cluster.Shape{Disks: []cluster.ShapeDisk{{Key: "scsi1", SizeGiB: 20}}}, true},
		"another option":        {vm("fast:vm-101-disk-1,size=10G"), cluster.Shape{Disks: []cluster.ShapeDisk{{Key: "scsi1", Options: []string{"ssd=1"}}}}, false},
		"recast makes no such":  {vm(""), cluster.Shape{Disks: []cluster.ShapeDisk{{Key: "scsi1"}}}, false},
		"only memory":           {vm(""), cluster.Shape{Settings: map[string]string{"memory": "4096"}}, false},
		"the VM is as it is to": {vm(""), cluster.Shape{}, false},
	} {
		differences, err := shape.Compare(tc.vm, nil, tc.shape)
		if err != nil {
			t.Fatal(err)
		}
		f := Found{VM: &tc.vm, Shape: differences, File: &cluster.FoundFile{Selectors: []cluster.DiskSelector{none}}}
		got := f.Selectors(func(string) bool { return false })
		if (got[0].Unknown != "") != tc.unknown || f.File.Selectors[0].Unknown != "" {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// TestHasVolume: a reset machine shows which volumes it had by the labels of their partitions.
func TestHasVolume(t *testing.T) {
	t.Parallel()
	m := cluster.Machine{Volumes: []cluster.Volume{{Disk: "sdb", Label: "u-x"}}, VolumeStatuses: []cluster.VolumeStatus{{ID: "u-w", Location: "/dev/sdc"}, {ID: "u-y", Phase: "failed"}}}
	for id, want := range map[string]bool{"u-x": true, "u-w": true, "u-y": false, "u-z": false} {
		if runs, reset := (Found{Machine: &m}), (Found{Blank: &cluster.BlankMachine{Machine: m}}); runs.HasVolume(id) != want || reset.HasVolume(id) != want {
			t.Errorf("%s: want %t", id, want)
		}
	}
	if (&Found{}).HasVolume("u-x") {
		t.Error("nothing is known of a machine that does not answer")
	}
}
