package planning

import (
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/parking"
)

// TestGiveUp: nothing is to be deleted that anybody else has made, or that may be in use.
func TestGiveUp(t *testing.T) {
	t.Parallel()
	const parked, made = "qm set 9800 --protection 0 && qm destroy 9800", "qm set 9011 --protection 0 && qm destroy 9011 && " + "qm set 9800 --protection 0 && qm destroy 9800"
	for name, c := range map[string]struct {
		change func(*observe.Found, *parking.Memory)
		want   string // how it ends; "": nothing more
	}{
		"not made yet":           {func(f *observe.Found, _ *parking.Memory) { f.VM = nil }, parked},
		"made":                   {nil, made},
		"it runs":                {func(f *observe.Found, _ *parking.Memory) { f.VM.Running = true }, "switch VM 9011 off, and run the same command again"},
		"HA may start it":        {func(f *observe.Found, _ *parking.Memory) { f.VM.HA = true }, ""},
		"it serves":              {func(f *observe.Found, _ *parking.Memory) { f.Node = &cluster.KubeNode{} }, ""},
		"it answers":             {func(f *observe.Found, _ *parking.Memory) { f.Machine = &cluster.Machine{} }, ""},
		"a control plane":        {func(_ *observe.Found, m *parking.Memory) { m.ControlPlane = true }, ""},
		"somebody else made it":  {func(f *observe.Found, _ *parking.Memory) { f.VM.Config["description"] = "" }, ""},
		"another disk":           {func(f *observe.Found, _ *parking.Memory) { f.VM.Config["scsi1"] = "fast:vm-9011-disk-7" }, ""},
		"the disk of another VM": {func(f *observe.Found, _ *parking.Memory) { f.VM.Config["scsi0"] = "fast:vm-200-disk-0,serial=new" }, ""},
		"another system disk":    {func(f *observe.Found, _ *parking.Memory) { f.VM.Config["scsi0"] = "fast:vm-9011-disk-0,serial=x" }, ""},
		"a snapshot":             {func(f *observe.Found, _ *parking.Memory) { f.VM.Config["parent"] = "before" }, ""},
		"a disk on the parking VM": {func(f *observe.Found, _ *parking.Memory) {
			f.Parking.VM.Config["scsi3"] = "fast:vm-9800-disk-0"
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			vm := cluster.VM{ID: 9011, Host: "pve1", Config: map[string]string{
				"scsi0": "fast:vm-9011-disk-0,serial=new", "efidisk0": "fast:vm-9011-disk-1", "ide2": "isos:iso/a.iso,media=cdrom", "description": parking.MarkDescription("", "r1", "b"),
			}}
			f := observe.Found{VM: &vm, Parking: &parking.Parking{VM: cluster.VM{ID: 9800, Host: "pve1", Config: map[string]string{}}, Record: parking.Record{Node: "wk1", Run: "r1", VMID: 9011}}}
			mem := parking.Memory{DiskSerial: "new"}
			if c.change != nil {
				c.change(&f, &mem)
			}
			var err error
			if f.Parking.Record.Memory, err = mem.Pack(); err != nil {
				t.Fatal(err)
			}
			got := giveUp(f)
			if !strings.HasPrefix(got, "recast roll finishes it; recast remove wk1 then takes it away, and keeps its disks") || strings.Contains(got, "To give it up") != (c.want != "") || strings.Contains(got, "qm ") != strings.Contains(c.want, "qm ") || !strings.HasSuffix(got, c.want) {
				t.Errorf("%s\nwant %q", got, c.want)
			}
		})
	}
}
