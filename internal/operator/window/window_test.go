package window

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	_ "time/tzdata"

	"github.com/recast-sh/recast/internal/sim/must"
)

func TestParseErrors(t *testing.T) {
	t.Parallel()
	type example struct {
		schedule, zone string
		duration       time.Duration
		want           string
	}
	cases := map[string]example{
		"no schedule":  {"", "", time.Hour, "schedule: missing: write a cron expression"},
		"schedule":     {"x", "", time.Hour, "schedule: "},
		"zone":         {"0 22 * * 6", "Mars", time.Hour, "timeZone: "},
		"no duration":  {"0 22 * * 6", "", 0, "duration: 0s: write one between 1m and 168h"},
		"too short":    {"0 22 * * 6", "", 59 * time.Second, "duration: 59s: "},
		"too long":     {"0 22 * * 6", "", 169 * time.Hour, "duration: 169h0m0s: "},
		"below zero":   {"0 22 * * 6", "", -time.Hour, "duration: "},
		"never, again": {"0 0 31 2 *", "", time.Hour, "never fires"},
	}
	must.Each(t, cases, func(t *testing.T, c example) {
		_, err := Parse(c.schedule, c.zone, c.duration)
		must.Contain(t, "error", fmt.Sprint(err), c.want)
	})
}

type spec struct {
	schedule, zone string
	duration       time.Duration
}

func parse(t *testing.T, specs ...spec) Set {
	t.Helper()
	var set Set
	for _, s := range specs {
		w := must.Get(Parse(s.schedule, s.zone, s.duration))(t)
		set = append(set, w)
	}
	return set
}

func TestOpen(t *testing.T) {
	t.Parallel()
	saturday := spec{"0 22 * * 6", "Europe/Oslo", 4 * time.Hour}
	night := spec{"30 2 * * *", "Europe/Oslo", 30 * time.Minute}
	type example struct {
		set              []spec
		now, until, next string // until "": closed
	}
	cases := map[string]example{
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
	must.Each(t, cases, func(t *testing.T, c example) {
		set, now := parse(t, c.set...), at(t, c.now)
		open, until := set.Open(now)
		must.Hold(t, open == (c.until != "") && (!open || until.Equal(at(t, c.until))),
			"Open = %v, %s; want %q", open, until, c.until)
		if next := set.Next(now); !next.Equal(at(t, c.next)) {
			t.Errorf("Next = %s, want %s", next, c.next)
		}
	})
}

func TestNoWindowsAreAlwaysOpen(t *testing.T) {
	t.Parallel()
	now := at(t, "2026-01-01T00:00:00Z")
	if open, until := (Set{}).Open(now); !open || !until.IsZero() {
		t.Errorf("Open = %v, %s; want true without an end", open, until)
	}
	next := (Set{}).Next(now)
	must.Hold(t, next.IsZero(), "Next = %s, want none", next)
}

func TestWindowAlone(t *testing.T) {
	t.Parallel()
	w := parse(t, spec{"0 22 * * *", "", time.Hour})[0]
	open, until := (Set{w}).Open(at(t, "2026-01-01T22:30:00Z"))
	want := at(t, "2026-01-01T23:00:00Z")
	must.Hold(t, open && until.Equal(want), "Open = %v, %s; want %s", open, until, want)
}

func TestParseScheduleErrors(t *testing.T) {
	t.Parallel()
	type row struct{ schedule, zone, want string }
	cases := map[string]row{
		"too few fields":        {"0 22 * *", "", `schedule: "0 22 * *": expected exactly 5 fields`},
		"seconds":               {"0 0 22 * * 6", "", "expected exactly 5 fields, found 6"},
		"out of range":          {"61 * * * *", "", "above maximum (59)"},
		"the remedy":            {"nonsense", "", `for example "0 22 * * 6"`},
		"descriptor":            {"@every 5m", "", "does not accept descriptors"},
		"time zone in it":       {"TZ=Europe/Oslo 0 22 * * 6", "", "set the time zone in timeZone"},
		"cron's own name of it": {"CRON_TZ=UTC", "", "set the time zone in timeZone"},
		"never":                 {"0 0 30 2 *", "", "never fires: change the day of month or the month"},
		"never, in a list":      {"0 0 31 4,6,9,11 *", "", "never fires"},
		"unknown zone":          {"0 22 * * 6", "Europe/Atlantis", `timeZone: "Europe/Atlantis": unknown time zone`},
		"zone of the machine":   {"0 22 * * 6", "Local", "write an IANA name"},
		"path":                  {"0 22 * * 6", "../etc/passwd", "write an IANA name"},
		"zone of no schedule":   {"", "Europe/Atlantis", "timeZone: "},
	}
	must.Each(t, cases, func(t *testing.T, c row) {
		_, err := ParseSchedule(c.schedule, c.zone)
		must.Contain(t, "error", fmt.Sprint(err), c.want)
	})
}

func TestNext(t *testing.T) {
	t.Parallel()
	type example struct {
		schedule, zone, after string
		want                  []string
	}
	cases := map[string]example{
		"hourly":                    {"17 * * * *", "", "2026-01-01T10:17:00Z", []string{"2026-01-01T11:17:00Z", "2026-01-01T12:17:00Z"}},
		"within a minute":           {"17 * * * *", "", "2026-01-01T10:16:59Z", []string{"2026-01-01T10:17:00Z"}},
		"weekly in a zone":          {"0 22 * * 6", "Europe/Oslo", "2026-03-21T00:00:00Z", []string{"2026-03-21T22:00:00+01:00", "2026-03-28T22:00:00+01:00", "2026-04-04T22:00:00+02:00"}},
		"day of month or of week":   {"0 0 13 * 5", "", "2026-02-12T00:00:00Z", []string{"2026-02-13T00:00:00Z", "2026-02-20T00:00:00Z"}},
		"leap days":                 {"0 0 29 2 *", "", "2026-01-01T00:00:00Z", []string{"2028-02-29T00:00:00Z", "2032-02-29T00:00:00Z"}},
		"leap days, 2100 is none":   {"0 0 29 2 *", "", "2096-03-01T00:00:00Z", []string{"2104-02-29T00:00:00Z"}},
		"skipped: after the gap":    {"30 2 * * *", "Europe/Oslo", "2026-03-28T12:00:00Z", []string{"2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00"}},
		"skipped: a wildcard":       {"30 * * * *", "Europe/Oslo", "2026-03-29T00:00:00Z", []string{"2026-03-29T01:30:00+01:00", "2026-03-29T03:30:00+02:00"}},
		"skipped: midnight":         {"0 0 * * *", "Asia/Beirut", "2026-03-28T12:00:00Z", []string{"2026-03-29T01:00:00+03:00", "2026-03-30T00:00:00+03:00"}},
		"skipped: half an hour":     {"10 2 * * *", "Australia/Lord_Howe", "2026-10-03T12:00:00Z", []string{"2026-10-04T02:30:00+11:00", "2026-10-05T02:10:00+11:00"}},
		"skipped: a day in Samoa":   {"0 12 30 12 *", "Pacific/Apia", "2011-12-29T00:00:00Z", []string{"2011-12-31T00:00:00+14:00", "2012-12-30T12:00:00+14:00"}},
		"twice":                     {"30 2 * * *", "Europe/Oslo", "2026-10-24T12:00:00Z", []string{"2026-10-25T02:30:00+02:00", "2026-10-25T02:30:00+01:00", "2026-10-26T02:30:00+01:00"}},
		"twice: half an hour":       {"45 1 * * *", "Australia/Lord_Howe", "2026-04-04T12:00:00Z", []string{"2026-04-05T01:45:00+11:00", "2026-04-05T01:45:00+10:30"}},
		"twice: across midnight":    {"0 0 * * *", "America/Havana", "2026-10-31T12:00:00Z", []string{"2026-11-01T00:00:00-04:00", "2026-11-01T00:00:00-05:00"}},
		"before and after a change": {"0 3 * * 0", "Europe/Oslo", "2026-03-28T12:00:00Z", []string{"2026-03-29T03:00:00+02:00", "2026-04-05T03:00:00+02:00"}},
	}
	must.Each(t, cases, func(t *testing.T, c example) {
		s := must.Get(ParseSchedule(c.schedule, c.zone))(t)
		var got []string
		for now := at(t, c.after); len(got) < len(c.want); {
			now = s.Next(now)
			got = append(got, now.Format(time.RFC3339))
		}
		must.Equal(t, "times", c.want, got)
	})
}

func TestDue(t *testing.T) {
	t.Parallel()
	type example struct {
		schedule, last, now string
		due                 bool
		next                string
	}
	cases := map[string]example{
		"not yet":          {"17 * * * *", "2026-01-01T10:17:30Z", "2026-01-01T11:16:59Z", false, "2026-01-01T11:17:00Z"},
		"now":              {"17 * * * *", "2026-01-01T10:17:30Z", "2026-01-01T11:17:00Z", true, "2026-01-01T12:17:00Z"},
		"missed several":   {"17 * * * *", "2026-01-01T10:17:30Z", "2026-01-03T00:00:00Z", true, "2026-01-03T00:17:00Z"},
		"never done":       {"0 0 1 1 *", "", "2026-01-03T00:00:00Z", true, "2027-01-01T00:00:00Z"},
		"a clock set back": {"17 * * * *", "2026-01-02T00:00:00Z", "2026-01-01T00:00:00Z", false, "2026-01-01T00:17:00Z"},
		"no schedule":      {"", "", "2026-01-03T00:00:00Z", false, "0001-01-01T00:00:00Z"},
	}
	must.Each(t, cases, func(t *testing.T, c example) {
		s := must.Get(ParseSchedule(c.schedule, ""))(t)
		var last time.Time
		if c.last != "" {
			last = at(t, c.last)
		}
		due, next := s.Due(last, at(t, c.now))
		must.Hold(t, due == c.due && next.Equal(at(t, c.next)), "Due = %v, %s; want %v, %s", due, next, c.due, c.next)
	})
}

func at(t *testing.T, s string) time.Time {
	t.Helper()
	when := must.Get(time.Parse(time.RFC3339, s))(t)
	return when
}

// brute is a schedule as lists of numbers, asked about one minute after the other.
type brute struct {
	minute, hour, dom, month, dow []int // nil: any
	duration                      int   // minutes
	zone                          *time.Location
}

func (b brute) String() string {
	var fields []string
	for _, field := range [][]int{b.minute, b.hour, b.dom, b.month, b.dow} {
		text := "*"
		for i, n := range field {
			text = strings.TrimPrefix(text, "*") + strings.Repeat(",", min(i, 1)) + strconv.Itoa(n)
		}
		fields = append(fields, text)
	}
	return strings.Join(fields, " ")
}

func (b brute) fires(clock time.Time) bool {
	is := func(field []int, n int) bool { return field == nil || slices.Contains(field, n) }
	day := is(b.dom, clock.Day()) && is(b.dow, int(clock.Weekday()))
	if b.dom != nil && b.dow != nil {
		day = is(b.dom, clock.Day()) || is(b.dow, int(clock.Weekday()))
	}
	return day && is(b.month, int(clock.Month())) && is(b.hour, clock.Hour()) && is(b.minute, clock.Minute())
}

// starts says for each minute from begin whether the window opens then.
func (b brute) starts(begin time.Time, minutes int) []bool {
	starts := make([]bool, minutes)
	before := wall(begin.In(b.zone).Add(-time.Minute))
	for i := range starts {
		clock := wall(begin.In(b.zone).Add(time.Duration(i) * time.Minute))
		starts[i] = b.fires(clock)
		for skipped := before.Add(time.Minute); b.hour != nil && skipped.Before(clock); skipped = skipped.Add(time.Minute) {
			starts[i] = starts[i] || b.fires(skipped)
		}
		before = clock
	}
	return starts
}

func random(r *rand.Rand, zones []*time.Location) brute {
	some := func(low, high, most int) []int {
		numbers := make([]int, 1+r.IntN(most))
		for i := range numbers {
			numbers[i] = low + r.IntN(high-low+1)
		}
		return numbers
	}
	b := brute{minute: some(0, 59, 3), zone: zones[r.IntN(len(zones))], duration: 1 + r.IntN([]int{90, 1440, 10080}[r.IntN(3)])}
	if r.IntN(10) > 0 {
		b.hour = some(0, 3, 2) // where clocks are changed
	}
	switch r.IntN(4) {
	case 0:
		b.dow = some(0, 6, 3)
	case 1:
		b.dom = some(1, 28, 5)
	case 2:
		b.dom, b.dow = some(1, 31, 2), some(0, 6, 2)
	}
	return b
}

// TestBrute compares random sets of windows, in zones that change their clocks in all ways,
// with a check of every minute of the weeks around a change.
func TestBrute(t *testing.T) {
	t.Parallel()
	var zones []*time.Location
	for _, name := range []string{"UTC", "Europe/Oslo", "America/New_York", "Australia/Lord_Howe", "America/Havana", "Africa/Cairo", "Asia/Beirut", "Pacific/Apia", "Antarctica/Troll", "America/St_Johns", "America/Santiago", "Asia/Gaza", "Pacific/Chatham", "Africa/Casablanca"} {
		zone := must.Get(time.LoadLocation(name))(t)
		zones = append(zones, zone)
	}
	seeds := uint64(60)
	if testing.Short() {
		seeds = 15
	}
	for seed := range seeds {
		r := rand.New(rand.NewPCG(seed, 1))
		all := make([]brute, 1+r.IntN(3))
		for i := range all {
			all[i] = random(r, zones)
		}
		problem := compare(r, all)
		must.Be(t, problem == "", "seed %d, %v: %s", seed, all, problem)
	}
}

const (
	lead = 8 * 24 * 60 // minutes before those compared, for windows that opened earlier
	body = 9 * 24 * 60
)

func compare(r *rand.Rand, all []brute) string {
	begin := time.Date(2010+r.IntN(20), time.Month(1+r.IntN(12)), 1+r.IntN(28), 0, 0, 0, 0, time.UTC)
	if _, change := begin.In(all[0].zone).ZoneBounds(); !change.IsZero() {
		begin = change.Add(-time.Duration(lead+r.IntN(body)) * time.Minute).Truncate(time.Minute)
	}
	var set Set
	opens, starts := make([]bool, lead+body+lead+body), make([]bool, lead+body+lead+body)
	for _, b := range all {
		w, err := Parse(b.String(), b.zone.String(), time.Duration(b.duration)*time.Minute)
		if err != nil {
			return err.Error()
		}
		set = append(set, w)
		for i, start := range b.starts(begin, len(starts)) {
			starts[i] = starts[i] || start
			for j := i; start && j < min(i+b.duration, len(opens)); j++ {
				opens[j] = true
			}
		}
	}
	for i := lead; i < lead+body; i = further(r, i, opens, starts) {
		now := begin.Add(time.Duration(i) * time.Minute)
		open, until := set.Open(now.Add(time.Duration(r.IntN(60)) * time.Second))
		closes := i + slices.Index(append(slices.Clone(opens[i:]), false), false)
		if want := begin.Add(time.Duration(closes) * time.Minute); open != opens[i] || open && until.Sub(now) < lookahead && !until.Equal(want) {
			return fmt.Sprintf("at %s: Open = %v, %s; want %v, %s", now, open, until.UTC(), opens[i], want)
		}
		next, first := set.Next(now), slices.Index(starts[i+1:], true)
		if want := now.Add(time.Duration(first+1) * time.Minute); first >= 0 && !next.Equal(want) {
			return fmt.Sprintf("at %s: Next = %s, want %s", now, next.UTC(), want)
		}
	}
	return ""
}

// further is the next minute to compare: one where a window opens or closes, one before, or any.
func further(r *rand.Rand, i int, opens, starts []bool) int {
	for most := i + 1 + r.IntN(300); i < most; {
		i++
		if r.IntN(4) == 0 && (opens[i] != opens[i-1] || opens[i] != opens[i+1] || starts[i]) {
			return i
		}
	}
	return i
}

func FuzzParse(f *testing.F) {
	f.Add("0 22 * * 6", "Europe/Oslo", int64(time.Hour), int64(1774749600))
	f.Add("*/15 1-3,22 29 feb mon", "Australia/Lord_Howe", int64(time.Minute), int64(0))
	f.Add("TZ=UTC", "", int64(0), int64(0))
	f.Add("? ? ? ? ?", "Pacific/Apia", int64(longest), int64(1325196000))
	f.Add("0 0 */9223372036854775807 * *", "UTC", int64(longest), int64(1<<40))
	f.Fuzz(func(t *testing.T, schedule, zone string, duration, now int64) {
		w, err := Parse(schedule, zone, time.Duration(duration))
		if err != nil {
			return
		}
		when := time.Unix(now%(1<<32), 0)
		if next := w.Next(when); !next.After(when) {
			t.Fatalf("%q in %q: the next after %s is %s", schedule, zone, when, next)
		} else if open, until := (Set{w}).Open(next); !open || until.Before(next.Add(time.Duration(duration))) {
			t.Fatalf("%q in %q: open at its begin %s is %v, until %s", schedule, zone, next, open, until)
		}
		if open, until := (Set{w}).Open(when); open && !until.After(when) {
			t.Fatalf("%q in %q: at %s open until %s", schedule, zone, when, until)
		}
	})
}
