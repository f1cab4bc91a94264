package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

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

// Sent are the requests without a digest that were sent and that have no answer:
// Proxmox may carry them out late, whoever has sent them, and whatever VM has the
// number then. The value is for how many seconds after anybody has seen them here
// that can happen. A request is written down before it is sent; its answer
// takes it out again, and nothing else but that time does: a VM that is off, or
// runs anew, may be so for another reason, and would still be hit. docs/notes/proxmox.md
// says of every request what a late one could do.
type Sent map[string]int

// What is sent without a digest.
const (
	sentShutdown = "shutdown"
	sentStop     = "stop"
	sentStart    = "start"
	sentDelete   = "delete"
	sentRemoveHA = "remove-ha"
	sentAddHA    = "add-ha"
	sentFirewall = "firewall"
)

var (
	// takesDown are those that switch a node off.
	takesDown = []string{sentShutdown, sentStop}
	// switchesOn are those that would have a VM run while its disks are moved.
	switchesOn = []string{sentStart, sentAddHA}
)

// with is s with one more request.
func (s Sent) with(what string, within time.Duration) Sent {
	out := Sent{}
	maps.Copy(out, s)
	out[what] = max(out[what], int((within+time.Second-1)/time.Second))
	return out
}

// without is s without a request; nil if there is no other.
func (s Sent) without(what string) Sent {
	out := maps.Clone(s)
	delete(out, what)
	if len(out) == 0 {
		return nil
	}
	return out
}

// Unanswered says of each request of a record that has no answer what may come
// of it, and for how long that is waited for.
func (p Parking) Unanswered() []string {
	var out []string
	for _, what := range slices.Sorted(maps.Keys(p.Record.Sent)) {
		within := time.Duration(p.Record.Sent[what]) * time.Second
		out = append(out, fmt.Sprintf("%s: %s, %s", p.Record.Node, p.lateOne(what), p.Record.guards(what, within)))
	}
	return out
}

// lateOne names a request.
func (p Parking) lateOne(what string) string {
	words := map[string]string{sentRemoveHA: "removal from Proxmox HA", sentAddHA: "return to Proxmox HA", sentFirewall: "change of the firewall"}
	if words[what] == "" {
		words[what] = what
	}
	return fmt.Sprintf("Proxmox has not yet answered the %s of VM %d that run %s sent, and may still carry it out", words[what], p.Record.VMID, p.Record.Run)
}

// guards says what waits for a request.
func (r Record) guards(what string, within time.Duration) string {
	switch {
	case slices.Contains(takesDown, what) && !r.ControlPlane:
		return "which would leave one node more away than roll.maxUnavailable allows; nothing waits for it"
	case slices.Contains(takesDown, what):
		return fmt.Sprintf("so recast waits up to %s before it takes another control plane out", within)
	case what == sentFirewall:
		return fmt.Sprintf("so recast waits up to %s before it writes that firewall again", within)
	case what == sentRemoveHA:
		return fmt.Sprintf("so recast waits up to %s before it puts the VM back under Proxmox HA", within)
	}
	return fmt.Sprintf("so recast waits up to %s before it moves disks of that VM", within)
}

type unansweredKey struct{}

// WithUnanswered gives a context for one call of an adapter that changes something,
// and a function that says afterwards whether it has sent a request which may still
// be carried out, with whatever result it has returned (as net/http/httptrace does).
func WithUnanswered(ctx context.Context) (context.Context, func() bool) {
	var noted atomic.Bool
	return context.WithValue(ctx, unansweredKey{}, &noted), noted.Load
}

// NoteUnanswered is called by an adapter that has sent such a request.
func NoteUnanswered(ctx context.Context) {
	if noted, is := ctx.Value(unansweredKey{}).(*atomic.Bool); is {
		noted.Store(true)
	}
}

// lateRequests remembers since when this process has known of each request that
// has no answer. The time is its own, as far as that has run: no two clocks are
// compared. It is safe for concurrent use.
type lateRequests struct {
	mu     sync.Mutex
	since  map[lateKey]time.Time
	looked bool // at every record of the cluster; all that came since is in since
}

type lateKey struct {
	parking VMID
	what    string
}

// saw notes that a record has these requests.
func (l *lateRequests) saw(parking VMID, s Sent) {
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

// anew notes that one of them has been sent, or was not answered, just now.
func (l *lateRequests) anew(parking VMID, what string) {
	l.mu.Lock()
	delete(l.since, lateKey{parking, what})
	l.mu.Unlock()
	l.saw(parking, Sent{what: 0})
}

// answered forgets one of them.
func (l *lateRequests) answered(parking VMID, what string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.since, lateKey{parking, what})
}

// none says that no record of the cluster has any: whoever holds the claim writes
// all that come after a look at every record.
func (l *lateRequests) none() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.looked && len(l.since) == 0
}

// sawAll notes that every record of the cluster was looked at.
func (l *lateRequests) sawAll(parkings []Parking) {
	for _, p := range parkings {
		l.saw(p.VM.ID, p.Record.Sent)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.looked = true
}

// left is for how much longer any of these may come; 0: none does.
func (l *lateRequests) left(parking VMID, s Sent, which []string) (longest time.Duration) {
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

// forgetting adds to a change of a record that what can't come any more leaves it.
func (l *lateRequests) forgetting(parking VMID, change func(*Record)) func(*Record) {
	return func(rec *Record) {
		change(rec)
		for what := range rec.Sent {
			if l.left(parking, rec.Sent, []string{what}) <= 0 {
				rec.Sent = rec.Sent.without(what)
			}
		}
	}
}

// sending writes into the record what is about to be sent, sends it, and takes it
// out again once it is answered. within is how long Proxmox may take for it. Where
// an earlier one of its kind has no answer, this one's is not the proof of that.
func (r *Replace) sending(ctx context.Context, what string, within time.Duration, send func(context.Context) error) error {
	rec, err := r.record(ctx)
	if err != nil {
		return err
	}
	earlier := r.late.left(r.Parking, rec.Sent, []string{what}) > 0
	if !earlier {
		r.late.anew(r.Parking, what)
	}
	if now := rec.Sent.with(what, within); !maps.Equal(now, rec.Sent) {
		if err := r.updateRecord(ctx, func(rec *Record) { rec.Sent = rec.Sent.with(what, within) }); err != nil {
			return err
		}
	}
	sendCtx, unanswered := WithUnanswered(ctx)
	err = send(sendCtx)
	switch {
	case fault.KindOf(err) == fault.Claimed: // the record is another run's
		return err
	case unanswered() || ctx.Err() != nil || errors.Is(err, ErrLostAnswer) || errors.Is(err, context.DeadlineExceeded):
		r.late.anew(r.Parking, what)
		return err
	case earlier:
		return err
	}
	r.late.answered(r.Parking, what)
	return errors.Join(err, r.updateRecord(ctx, func(rec *Record) { rec.Sent = rec.Sent.without(what) }))
}

// sending is that of the node's open record.
func (n *nodeRoll) sending(ctx context.Context, what string, within time.Duration, send func(context.Context) error) error {
	r, err := n.replace(ctx)
	if err != nil {
		return err
	}
	return r.sending(ctx, what, within, send)
}

// awaitLate waits until none of these requests of the exchange can come any more.
func (r *Replace) awaitLate(ctx context.Context, id string, which ...string) error {
	park, rec, err := r.parkingNow(ctx)
	if err != nil {
		return err
	}
	return r.late.await(ctx, []Parking{{VM: park, Record: rec}}, which, r.saying(id))
}

// awaitDelete waits until an earlier delete of the VM, which has no answer, is
// carried out or can't come any more: after a second one the number would be free
// for another VM, and the first one would take that.
func (r *Replace) awaitDelete(ctx context.Context) error {
	park, rec, err := r.parkingNow(ctx)
	if err != nil {
		return err
	}
	return r.late.awaitUnless(ctx, []Parking{{VM: park, Record: rec}}, []string{sentDelete}, r.saying("delete-vm"), func(ctx context.Context) (bool, error) {
		_, found, err := r.current(ctx)
		return !found, err
	})
}

// parkStep begins the ID of a step that parks a disk.
const parkStep = "park/"

// saying tells what happens in a step of the exchange.
func (r *Replace) saying(id string) func(string) {
	branch := "bring-up/"
	switch {
	case r.Strategy == PutBack:
		branch = "put-back/"
	case id == "delete-vm" || id == rememberStep || strings.HasPrefix(id, parkStep):
		branch = "take-down/"
	}
	return func(text string) {
		if r.say != nil {
			r.say(branch+id, text)
		}
	}
}

// latePoll is the pause between two looks at the clock.
const latePoll = time.Second

// await waits until none of these requests can come any more, saying why it waits.
func (l *lateRequests) await(ctx context.Context, parkings []Parking, which []string, say func(string)) error {
	return l.awaitUnless(ctx, parkings, which, say, func(context.Context) (bool, error) { return false, nil })
}

// awaitUnless is await that ends, too, once something is so.
func (l *lateRequests) awaitUnless(ctx context.Context, parkings []Parking, which []string, say func(string), so func(context.Context) (bool, error)) error {
	w := wait.For{Name: "late requests", Every: latePoll, Seen: say}
	return wait.Until(ctx, w, func(ctx context.Context) (bool, string, error) {
		var waits []string
		for _, p := range parkings {
			for _, what := range which {
				if l.left(p.VM.ID, p.Record.Sent, []string{what}) > 0 {
					within := time.Duration(p.Record.Sent[what]) * time.Second
					waits = append(waits, fmt.Sprintf("%s: waiting until it can't any more, %s at most", p.lateOne(what), within))
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
