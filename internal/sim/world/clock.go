package world

import "time"

// SetClock makes a host's clock go wrong by offset.
func (w *World) SetClock(host string, offset time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.clocks[host] = offset
}

// Clock is what a host takes for the time.
func (w *World) Clock(host string) time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Now().Add(w.clocks[host])
}
