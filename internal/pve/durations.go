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
	last map[string]time.Duration
}

// numbers of VMs are in what a task works on ("100-scsi1>200-scsi5"); what is
// left says which drives.
var numbers = regexp.MustCompile(`\d{3,}`)

func kindOf(u UPID) string { return u.Type + " " + numbers.ReplaceAllString(u.ID, "") }

// expected is how long the task will take; 0 if that is not known.
func (t *durations) expected(u UPID) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.last[kindOf(u)]
}

// add notes that a task still ran after the one time, and had ended well after
// the other. One that was seen to have ended at the first look was shorter than expected.
func (t *durations) add(u UPID, ran, ended time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.last == nil {
		t.last = map[string]time.Duration{}
	}
	t.last[kindOf(u)] = max(ran, ended-ended/8)
}
