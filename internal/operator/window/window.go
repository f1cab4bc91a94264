// Package window computes when maintenance windows are open and when schedules are due. The caller passes the current
// time.
package window

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
)

const (
	shortest = time.Minute
	longest  = 7 * 24 * time.Hour
	// lookahead limits the search for the end of windows that follow each other without a gap.
	lookahead = 8 * 24 * time.Hour
)

// Window opens whenever its schedule fires and closes after its duration.
type Window struct {
	schedule Schedule
	duration time.Duration
}

// Set is any number of windows. A set is open while one of its windows is. An empty set is always open.
type Set []Window

// Parse reads a window. An error begins with the name of the wrong field: schedule, timeZone or duration.
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

// Next returns the first time after now at which the window opens.
func (w Window) Next(now time.Time) time.Time { return w.schedule.Next(now) }

// Open returns whether a window of the set is open. until is when the last of the open windows that overlap or touch
// closes; zero if the set is empty or closed. Open looks eight days ahead. For windows that stay open longer, until
// is a time at which they are still open, so ask again then.
func (set Set) Open(now time.Time) (open bool, until time.Time) {
	if len(set) == 0 {
		return true, time.Time{}
	}
	until = now
	starts := make([]time.Time, len(set)) // for each window, its first start that until does not include yet
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

// Next returns the first time after now at which a window of the set opens; zero if the set is empty.
func (set Set) Next(now time.Time) time.Time {
	var first time.Time
	for _, w := range set {
		if next := w.Next(now); !next.IsZero() && (first.IsZero() || next.Before(first)) {
			first = next
		}
	}
	return first
}

const (
	// farthest limits how far Next looks ahead: 29 February comes only after 8 years if a century year is no leap year.
	farthest = 9 // years
	// wildcard is the bit by which package cron marks a field with "*" or "*/n".
	wildcard = 1 << 63
)

// Schedule is a cron schedule in a time zone. The zero value never fires.
//
// A time that the clock skips in spring counts as the first minute after the gap, unless the hour is a wildcard. A
// time that comes twice in autumn counts twice.
type Schedule struct {
	bits *cron.SpecSchedule
	zone *time.Location
}

// ParseSchedule reads a cron expression with five fields. An empty expression never fires. An empty time zone is UTC.
// An error begins with the name of the wrong field: schedule or timeZone.
func ParseSchedule(schedule, timeZone string) (Schedule, error) {
	zone, err := parseZone(timeZone)
	if err != nil || schedule == "" {
		return Schedule{}, err
	}
	if strings.Contains(schedule, "=") {
		return Schedule{}, fmt.Errorf("schedule: %q: set the time zone in timeZone, not in the schedule", schedule)
	}
	const fields = cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow
	parsed, err := cron.NewParser(fields).Parse(schedule)
	if err != nil {
		return Schedule{}, fmt.Errorf("schedule: %q: %w: write minute, hour, day of month, month and day of week, for example \"0 22 * * 6\" for Saturdays at 22:00", schedule, err)
	}
	bits, _ := parsed.(*cron.SpecSchedule) // without descriptors the parser returns no other type
	s := Schedule{bits: bits, zone: zone}
	if s.Next(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)).IsZero() {
		return Schedule{}, fmt.Errorf("schedule: %q: no such day exists, so it never fires: change the day of month or the month", schedule)
	}
	return s, nil
}

func parseZone(name string) (*time.Location, error) {
	zone, err := time.LoadLocation(name) // "" is UTC
	if err == nil && name == "Local" {
		err = fmt.Errorf("the zone of the operator's machine is not meant")
	}
	if err != nil {
		return nil, fmt.Errorf("timeZone: %q: %w: write an IANA name, for example Europe/Oslo", name, err)
	}
	return zone, nil
}

// Next returns the first time after now at which the schedule fires; zero if there is none.
//
// Next does not use cron's own Next, which skips a day when Lord Howe Island changes its clocks by half an hour,
// skips other days on which midnight does not exist, and does not return for the day that Samoa skipped.
func (s Schedule) Next(now time.Time) time.Time {
	if s.bits == nil {
		return time.Time{}
	}
	t := now.In(s.zone).Truncate(time.Minute).Add(time.Minute)
	end := t.AddDate(farthest, 0, 0)
	for ; t.Before(end); t = s.advance(t) {
		if s.fires(t) {
			return t
		}
	}
	return time.Time{}
}

// Due returns whether the schedule has fired after last and until now, and when it fires next after now (zero:
// never). A zero last means that nothing was done yet: then the schedule is due.
func (s Schedule) Due(last, now time.Time) (due bool, next time.Time) {
	if s.bits == nil {
		return false, time.Time{}
	}
	next = s.Next(now)
	if last.IsZero() {
		return true, next
	}
	first := s.Next(last)
	return !first.IsZero() && !first.After(now), next
}

// fires says whether the schedule fires at t, a whole minute in its zone.
func (s Schedule) fires(t time.Time) bool {
	if s.matches(t) {
		return true
	}
	before := t.Add(-time.Minute)
	if start, _ := t.ZoneBounds(); !start.After(before) || s.bits.Hour&wildcard != 0 {
		return false
	}
	for clock, after := wall(before).Add(time.Minute), wall(t); clock.Before(after); clock = clock.Add(time.Minute) {
		if s.matches(clock) {
			return true
		}
	}
	return false
}

// wall returns what a clock shows at t, as a time in a zone without gaps.
func wall(t time.Time) time.Time {
	return time.Date(t.Year(), t.Month(), t.Day(), t.Hour(), t.Minute(), 0, 0, time.UTC)
}

func (s Schedule) matches(t time.Time) bool {
	return s.day(t) && has(s.bits.Hour, t.Hour()) && has(s.bits.Minute, t.Minute())
}

// day says whether the schedule fires on the day of t. As in every cron, either day of month or day of week is enough
// if both are given.
func (s Schedule) day(t time.Time) bool {
	month, week := has(s.bits.Dom, t.Day()), has(s.bits.Dow, int(t.Weekday()))
	either := (s.bits.Dom|s.bits.Dow)&wildcard == 0 && (month || week)
	return has(s.bits.Month, int(t.Month())) && (month && week || either)
}

func has(bits uint64, n int) bool { return bits>>uint(n)&1 != 0 }

// advance returns the next minute at which the schedule may fire. A minute at which the zone changes its offset is
// always included.
func (s Schedule) advance(t time.Time) time.Time {
	skip := time.Minute
	switch {
	case !s.day(t):
		skip = 24*time.Hour - time.Duration(t.Hour())*time.Hour - time.Duration(t.Minute())*time.Minute
	case !has(s.bits.Hour, t.Hour()):
		skip = time.Hour - time.Duration(t.Minute())*time.Minute
	}
	next := t.Add(skip)
	if _, change := t.ZoneBounds(); !change.IsZero() && change.Before(next) {
		return change.Add(time.Minute - time.Nanosecond).Truncate(time.Minute)
	}
	return next
}
