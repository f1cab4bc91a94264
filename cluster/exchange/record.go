package exchange

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/internal/fault"
)

// openRecord is the open record of a run on the parking VM of a node.
type openRecord struct {
	px   cluster.Proxmox
	id   cluster.VMID // of the parking VM
	run  string
	node string
	late *Late // what the record's requests are measured with
}

func newOpenRecord(px cluster.Proxmox, id cluster.VMID, run, node string, late *Late) openRecord {
	return openRecord{px: px, id: id, run: run, node: node, late: late}
}

// vm reads the parking VM.
func (r openRecord) vm(ctx context.Context) (cluster.VM, error) {
	park, err := ConfigOf(ctx, r.px, r.id)
	return park, fault.Prefix(fmt.Sprintf("look up parking VM %d", r.id), err)
}

// read reads the parking VM and its record again.
func (r openRecord) read(ctx context.Context) (cluster.VM, parking.Record, error) {
	park, err := r.vm(ctx)
	if err != nil {
		return park, parking.Record{}, err
	}
	rec, ok, err := parking.ReadRecord(park)
	if err == nil && !ok {
		err = parking.DescriptionChanged(park, r.node)
	}
	return park, rec, err
}

// update changes the record.
func (r openRecord) update(ctx context.Context, change func(*parking.Record)) error {
	park, err := r.px.VMConfig(ctx, r.id)
	if err != nil {
		return fmt.Errorf("look up parking VM %d: %w", r.id, err)
	}
	return r.change(ctx, park, change)
}

// change is update for a parking VM that was just read: its digest proves that nothing was changed
// since. It also removes the requests that can't come any more.
func (r openRecord) change(ctx context.Context, park cluster.VM, change func(*parking.Record)) error {
	return ChangeRecord(ctx, r.px, park, r.run, r.late.Forgetting(park.ID, change))
}

// mayCome reports whether any of these requests, of the record as read, may still come.
func (r openRecord) mayCome(rec parking.Record, which ...string) bool {
	return r.late.left(r.id, rec.Sent, which) > 0
}

// await waits until none of these requests can come any more, and says why it waits.
func (r openRecord) await(ctx context.Context, say func(string), which ...string) error {
	return r.awaitUnless(ctx, say, func(context.Context) (bool, error) { return false, nil }, which...)
}

// awaitUnless is await that also ends once so returns true.
func (r openRecord) awaitUnless(ctx context.Context, say func(string), so func(context.Context) (bool, error), which ...string) error {
	park, rec, err := r.read(ctx)
	if err != nil {
		return err
	}
	return r.late.awaitUnless(ctx, []parking.Parking{{VM: park, Record: rec}}, which, say, so)
}

// sending records a request, sends it, and removes it from the record once it is answered. within
// is how long Proxmox may take for it. If an earlier request of its kind is unanswered, the record
// stays: the answer to this one proves nothing about that one.
func (r openRecord) sending(ctx context.Context, what string, within time.Duration, send func(context.Context) error) error {
	park, rec, err := r.read(ctx)
	if err != nil {
		return err
	}
	earlier := r.mayCome(rec, what)
	if !earlier {
		r.late.restart(r.id, what)
	}
	if now := rec.Sent.With(what, within); !maps.Equal(now, rec.Sent) {
		if err := r.change(ctx, park, func(rec *parking.Record) { rec.Sent = rec.Sent.With(what, within) }); err != nil {
			return err
		}
	}
	sendCtx, unanswered := cluster.WithUnanswered(ctx)
	err = send(sendCtx)
	switch {
	case fault.KindOf(err) == fault.Claimed: // the record belongs to another run
		return err
	case unanswered() || ctx.Err() != nil || errors.Is(err, cluster.ErrLostAnswer) || errors.Is(err, context.DeadlineExceeded):
		r.late.restart(r.id, what)
		return err
	case earlier:
		return err
	}
	r.late.answered(r.id, what)
	return errors.Join(err, r.update(ctx, func(rec *parking.Record) { rec.Sent = rec.Sent.Without(what) }))
}

// ChangeRecord changes the open record of a run on its parking VM.
func ChangeRecord(ctx context.Context, px cluster.Editor, park cluster.VM, run string, change func(*parking.Record)) error {
	rec, ok, err := parking.ReadRecord(park)
	switch {
	case err != nil:
		return err
	case !ok:
		return parking.DescriptionChanged(park, "a node")
	case !rec.Open || rec.Run != run:
		return fault.ParkedHalf.Refusedf("%s no longer has an open record of run %s: another run was here", park, run)
	}
	change(&rec)
	return WriteRecord(ctx, px, park, rec)
}

// WriteRecord replaces the record of the parking VM. Proxmox accepts a change if the digest is that
// of what was read, and the digest covers only the content (PVE/QemuServer.pm, parse_vm_config). So
// no two records of a VM may be equal. Otherwise a late write by a dead process could still match
// when another process has brought the VM back to the same content, and close the record in the
// middle of its work.
func WriteRecord(ctx context.Context, px cluster.Editor, park cluster.VM, rec parking.Record) error {
	was, _, err := parking.ReadRecord(park)
	if err != nil {
		return err
	}
	rec.Parking, rec.Written = park.ID, was.Written+1
	description, err := rec.Description()
	if err != nil {
		return err
	}
	if err := px.SetConfig(ctx, park, map[string]string{"description": description, "protection": "1"}, nil); err != nil {
		return fmt.Errorf("write the record into %s: %w", park, err)
	}
	return nil
}
