package window

import (
	"strings"
	"testing"
	"time"
)

func TestParseErrors(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		schedule, zone string
		duration       time.Duration
		want           string
	}{
		"no schedule":  {"", "", time.Hour, "schedule: missing: write a cron expression"},
		"schedule":     {"x", "", time.Hour, "schedule: "},
		"zone":         {"0 22 * * 6", "Mars", time.Hour, "timeZone: "},
		"no duration":  {"0 22 * * 6", "", 0, "duration: 0s: write one between 1m and 168h"},
		"too short":    {"0 22 * * 6", "", 59 * time.Second, "duration: 59s: "},
		"too long":     {"0 22 * * 6", "", 169 * time.Hour, "duration: 169h0m0s: "},
		"below zero":   {"0 22 * * 6", "", -time.Hour, "duration: "},
		"never, again": {"0 0 31 2 *", "", time.Hour, "never fires"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := Parse(c.schedule, c.zone, c.duration); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one with %q", err, c.want)
			}
		})
	}
}

type spec struct {
	schedule, zone string
	duration       time.Duration
}

func parse(t *testing.T, specs ...spec) Set {
	t.Helper()
	var set Set
	for _, s := range specs {
		w, err := Parse(s.schedule, s.zone, s.duration)
		if err != nil {
			t.Fatal(err)
		}
		set = append(set, w)
	}
	return set
}

func TestOpen(t *testing.T) {
	t.Parallel()
	saturday := spec{"0 22 * * 6", "Europe/Oslo", 4 * time.Hour}
	night := spec{"30 2 * * *", "Europe/Oslo", 30 * time.Minute}
	cases := map[string]struct {
		set              []spec
		now, until, next string // until "": closed
	}{
		"before":                    {[]spec{saturday}, "2026-06-06T21:59:59+02:00", "", "2026-06-06T22:00:00+02:00"},
		"at its begin":              {[]spec{saturday}, "2026-06-06T22:00:00+02:00", "2026-06-07T02:00:00+02:00", "2026-06-13T22:00:00+02:00"},
		"in its last second":        {[]spec{saturday}, "2026-06-07T01:59:59+02:00", "2026-06-07T02:00:00+02:00", "2026-06-13T22:00:00+02:00"},
		"at its end":                {[]spec{saturday}, "2026-06-07T02:00:00+02:00", "", "2026-06-13T22:00:00+02:00"},
		"a day without 02:30":       {[]spec{night}, "2026-03-29T03:10:00+02:00", "2026-03-29T03:30:00+02:00", "2026-03-30T02:30:00+02:00"},
		"02:30 the first time":      {[]spec{night}, "2026-10-25T02:45:00+02:00", "2026-10-25T03:00:00+02:00", "2026-10-25T02:30:00+01:00"},
		"between two 02:30":         {[]spec{night}, "2026-10-25T02:15:00+01:00", "", "2026-10-25T02:30:00+01:00"},
		"02:30 the second time":     {[]spec{night}, "2026-10-25T02:45:00+01:00", "2026-10-25T03:00:00+01:00", "2026-10-26T02:30:00+01:00"},
		"an hour longer in autumn":  {[]spec{{"30 2 * * *", "Europe/Oslo", 4 * time.Hour}}, "2026-10-25T02:45:00+02:00", "2026-10-25T06:30:00+01:00", "2026-10-25T02:30:00+01:00"},
		"hours, not clock, in both": {[]spec{{"0 1 * * *", "Europe/Oslo", 4 * time.Hour}}, "2026-03-29T01:00:00+01:00", "2026-03-29T06:00:00+02:00", "2026-03-30T01:00:00+02:00"},
		"a week":                    {[]spec{{"0 0 1 * *", "", 168 * time.Hour}}, "2026-02-07T23:59:00Z", "2026-02-08T00:00:00Z", "2026-03-01T00:00:00Z"},
		"after a week":              {[]spec{{"0 0 1 * *", "", 168 * time.Hour}}, "2026-02-08T00:00:00Z", "", "2026-03-01T00:00:00Z"},
		"a leap day":                {[]spec{{"0 0 29 2 *", "", 48 * time.Hour}}, "2028-03-01T12:00:00Z", "2028-03-02T00:00:00Z", "2032-02-29T00:00:00Z"},
		"overlap of itself":         {[]spec{{"0 * * * *", "", 90 * time.Minute}}, "2026-01-01T00:30:00Z", "2026-01-09T00:30:00Z", "2026-01-01T01:00:00Z"},
		"overlap of two":            {[]spec{{"0 22 * * *", "", 2 * time.Hour}, {"0 23 * * *", "", 3 * time.Hour}}, "2026-01-01T22:30:00Z", "2026-01-02T02:00:00Z", "2026-01-01T23:00:00Z"},
		"one after the other":       {[]spec{{"0 0 * * *", "", time.Hour}, {"0 22 * * *", "", 2 * time.Hour}}, "2026-01-01T22:30:00Z", "2026-01-02T01:00:00Z", "2026-01-02T00:00:00Z"},
		"two zones":                 {[]spec{{"0 12 * * *", "Asia/Tokyo", time.Hour}, {"0 12 * * *", "America/New_York", time.Hour}}, "2026-01-01T17:30:00Z", "2026-01-01T18:00:00Z", "2026-01-02T03:00:00Z"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			set, now := parse(t, c.set...), at(t, c.now)
			open, until := set.Open(now)
			if open != (c.until != "") || open && !until.Equal(at(t, c.until)) {
				t.Errorf("Open = %v, %s; want %q", open, until, c.until)
			}
			if next := set.Next(now); !next.Equal(at(t, c.next)) {
				t.Errorf("Next = %s, want %s", next, c.next)
			}
		})
	}
}

func TestNoWindowsAreAlwaysOpen(t *testing.T) {
	t.Parallel()
	now := at(t, "2026-01-01T00:00:00Z")
	if open, until := (Set{}).Open(now); !open || !until.IsZero() {
		t.Errorf("Open = %v, %s; want true without an end", open, until)
	}
	if next := (Set{}).Next(now); !next.IsZero() {
		t.Errorf("Next = %s, want none", next)
	}
}

func TestWindowAlone(t *testing.T) {
	t.Parallel()
	w := parse(t, spec{"0 22 * * *", "", time.Hour})[0]
	open, until := w.Open(at(t, "2026-01-01T22:30:00Z"))
	if want := at(t, "2026-01-01T23:00:00Z"); !open || !until.Equal(want) {
		t.Errorf("Open = %v, %s; want %s", open, until, want)
	}
}
