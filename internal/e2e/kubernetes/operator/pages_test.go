package operator

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// pages: every replica shows the whole fleet, what stopped a FleetRoll, and asks the API server nothing for that.
func (f *fleet) pages() {
	standby := f.startReplica()
	last := clusterName(f.clusters - 1)
	f.until("the other replica has all objects", func() bool { return strings.Contains(standby.page("/"), last) })
	before := f.operator.settle()
	const looks, slowest = 20, time.Second
	began := time.Now()
	for range looks {
		for path, wants := range map[string][]string{
			"/":                     {fmt.Sprintf("<dd>%d</dd>", f.clusters), "/clusters/fleet/" + last, "abort threshold"},
			"/fleets/fleet/winter":  {"find out why c0011, c0012 failed", "/rolls/fleet/winter-c0011"},
			"/clusters/fleet/c0011": {"winter-c0011", `<span class="bad">failed</span>`},
			"/rolls/fleet/winter-c0011": {
				"ImageRoll of", "kubectl -n fleet get configmap recast-roll-winter-c0011-plan",
			},
		} {
			for _, replica := range []single{f.operator, standby} {
				text := replica.page(path)
				for _, want := range wants {
					if !strings.Contains(text, want) {
						f.t.Fatalf("%s without %q:\n%s", path, want, text)
					}
				}
			}
		}
	}
	took := time.Since(began) / (looks * 8)
	fmt.Fprintf(f.t.Output(), "a page of %d clusters: %s, %d KiB\n", f.clusters, took.Round(time.Millisecond), len(f.operator.page("/"))>>10)
	if c := f.operator.read().since(before); took > slowest || c.requests > 0 || f.operator.read().sum("leader_election_master_status") != 1 {
		f.t.Errorf("a page took %s; meanwhile: %s", took, c)
	}
	if peak := standby.peakMiB(); peak > most[f.clusters] {
		f.t.Errorf("the other replica had %d MiB", peak)
	}
	standby.Kill()
}

// page is one of the operator's pages, or why there is none.
func (s single) page(path string) string {
	s.h.t.Helper()
	request := must(http.NewRequestWithContext(s.h.t.Context(), http.MethodGet, s.pages+path, http.NoBody))(s.h.t)
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return err.Error()
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		return fmt.Sprintf("%s %v", answer.Status, err)
	}
	return string(text)
}
