package cluster

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/internal/fault"
)

// world is a cluster of one control plane and two workers whose first is stale.
func world() ([]Wanted, Observation) {
	var wanted []Wanted
	var o Observation
	o.Quorate = true
	o.ParkingIDs = []VMID{9091, 9092, 9093}
	o.Storages = []Storage{{Name: "fast", Type: "lvmthin"}, {Name: "isos", Type: "nfs", Shared: true}}
	o.Rooms = map[string]Room{"pve1": {Storages: []StorageRoom{{Name: "fast", Active: true, Total: 1 << 40, Free: 1 << 39}}}}
	for i, name := range []string{"cp1", "wk1", "wk2"} {
		m := inSync()
		m.UUID = "u-" + name
		m.ControlPlane = name == "cp1"
		m.SystemDisk = "sda"
		m.Disks = []MachineDisk{{Device: "sda", Serial: "sys-" + name}, {Device: "sdb", Serial: "data-" + name}}
		if name == "wk1" {
			m.Schematic = SchematicEntry{"id-old", "recast.lock=" + oldHash}
		}
		id := VMID(9001 + i)
		vm := VM{ID: id, Name: name, Host: "pve1", Running: true, Digest: "d" + name, Config: map[string]string{
			"smbios1": "uuid=u-" + name,
			"scsi0":   Disk{Volid: volid(id, 0), Options: []string{"serial=sys-" + name, "size=10G"}}.Value(),
			"scsi1":   Disk{Volid: volid(id, 1), Options: []string{"serial=data-" + name, "size=20G"}}.Value(),
		}}
		o.VMs = append(o.VMs, vm)
		o.Found = append(o.Found, Found{Name: name, VM: &o.VMs[i], Machine: &m})
		leased(&o.Found[i])
		wanted = append(wanted, Wanted{Name: name, Build: wantedBuild(), Strategy: Auto, ISOStorages: []string{"isos"}})
	}
	for i := range o.Found {
		o.Found[i].VM = &o.VMs[i]
	}
	return wanted, o
}

func volid(id VMID, n int) string {
	return fmt.Sprintf("fast:vm-%d-disk-%d", id, n)
}

func TestPlanRecreatesTheStaleWorker(t *testing.T) {
	t.Parallel()
	wanted, o := world()
	plan, err := NewPlan("c1", wanted, o, past, Policy{})
	if err != nil {
		t.Fatal(err)
	}
	work := plan.Work()
	if len(work) != 1 || work[0].Node != "wk1" || work[0].Strategy != Recreate || len(work[0].Refused) > 0 {
		t.Fatalf("%+v", work)
	}
	if diff := cmp.Diff([]DiskPlan{{Key: "scsi1", Serial: "data-wk1", Volid: "fast:vm-9002-disk-1", Size: "20G"}}, work[0].Carried); diff != "" {
		t.Error(diff)
	}
	if work[0].System.Key != "scsi0" || work[0].Digest != "dwk1" || work[0].OutageSeconds == 0 {
		t.Errorf("%+v", work[0])
	}
}

func TestPlanOrder(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		policy Policy
		open   string
		want   string
	}{
		"control planes first":      {Policy{}, "", "cp1 wk1 wk2"},
		"workers first":             {Policy{WorkersFirst: true}, "", "wk1 wk2 cp1"},
		"unfinished before all":     {Policy{}, "wk2", "wk2 cp1 wk1"},
		"only":                      {Policy{Only: []string{"wk2"}}, "", "wk2"},
		"exclude":                   {Policy{Exclude: []string{"cp1"}}, "", "wk1 wk2"},
		"unfinished cannot be left": {Policy{Only: []string{"wk1"}}, "wk2", "wk2 wk1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			wanted, o := world()
			for i := range o.Found {
				if o.Found[i].Name == tc.open {
					packed, err := Memory{}.Pack()
					if err != nil {
						t.Fatal(err)
					}
					o.Found[i].Parking = &Parking{VM: VM{ID: 9090}, Record: Record{Run: "r1", Open: true, Build: "b1", Memory: packed}}
				}
			}
			plan, err := NewPlan("c1", wanted, o, past, tc.policy)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, n := range plan.Nodes {
				got = append(got, n.Node)
			}
			if s := strings.Join(got, " "); s != tc.want {
				t.Errorf("order %q, want %q", s, tc.want)
			}
			if (plan.Run == "r1") != (tc.open != "") {
				t.Errorf("continues run %q", plan.Run)
			}
		})
	}
}

func TestPlanFailsOnAnUnknownNode(t *testing.T) {
	t.Parallel()
	wanted, o := world()
	_, err := NewPlan("c1", wanted, o, past, Policy{Only: []string{"wk9"}})
	if fault.KindOf(err) != fault.Config {
		t.Errorf("err = %v", err)
	}
}

func TestPlanNeedsEveryAnswer(t *testing.T) {
	t.Parallel()
	wanted, o := world()
	o.Found[2].Machine = nil
	if _, err := NewPlan("c1", wanted, o, past, Policy{}); err == nil {
		t.Error("a plan was made without the answer of wk2")
	}
	if _, err := NewPlan("c1", wanted, o, past, Policy{Exclude: []string{"wk2"}}); err != nil {
		t.Errorf("wk2 is left out, yet: %v", err)
	}
}
