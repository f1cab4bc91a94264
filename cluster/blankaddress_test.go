package cluster

import (
	"net/netip"
	"testing"

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
