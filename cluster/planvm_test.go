package cluster

import (
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
