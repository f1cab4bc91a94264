package ui

import (
	"testing"

	"github.com/recast-sh/recast/cluster"
)

// kubectl commands run anywhere; the others as root on the VM's host.
func TestToRecreateSaysWhereCommandsAreTyped(t *testing.T) {
	t.Parallel()
	evict := cluster.Obstacle{Text: "replicas", Command: "kubectl patch x"}
	snapshot := cluster.Obstacle{Text: "snapshots", Command: "qm delsnapshot 9032 before"}
	words := cluster.Obstacle{Text: "something else"}
	for name, tc := range map[string]struct {
		obstacles []cluster.Obstacle
		want      string
	}{
		"kubectl":           {[]cluster.Obstacle{evict, evict}, "kubectl patch x"},
		"the host":          {[]cluster.Obstacle{snapshot}, "as root on pve2: qm delsnapshot 9032 before"},
		"both":              {[]cluster.Obstacle{snapshot, evict}, "kubectl patch x; as root on pve2: qm delsnapshot 9032 before"},
		"kubectl and words": {[]cluster.Obstacle{evict, words}, "kubectl patch x; and something else"},
	} {
		if got := (toRecreate{node: "wk2", host: "pve2", obstacles: tc.obstacles}).line(); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}
