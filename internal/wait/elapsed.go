package wait

import "time"

// Elapsed returns the time since then by the clock that shows more: a monotonic clock stops while a
// machine sleeps, and a wall clock can be set back.
func Elapsed(then time.Time) time.Duration {
	now := time.Now()
	return max(now.Sub(then), now.Round(0).Sub(then.Round(0)))
}
