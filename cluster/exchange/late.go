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

// LateQueue bounds how long Proxmox may take to begin what it was asked for. A
// request outlives its sender in the queues before a worker of pvedaemon: a proxy
// in front passes it on for 60 s and then says 504 (nginx, proxy_read_timeout),
// pveproxy for 30 s and then says 596 (PVE/APIServer/AnyEvent.pm, proxy_request),
// and pvedaemon has three workers, each of which may be held up by a lock for 10 s
// or by a storage that hangs for a minute. After that the task itself waits up to
// 10 s for the VM's lock. What recast told Proxmox to wait for comes on top.
const LateQueue = 5 * time.Minute

// awaitDelete waits until an earlier delete of the VM, which has no answer, is
// carried out or can't come any more: after a second one the number would be free
// for another VM, and the first one would take that.
func (r Deletion) awaitDelete(ctx context.Context) error {
	park, rec, err := r.Spare.parkingNow(ctx)
	if err != nil {
		return err
	}
	return r.Late.awaitUnless(ctx, []parking.Parking{{VM: park, Record: rec}}, []string{SentDelete}, r.saying("delete-vm"), func(ctx context.Context) (bool, error) {
		_, found, err := r.Current(ctx)
		return !found, err
	})
}

// awaitLate waits until none of these requests of the exchange can come any more.
func (r *Replace) awaitLate(ctx context.Context, id string, which ...string) error {
	park, rec, err := r.Spare.parkingNow(ctx)
	if err != nil {
		return err
	}
	return r.Late.Await(ctx, []parking.Parking{{VM: park, Record: rec}}, which, r.saying(id))
}

// saying tells what happens in a step of the exchange.
func (r *Replace) saying(id string) func(string) {
	branch := "bring-up/"
	switch {
	case r.Strategy == cluster.PutBack:
		branch = "put-back/"
	case id == "delete-vm" || id == rememberStep || strings.HasPrefix(id, parkStep):
		branch = "take-down/"
	}
	return func(text string) {
		if r.Say != nil {
			r.Say(branch+id, text)
		}
	}
}

// Sending writes into the record what is about to be sent, sends it, and takes it
// out again once it is answered. within is how long Proxmox may take for it. Where
// an earlier one of its kind has no answer, this one's is not the proof of that.
func (r *Replace) Sending(ctx context.Context, what string, within time.Duration, send func(context.Context) error) error {
	rec, err := r.record(ctx)
	if err != nil {
		return err
	}
	earlier := r.Late.left(r.Parking, rec.Sent, []string{what}) > 0
	if !earlier {
		r.Late.anew(r.Parking, what)
	}
	if now := rec.Sent.With(what, within); !maps.Equal(now, rec.Sent) {
		if err := r.updateRecord(ctx, func(rec *parking.Record) { rec.Sent = rec.Sent.With(what, within) }); err != nil {
			return err
		}
	}
	sendCtx, unanswered := cluster.WithUnanswered(ctx)
	err = send(sendCtx)
	switch {
	case fault.KindOf(err) == fault.Claimed: // the record is another run's
		return err
	case unanswered() || ctx.Err() != nil || errors.Is(err, cluster.ErrLostAnswer) || errors.Is(err, context.DeadlineExceeded):
		r.Late.anew(r.Parking, what)
		return err
	case earlier:
		return err
	}
	r.Late.answered(r.Parking, what)
	return errors.Join(err, r.updateRecord(ctx, func(rec *parking.Record) { rec.Sent = rec.Sent.Without(what) }))
}

type lateKey struct {
	parking cluster.VMID
	what    string
}

// latePoll is the pause between two looks at the clock.
const latePoll = time.Second

// Late remembers since when this process has known of each request that
// has no answer. The time is its own, as far as that has run: no two clocks are
// compared. It is safe for concurrent use.
type Late struct {
	mu     sync.Mutex
	since  map[lateKey]time.Time
	looked bool // at every record of the cluster; all that came since is in since
}

// anew notes that one of them has been sent, or was not answered, just now.
func (l *Late) anew(park cluster.VMID, what string) {
	l.mu.Lock()
	delete(l.since, lateKey{park, what})
	l.mu.Unlock()
	l.saw(park, parking.Sent{what: 0})
}

// answered forgets one of them.
func (l *Late) answered(parking cluster.VMID, what string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.since, lateKey{parking, what})
}

// Await waits until none of these requests can come any more, saying why it waits.
func (l *Late) Await(ctx context.Context, parkings []parking.Parking, which []string, say func(string)) error {
	return l.awaitUnless(ctx, parkings, which, say, func(context.Context) (bool, error) { return false, nil })
}

// awaitUnless is await that ends, too, once something is so.
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

// Forgetting adds to a change of a record that what can't come any more leaves it.
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

// left is for how much longer any of these may come; 0: none does.
func (l *Late) left(parking cluster.VMID, s parking.Sent, which []string) (longest time.Duration) {
	if len(s) == 0 {
		return 0
	}
	l.saw(parking, s)
	l.mu.Lock()
	defer l.mu.Unlock()
	for what, seconds := range s {
		if slices.Contains(which, what) { // monotonic: a clock that is set forward shortens nothing
			longest = max(longest, time.Duration(seconds)*time.Second-time.Since(l.since[lateKey{parking, what}]))
		}
	}
	return longest
}

// None says that no record of the cluster has any: whoever holds the claim writes
// all that come after a look at every record.
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

// SawAll notes that every record of the cluster was looked at.
func (l *Late) SawAll(parkings []parking.Parking) {
	for _, p := range parkings {
		l.saw(p.VM.ID, p.Record.Sent)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.looked = true
}

// parkStep begins the ID of a step that parks a disk.
const parkStep = "park/"

const SentDelete = "delete"

const SentStart = "start"

var // switchesOn are those that would have a VM run while its disks are moved.
SwitchesOn = []string{SentStart, cluster.SentAddHA}
