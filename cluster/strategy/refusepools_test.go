package strategy

import (
	"cmp"
	"fmt"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
)

// Mounts, LVM and ZFS in Talos show which disk local data is on.
func TestDataProvenToBeElsewhereIsNoLoss(t *testing.T) {
	t.Parallel()
	data := func(places ...cluster.LocalData) func(*cluster.Wanted, *observe.Found, *observe.Observation) {
		return func(_ *cluster.Wanted, f *observe.Found, _ *observe.Observation) {
			for _, l := range places {
				l.Name, l.What = "pv/pvc-1", "PersistentVolume pvc-1 (claim default/db-0)"
				f.Local = append(f.Local, l)
			}
		}
	}
	members := func(all ...cluster.PoolMember) func(*cluster.Wanted, *observe.Found, *observe.Observation) {
		return func(_ *cluster.Wanted, f *observe.Found, _ *observe.Observation) {
			for i, m := range all {
				m.Device, m.Format = fmt.Sprintf("pv%d", i), cmp.Or(m.Format, cluster.FormatLVM)
				f.Machine.PoolMembers = append(f.Machine.PoolMembers, m)
			}
		}
	}
	onB, onSystem := cluster.PoolMember{Disks: []string{"sdb"}}, cluster.PoolMember{Disks: []string{"sda"}}
	lvm := cluster.LocalData{Format: cluster.FormatLVM}
	vg0 := cluster.LocalData{Format: cluster.FormatLVM, Group: "vg0"}
	of := func(m cluster.PoolMember, group string) cluster.PoolMember { m.Group = group; return m }
	mounted := func(disk, label, at string) func(*cluster.Wanted, *observe.Found, *observe.Observation) {
		return volume(cluster.Volume{Device: disk + "9", Disk: disk, Label: label, Phase: "ready", Mount: at})
	}
	share := func(_ *cluster.Wanted, f *observe.Found, _ *observe.Observation) {
		f.Machine.VolumeStatuses = append(f.Machine.VolumeStatuses, cluster.VolumeStatus{ID: "x-share", Type: cluster.ExternalVolume, Phase: "ready", Mount: "/var/mnt/share"})
	}
	const what = "PersistentVolume pvc-1 (claim default/db-0)"
	pv := wouldBeLost(what, "pv/pvc-1")
	check(t, map[string]refusalCase{
		"on a user volume that is a whole disk":   {change: inTurn(volume(cluster.Volume{Device: "sdb", Disk: "sdb", Mount: "/var/mnt/big"}), localAt("/var/mnt/big/pvc-1"))},
		"on an existing volume of another disk":   {change: inTurn(mounted("sdb", "old", "/var/mnt/old"), localAt("/var/mnt/old"))},
		"on a user disk of machine.disks":         {change: inTurn(mounted("sdb", "", "/var/lib/extra"), localAt("/var/lib/extra/pvc-1"))},
		"in a directory of the VM's host":         {change: inTurn(share, localAt("/var/mnt/share/db"))},
		"beside that directory":                   both(inTurn(share, localAt("/var/mnt/shared")), pv),
		"beside such a mount":                     both(inTurn(mounted("sdb", "", "/var/lib/extra"), localAt("/var/lib/extra2")), pv),
		"LOG on the system disk, all else is not": both(inTurn(ephemeralOn("sdb"), mounted("sda", "LOG", "/var/log"), localAt("/var/log/a")), pv),
		"on the other one, beside LOG":            {change: inTurn(ephemeralOn("sdb"), mounted("sda", "LOG", "/var/log"), localAt("/var/lib/a"))},
		"listed in two places, either is here":    both(data(cluster.LocalData{Path: "/var/mnt/data"}, cluster.LocalData{Path: "/var/a"}, cluster.LocalData{Path: "/var/b"}), pv),
		"listed in two places, neither is":        {change: data(cluster.LocalData{Path: "/var/mnt/data/a"}, cluster.LocalData{Path: "/var/mnt/data/b"})},

		"LVM that Talos does not show":                 both(data(lvm), pv),
		"LVM on another disk":                          {change: inTurn(members(onB), data(lvm))},
		"LVM on another disk, which group unknown":     {change: inTurn(members(onB), data(vg0))},
		"LVM on the system disk":                       both(inTurn(members(onSystem), data(lvm)), pv),
		"LVM on both":                                  both(inTurn(members(onB, onSystem), data(lvm)), pv),
		"LVM on both, groups unknown":                  both(inTurn(members(onB, onSystem), data(vg0)), pv),
		"another group on the system disk":             {change: inTurn(members(of(onB, "vg0"), of(onSystem, "vg1")), data(vg0))},
		"that group on the system disk":                both(inTurn(members(of(onB, "vg1"), of(onSystem, "vg0")), data(vg0)), pv),
		"a group on both":                              both(inTurn(members(of(onB, "vg0"), of(onSystem, "vg0")), data(vg0)), pv),
		"groups known, the volume's is not":            both(inTurn(members(of(onB, "vg0"), of(onSystem, "vg1")), data(lvm)), pv),
		"a group that Talos does not show":             both(inTurn(members(of(onB, "vg1")), data(vg0)), pv),
		"a physical volume on a file":                  both(inTurn(members(onB, cluster.PoolMember{}), data(lvm)), pv),
		"one that spans two disks":                     both(inTurn(members(cluster.PoolMember{Disks: []string{"sdb", "sda"}}), data(lvm)), pv),
		"ZFS, but LVM is on another disk":              both(inTurn(members(onB), data(cluster.LocalData{Format: cluster.FormatZFS})), pv),
		"ZFS on another disk":                          {change: inTurn(members(cluster.PoolMember{Disks: []string{"sdb"}, Format: cluster.FormatZFS}), data(cluster.LocalData{Format: cluster.FormatZFS, Group: "tank"}))},
		"a driver that says nothing":                   both(inTurn(members(onB), data(cluster.LocalData{})), pv),
		"place unknown, only Talos on the system disk": {change: inTurn(ephemeralOn("sdb"), data(cluster.LocalData{}))},
		"place unknown, machine does not answer":       both(inTurn(ephemeralOn("sdb"), func(_ *cluster.Wanted, f *observe.Found, _ *observe.Observation) { f.Machine.Remembered = true }, data(cluster.LocalData{})), pv),
		"place unknown, other data on the system disk": both(inTurn(ephemeralOn("sdb"), volume(cluster.Volume{Device: "sda5", Disk: "sda", Label: "u-logs"}), data(cluster.LocalData{})), wouldBeLost("volume u-logs", "u-logs")+"\n"+pv),
	})
}
