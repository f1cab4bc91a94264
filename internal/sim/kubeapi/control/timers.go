package control

import "time"

// timers are the running simulated durations. A timer that a pass does not ask for is
// dropped, because its reason is gone. Timers that end at the same moment end in the same
// pass.
type timers struct {
	speed   float64
	running map[string]*timer
	now     time.Time // of this pass
}

type timer struct {
	began time.Time
	end   time.Time
	asked bool // in this pass
}

func newTimers(speed float64) *timers {
	return &timers{speed: speed, running: map[string]*timer{}}
}

func (t *timers) begin() {
	t.now = time.Now()
	for _, r := range t.running {
		r.asked = false
	}
}

// due says whether d has passed since key was first asked for; d may be another one each time.
func (t *timers) due(key string, d time.Duration) bool {
	r, ok := t.running[key]
	if !ok {
		r = &timer{began: t.now}
		t.running[key] = r
	}
	r.end, r.asked = r.began.Add(time.Duration(float64(d)/t.speed)), true
	return !t.now.Before(r.end)
}

// part is how much of d has passed since key was first asked for, from 0 to 1.
func (t *timers) part(key string, d time.Duration) float64 {
	r, ok := t.running[key]
	if !ok {
		return 0
	}
	return min(1, float64(t.now.Sub(r.began))*t.speed/float64(d))
}

// again is true the first time and then every d.
func (t *timers) again(key string, d time.Duration) bool {
	r, ok := t.running[key]
	if ok && t.now.Before(r.end) {
		r.asked = true
		return false
	}
	t.running[key] = &timer{end: t.now.Add(time.Duration(float64(d) / t.speed)), asked: true}
	return true
}

// end drops timers that the pass did not ask for and returns when the next one ends; ok is
// false if there is none.
func (t *timers) end() (next time.Time, ok bool) {
	for key, r := range t.running {
		if !r.asked {
			delete(t.running, key)
			continue
		}
		if r.end.After(t.now) && (!ok || r.end.Before(next)) {
			next, ok = r.end, true
		}
	}
	return next, ok
}
