// Package window knows when maintenance windows are open and when schedules are due. It is
// arithmetic only: the caller says what time it is.
package window

import (
	"errors"
	"fmt"
	"time"
)

const (
	shortest = time.Minute
	longest  = 7 * 24 * time.Hour
	// lookahead bounds the search for the end of windows that follow each other without a gap.
	lookahead = 8 * 24 * time.Hour
)

// Window opens whenever its schedule fires and closes after its duration.
type Window struct {
	schedule Schedule
	duration time.Duration
}

// Set is any number of windows. It is open when one of them is. An empty set is always open.
type Set []Window

// Parse reads a window. The error begins with the field that is wrong: schedule, timeZone or
// duration.
func Parse(schedule, timeZone string, duration time.Duration) (Window, error) {
	if schedule == "" {
		return Window{}, errors.New("schedule: missing: write a cron expression, for example \"0 22 * * 6\" for Saturdays at 22:00")
	}
	if duration < shortest || duration > longest {
		return Window{}, fmt.Errorf("duration: %s: write one between 1m and 168h", duration)
	}
	s, err := ParseSchedule(schedule, timeZone)
	return Window{schedule: s, duration: duration}, err
}

// Open says whether the window is open, and until when it stays open.
func (w Window) Open(now time.Time) (open bool, until time.Time) { return Set{w}.Open(now) }

// Next is the first time after now at which the window opens.
func (w Window) Next(now time.Time) time.Time { return w.schedule.Next(now) }

// Open says whether a window is open, and when the last of those that overlap or touch closes.
// That is zero if the set is empty. It looks eight days ahead: windows that are open longer
// give a time at which they are open still, so ask again then.
func (set Set) Open(now time.Time) (open bool, until time.Time) {
	if len(set) == 0 {
		return true, time.Time{}
	}
	until = now
	starts := make([]time.Time, len(set)) // of each window, the first one that until does not consider yet
	for i, w := range set {
		starts[i] = w.Next(now.Add(-w.duration))
	}
	for longer := true; longer; {
		longer = false
		for i, w := range set {
			for !starts[i].IsZero() && !starts[i].After(until) && until.Sub(now) < lookahead {
				if closes := starts[i].Add(w.duration); closes.After(until) {
					until, longer = closes, true
				}
				starts[i] = w.Next(starts[i])
			}
		}
	}
	if !until.After(now) {
		return false, time.Time{}
	}
	return true, until
}

// Next is the first time after now at which a window opens; zero if the set is empty.
func (set Set) Next(now time.Time) time.Time {
	var first time.Time
	for _, w := range set {
		if next := w.Next(now); !next.IsZero() && (first.IsZero() || next.Before(first)) {
			first = next
		}
	}
	return first
}
