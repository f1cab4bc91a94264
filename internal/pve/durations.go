package pve

import (
	"regexp"
	"sync"
	"time"

	"github.com/recast-sh/recast/internal/pve/api"
)

// durations records how long tasks took, by kind. Proxmox does not announce the end
// of a task, so the next one of its kind is polled when it is due.
type durations struct {
	mu   sync.Mutex
	last map[string]estimate
}

// estimate is how long a kind of task takes: the duration of the last one, or less if
// the last ones, ended in a row, were over at the first look.
type estimate struct {
	time  time.Duration
	ended int
}

// shorter are the divisors for the next estimate: 1/n less after one, two, … tasks
// in a row that were over at the first look.
var shorter = []time.Duration{128, 64, 32, 16, 8}

// numbers matches the VM numbers in a task's subject ("100-scsi1>200-scsi5"); the
// rest names the drives.
var numbers = regexp.MustCompile(`\d{3,}`)

func kindOf(u api.UPID) string { return u.Type + " " + numbers.ReplaceAllString(u.ID, "") }

// expected returns how long the task will take; 0 if unknown.
func (t *durations) expected(u api.UPID) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	if known, ok := t.last[kindOf(u)]; ok {
		return known.time
	}
	return t.last[u.Type].time
}

// add records a task that succeeded: it still ran after ran (0: never seen running),
// and had ended after ended.
func (t *durations) add(u api.UPID, ran, ended time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.last == nil {
		t.last = map[string]estimate{}
	}
	before := t.last[kindOf(u)].ended
	now := estimate{time: ran}
	switch {
	case ran == 0:
		now = estimate{ended - ended/shorter[min(before, len(shorter)-1)], before + 1}
	case ended-ran < ended/8: // otherwise the polls were too far apart for a better one
		now.time = ran + (ended-ran)/2
	}
	t.last[kindOf(u)] = now
	t.last[u.Type] = estimate{time: now.time} // the best one for other tasks of this type
}
