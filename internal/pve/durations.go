package pve

import (
	"regexp"
	"sync"
	"time"
)

// durations is how long tasks have taken, by what they do: Proxmox tells of the end of
// one only to who asks, and the next of its kind is asked about when it is due.
type durations struct {
	mu   sync.Mutex
	last map[string]lasted
}

// lasted is how long a kind of tasks takes: what it took last, or less where the
// first looks, that many in a row, have come when the task had ended already.
type lasted struct {
	time  time.Duration
	ended int
}

// shorter is by which part less is expected after one, two, … tasks in a row that
// had ended at the first look.
var shorter = []time.Duration{128, 64, 32, 16, 8}

// numbers of VMs are in what a task works on ("100-scsi1>200-scsi5"); what is
// left says which drives.
var numbers = regexp.MustCompile(`\d{3,}`)

func kindOf(u UPID) string { return u.Type + " " + numbers.ReplaceAllString(u.ID, "") }

// expected is how long the task will take; 0 if that is not known.
func (t *durations) expected(u UPID) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	if known, ok := t.last[kindOf(u)]; ok {
		return known.time
	}
	return t.last[u.Type].time
}

// add notes that a task still ran after the one time, 0 where nobody has seen it
// run, and had ended well after the other.
func (t *durations) add(u UPID, ran, ended time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.last == nil {
		t.last = map[string]lasted{}
	}
	before := t.last[kindOf(u)].ended
	now := lasted{time: ran}
	switch {
	case ran == 0:
		now = lasted{ended - ended/shorter[min(before, len(shorter)-1)], before + 1}
	case ended-ran < ended/8: // else it was not looked at often enough to believe more
		now.time = ran + (ended-ran)/2
	}
	t.last[kindOf(u)] = now
	t.last[u.Type] = lasted{time: now.time} // of others of the same type nothing better is known
}
