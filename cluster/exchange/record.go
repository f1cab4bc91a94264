package exchange

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/wait"
)

// openRecord is the open record of a run on the parking VM of a node.
type openRecord struct {
	px   cluster.Proxmox
	id   cluster.VMID // of the parking VM
	run  string
	node string
	late *Late // measures the record's requests
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
	park, err := r.vm(ctx)
	if err != nil {
		return err
	}
	return r.change(ctx, park, change)
}

// change is update for a parking VM that was just read: its digest proves that nothing has changed since. It also
// removes the requests that can't come any more.
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
func (r openRecord) awaitUnless(
	ctx context.Context, say func(string), so func(context.Context) (bool, error), which ...string,
) error {
	park, rec, err := r.read(ctx)
	if err != nil {
		return err
	}
	return r.late.awaitUnless(ctx, []parking.Parking{{VM: park, Record: rec}}, which, say, so)
}

// sending records a request, sends it, and removes it from the record once it is answered. within is how long
// Proxmox may take for the request. If an earlier request of the same kind is unanswered, the record stays: an
// answer to the new request proves nothing about the old one.
func (r openRecord) sending(
	ctx context.Context, what string, within time.Duration, send func(context.Context) error,
) error {
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

// WriteRecord replaces the record of the parking VM. Proxmox accepts a change if the digest is that of what was
// read, and the digest covers only the content (PVE/QemuServer.pm, parse_vm_config). So no two records of a VM may
// be equal. Otherwise, when another process has brought the VM back to the same content, a late write by a dead
// process could still match, and close the record in the middle of the other's work.
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

// giveUp notes in the record that the exchange is cancelled. From then on recast only puts the old system disk back.
func (r *Replace) giveUp(ctx context.Context) error {
	if r.Restore != nil {
		return fault.ParkedHalf.Refusedf("a rollback of VM %d is not given up: it is finished, and then rolled back", r.VM.ID)
	}
	return r.record().update(ctx, func(rec *parking.Record) { rec.PutBack = true })
}

// CloseRecord ends the exchange: its record is no longer open.
func (r *Replace) CloseRecord(ctx context.Context) error {
	return r.closed(r.record().update(ctx, (*parking.Record).Close))
}

// closed calls Forget after a change that has closed the record; err is the result of that change.
func (r *Replace) closed(err error) error {
	if err != nil || r.Forget == nil {
		return err
	}
	return r.Forget()
}

// LateQueue bounds how long Proxmox may take to begin a request. A request outlives its sender in the queues before a
// worker of pvedaemon. A proxy in front waits 60 s and then answers 504 (nginx, proxy_read_timeout); pveproxy waits 30
// s and then answers 596 (PVE/APIServer/AnyEvent.pm, proxy_request). pvedaemon has three workers, and each may be
// blocked by a lock for 10 s or by a hanging storage for a minute. After that the task itself waits up to 10 s for the
// VM's lock. Any wait that recast asks Proxmox for is added to this.
const LateQueue = 5 * time.Minute

const SentDelete = "delete"

const SentStart = "start"

// SwitchesOn lists the requests that would start a VM while its disks are moved.
var SwitchesOn = []string{SentStart, cluster.SentAddHA}

type lateKey struct {
	parking cluster.VMID
	what    string
}

// latePoll is the pause between two looks at the clock.
const latePoll = time.Second

// Late remembers since when this process has known of each unanswered request. It measures with
// this process's own clock, so no two clocks are compared. It is safe for concurrent use.
type Late struct {
	mu     sync.Mutex
	since  map[lateKey]time.Time
	looked bool // at every record of the cluster; since has all later requests
}

// restart notes that a request was just sent, or just failed to get an answer.
func (l *Late) restart(park cluster.VMID, what string) {
	l.mu.Lock()
	delete(l.since, lateKey{park, what})
	l.mu.Unlock()
	l.saw(park, parking.Sent{what: 0})
}

// answered forgets a request.
func (l *Late) answered(parking cluster.VMID, what string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.since, lateKey{parking, what})
}

// Await waits until none of these requests can come any more, and says why it waits.
func (l *Late) Await(ctx context.Context, parkings []parking.Parking, which []string, say func(string)) error {
	return l.awaitUnless(ctx, parkings, which, say, func(context.Context) (bool, error) { return false, nil })
}

// awaitUnless is Await that also ends once so returns true.
func (l *Late) awaitUnless(ctx context.Context, parkings []parking.Parking, which []string, say func(string), so func(context.Context) (bool, error)) error {
	w := wait.For{Name: "late requests", Every: latePoll, Seen: say}
	return wait.Until(ctx, w, func(ctx context.Context) (bool, string, error) {
		var waits []string
		for _, p := range parkings {
			for _, what := range which {
				if l.left(p.VM.ID, p.Record.Sent, []string{what}) > 0 {
					within := time.Duration(p.Record.Sent[what]) * time.Second
					waits = append(waits, fmt.Sprintf("%s: waiting until it can't any more, %s at most", p.LateOne(what), within))
				}
			}
		}
		if len(waits) == 0 {
			return true, "", nil
		}
		over, err := so(ctx)
		return over, strings.Join(waits, "; "), err
	})
}

// Forgetting extends a change of a record: it also removes requests that can't come any more.
func (l *Late) Forgetting(park cluster.VMID, change func(*parking.Record)) func(*parking.Record) {
	return func(rec *parking.Record) {
		change(rec)
		for what := range rec.Sent {
			if l.left(park, rec.Sent, []string{what}) <= 0 {
				rec.Sent = rec.Sent.Without(what)
			}
		}
	}
}

// left returns for how much longer any of these requests may come; 0: none can.
func (l *Late) left(parking cluster.VMID, s parking.Sent, which []string) (longest time.Duration) {
	if len(s) == 0 {
		return 0
	}
	l.saw(parking, s)
	l.mu.Lock()
	defer l.mu.Unlock()
	for what, seconds := range s {
		if slices.Contains(which, what) { // monotonic: setting the clock forward shortens nothing
			longest = max(longest, time.Duration(seconds)*time.Second-time.Since(l.since[lateKey{parking, what}]))
		}
	}
	return longest
}

// None reports that no record of the cluster has a request. After a look at every record this stays known, because
// the holder of the claim writes all later requests.
func (l *Late) None() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.looked && len(l.since) == 0
}

// saw notes that a record has these requests.
func (l *Late) saw(parking cluster.VMID, s parking.Sent) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.since == nil {
		l.since = map[lateKey]time.Time{}
	}
	for what := range s {
		if _, known := l.since[lateKey{parking, what}]; !known {
			l.since[lateKey{parking, what}] = time.Now()
		}
	}
}

// SawAll notes that every record of the cluster was read.
func (l *Late) SawAll(parkings []parking.Parking) {
	for _, p := range parkings {
		l.saw(p.VM.ID, p.Record.Sent)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.looked = true
}
