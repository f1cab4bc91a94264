package exchange

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/reach"
)

// TestBlankSettingComesAndGoes: the VM has it from the blank boot until finish.
func TestBlankSettingComesAndGoes(t *testing.T) {
	t.Parallel()
	for name, was := range map[string]string{"it had another": "ip=dhcp", "it had none": ""} {
		vm := cluster.VM{ID: 9011, Config: map[string]string{"name": "wk1", "scsi0": "fast:vm-9011-disk-0,size=10G", "smbios1": "uuid=a"}}
		if was != "" {
			vm.Config["ipconfig0"] = was
		}
		mem := parking.Memory{VM: vm, SystemKey: "scsi0", DiskSerial: "recast-0123456789ab", Blank: &reach.Setting{Key: "ipconfig0", Value: "ip=10.0.0.31/24"}}
		packed, err := mem.Pack()
		if err != nil {
			t.Fatal(err)
		}
		if mem, err = parking.UnpackMemory(packed); err != nil { // another machine goes on
			t.Fatal(err)
		}
		rec := parking.Record{Strategy: cluster.Recreate, Disks: []parking.ParkedDisk{{Key: "scsi0", System: true}}}
		r := Of(nil, mem, rec, 9900)
		made, err := r.System.NewConfig("isos:iso/a.iso")
		if err != nil {
			t.Fatal(err)
		}
		back, _, err := r.System.oldConfig()
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"ip=10.0.0.31/24", was}, []string{made["ipconfig0"], back["ipconfig0"]}); diff != "" {
			t.Errorf("%s: of the new VM and of that which comes back (-want +got):\n%s", name, diff)
		}
	}
}
