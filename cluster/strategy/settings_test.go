package strategy

import (
	"slices"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/clustertest/vmsetting"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/observe/observetest"
	"github.com/recast-sh/recast/cluster/parking"
)

// The exchange itself sets two keys.
func TestEverySettingIsListed(t *testing.T) {
	t.Parallel()
	for _, key := range slices.Concat(cluster.RootOnly, carried, hidden, cluster.NeverCarried) {
		if _, listed := vmsetting.Every[key]; !listed && !slices.Contains([]string{"boot", "description", "digest", "onboot"}, key) {
			t.Errorf("%s has no sample", key)
		}
	}
	for _, list := range [][]string{cluster.RootOnly, carried, cluster.CarriedBuses, hidden} {
		if !slices.IsSorted(list) {
			t.Errorf("the lists are compared by eye with Proxmox's source: keep them sorted: %q", list)
		}
	}
}

// TestEverySettingIsJudged: a setting that a new VM can't have is an obstacle before anything is
// changed.
func TestEverySettingIsJudged(t *testing.T) {
	t.Parallel()
	for key, setting := range vmsetting.Every {
		w, f, o := staleNode()
		w.Strategy = cluster.Recreate
		if setting.Value != "" {
			f.VM.Config[key] = setting.Value
		}
		if refused := judge(w, f, o).Refused; (len(refused) > 0) != (setting.Fate == vmsetting.Never) {
			t.Errorf("%s=%s: refused %q, want it %s", key, setting.Value, refused, setting.Fate)
		}
	}
}

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

// A machine that is off is judged by its record: a pool that was on another disk is still there,
// and one on the system disk is lost with it.
func TestPoolsAreRemembered(t *testing.T) {
	t.Parallel()
	was := cluster.Machine{SystemDisk: "sda", PoolMembers: []cluster.PoolMember{
		{Device: "sdb1", Disks: []string{"sdb"}, Format: cluster.FormatLVM, Group: "elsewhere"},
		{Device: "sda5", Disks: []string{"sda"}, Format: cluster.FormatLVM, Group: "here"},
		{Device: "loop1", Format: cluster.FormatLVM, Group: "nobody-knows"},
	}}
	packed, err := parking.Memory{VM: cluster.VM{ID: 101}, Pools: was.Pools()}.Pack()
	if err != nil {
		t.Fatal(err)
	}
	mem, err := parking.UnpackMemory(packed)
	if err != nil {
		t.Fatal(err)
	}
	off := Candidate{Machine: mem.Machine()}
	for group, lost := range map[string]bool{"elsewhere": false, "here": true, "nobody-knows": true, "never-seen": true} {
		if got := onSystemDisk(off, cluster.LocalData{Name: "linstor/" + group, Format: cluster.FormatLVM, Group: group}); got != lost {
			t.Errorf("volume group %s goes with the system disk: %t, want %t", group, got, lost)
		}
	}
}

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
