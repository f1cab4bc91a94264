package schedules

import (
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
)

// TestWithoutAWire plays the same troubles with and without connections.
func TestWithoutAWire(t *testing.T) {
	if testing.Short() {
		t.Skip("both cost make test seconds")
	}
	t.Parallel()
	c, err := Parse("cp=1 wk=1 hosts=1 etcd-on-data=yes strategy=recreate change=patch faults=kill@9,lost@15,dropped@22,kill-away@30,second@12,mute:1@1m0s+20s direct=yes")
	if err != nil {
		t.Fatal(err)
	}
	outcome := func(c Case) (r Result) {
		synctest.Test(t, func(t *testing.T) { r = Play(t, c) })
		return r
	}
	direct := outcome(c)
	for _, problem := range direct.Problems {
		t.Errorf("%s", problem)
	}
	if direct.NodeRolls != 2 {
		t.Errorf("%d nodes were rolled", direct.NodeRolls)
	}
	c.Direct = false
	wire := outcome(c)
	if diff := cmp.Diff(wire.Struck, direct.Struck); diff != "" || wire.Runs != direct.Runs {
		t.Errorf("%d runs over the wire, %d without; faults that struck (-wire +direct):\n%s", wire.Runs, direct.Runs, diff)
	}
}
