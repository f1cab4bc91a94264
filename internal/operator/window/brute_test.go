package window

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

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
		zone, err := time.LoadLocation(name)
		if err != nil {
			t.Fatal(err)
		}
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
		if problem := compare(r, all); problem != "" {
			t.Fatalf("seed %d, %v: %s", seed, all, problem)
		}
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
		} else if open, until := w.Open(next); !open || until.Before(next.Add(time.Duration(duration))) {
			t.Fatalf("%q in %q: open at its begin %s is %v, until %s", schedule, zone, next, open, until)
		}
		if open, until := w.Open(when); open && !until.After(when) {
			t.Fatalf("%q in %q: at %s open until %s", schedule, zone, when, until)
		}
	})
}
