package planning

import (
	"slices"
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
)

// TestUndo: what is unfinished comes first, and one node at a time; then the nodes of the latest run that
// has left a system disk.
func TestUndo(t *testing.T) {
	t.Parallel()
	const older, latest = "20261120-0300-aaaa", "20261121-0421-3f2a"
	open := &parking.Parking{Record: parking.Record{Run: latest, Open: true}}
	kept := func(run string) *parking.Parking {
		return &parking.Parking{Record: parking.Record{Kept: []parking.KeptDisk{{Run: run}}}}
	}
	type row struct {
		parkings []*parking.Parking // of wk1, wk2, wk3
		only     []string
		way      Way
		run      string
		unsure   bool // which run was the last one
		says     string
		nodes    string // of the plan to boot previous system disks
		err      string
	}
	must.Each(t, map[string]row{
		"a run by its ID":         {parkings: []*parking.Parking{kept(latest), kept(older), kept(latest)}, run: older, nodes: "wk2"},
		"a run by its end":        {parkings: []*parking.Parking{kept(latest), kept(older), kept(latest)}, run: "3f2a", nodes: "wk1 wk3"},
		"a run of none":           {parkings: []*parking.Parking{kept(latest), nil, nil}, run: "beef", err: `no node's present system disk is of a run "beef"`},
		"a run of two":            {parkings: []*parking.Parking{kept(latest), kept(older), nil}, run: "202611", err: "is a part of several runs: " + older + ", " + latest},
		"another run is open":     {parkings: []*parking.Parking{open, kept(older), nil}, run: older, err: "node wk1: an earlier run is not finished"},
		"no last run":             {parkings: []*parking.Parking{kept(latest), kept(older), nil}, unsure: true, err: "which run was the last one is not certain"},
		"named all the same":      {parkings: []*parking.Parking{kept(latest), kept(older), nil}, unsure: true, only: []string{"wk2"}, nodes: "wk2"},
		"a run all the same":      {parkings: []*parking.Parking{kept(latest), kept(older), nil}, unsure: true, run: older, nodes: "wk2"},
		"nothing to undo":         {parkings: make([]*parking.Parking, 3), err: "no earlier system disk of a node is parked"},
		"two are unfinished":      {parkings: []*parking.Parking{open, open, nil}, err: "wk1, wk2: an earlier run is not finished"},
		"one of two named is":     {parkings: []*parking.Parking{open, kept(latest), nil}, only: []string{"wk1", "wk2"}, err: "wk1: an earlier run is not finished"},
		"another one is":          {parkings: []*parking.Parking{open, kept(latest), nil}, only: []string{"wk2"}, err: "node wk1: an earlier run is not finished"},
		"the latest run":          {parkings: []*parking.Parking{kept(latest), kept(older), kept(latest)}, nodes: "wk1 wk3", says: "run " + latest + ": wk1, wk3"},
		"a node of an older one":  {parkings: []*parking.Parking{kept(latest), kept(older), kept(latest)}, only: []string{"wk2"}, nodes: "wk2"},
		"a node with nothing":     {parkings: []*parking.Parking{kept(latest), nil, nil}, only: []string{"wk2"}, nodes: "wk2"},
		"a finished one, cancel":  {parkings: []*parking.Parking{kept(latest), nil, nil}, way: Cancel, only: []string{"wk1"}, err: "node wk1: no replacement of it is unfinished"},
		"an open one, previous":   {parkings: []*parking.Parking{open, nil, nil}, way: Previous, only: []string{"wk1"}, err: "node wk1: an earlier run is not finished"},
		"another is, previous":    {parkings: []*parking.Parking{open, kept(latest), nil}, way: Previous, err: "node wk1: an earlier run is not finished"},
		"all, previous":           {parkings: []*parking.Parking{kept(latest), nil, kept(older)}, unsure: true, way: Previous, nodes: "wk1 wk2 wk3"},
		"a node that there isn't": {parkings: make([]*parking.Parking, 3), only: []string{"wk9"}, err: `no node "wk9"`},
	}, func(t *testing.T, c row) {
		var wanted []cluster.Wanted
		var o observe.Observation
		said := ""
		for i, p := range c.parkings {
			wanted = append(wanted, cluster.Wanted{Name: []string{"wk1", "wk2", "wk3"}[i]})
			o.Found = append(o.Found, observe.Found{Parking: p})
		}
		plan, way, err := ForUndo(t.Context(), "c1", wanted, o, nil, nil, Policy{Only: c.only}, Undone{
			Way: c.way, Run: c.run, Say: func(text string) { said = text },
			Order: func(runs []Replacing) ([]Replacing, bool) {
				slices.SortFunc(runs, func(a, b Replacing) int { return strings.Compare(b.Run, a.Run) })
				return runs, !c.unsure || len(runs) == 1
			},
		})
		if c.says != "" && said != c.says || len(c.only) > 0 && said != "" {
			t.Errorf("said %q, want %q", said, c.says)
		}
		if c.err != "" {
			must.Fail(t, err, c.err)
			if kind := fault.KindOf(err); kind != fault.Refused && kind != fault.Config {
				t.Errorf("kind %v", kind)
			}
			return
		}
		nodes := cluster.Each(plan.Nodes, func(n NodePlan) string { return n.Node })
		if got := strings.Join(nodes, " "); err != nil || way != Previous || got != c.nodes {
			t.Errorf("%s of %q, want of %q: %v", way, got, c.nodes, err)
		}
	})
}

// TestGiveUp: nothing is to be deleted that anybody else has made, or that may be in use.
func TestGiveUp(t *testing.T) {
	t.Parallel()
	const parked, made = "qm set 9800 --protection 0 && qm destroy 9800", "qm set 9011 --protection 0 && qm destroy 9011 && " + "qm set 9800 --protection 0 && qm destroy 9800"
	type row struct {
		change func(*observe.Found, *parking.Memory)
		want   string // how it ends; "": nothing more
	}
	must.Each(t, map[string]row{
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
	}, func(t *testing.T, c row) {
		vm := cluster.VM{ID: 9011, Host: "pve1", Config: map[string]string{
			"scsi0": "fast:vm-9011-disk-0,serial=new", "efidisk0": "fast:vm-9011-disk-1", "ide2": "isos:iso/a.iso,media=cdrom", "description": parking.MarkDescription("", "r1", "b"),
		}}
		f := observe.Found{VM: &vm, Parking: &parking.Parking{VM: cluster.VM{ID: 9800, Host: "pve1", Config: map[string]string{}}, Record: parking.Record{Node: "wk1", Run: "r1", VMID: 9011}}}
		mem := parking.Memory{DiskSerial: "new"}
		if c.change != nil {
			c.change(&f, &mem)
		}
		f.Parking.Record.Memory = must.Get(mem.Pack())(t)
		got := giveUp(f)
		if !strings.HasPrefix(got, "recast roll finishes it; recast remove wk1 then takes it away, and keeps its disks") || strings.Contains(got, "To give it up") != (c.want != "") || strings.Contains(got, "qm ") != strings.Contains(c.want, "qm ") || !strings.HasSuffix(got, c.want) {
			t.Errorf("%s\nwant %q", got, c.want)
		}
	})
}
