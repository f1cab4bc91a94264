package schedules

import (
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
)

// TestWithoutAWire plays the same faults with and without connections.
func TestWithoutAWire(t *testing.T) {
	if testing.Short() {
		t.Skip("long: make stories")
	}
	t.Parallel()
	c, err := Parse("cp=1 wk=1 hosts=1 etcd-on-data=yes strategy=recreate change=patch faults=kill@9,lost@15,dropped@22,kill-away@30,api@3m0s+20s,mute:1@1m0s+20s direct=yes")
	if err != nil {
		t.Fatal(err)
	}
	direct, changes := outcome(t, c)
	for _, problem := range direct.Problems {
		t.Errorf("%s", problem)
	}
	if direct.NodeRolls != 2 {
		t.Errorf("%d nodes were rolled", direct.NodeRolls)
	}
	// To closed or untrusted servers.
	if direct.Dials*50 > direct.Calls {
		t.Errorf("%d connections were made for %d calls", direct.Dials, direct.Calls)
	}
	if testing.Short() {
		return
	}
	c.Direct = false
	wire, wireChanges := outcome(t, c)
	if diff := cmp.Diff(wireChanges, changes); diff != "" {
		t.Errorf("what recast has changed (-wire +direct):\n%s", diff)
	}
	for _, r := range []*Result{&wire, &direct} {
		r.Case, r.Calls, r.Dials, r.Virtual, r.Story = "", 0, 0, 0, nil
	}
	if diff := cmp.Diff(wire, direct); diff != "" {
		t.Errorf("what came of it (-wire +direct):\n%s", diff)
	}
}

var podName = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-z]{5}`)

// outcome plays a case and lists recast's changes without duplicates: their number and
// order depend on scheduling.
func outcome(t *testing.T, c Case) (r Result, changes []string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p := newPlay(t, c)
		p.playAll()
		r = p.res
		for _, call := range p.lab.Recorder.Calls() {
			if isOurs(call) {
				changes = append(changes, podName.ReplaceAllString(strings.Join([]string{call.Proto, call.Target, call.Method, pathOf(call)}, " "), "N"))
			}
		}
		slices.Sort(changes)
		changes = slices.Compact(changes)
	})
	return r, changes
}
