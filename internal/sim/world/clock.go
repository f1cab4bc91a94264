package world

import "time"

// SetClock makes a host's clock go wrong by offset, from now on: what it has dated
// already stays.
func (w *World) SetClock(host string, offset time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.clocks[host] = offset
}

// Clock is what a host takes for the time.
func (w *World) Clock(host string) time.Time {
	w.mu.Look()
	defer w.mu.Unlock()
	return w.now(host)
}

// now is Clock; mu must be held.
func (w *World) now(host string) time.Time { return time.Now().Add(w.clocks[host]) }

// upBefore is for how long hosts have been up when the world is made.
const upBefore = 24 * time.Hour

// Uptime is for how long a host has been up, which no clock has a part in.
func (w *World) Uptime(host string) time.Duration {
	w.mu.Look()
	defer w.mu.Unlock()
	return w.uptime(host)
}

func (w *World) uptime(host string) time.Duration {
	return time.Duration(float64(time.Since(w.booted[host])) * w.speed)
}

// userHz is how many of the ticks, in which /proc tells times, make a second.
const userHz = 100

// ticks is when a process that begins now has begun, in ticks since its host's boot (proc_pid_stat(5), starttime).
func (w *World) ticks(host string) int { return int(w.uptime(host) / (time.Second / userHz)) }
