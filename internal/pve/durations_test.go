package pve

import (
	"context"
	"testing"
	"time"

	"github.com/recast-sh/recast/internal/pve/api"
	"github.com/recast-sh/recast/internal/wait"
)

// TestDurations: tasks of a kind are polled when they end, with little delay and few
// polls, however long the first one took.
func TestDurations(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		first, others time.Duration
		looks         int           // of the last ten together
		late          time.Duration // of all together
	}{
		"always alike":       {time.Second, time.Second, 20, 200 * time.Millisecond},
		"longer from now":    {time.Second, 1300 * time.Millisecond, 20, 200 * time.Millisecond},
		"shorter from now":   {time.Second, 700 * time.Millisecond, 20, 200 * time.Millisecond},
		"longer than a look": {5 * time.Second, 5 * time.Second, 60, 500 * time.Millisecond},
	} {
		runInBubble(t, name, func(t *testing.T) {
			var d durations
			u := api.UPID{Type: "qmmove", ID: "101-scsi1>9001-scsi1"}
			once := func(takes time.Duration) (looks int, late time.Duration) {
				begun, ran := time.Now(), time.Duration(0)
				w := wait.For{First: firstPoll, Every: 2 * time.Second, Expected: d.expected(u)}
				err := wait.Until(t.Context(), w, func(context.Context) (bool, string, error) {
					looks++
					if time.Since(begun) < takes {
						ran = time.Since(begun)
						return false, "", nil
					}
					return true, "", nil
				})
				must(t, err)
				d.add(u, ran, time.Since(begun))
				return looks, time.Since(begun) - takes
			}
			once(c.first)
			for range 20 {
				once(c.others)
			}
			looks, late := 0, time.Duration(0)
			for range 10 {
				l, by := once(c.others)
				looks, late = looks+l, late+by
			}
			t.Logf("%d looks, %s late", looks, late)
			if looks > c.looks || late > c.late {
				t.Errorf("%d looks, %s late", looks, late)
			}
			if other := d.expected(api.UPID{Type: "qmmove", ID: "102-scsi1>9002-scsi1"}); other != d.expected(u) {
				t.Errorf("the same of another VM is expected to take %s", other)
			}
			if other := d.expected(api.UPID{Type: "qmstart", ID: "101"}); other != 0 {
				t.Errorf("one of another type is expected to take %s", other)
			}
			if other := d.expected(api.UPID{Type: "qmmove", ID: "101-scsi0>9001-scsi30"}); other == 0 {
				t.Errorf("no estimate for a task of another drive")
			}
		})
	}
}
