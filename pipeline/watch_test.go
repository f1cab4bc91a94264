package pipeline

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
)

// listing is a datacentre that records which configurations are read.
type listing struct {
	cluster.Inventory
	vms  []cluster.VM
	read []cluster.VMID
	down error
}

func (l *listing) Listed(context.Context) ([]cluster.VM, error) {
	rows := slices.Clone(l.vms)
	for i := range rows {
		rows[i].Config = nil
	}
	return rows, nil
}

func (l *listing) VMs(context.Context) ([]cluster.VM, error) {
	for _, vm := range l.vms {
		l.read = append(l.read, vm.ID)
	}
	return slices.Clone(l.vms), nil
}

func (l *listing) VMConfig(_ context.Context, id cluster.VMID) (cluster.VM, error) {
	l.read = append(l.read, id)
	i := slices.IndexFunc(l.vms, func(vm cluster.VM) bool { return vm.ID == id })
	if i < 0 {
		return cluster.VM{}, cluster.ErrNotFound
	}
	return l.vms[i], l.down
}

// A watcher reads what changes, and what a run is about; it reads nothing else twice.
func TestWatched(t *testing.T) {
	t.Parallel()
	p, build := project(t)
	open := parking.Record{Cluster: "c1", Node: "wk1", Run: "r1", Build: build, VMID: 9031, UUID: "u-wk1", Open: true, Strategy: cluster.Recreate, Stage: parking.StageServes}
	px := &listing{vms: []cluster.VM{{ID: 100, Name: "other", Host: "pve1", Config: map[string]string{"cores": "1"}}, {ID: 9031, Name: "wk1", Host: "pve1", Running: true}}}
	w := p.Watched(px)
	look := func(what string, requests int, want ...cluster.VMID) {
		t.Helper()
		px.read = nil
		vms, err := w.VMs(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, px.read); diff != "" {
			t.Errorf("%s: read (-want +got):\n%s", what, diff)
		}
		if diff := cmp.Diff(px.vms, vms); diff != "" {
			t.Errorf("%s: VMs (-want +got):\n%s", what, diff)
		}
		if n := w.Requests(); n != requests {
			t.Errorf("%s: %d requests", what, n)
		}
	}
	look("first", 5, 100, 9031)
	look("nothing new", 1)
	px.vms = append(px.vms, cluster.VM{ID: 9089, Name: "recast-claim", Host: "pve1", Config: map[string]string{"description": claimText}}, parkingVM(t, open, nil))
	look("a run begins", 3, 9089, 9090)
	look("and goes on", 4, 9031, 9089, 9090)
	px.vms[0].Running = true
	look("another one starts", 5, 100, 9031, 9089, 9090)
	if claim, found, err := p.Claim(t.Context(), w); err != nil || !found || claim.Beat != 7 {
		t.Errorf("claim %+v, %t: %v", claim, found, err)
	}
	w.Requests()
	px.vms = px.vms[:1]
	look("it is over", 1)
	px.vms = append(px.vms, cluster.VM{ID: 9031, Name: "wk1", Host: "pve1"})
	px.down = errors.New("no route to host")
	look("one that can't be read", 6, 9031, 100, 9031)
	if _, found, err := p.Claim(t.Context(), w); found || err != nil {
		t.Errorf("a claim: %t, %v", found, err)
	}
}
