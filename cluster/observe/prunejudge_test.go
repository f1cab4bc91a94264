package observe

import (
	"testing"

	"github.com/recast-sh/recast/cluster/clustertest"
)

// TestSupersededIsTidy: a disk that a killed roll had begun to free is the node's only reason, and
// leaves it Tidy.
func TestSupersededIsTidy(t *testing.T) {
	t.Parallel()
	p := clustertest.Park(9900, "pve1", "wk1", "scsi30 r1", "scsi29 r2")
	if got := diffKept(p); len(got) > 0 {
		t.Errorf("drift %v", got)
	}
	p.Record.Kept[0].Going = true
	d := Drift{Reasons: diffKept(p)}
	if !d.Tidy() || len(d.Reasons) != 1 || d.Reasons[0].Code != "superseded-disk" {
		t.Errorf("drift %+v: tidy %t", d, d.Tidy())
	}
	p.Record.Open = true
	if got := diffKept(p); len(got) > 0 {
		t.Errorf("drift of an unfinished replacement: %v", got)
	}
}
