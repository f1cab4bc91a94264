package roll

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/clustertest"
	"github.com/recast-sh/recast/cluster/exchange"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/internal/sim/must"
)

// parkingPlace is a Proxmox that has some VMs and creates more.
type parkingPlace struct {
	cluster.Proxmox
	taken  []cluster.VMID
	late   map[cluster.VMID]string // records of parking VMs that an earlier request creates before we do
	ready  time.Time               // when a late one is created: until then it is locked
	killed bool                    // the task that creates it was killed
	looked int
}

func (p *parkingPlace) OwnTasksOf(context.Context, string, cluster.VMID) ([]string, error) {
	if p.killed || time.Now().After(p.ready) {
		return nil, nil
	}
	return []string{"qmcreate"}, nil
}

func (p *parkingPlace) VMConfig(_ context.Context, id cluster.VMID) (cluster.VM, error) {
	p.looked++
	if !slices.Contains(p.taken, id) {
		return cluster.VM{}, cluster.ErrNotFound
	}
	if time.Now().Before(p.ready) {
		return cluster.VM{ID: id, Host: "pve1", Lock: "create"}, nil
	}
	return cluster.VM{ID: id, Host: "pve1", Config: map[string]string{"description": p.late[id]}}, nil
}

func (p *parkingPlace) CreateVM(_ context.Context, _ string, id cluster.VMID, _ map[string]string) error {
	p.taken = append(p.taken, id)
	if p.late[id] != "" {
		return cluster.ErrExists
	}
	return nil
}

func (p *parkingPlace) SetConfig(_ context.Context, vm cluster.VM, set map[string]string, _ []string) error {
	p.late[vm.ID] = set["description"]
	return nil
}

// TestNumbersOfParkingVMs: a VMID that was taken for one parking VM is not tried again for the
// next, unless no other is left.
func TestNumbersOfParkingVMs(t *testing.T) {
	t.Parallel()
	px := &parkingPlace{taken: []cluster.VMID{9001, 9003}}
	ids := []cluster.VMID{9001, 9002, 9003, 9004, 9005}
	var numbers parking.Numbers
	for i, c := range []struct {
		freed, want cluster.VMID
		looks       int
	}{{0, 9002, 2}, {0, 9004, 2}, {0, 9005, 1}, {9003, 9003, 2}} {
		px.taken = slices.DeleteFunc(px.taken, func(id cluster.VMID) bool { return id == c.freed })
		px.looked = 0
		got, err := exchange.CreateParking(t.Context(), px, cluster.VM{Host: "pve1"}, parking.Record{Node: fmt.Sprint("wk", i)}, ids, &numbers, noted)
		if err != nil || got != c.want || px.looked != c.looks {
			t.Errorf("took %d after %d looks, want %d after %d: %v", got, px.looked, c.want, c.looks, err)
		}
	}
	if id, err := exchange.CreateParking(t.Context(), px, cluster.VM{Host: "pve1"}, parking.Record{}, ids, &numbers, noted); err == nil {
		t.Errorf("took %d", id)
	}
}

func noted(cluster.VMID) error { return nil }

// TestLateParkingVMs: an earlier request may create a parking VM late, just when another node is
// about to use its VMID. The VM stays with its own node.
func TestLateParkingVMs(t *testing.T) {
	t.Parallel()
	record := func(node string) parking.Record {
		return parking.Record{Cluster: "lab", Node: node, Run: "r2", Build: "b", VMID: 9032, UUID: "u", Open: true, Strategy: cluster.Recreate, Stage: parking.StageServes}
	}
	text := must.Get(record("wk2").Description())(t)
	px := &parkingPlace{late: map[cluster.VMID]string{9001: text}}
	var numbers parking.Numbers
	for _, c := range []struct {
		node string
		want cluster.VMID
	}{{"wk1", 9002}, {"wk2", 9001}, {"wk3", 9003}} {
		got, err := exchange.CreateParking(t.Context(), px, cluster.VM{Host: "pve1"}, record(c.node), []cluster.VMID{9001, 9002, 9003}, &numbers, noted)
		must.Pass(t, err)
		must.Equal(t, c.node+" took", c.want, got)
	}
	must.Contain(t, "the record", px.late[9001], `"node":"wk2"`)
}

// TestSlowParkingVM: while the task that creates it runs, we wait, so that the node does not get a
// second one. If the task was killed, we wait only briefly.
func TestSlowParkingVM(t *testing.T) {
	t.Parallel()
	rec := parking.Record{Cluster: "lab", Node: "wk1", Run: "r2", Build: "b", VMID: 9031, UUID: "u", Open: true, Strategy: cluster.Recreate, Stage: parking.StageServes}
	text := must.Get(rec.Description())(t)
	for name, c := range map[string]struct {
		killed bool
		want   cluster.VMID
		after  time.Duration
	}{
		"it runs":       {false, 9001, 3*time.Minute + time.Second},
		"it was killed": {true, 9002, 31 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begun := time.Now()
				px := &parkingPlace{taken: []cluster.VMID{9001}, late: map[cluster.VMID]string{9001: text}, ready: begun.Add(3 * time.Minute), killed: c.killed}
				var numbers parking.Numbers
				got, err := exchange.CreateParking(t.Context(), px, cluster.VM{Host: "pve1"}, rec, []cluster.VMID{9001, 9002}, &numbers, noted)
				if err != nil || got != c.want || time.Since(begun) > c.after {
					t.Errorf("took %d after %s, want %d within %s: %v", got, time.Since(begun), c.want, c.after, err)
				}
			})
		})
	}
}

// TestTouchedBy: tasks of an earlier run concern only VMs of its own cluster.
func TestTouchedBy(t *testing.T) {
	t.Parallel()
	held := clustertest.Edited(clustertest.Park(9901, "pve1", "wk2"), func(p *parking.Parking) {
		p.Record.VMID, p.Record.Disks = 102, []parking.ParkedDisk{{Key: "scsi1", Holder: 200}}
	})
	theirs := clustertest.Edited(clustertest.Park(7901, "pve1", "wk1"), func(p *parking.Parking) { p.Record.Cluster, p.Record.VMID = "another", 301 })
	vms := []cluster.VM{{ID: 101, Name: "wk1"}, {ID: 301, Name: "their-wk1"}}
	for _, p := range []parking.Parking{held, theirs} {
		text := must.Get(p.Record.Description())(t)
		vms = append(vms, cluster.VM{ID: p.VM.ID, Config: map[string]string{"description": text}})
	}
	of := must.Get(exchange.TouchedBy(vms, held.Record.Cluster, []cluster.Wanted{{Name: "wk1"}, {Name: "wk3", VMID: 103, Holder: 201}}, func(id cluster.VMID) bool { return id == 9000 }))(t)
	var got []cluster.VMID
	for _, id := range []cluster.VMID{101, 102, 103, 200, 201, 301, 7901, 9000, 9001, 9901} {
		if of(id) {
			got = append(got, id)
		}
	}
	must.Equal(t, "VMs", []cluster.VMID{101, 102, 103, 200, 201, 9000, 9901}, got)
}
