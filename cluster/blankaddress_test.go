package cluster

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster/reach"
)

// leased gives a node an address that DHCP has given to its second network card.
func leased(f *Found) {
	f.Addr = netip.MustParseAddr("10.0.0.31")
	f.VM.Config["net1"] = "virtio=BC:24:11:00:00:31"
	f.Machine.Addresses = []reach.Address{{
		Prefix: netip.MustParsePrefix("10.0.0.31/24"), Link: "eth0", MAC: "BC:24:11:00:00:31",
		Layer: reach.Operator, Lease: reach.Lease{Operator: "dhcp4"}, Gateway: netip.MustParseAddr("10.0.0.1"),
	}}
}

// static is the node with its address in the machine configuration.
func static(f *Found) {
	f.Machine.Addresses[0].Layer, f.Machine.Addresses[0].Lease = reach.Configuration, reach.Lease{}
}

func TestBlankMachineWithoutItsAddress(t *testing.T) {
	t.Parallel()
	const metal = "its address 10.0.0.31 (eth0) is in its machine configuration alone, so a blank machine would not have it: " +
		"set images.platform to nocloud, then recast lock: recast then has the VM's cloud-init drive tell the blank machine its address; " +
		"or reserve it for MAC BC:24:11:00:00:31 in DHCP and have the machine configuration say dhcp: true there; or use in-place"
	check(t, map[string]refusalCase{
		"static on metal": both(func(w *Wanted, f *Found, _ *Observation) { w.Build.Platform = "metal"; static(f) }, metal),
		"static on nocloud, no drive": both(func(w *Wanted, f *Found, _ *Observation) {
			w.Build.Platform = "nocloud"
			static(f)
			delete(f.VM.Config, "ide0")
		}, "its address 10.0.0.31 (eth0) is in its machine configuration alone, so a blank machine would not have it: "+
			"give the VM a cloud-init drive (qm set 9002 --scsi30 fast:cloudinit); "+
			"or reserve it for MAC BC:24:11:00:00:31 in DHCP and have the machine configuration say dhcp: true there; or use in-place"),
		"nothing shown": both(func(_ *Wanted, f *Found, _ *Observation) { f.Machine.Addresses = nil },
			"Talos does not show where its address 10.0.0.31 comes from (talosctl -n 10.0.0.31 get addresses), so whether a blank machine would have it can't be told: use in-place"),
	})
}

// TestPlanTellsTheBlankMachineItsAddress: what is set, and what it takes.
func TestPlanTellsTheBlankMachineItsAddress(t *testing.T) {
	t.Parallel()
	const note = "its blank machine gets the node's address from the VM's cloud-init drive: ipconfig1 is gw=10.0.0.1,ip=10.0.0.31/24 for that boot, and as before at the end"
	for _, s := range []Strategy{Recreate, Reimage} {
		wanted, o := world()
		wanted[1].Strategy, wanted[1].Build.Platform = s, "nocloud"
		o.Found[1].Machine.Platform = "nocloud"
		o.Found[1].VM.Config["ide0"] = "fast:vm-9002-cloudinit,media=cdrom"
		static(&o.Found[1])
		p, err := NewPlan("c1", wanted, o, past, Policy{Only: []string{"wk1"}})
		if err != nil {
			t.Fatal(err)
		}
		if n := p.Nodes[0]; n.Strategy != s || !slices.Contains(n.Notes, note) || len(n.Refused) > 0 {
			t.Errorf("%s: %s, refused %q, notes %q", s, n.Strategy, n.Refused, n.Notes)
		}
		needs := NeedsOf(p, false)
		if !slices.ContainsFunc(needs, func(n Need) bool { return n.Privilege == "VM.Config.Network" }) {
			t.Errorf("%s: it does not ask for VM.Config.Network", s)
		}
	}
}

// TestBlankSettingComesAndGoes: the VM has it from the blank boot until finish.
func TestBlankSettingComesAndGoes(t *testing.T) {
	t.Parallel()
	for name, was := range map[string]string{"it had another": "ip=dhcp", "it had none": ""} {
		vm := VM{ID: 9011, Config: map[string]string{"name": "wk1", "scsi0": "fast:vm-9011-disk-0,size=10G", "smbios1": "uuid=a"}}
		if was != "" {
			vm.Config["ipconfig0"] = was
		}
		mem := memory{VM: vm, SystemKey: "scsi0", DiskSerial: "recast-0123456789ab", Blank: &reach.Setting{Key: "ipconfig0", Value: "ip=10.0.0.31/24"}}
		packed, err := mem.pack()
		if err != nil {
			t.Fatal(err)
		}
		if mem, err = unpackMemory(packed); err != nil { // another machine goes on
			t.Fatal(err)
		}
		rec := Record{Strategy: Recreate, Disks: []ParkedDisk{{Key: "scsi0", System: true}}}
		r := replaceOf(nil, mem, rec, 9900)
		made, err := r.newConfig("isos:iso/a.iso")
		if err != nil {
			t.Fatal(err)
		}
		back, err := r.oldConfig()
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"ip=10.0.0.31/24", was}, []string{made["ipconfig0"], back["ipconfig0"]}); diff != "" {
			t.Errorf("%s: of the new VM and of that which comes back (-want +got):\n%s", name, diff)
		}
	}
}
