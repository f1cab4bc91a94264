package strategy

import (
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
)

// On a storage that is not shared, a volid means another volume on every host.
func TestVolumesOfOtherHosts(t *testing.T) {
	t.Parallel()
	otherVM := func(host string, shared bool) func(*cluster.Wanted, *observe.Found, *observe.Observation) {
		return func(_ *cluster.Wanted, _ *observe.Found, o *observe.Observation) {
			o.VMs[1].Host, o.VMs[1].Config["scsi5"] = host, "fast:vm-9002-disk-1,serial=data"
			o.Storages[1].Shared = shared
		}
	}
	holder := func(host string, shared bool) func(*cluster.Wanted, *observe.Found, *observe.Observation) {
		return func(w *cluster.Wanted, f *observe.Found, o *observe.Observation) {
			w.Holder, f.VM.Config["scsi4"] = 200, "fast:vm-200-disk-0,serial=held"
			o.VMs[1].Host, o.VMs[1].Config["scsi1"] = host, "fast:vm-200-disk-0,serial=held"
			o.Storages[1].Shared = shared
		}
	}
	const (
		twice     = "the volume of scsi1 is also scsi5 of VM 200: qm set 200 --delete scsi5 keeps the volume"
		twiceAway = "the volume of scsi1 is also scsi5 of VM 200: qm set 200 --delete scsi5 (VM 200 is on pve2) keeps the volume"
		elsewhere = "scsi4 (fast:vm-200-disk-0) carries the number of its holder, VM 200, but that is on another host and storage fast is not shared: " +
			"what the holder has under that name is another volume. Reassign this one to VM 9002"
	)
	check(t, map[string]refusalCase{
		"a namesake on another host":            {change: otherVM("pve2", false)},
		"shared with a VM on another host":      everywhere(otherVM("pve2", true), twiceAway),
		"shared with a VM on the same host":     everywhere(otherVM("pve1", true), twice),
		"local, with a VM on the same host":     everywhere(otherVM("pve1", false), twice),
		"a holder beside it":                    {change: holder("pve1", false)},
		"a holder elsewhere, on shared storage": {change: holder("pve2", true)},
		"a holder elsewhere, on local storage":  both(holder("pve2", false), elsewhere),
	})
}
