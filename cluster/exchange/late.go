package exchange

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/internal/wait"
)

// LateQueue bounds how long Proxmox may take to begin a request. A request outlives its sender in
// the queues before a worker of pvedaemon. A proxy in front waits 60 s and then answers 504 (nginx,
// proxy_read_timeout); pveproxy waits 30 s and then answers 596 (PVE/APIServer/AnyEvent.pm,
// proxy_request). pvedaemon has three workers, and each may be blocked by a lock for 10 s or by a
// hanging storage for a minute. After that the task itself waits up to 10 s for the VM's lock. Any
// wait that recast asks Proxmox for is added to this.
const LateQueue = 5 * time.Minute

// awaitDelete waits until an earlier, unanswered delete of the VM is carried out or can't come any
// more. A second delete would free the VMID for another VM, which the first one would then delete.
func (r *Replace) awaitDelete(ctx context.Context) error {
	return r.record().awaitUnless(ctx, r.saying("delete-vm"), func(ctx context.Context) (bool, error) {
		_, found, err := r.Current(ctx)
		return !found, err
	}, SentDelete)
}

// saying returns the function that reports what a step of the exchange waits for.
func (r *Replace) saying(id string) func(string) {
	branch := "bring-up/"
	switch {
	case r.Strategy.From() == cluster.Halfway:
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
		if slices.Contains(which, what) { // monotonic: a clock that is set forward shortens nothing
			longest = max(longest, time.Duration(seconds)*time.Second-time.Since(l.since[lateKey{parking, what}]))
		}
	}
	return longest
}

// None reports that no record of the cluster has a request. After a look at every record that stays
// known, because the holder of the claim writes all later ones.
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

// parkStep is the prefix of the ID of a step that parks a disk.
const parkStep = "park/"

const SentDelete = "delete"

const SentStart = "start"

// SwitchesOn lists the requests that would start a VM while its disks are moved.
var SwitchesOn = []string{SentStart, cluster.SentAddHA}
