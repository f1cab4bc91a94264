package roll

import (
	"context"
	"errors"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/exchange"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/rolling"
	"github.com/recast-sh/recast/internal/fault"
)

// record is the record on the parking VM, and the exchange that it describes. Where each disk goes
// is written once, when the record is opened, so an earlier read of that stays valid.
type record struct {
	*rolling.Node
	roller *Roller
	asks   func(context.Context) error // refuses a system disk that may not leave the node
	forget func() error                // called once the record is closed

	drawn  *exchange.Replace // set if the steps are only listed; nil: the record is read
	opened *exchange.Replace // the exchange as last read from the record; nil: not yet
}

// known returns the exchange as last read, or reads it. Where each disk goes is written once, when the record is
// opened.
func (n *record) known(ctx context.Context) (*exchange.Replace, error) {
	if n.opened == nil {
		return n.read(ctx)
	}
	return new(*n.opened), nil
}

func (n *record) of(mem parking.Memory, rec parking.Record, park cluster.VMID) *exchange.Replace {
	r := exchange.Of(n.Proxmox, mem, rec, park)
	r.ISO, r.SystemGiB, r.Asks = n.Published().ISO, n.Want.SystemGiB, n.asks
	r.Shape, r.Image, r.DiskBytes = n.Want.Shape, n.Published().Disk, n.Want.Build.DiskBytes
	if b := n.Want.Build; b.ID == rec.Build {
		r.Made = parking.KeptDisk{Build: b.LockHash, Talos: b.TalosVersion}
	}
	r.Late, r.Say, r.Pods = &n.Late, n.Tell, n.Kube.PodVolumes
	r.Frees, r.Forget = n.Plan.Frees, n.forget
	return r
}

// open creates the parking VM, or uses the one of an earlier roll, and writes the open record to
// it. From here on the replacement is unfinished.
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
		// Noted before the VM exists, so that a crash in between does not orphan it.
		return fault.Prefix("journal", n.Journal.Put(n.Key("parking"), id))
	})
	return err
}

// opening returns the record of this node's replacement with what is known before it begins.
func (n *record) opening() parking.Record {
	return parking.Record{
		Cluster: n.Cluster, Node: n.Plan.Node, Run: n.Run, VMIDs: n.roller.VMIDs.String(), Build: n.Plan.Build(), Strategy: n.Plan.Strategy,
		Rebuild: n.Plan.Rebuild, Addr: n.Plan.Addr, Restore: n.Plan.Restore, Prepared: n.Plan.Prepared, Nth: parking.NextNth(n.Plan.Found.Parkings()), New: n.Plan.Found.MadeNew(),
	}
}

// read builds the exchange of this node's VM from the memory and the record.
func (n *record) read(ctx context.Context) (*exchange.Replace, error) {
	if n.drawn != nil {
		return new(*n.drawn), nil
	}
	park, err := n.Parking(ctx)
	if err != nil {
		return nil, err
	}
	return n.with(ctx, park)
}

func (n *record) source() exchange.Source {
	return exchange.Source{Node: n.Plan.Node, Strategy: n.Plan.Strategy, Prepared: n.Plan.Prepared != "", Read: n.read, Known: n.known}
}

// with is read for a parking VM that was already read.
func (n *record) with(ctx context.Context, park parking.Parking) (*exchange.Replace, error) {
	mem, err := n.Memory(ctx)
	if err != nil {
		return nil, err
	}
	if !park.Record.Open || park.Record.Run != n.Run {
		return nil, fault.ParkedHalf.Refusedf("%s no longer has an open record of run %s: another run was here", park.VM, n.Run)
	}
	n.opened = n.of(mem, park.Record, park.VM.ID)
	return new(*n.opened), nil
}

// sending calls Sending on the node's exchange.
func (n *record) sending(ctx context.Context, what string, within time.Duration, send func(context.Context) error) error {
	r, err := n.read(ctx)
	if err != nil {
		return err
	}
	return r.Sending(ctx, what, within, send)
}

// noteStage records how far the system on the new disk may get from here on.
func (n *record) noteStage(ctx context.Context, s parking.Stage) error {
	if !n.Plan.Strategy.Replaces() {
		return nil
	}
	park, err := n.Parking(ctx)
	if err != nil || !park.Record.Open || park.Record.Stage == s {
		return err
	}
	return n.UpdateRecord(ctx, func(rec *parking.Record) { rec.Stage = s })
}
