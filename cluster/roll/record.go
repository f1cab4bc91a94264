package roll

import (
	"context"
	"errors"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/exchange"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/internal/fault"
)

// known is replace as it was read last, if it was: which disks go where is
// written once, when the record is opened.
func (n *record) known(ctx context.Context) (*exchange.Replace, error) {
	if n.opened == nil {
		return n.read(ctx)
	}
	return n.opened.Copy(), nil
}

func (n *record) of(mem parking.Memory, rec parking.Record, park cluster.VMID) *exchange.Replace {
	r := exchange.Of(n.Proxmox, mem, rec, park)
	r.ISO, r.SystemGiB, r.AloneAtStart, r.Asks = n.ISOVolume, n.Want.SystemGiB, true, n.gate.Losses.RequireOff
	if b := n.Want.Build; b.ID == rec.Build {
		r.Made = parking.KeptDisk{Build: b.LockHash, Talos: b.TalosVersion}
	}
	r.Late, r.Say, r.Pods = &n.Late, n.Tell, n.Kube.PodVolumes
	return r
}

// open makes the parking VM, or uses the one of an earlier roll, and
// writes the open record into it. From here on the replacement is unfinished.
func (n *record) open(ctx context.Context, mem parking.Memory) error {
	var earlier *parking.Parking
	park, err := n.Parking(ctx)
	switch {
	case err == nil:
		n.Late.Forgetting(park.VM.ID, func(*parking.Record) {})(&park.Record)
		earlier = &park
	case !errors.Is(err, cluster.ErrNotFound):
		return err
	}
	_, _, err = exchange.OpenParking(ctx, n.Proxmox, n.opening(), mem, earlier, n.roller.ParkingIDs, &n.roller.parkingNumbers, func(id cluster.VMID) error {
		// Known before it exists: a crash in between must not lose track of it.
		return fault.Prefix("journal", n.Journal.Put(n.Key("parking"), id))
	})
	return err
}

// opening is the record of this node's replacement as far as it is known before
// anything of it is done.
func (n *record) opening() parking.Record {
	return parking.Record{
		Cluster: n.Cluster, Node: n.Plan.Node, Run: n.Run, VMIDs: n.roller.VMIDs.String(), Build: n.Plan.Build(), Strategy: n.Plan.Strategy,
		Addr: n.Plan.Addr, Restore: n.Plan.Restore, Nth: parking.NextNth(n.Plan.Found.Parkings()),
	}
}

// read gathers what was remembered into the exchange of this node's VM.
func (n *record) read(ctx context.Context) (*exchange.Replace, error) {
	if n.drawn != nil {
		return n.drawn.Copy(), nil
	}
	park, err := n.Parking(ctx)
	if err != nil {
		return nil, err
	}
	return n.with(ctx, park)
}

func (n *record) source() exchange.Source { return exchange.Source{Read: n.read, Known: n.known} }

// with is replace, with the parking VM as it was read.
func (n *record) with(ctx context.Context, park parking.Parking) (*exchange.Replace, error) {
	mem, err := n.Memory(ctx)
	if err != nil {
		return nil, err
	}
	if !park.Record.Open || park.Record.Run != n.Run {
		return nil, fault.ParkedHalf.Refusedf("%s no longer has an open record of run %s: another run was here", park.VM, n.Run)
	}
	n.opened = n.of(mem, park.Record, park.VM.ID)
	return n.opened.Copy(), nil
}

// sending is that of the node's open record.
func (n *record) sending(ctx context.Context, what string, within time.Duration, send func(context.Context) error) error {
	r, err := n.read(ctx)
	if err != nil {
		return err
	}
	return r.Sending(ctx, what, within, send)
}

// requireAlone refuses to start a VM with a disk that another one could write to.
func (n *record) requireAlone(ctx context.Context, vm cluster.VM) error {
	disks, err := vm.Disks()
	if err != nil {
		return err
	}
	problems, err := exchange.SharedDisks(ctx, n.Proxmox, vm, disks)
	return errors.Join(append(problems, err)...)
}

// noteStage writes down how far the system on the new disk may come from here on.
// A record of an older recast tells nothing of it, and goes on to tell nothing.
func (n *record) noteStage(ctx context.Context, s parking.Stage) error {
	if n.Plan.Strategy != cluster.Recreate && n.Plan.Strategy != cluster.Reimage {
		return nil
	}
	park, err := n.Parking(ctx)
	if err != nil || !park.Record.Open || park.Record.Stage == "" || park.Record.Stage == s {
		return err
	}
	return n.UpdateRecord(ctx, func(rec *parking.Record) { rec.Stage = s })
}

// record is the record on the parking VM, and the exchange that it describes. Which disks go where
// is written once, when the record is opened, so what was read then stays true.
type record struct {
	*node
	drawn  *exchange.Replace // set where the steps are only listed; nil: the record is read
	opened *exchange.Replace // as the record was read last; nil: not yet
}
