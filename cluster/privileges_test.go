package cluster

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestNeedsByStrategy(t *testing.T) {
	t.Parallel()
	claim := []string{"VM.Allocate", "VM.Audit", "VM.Config.Memory", "VM.Config.Options"}
	reimage := []string{
		"VM.Allocate", "VM.Audit", "VM.Config.CDROM", "VM.Config.Disk", "VM.Config.Memory", "VM.Config.Options", "VM.PowerMgmt",
	}
	recreate := []string{
		"VM.Allocate", "VM.Audit", "VM.Config.CDROM", "VM.Config.CPU", "VM.Config.Disk", "VM.Config.HWType",
		"VM.Config.Memory", "VM.Config.Network", "VM.Config.Options", "VM.PowerMgmt",
	}
	space, iso := []string{"Datastore.AllocateSpace", "Datastore.Audit"}, []string{"Datastore.AllocateTemplate", "Datastore.Audit"}
	for name, tc := range map[string]struct {
		strategy Strategy
		change   func(*NodePlan)
		want     Needs
	}{
		"in-place": {InPlace, nil, Needs{"/": {"Sys.Audit"}, "/vms": claim}},
		"reimage": {Reimage, nil, Needs{
			"/": {"Sys.Audit"}, "/vms": reimage, "/storage/fast": space, "/storage/isos": iso,
		}},
		"rollback": {Rollback, nil, Needs{"/": {"Sys.Audit"}, "/vms": reimage, "/storage/fast": space}},
		"recreate": {Recreate, nil, Needs{
			"/": {"Sys.Audit", "Sys.Modify"}, "/vms": recreate, "/storage/fast": space, "/storage/bulk": space, "/storage/isos": iso,
			"/sdn/zones/localnetwork/vmbr0": {"SDN.Use"}, "/mapping/dir/share": {"Mapping.Use"},
		}},
		"put-back, which may have to create": {PutBack, nil, Needs{
			"/": {"Sys.Audit", "Sys.Modify"}, "/vms": recreate, "/storage/fast": space, "/storage/bulk": space,
			"/sdn/zones/localnetwork/vmbr0": {"SDN.Use"}, "/mapping/dir/share": {"Mapping.Use"},
		}},
		"HA": {Reimage, func(n *NodePlan) { n.found.VM.HA = true }, Needs{
			"/": {"Sys.Audit", "Sys.Console"}, "/vms": reimage, "/storage/fast": space, "/storage/isos": iso,
		}},
		"HA, taken out already": {Reimage, func(n *NodePlan) { n.found.VM, n.found.Ties.HA = nil, &HAResource{} }, Needs{
			"/": {"Sys.Audit", "Sys.Console"}, "/vms": reimage, "/storage/fast": space, "/storage/isos": iso,
		}},
		"HA in place":                         {InPlace, func(n *NodePlan) { n.found.VM.HA = true }, Needs{"/": {"Sys.Audit"}, "/vms": claim}},
		"a holder's disk, while the VM stays": {Reimage, withHolder, Needs{"/": {"Sys.Audit"}, "/vms": reimage, "/storage/fast": space, "/storage/isos": iso}},
		"a holder's disk, for a VM made again": {Recreate, withHolder, Needs{
			"/": {"Sys.Audit"}, "/vms": recreate, "/storage/fast": space, "/storage/isos": iso,
			"/vms/200": {"VM.Config.Disk"}, "/storage/held": {"Datastore.Audit"},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := NodePlan{
				Strategy: tc.strategy, VMID: 9002,
				Carried: []DiskPlan{{Key: "scsi1", Volid: "bulk:9002/vm-9002-disk-1.raw"}},
				System:  &DiskPlan{Key: "scsi0", Volid: "fast:vm-9002-disk-0"},
				wanted:  Wanted{ISOStorages: []string{"isos"}},
				found: Found{VM: &VM{ID: 9002, Config: map[string]string{
					"net0": "virtio=AA,bridge=vmbr0", "startup": "order=1", "virtiofs0": "dirid=share,cache=auto",
				}}},
			}
			if tc.change != nil {
				tc.change(&n)
			}
			if diff := cmp.Diff(tc.want, NeedsOf(Plan{Nodes: []NodePlan{n}})); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func withHolder(n *NodePlan) {
	n.found.VM.Config = nil
	n.Carried = []DiskPlan{{Key: "scsi4", Volid: "held:vm-200-disk-0"}}
}

func TestNeedsOfNoWork(t *testing.T) {
	t.Parallel()
	if needs := NeedsOf(Plan{}); len(needs) > 0 {
		t.Errorf("nothing to do needs %v", needs)
	}
}
