package world

import "time"

// SetClock sets a host's clock off by offset from now on: earlier timestamps stay.
func (w *World) SetClock(host string, offset time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.clocks[host] = offset
}

// Clock is the time on a host's clock.
func (w *World) Clock(host string) time.Time {
	w.mu.Look()
	defer w.mu.Unlock()
	return w.now(host)
}

// now is Clock; mu must be held.
func (w *World) now(host string) time.Time { return time.Now().Add(w.clocks[host]) }

// upBefore is the uptime of hosts when the world is made.
const upBefore = 24 * time.Hour

// Uptime is a host's uptime, independent of its clock.
func (w *World) Uptime(host string) time.Duration {
	w.mu.Look()
	defer w.mu.Unlock()
	return w.uptime(host)
}

func (w *World) uptime(host string) time.Duration {
	return time.Duration(float64(time.Since(w.booted[host])) * w.speed)
}

// userHz is the number of clock ticks per second in /proc.
const userHz = 100

// ticks is the start time of a process that starts now, in ticks since its host's boot (proc_pid_stat(5),
// starttime).
func (w *World) ticks(host string) int { return int(w.uptime(host) / (time.Second / userHz)) }
