package strategy

import (
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/observe/observetest"
)

func TestBlankMachineWithoutItsAddress(t *testing.T) {
	t.Parallel()
	const metal = "its address 10.0.0.31 (eth0) is in its machine configuration alone, so a blank machine would not have it: " +
		"set images.platform to nocloud, then recast lock: recast then has the VM's cloud-init drive tell the blank machine its address; " +
		"or reserve it for MAC BC:24:11:00:00:31 in DHCP and have the machine configuration say dhcp: true there; or use in-place"
	check(t, map[string]refusalCase{
		"static on metal": both(func(w *cluster.Wanted, f *observe.Found, _ *observe.Observation) {
			w.Build.Platform = "metal"
			observetest.Static(f)
		}, metal),
		"static on nocloud, no drive": both(func(w *cluster.Wanted, f *observe.Found, _ *observe.Observation) {
			w.Build.Platform = "nocloud"
			observetest.Static(f)
			delete(f.VM.Config, "ide0")
		}, "its address 10.0.0.31 (eth0) is in its machine configuration alone, so a blank machine would not have it: "+
			"give the VM a cloud-init drive (qm set 9002 --scsi30 fast:cloudinit); "+
			"or reserve it for MAC BC:24:11:00:00:31 in DHCP and have the machine configuration say dhcp: true there; or use in-place"),
		"nothing shown": both(func(_ *cluster.Wanted, f *observe.Found, _ *observe.Observation) { f.Machine.Addresses = nil },
			"Talos does not show where its address 10.0.0.31 comes from (talosctl -n 10.0.0.31 get addresses), so whether a blank machine would have it can't be determined: use in-place"),
	})
}
