package cluster

import (
	"testing"
)

func TestPodVolumesAreThoseThatHandlesName(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		value, handle string
		want          bool
	}{
		"on the host":                {"fast:vm-9999-media,size=1G", "lab/pve1/fast/vm-9999-media", true},
		"under the VM's own number":  {"fast:vm-9031-disk-7", "lab/pve1/fast/vm-9031-disk-7", true},
		"on a shared storage":        {"ceph:vm-9999-media", "lab//ceph/vm-9999-media", true},
		"in a file":                  {"nfs:9999/vm-9999-media.qcow2", "lab//nfs/9999/vm-9999-media.qcow2", true},
		"on another host":            {"fast:vm-9999-media", "lab/pve2/fast/vm-9999-media", false},
		"made on another host":       {"ceph:vm-9999-pvc-0b5f", "lab/pve2/ceph/vm-9999-pvc-0b5f", true},
		"on another storage":         {"slow:vm-9999-media", "lab/pve1/fast/vm-9999-media", false},
		"another one":                {"fast:vm-9999-media", "lab/pve1/fast/vm-9999-media-2", false},
		"named so, and of no handle": {"fast:vm-9999-pvc-0b5f", "lab/pve1/fast/vm-9999-pvc-77", false},
		"a handle that is none":      {"fast:vm-9999-media", "vm-9999-media", false},
		"a CD drive":                 {"fast:vm-9999-media,media=cdrom", "lab/pve1/fast/vm-9999-media", false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			vm := VM{ID: 9031, Host: "pve1", Config: map[string]string{"scsi0": "fast:vm-9031-disk-0", "scsi7": c.value}}
			vm.Pods = vm.PodVolumes([]string{"x/y/z/a", c.handle})
			disks, err := vm.Disks()
			if err != nil {
				t.Fatal(err)
			}
			d := disks[1]
			if d.CSI() != c.want || disks[0].CSI() {
				t.Errorf("%s is a pod's: %t, want %t", d.Volid, d.CSI(), c.want)
			}
		})
	}
}
