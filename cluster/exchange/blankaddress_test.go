package exchange

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/reach"
)

// TestBlankSettingIsTemporary: the VM has the setting from the blank boot until finish.
func TestBlankSettingIsTemporary(t *testing.T) {
	t.Parallel()
	for name, was := range map[string]string{"had another value": "ip=dhcp", "had none": ""} {
		vm := cluster.VM{ID: 9011, Config: map[string]string{"name": "wk1", "scsi0": "fast:vm-9011-disk-0,size=10G", "smbios1": "uuid=a"}}
		if was != "" {
			vm.Config["ipconfig0"] = was
		}
		mem := parking.Memory{VM: vm, SystemKey: "scsi0", DiskSerial: "recast-0123456789ab", Blank: &reach.Setting{Key: "ipconfig0", Value: "ip=10.0.0.31/24"}}
		packed, err := mem.Pack()
		if err != nil {
			t.Fatal(err)
		}
		if mem, err = parking.UnpackMemory(packed); err != nil { // as if another machine resumed
			t.Fatal(err)
		}
		rec := parking.Record{Strategy: cluster.Recreate, Disks: []parking.ParkedDisk{{Key: "scsi0", System: true}}}
		r := Of(nil, mem, rec, 9900)
		made, err := r.newConfig("isos:iso/a.iso")
		if err != nil {
			t.Fatal(err)
		}
		back, _, err := r.oldConfig()
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"ip=10.0.0.31/24", was}, []string{made["ipconfig0"], back["ipconfig0"]}); diff != "" {
			t.Errorf("%s: new VM and restored VM (-want +got):\n%s", name, diff)
		}
	}
}
