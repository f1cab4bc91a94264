package cluster

import (
	"cmp"
	"fmt"
	"testing"
)

// What Talos shows of mounts, LVM and ZFS says which disk local data is on.
func TestDataProvenToBeElsewhereIsNoLoss(t *testing.T) {
	t.Parallel()
	data := func(places ...LocalData) func(*Wanted, *Found, *Observation) {
		return func(_ *Wanted, f *Found, _ *Observation) {
			for _, l := range places {
				l.Name, l.What = "pv/pvc-1", "PersistentVolume pvc-1 (claim default/db-0)"
				f.Local = append(f.Local, l)
			}
		}
	}
	members := func(all ...PoolMember) func(*Wanted, *Found, *Observation) {
		return func(_ *Wanted, f *Found, _ *Observation) {
			for i, m := range all {
				m.Device, m.Format = fmt.Sprintf("pv%d", i), cmp.Or(m.Format, FormatLVM)
				f.Machine.PoolMembers = append(f.Machine.PoolMembers, m)
			}
		}
	}
	onB, onSystem := PoolMember{Disks: []string{"sdb"}}, PoolMember{Disks: []string{"sda"}}
	lvm := LocalData{Format: FormatLVM}
	vg0 := LocalData{Format: FormatLVM, Group: "vg0"}
	of := func(m PoolMember, group string) PoolMember { m.Group = group; return m }
	mounted := func(disk, label, at string) func(*Wanted, *Found, *Observation) {
		return volume(Volume{Device: disk + "9", Disk: disk, Label: label, Phase: "ready", Mount: at})
	}
	const what = "PersistentVolume pvc-1 (claim default/db-0)"
	pv := wouldBeLost(what, "pv/pvc-1")
	check(t, map[string]refusalCase{
		"on a user volume that is a whole disk":   {change: inTurn(volume(Volume{Device: "sdb", Disk: "sdb", Mount: "/var/mnt/big"}), localAt("/var/mnt/big/pvc-1"))},
		"on an existing volume of another disk":   {change: inTurn(mounted("sdb", "old", "/var/mnt/old"), localAt("/var/mnt/old"))},
		"on a user disk of machine.disks":         {change: inTurn(mounted("sdb", "", "/var/lib/extra"), localAt("/var/lib/extra/pvc-1"))},
		"beside such a mount":                     both(inTurn(mounted("sdb", "", "/var/lib/extra"), localAt("/var/lib/extra2")), pv),
		"LOG on the system disk, all else is not": both(inTurn(ephemeralOn("sdb"), mounted("sda", "LOG", "/var/log"), localAt("/var/log/a")), pv),
		"on the other one, beside LOG":            {change: inTurn(ephemeralOn("sdb"), mounted("sda", "LOG", "/var/log"), localAt("/var/lib/a"))},
		"listed in two places, either is here":    both(data(LocalData{Path: "/var/mnt/data"}, LocalData{Path: "/var/a"}, LocalData{Path: "/var/b"}), pv),
		"listed in two places, neither is":        {change: data(LocalData{Path: "/var/mnt/data/a"}, LocalData{Path: "/var/mnt/data/b"})},

		"LVM that nobody sees":                      both(data(lvm), pv),
		"LVM on another disk":                       {change: inTurn(members(onB), data(lvm))},
		"LVM on another disk, which group unknown":  {change: inTurn(members(onB), data(vg0))},
		"LVM on the system disk":                    both(inTurn(members(onSystem), data(lvm)), pv),
		"LVM on both":                               both(inTurn(members(onB, onSystem), data(lvm)), pv),
		"LVM on both, groups unknown":               both(inTurn(members(onB, onSystem), data(vg0)), pv),
		"another group on the system disk":          {change: inTurn(members(of(onB, "vg0"), of(onSystem, "vg1")), data(vg0))},
		"that group on the system disk":             both(inTurn(members(of(onB, "vg1"), of(onSystem, "vg0")), data(vg0)), pv),
		"a group on both":                           both(inTurn(members(of(onB, "vg0"), of(onSystem, "vg0")), data(vg0)), pv),
		"groups known, the volume's is not":         both(inTurn(members(of(onB, "vg0"), of(onSystem, "vg1")), data(lvm)), pv),
		"a group that nobody sees":                  both(inTurn(members(of(onB, "vg1")), data(vg0)), pv),
		"a physical volume on a file":               both(inTurn(members(onB, PoolMember{}), data(lvm)), pv),
		"one that spans two disks":                  both(inTurn(members(PoolMember{Disks: []string{"sdb", "sda"}}), data(lvm)), pv),
		"ZFS, but LVM is on another disk":           both(inTurn(members(onB), data(LocalData{Format: FormatZFS})), pv),
		"ZFS on another disk":                       {change: inTurn(members(PoolMember{Disks: []string{"sdb"}, Format: FormatZFS}), data(LocalData{Format: FormatZFS, Group: "tank"}))},
		"a driver that says nothing":                both(inTurn(members(onB), data(LocalData{})), pv),
		"nothing told, nothing but Talos is there":  {change: inTurn(ephemeralOn("sdb"), data(LocalData{}))},
		"nothing told, of a machine that is silent": both(inTurn(ephemeralOn("sdb"), func(_ *Wanted, f *Found, _ *Observation) { f.Machine.Remembered = true }, data(LocalData{})), pv),
		"nothing told, something else is there":     both(inTurn(ephemeralOn("sdb"), volume(Volume{Device: "sda5", Disk: "sda", Label: "u-logs"}), data(LocalData{})), wouldBeLost("volume u-logs", "u-logs")+"\n"+pv),
	})
}
