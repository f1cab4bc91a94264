package past

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster/claim"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/journal"
)

// ranAt writes the journal of a run that a machine started then.
func ranAt(t *testing.T, dir, id, host string, began time.Time) {
	t.Helper()
	r := Runs{Dir: dir}
	runWith(t, r, id, "done", map[string]any{AboutKey: About{Command: "roll", By: claim.Holder{Host: host}}})
	backdate(t, dir, id, began)
}

// TestOrderOfRuns: the last run is the one that started last, whatever its ID; and where that is not certain, it is said
// to be so.
func TestOrderOfRuns(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 21, 4, 21, 10, 0, time.UTC)
	// Of one minute: the later one has the ID that sorts first.
	const first, second = "20261121-0421-ffff", "20261121-0421-0000"
	here := func(id, host string, began time.Time) func(*testing.T, Runs) {
		return func(t *testing.T, r Runs) { ranAt(t, r.Dir, id, host, began) }
	}
	there := func(id, host string, began time.Time) func(*testing.T, Runs) {
		return func(t *testing.T, r Runs) { ranAt(t, r.Elsewhere+"/first", id, host, began) }
	}
	for name, c := range map[string]struct {
		journals []func(*testing.T, Runs)
		at       [2]time.Time // as recorded in Proxmox, of first and second
		sure     bool
		last     string
	}{
		"by their journals":                    {journals: []func(*testing.T, Runs){here(first, "h", at), here(second, "h", at.Add(time.Millisecond))}, last: second, sure: true},
		"by what other machines have shared":   {journals: []func(*testing.T, Runs){there(first, "h", at), there(second, "h", at.Add(time.Millisecond))}, last: second, sure: true},
		"of two machines, at almost one time":  {journals: []func(*testing.T, Runs){here(first, "h", at), there(second, "ci", at.Add(5*time.Minute))}, last: second},
		"of two machines, long apart":          {journals: []func(*testing.T, Runs){here(first, "h", at), there(second, "ci", at.Add(time.Hour))}, last: second, sure: true},
		"without journals":                     {at: [2]time.Time{at, at.Add(time.Hour)}, last: second, sure: true},
		"without journals, at almost one time": {at: [2]time.Time{at, at.Add(time.Minute)}, last: second},
		"without journals or times":            {last: first},
		"one journal is here":                  {journals: []func(*testing.T, Runs){here(second, "h", at.Add(time.Minute))}, at: [2]time.Time{at, {}}, last: second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			r := Runs{Dir: dir + "/.recast/runs", Elsewhere: dir + "/.recast/elsewhere"}
			for _, write := range c.journals {
				write(t, r)
			}
			got, sure := r.Order([]planning.Replacing{{Run: first, At: c.at[0]}, {Run: second, At: c.at[1]}})
			if got[0].Run != c.last || sure != c.sure {
				t.Errorf("%v, sure: %t", got, sure)
			}
			if one, sure := r.Order(got[:1]); !sure || len(one) != 1 {
				t.Errorf("of one run: %v, %t", one, sure)
			}
		})
	}
	none := Runs{Dir: t.TempDir()}
	got, sure := none.Order([]planning.Replacing{{Run: "20261120-0300-aaaa"}, {Run: "20261121-0421-3f2a", At: at}})
	if sure || got[0].Run != "20261121-0421-3f2a" {
		t.Errorf("one time is not recorded, and the IDs are a day apart: %v, %t", got, sure)
	}
	if began := journal.RunBegan(first); !began.Equal(at.Truncate(time.Minute)) {
		t.Error(began)
	}
}

// backdate sets when a run began.
func backdate(t *testing.T, dir, id string, began time.Time) {
	t.Helper()
	text := `{"started":"` + began.Format(time.RFC3339Nano) + `","finished":"` + began.Add(time.Second).Format(time.RFC3339Nano) + `","outcome":"done"}`
	if err := os.WriteFile(filepath.Join(dir, id, "RUN"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
