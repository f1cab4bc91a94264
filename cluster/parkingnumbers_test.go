package cluster

import (
	"context"
	"slices"
	"testing"
)

// parkingPlace has some VMs and makes others.
type parkingPlace struct {
	Proxmox
	taken  []VMID
	looked int
}

func (p *parkingPlace) VMConfig(_ context.Context, id VMID) (VM, error) {
	p.looked++
	if !slices.Contains(p.taken, id) {
		return VM{}, ErrNotFound
	}
	return VM{ID: id}, nil
}

func (p *parkingPlace) CreateVM(_ context.Context, _ string, id VMID, _ map[string]string) error {
	p.taken = append(p.taken, id)
	return nil
}

// TestNumbersOfParkingVMs: what was taken when one parking VM was made is not
// looked at again for the next, unless nothing else is left.
func TestNumbersOfParkingVMs(t *testing.T) {
	t.Parallel()
	px := &parkingPlace{taken: []VMID{9001, 9003}}
	ids := []VMID{9001, 9002, 9003, 9004, 9005}
	var numbers freeNumbers
	for _, c := range []struct {
		freed, want VMID
		looks       int
	}{{0, 9002, 2}, {0, 9004, 3}, {0, 9005, 2}, {9003, 9003, 4}} {
		px.taken = slices.DeleteFunc(px.taken, func(id VMID) bool { return id == c.freed })
		px.looked = 0
		got, err := createParking(t.Context(), px, VM{Host: "pve1"}, Record{Node: "wk1"}, numbers.inOrder(ids), func(id VMID) error {
			numbers.next(id)
			return nil
		})
		if err != nil || got != c.want || px.looked != c.looks {
			t.Errorf("took %d after %d looks, want %d after %d: %v", got, px.looked, c.want, c.looks, err)
		}
	}
	if id, err := createParking(t.Context(), px, VM{Host: "pve1"}, Record{}, numbers.inOrder(ids), func(VMID) error { return nil }); err == nil {
		t.Errorf("took %d", id)
	}
}
