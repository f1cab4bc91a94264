package observe

import (
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
)

// TestTracesOfABrokenCluster: what bootstrap finds of a cluster may be a cluster that is broken. It is rebuilt, and no
// machine or disk of it is to be deleted first.
func TestTracesOfABrokenCluster(t *testing.T) {
	t.Parallel()
	runs := cluster.VM{ID: 9001, Name: "cp1", Host: "pve1", Running: true}
	o := Observation{First: "cp1", Parking: []parking.Parking{{VM: cluster.VM{ID: 9090, Host: "pve1"}, Record: parking.Record{Node: "cp1", Kept: []parking.KeptDisk{{Key: "scsi30", Run: "r1"}}}}}}
	texts := append(o.TracesOfCluster("cp1"), "it has "+runs.String()+asItIs(runs)+": "+o.whose("give that VM another name"))
	if len(texts) != 2 {
		t.Fatal(texts)
	}
	for _, text := range texts {
		if !strings.Contains(text, "recast rebuild cp1 --from SNAPSHOT") || strings.Contains(text, "delete") || strings.Contains(text, "destroy it ") {
			t.Error(text)
		}
	}
	if text := texts[1]; !strings.Contains(text, "which runs") {
		t.Error(text)
	}
	if text := (Observation{}).whose("give that VM another name"); strings.Contains(text, "rebuild") || strings.Contains(text, "delete") {
		t.Errorf("of one node of a cluster that works: %s", text)
	}
}
