package window

import (
	"strings"
	"testing"
	"time"
	_ "time/tzdata"

	"github.com/google/go-cmp/cmp"
)

func TestParseScheduleErrors(t *testing.T) {
	t.Parallel()
	cases := map[string]struct{ schedule, zone, want string }{
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
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := ParseSchedule(c.schedule, c.zone); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one with %q", err, c.want)
			}
		})
	}
}

func TestNext(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		schedule, zone, after string
		want                  []string
	}{
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
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, err := ParseSchedule(c.schedule, c.zone)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for now := at(t, c.after); len(got) < len(c.want); {
				now = s.Next(now)
				got = append(got, now.Format(time.RFC3339))
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("times (-want +got):\n%s", diff)
			}
		})
	}
}

func TestDue(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		schedule, last, now string
		due                 bool
		next                string
	}{
		"not yet":          {"17 * * * *", "2026-01-01T10:17:30Z", "2026-01-01T11:16:59Z", false, "2026-01-01T11:17:00Z"},
		"now":              {"17 * * * *", "2026-01-01T10:17:30Z", "2026-01-01T11:17:00Z", true, "2026-01-01T12:17:00Z"},
		"missed several":   {"17 * * * *", "2026-01-01T10:17:30Z", "2026-01-03T00:00:00Z", true, "2026-01-03T00:17:00Z"},
		"never done":       {"0 0 1 1 *", "", "2026-01-03T00:00:00Z", true, "2027-01-01T00:00:00Z"},
		"a clock set back": {"17 * * * *", "2026-01-02T00:00:00Z", "2026-01-01T00:00:00Z", false, "2026-01-01T00:17:00Z"},
		"no schedule":      {"", "", "2026-01-03T00:00:00Z", false, "0001-01-01T00:00:00Z"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, err := ParseSchedule(c.schedule, "")
			if err != nil {
				t.Fatal(err)
			}
			var last time.Time
			if c.last != "" {
				last = at(t, c.last)
			}
			due, next := s.Due(last, at(t, c.now))
			if due != c.due || !next.Equal(at(t, c.next)) {
				t.Errorf("Due = %v, %s; want %v, %s", due, next, c.due, c.next)
			}
		})
	}
}

func at(t *testing.T, s string) time.Time {
	t.Helper()
	when, err := time.Parse(time.RFC3339, s)
	if err != nil {
		t.Fatal(err)
	}
	return when
}
