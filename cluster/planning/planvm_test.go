package planning

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/clustertest"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/observe/observetest"
	"github.com/recast-sh/recast/cluster/parking"
)

func TestPlanTellsWhatChangesInTheVM(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		strategy cluster.Strategy
		change   func(w *cluster.Wanted, vm *cluster.VM)
		renewed  []string
		notes    []string
		newSize  string
	}{
		"recreate": {cluster.Recreate, func(*cluster.Wanted, *cluster.VM) {}, []string{"volid of scsi1"}, nil, ""},
		"what Proxmox makes": {cluster.Recreate, func(_ *cluster.Wanted, vm *cluster.VM) {
			vm.Config["vmgenid"], vm.Config["meta"], vm.Config["efidisk0"] = "0a", "creation-qemu=9", clustertest.Volid(vm.ID, 7)
		}, []string{"vmgenid", "meta", "volid of efidisk0", "volid of scsi1"}, nil, ""},
		"no generation ID": {cluster.Recreate, func(_ *cluster.Wanted, vm *cluster.VM) { vm.Config["vmgenid"] = "0" }, []string{"vmgenid (which is switched off now)", "volid of scsi1"}, nil, ""},
		"reimage":          {cluster.Reimage, func(_ *cluster.Wanted, vm *cluster.VM) { vm.Config["vmgenid"] = "0a" }, nil, nil, ""},
		"protection": {
			cluster.Reimage, func(_ *cluster.Wanted, vm *cluster.VM) { vm.Config["protection"] = "1" }, nil,
			[]string{"the VM's protection is lifted meanwhile and set again at the end"},
			"",
		},
		"a medium of the user's": {
			cluster.Reimage, func(_ *cluster.Wanted, vm *cluster.VM) { vm.Config["ide2"] = "isos:iso/debian.iso,media=cdrom" }, nil,
			[]string{"ide2 gets the boot ISO and is empty at the end: isos:iso/debian.iso is taken out"},
			"",
		},
		"a medium of ours": {cluster.Reimage, func(_ *cluster.Wanted, vm *cluster.VM) { vm.Config["ide2"] = "isos:iso/recast-x.iso,media=cdrom" }, nil, nil, ""},
		"an empty drive":   {cluster.Reimage, func(_ *cluster.Wanted, vm *cluster.VM) { vm.Config["ide2"] = "none,media=cdrom" }, nil, nil, ""},
		"an old boot order": {
			cluster.Reimage, func(_ *cluster.Wanted, vm *cluster.VM) { vm.Config["boot"], vm.Config["bootdisk"] = "cdn", "scsi0" }, nil,
			[]string{"its boot order of the old kind (cdn) becomes one by device, its system disk first"},
			"",
		},
		"grown":         {cluster.Reimage, func(w *cluster.Wanted, _ *cluster.VM) { w.SystemGiB = 20 }, nil, nil, "20G"},
		"the same size": {cluster.Reimage, func(w *cluster.Wanted, _ *cluster.VM) { w.SystemGiB = 10 }, nil, nil, ""},
		"smaller": {
			cluster.Reimage, func(w *cluster.Wanted, _ *cluster.VM) { w.SystemGiB = 8 }, nil,
			[]string{"the new system disk has 10G like the old one, not the 8G wanted: recast never makes one smaller"},
			"",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			wanted, o := observetest.World()
			wanted[1].Strategy = tc.strategy
			tc.change(&wanted[1], o.Found[1].VM)
			plan, err := New("c1", wanted, o, clustertest.Past, Policy{})
			if err != nil {
				t.Fatal(err)
			}
			n := plan.Work()[0]
			if diff := cmp.Diff([]any{tc.renewed, tc.notes, tc.newSize, []string(nil)}, []any{n.Renewed, n.Notes, n.System.NewSize, n.Refused}); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestPlanCountsTheNumbersOfParkingVMs refuses the nodes whose parking VM gets no number.
func TestPlanCountsTheNumbersOfParkingVMs(t *testing.T) {
	t.Parallel()
	stale := func() ([]cluster.Wanted, observe.Observation) {
		wanted, o := observetest.World()
		for i := range o.Found {
			o.Found[i].Machine.Schematic = cluster.SchematicEntry{ID: "id-old", YAML: "recast.lock=" + clustertest.OldHash}
		}
		return wanted[1:], observe.Observation{Quorate: true, Storages: o.Storages, Rooms: o.Rooms, VMs: o.VMs, Found: o.Found[1:], ParkingIDs: o.ParkingIDs}
	}
	const lack = "no VMID is left for its parking VM: this roll takes 2, and 1 of proxmox.vmids are free: widen it, or leave nodes out with --exclude"
	cases := map[string]struct {
		change func(w []cluster.Wanted, o *observe.Observation)
		want   string // why wk2 is refused
	}{
		"enough":        {change: func([]cluster.Wanted, *observe.Observation) {}},
		"one that fits": {change: func(_ []cluster.Wanted, o *observe.Observation) { o.ParkingIDs = []cluster.VMID{9092} }, want: lack},
		"one of another": {change: func(_ []cluster.Wanted, o *observe.Observation) {
			o.VMs = append(o.VMs, cluster.VM{ID: 9092}, cluster.VM{ID: 9091})
		}, want: lack},
		"one has its parking VM": {change: func(_ []cluster.Wanted, o *observe.Observation) {
			o.ParkingIDs, o.Found[0].Parking = []cluster.VMID{9092}, &parking.Parking{VM: cluster.VM{ID: 9091}}
		}},
		"one in place": {change: func(w []cluster.Wanted, o *observe.Observation) {
			o.ParkingIDs, w[0].Strategy = []cluster.VMID{9092}, cluster.InPlace
		}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			wanted, o := stale()
			tc.change(wanted, &o)
			plan, err := New("c1", wanted, o, clustertest.Past, Policy{})
			if err != nil {
				t.Fatal(err)
			}
			refused := map[string]string{}
			for _, n := range plan.Work() {
				refused[n.Node] = strings.Join(n.Refused, "; ")
			}
			if len(refused) != 2 || refused["wk1"] != "" || refused["wk2"] != tc.want {
				t.Errorf("%q", refused)
			}
		})
	}
}
