package cluster

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPlanTellsWhatChangesInTheVM(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		strategy Strategy
		change   func(w *Wanted, vm *VM)
		renewed  []string
		notes    []string
		newSize  string
	}{
		"recreate": {Recreate, func(*Wanted, *VM) {}, []string{"volid of scsi1"}, nil, ""},
		"what Proxmox makes": {Recreate, func(_ *Wanted, vm *VM) {
			vm.Config["vmgenid"], vm.Config["meta"], vm.Config["efidisk0"] = "0a", "creation-qemu=9", volid(vm.ID, 7)
		}, []string{"vmgenid", "meta", "volid of efidisk0", "volid of scsi1"}, nil, ""},
		"no generation ID": {Recreate, func(_ *Wanted, vm *VM) { vm.Config["vmgenid"] = "0" }, []string{"vmgenid (which is switched off now)", "volid of scsi1"}, nil, ""},
		"reimage":          {Reimage, func(_ *Wanted, vm *VM) { vm.Config["vmgenid"] = "0a" }, nil, nil, ""},
		"protection": {
			Reimage, func(_ *Wanted, vm *VM) { vm.Config["protection"] = "1" }, nil,
			[]string{"the VM's protection is lifted meanwhile and set again at the end"},
			"",
		},
		"a medium of the user's": {
			Reimage, func(_ *Wanted, vm *VM) { vm.Config["ide2"] = "isos:iso/debian.iso,media=cdrom" }, nil,
			[]string{"ide2 gets the boot ISO and is empty at the end: isos:iso/debian.iso is taken out"},
			"",
		},
		"a medium of ours": {Reimage, func(_ *Wanted, vm *VM) { vm.Config["ide2"] = "isos:iso/recast-x.iso,media=cdrom" }, nil, nil, ""},
		"an empty drive":   {Reimage, func(_ *Wanted, vm *VM) { vm.Config["ide2"] = "none,media=cdrom" }, nil, nil, ""},
		"an old boot order": {
			Reimage, func(_ *Wanted, vm *VM) { vm.Config["boot"], vm.Config["bootdisk"] = "cdn", "scsi0" }, nil,
			[]string{"its boot order of the old kind (cdn) becomes one by device, its system disk first"},
			"",
		},
		"grown":         {Reimage, func(w *Wanted, _ *VM) { w.SystemGiB = 20 }, nil, nil, "20G"},
		"the same size": {Reimage, func(w *Wanted, _ *VM) { w.SystemGiB = 10 }, nil, nil, ""},
		"smaller": {
			Reimage, func(w *Wanted, _ *VM) { w.SystemGiB = 8 }, nil,
			[]string{"the new system disk has 10G like the old one, not the 8G wanted: recast never makes one smaller"},
			"",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			wanted, o := world()
			wanted[1].Strategy = tc.strategy
			tc.change(&wanted[1], o.Found[1].VM)
			plan, err := NewPlan("c1", wanted, o, past, Policy{})
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

// TestPlanCountsTheNumbersOfParkingVMs refuses the nodes that would find none.
func TestPlanCountsTheNumbersOfParkingVMs(t *testing.T) {
	t.Parallel()
	stale := func() ([]Wanted, Observation) {
		wanted, o := world()
		for i := range o.Found {
			o.Found[i].Machine.Schematic = SchematicEntry{"id-old", "recast.lock=" + oldHash}
		}
		return wanted[1:], Observation{Quorate: true, Storages: o.Storages, Rooms: o.Rooms, VMs: o.VMs, Found: o.Found[1:], ParkingIDs: o.ParkingIDs}
	}
	const lack = "no VMID is left for its parking VM: this roll takes 2, and 1 of proxmox.vmids are free: widen it, or leave nodes out with --exclude"
	cases := map[string]struct {
		change func(w []Wanted, o *Observation)
		want   string // why wk2 is refused
	}{
		"enough":         {change: func([]Wanted, *Observation) {}},
		"one that fits":  {change: func(_ []Wanted, o *Observation) { o.ParkingIDs = []VMID{9092} }, want: lack},
		"one of another": {change: func(_ []Wanted, o *Observation) { o.VMs = append(o.VMs, VM{ID: 9092}, VM{ID: 9091}) }, want: lack},
		"one has its parking VM": {change: func(_ []Wanted, o *Observation) {
			o.ParkingIDs, o.Found[0].Parking = []VMID{9092}, &Parking{VM: VM{ID: 9091}}
		}},
		"one in place": {change: func(w []Wanted, o *Observation) { o.ParkingIDs, w[0].Strategy = []VMID{9092}, InPlace }},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			wanted, o := stale()
			tc.change(wanted, &o)
			plan, err := NewPlan("c1", wanted, o, past, Policy{})
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
