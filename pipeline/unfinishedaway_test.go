package pipeline

import (
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
)

// A VM that can't be read does not count as deleted, nor its disks as lost.
func TestHalfWhoseVMIsElsewhere(t *testing.T) {
	t.Parallel()
	away := &cluster.HostsAway{
		Hosts: []cluster.AwayHost{{Name: "pve2", Why: "is offline"}},
		VMs:   []cluster.VM{{ID: 9031, Host: "pve2"}},
	}
	moved := cluster.VM{ID: 9031, Host: "pve2", Config: map[string]string{"smbios1": "uuid=u-wk1", "scsi1": "fast:vm-9031-disk-1"}}
	cases := map[string]struct {
		vms   []cluster.VM
		away  *cluster.HostsAway
		state VMState
		vm    string
		where string
		next  string
	}{
		"on a host that is down": {
			away: away, state: VMAway, vm: "on pve2, which does not answer",
			where: "not on parking VM 9090; VM 9031 may have it", next: "pvecm status",
		},
		"moved": {
			vms: []cluster.VM{moved}, state: VMOld, where: "scsi1 of VM 9031", next: "recast roll",
			vm: "the old one; it is on pve2 and the parking VM is on pve1: recast plan says how to bring them together",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rec := parking.Record{
				Node: "wk1", Run: "r1", VMID: 9031, UUID: "u-wk1", Open: true, Strategy: cluster.Recreate,
				Disks: []parking.ParkedDisk{{Key: "scsi1", ParkKey: "scsi1", Volid: "fast:vm-9031-disk-1"}},
			}
			park := parking.Parking{VM: cluster.VM{ID: 9090, Host: "pve1"}, Record: rec}
			h, err := half(t.Context(), datacentre{vms: tc.vms}, park, tc.vms, tc.away)
			if err != nil {
				t.Fatal(err)
			}
			h.BuildLocked, h.MachineConfig = true, true
			if h.VMState != tc.state || h.VM != tc.vm || h.Disks[0].Where != tc.where || !strings.HasPrefix(h.advise()[0].Command, tc.next) {
				t.Errorf("%s: %s; disk %s; %v", h.VMState, h.VM, h.Disks[0].Where, h.advise())
			}
		})
	}
}

// Of several parking VMs only one has the disk that a rollback needs.
func TestTheLastKeptDisk(t *testing.T) {
	t.Parallel()
	kept := func(id cluster.VMID, nth int, run string) parking.Parking {
		return parking.Parking{
			VM:     cluster.VM{ID: id, Config: map[string]string{"scsi30": "fast:vm-1-disk-0"}},
			Record: parking.Record{Node: "wk1", Kept: []parking.KeptDisk{{Key: "scsi30", Run: run, Nth: nth}}},
		}
	}
	var res StatusResult
	for _, p := range []parking.Parking{kept(9090, 2, "20260101-0000-aaaa"), kept(9091, 1, "20260102-0000-aaaa")} {
		res.Kept = append(res.Kept, keptBy(p)...)
	}
	res.adviseLast()
	if len(res.Kept[0].Next) != 1 || len(res.Kept[1].Next) != 0 {
		t.Errorf("%+v", res.Kept)
	}
}
