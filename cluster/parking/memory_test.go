package parking_test

import (
	"errors"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/clustertest"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/internal/sim/must"
)

func TestWrongBlank(t *testing.T) {
	t.Parallel()
	volume := cluster.Volume{Label: "DATA", Device: "sdb1", PartitionUUID: "p1", Format: "xfs"}
	labelled := func(label string) func(*parking.Memory, *cluster.Machine) {
		return func(_ *parking.Memory, m *cluster.Machine) {
			m.Volumes = []cluster.Volume{{Label: label, Device: "sdb1", PartitionUUID: "p1"}, {Label: label, Device: "sdb2", PartitionUUID: "p2"}}
		}
	}
	type row struct {
		change func(*parking.Memory, *cluster.Machine)
		err    string
	}
	must.Each(t, map[string]row{
		"as it should be":     {func(*parking.Memory, *cluster.Machine) {}, ""},
		"no blank disk":       {func(_ *parking.Memory, m *cluster.Machine) { m.Disks[0].Serial = "other" }, "0 disks of the machine are the blank system disk"},
		"two of them":         {func(_ *parking.Memory, m *cluster.Machine) { m.Disks = append(m.Disks, m.Disks[0]) }, "2 disks of the machine are the blank system disk"},
		"it has data":         {func(_ *parking.Memory, m *cluster.Machine) { m.Disks[0].Blank = false }, "the new system disk sda is not blank"},
		"a volume is missing": {func(mem *parking.Memory, _ *cluster.Machine) { mem.Volumes = []cluster.Volume{volume} }, "the persistent volume"},
		"a volume is there": {func(mem *parking.Memory, m *cluster.Machine) {
			mem.Volumes, m.Volumes = []cluster.Volume{volume}, []cluster.Volume{volume}
		}, ""},
		"a label of Talos, twice": {labelled("STATE"), "the label STATE is on sdb1 and on sdb2"},
		"another label, twice":    {labelled("mine"), ""},
	}, func(t *testing.T, c row) {
		mem := parking.Memory{
			VM:        cluster.VM{ID: 101, Name: "wk1", Host: "pve1", Config: map[string]string{"scsi0": "fast:vm-101-disk-0", "scsi1": "fast:vm-101-disk-1,serial=data"}},
			SystemKey: "scsi0", DiskSerial: "blank",
		}
		m := cluster.Machine{Disks: []cluster.MachineDisk{{Device: "sda", Serial: "blank", Blank: true}, {Device: "sdb", Serial: "data"}}}
		c.change(&mem, &m)
		clustertest.CheckErr(t, errors.Join(mem.WrongBlank(m, false, false)...), c.err)
	})
}

// TestWrongPrepared: a prepared disk has the partitions of its image, and the machine runs from it.
func TestWrongPrepared(t *testing.T) {
	t.Parallel()
	image := func(m *cluster.Machine, labels ...string) {
		for _, label := range labels {
			m.Volumes = append(m.Volumes, cluster.Volume{Label: label, Disk: "sda", Device: "sda" + label})
		}
	}
	type row struct {
		change     func(*cluster.Machine)
		configured bool
		err        string
	}
	must.Each(t, map[string]row{
		"as it should be":       {func(m *cluster.Machine) { image(m, "EFI", "META") }, false, ""},
		"for a BIOS, too":       {func(m *cluster.Machine) { image(m, "EFI", "BIOS", "BOOT", "META") }, false, ""},
		"cut short":             {func(m *cluster.Machine) { image(m, "EFI") }, false, "it was not imported whole"},
		"without EFI":           {func(m *cluster.Machine) { image(m, "META") }, false, "it was not imported whole"},
		"used":                  {func(m *cluster.Machine) { image(m, "EFI", "META", "STATE") }, false, "it was used before"},
		"begun to be used":      {func(m *cluster.Machine) { image(m, "EFI", "META", "STATE", "EPHEMERAL") }, true, ""},
		"booted from elsewhere": {func(m *cluster.Machine) { image(m, "EFI", "META"); m.SystemDisk = "sdb" }, false, "is not the one that the machine booted, which is sdb"},
		"booted from an ISO":    {func(m *cluster.Machine) { image(m, "EFI", "META"); m.FromISO = true }, false, "is not the one that the machine booted"},
		"of another serial":     {func(m *cluster.Machine) { m.Disks[0].Serial = "other" }, false, "0 disks of the machine are the prepared system disk"},
	}, func(t *testing.T, c row) {
		mem := parking.Memory{VM: cluster.VM{ID: 101, Config: map[string]string{"scsi0": "fast:vm-101-disk-0"}}, SystemKey: "scsi0", DiskSerial: "new"}
		m := cluster.Machine{SystemDisk: "sda", Disks: []cluster.MachineDisk{{Device: "sda", Serial: "new"}}}
		c.change(&m)
		clustertest.CheckErr(t, errors.Join(mem.WrongBlank(m, c.configured, true)...), c.err)
	})
}
