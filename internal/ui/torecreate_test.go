package ui

import (
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/survey"
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

// Every node has a row, whatever a roll would do with it.
func TestStrategiesOf(t *testing.T) {
	t.Parallel()
	snapshot := cluster.Obstacle{Text: "it has snapshots", Command: "qm delsnapshot 9032 before"}
	impossible := map[cluster.Strategy][]string{cluster.Recreate: {"it has snapshots", "and more"}}
	for name, tc := range map[string]struct {
		a    survey.Assessment
		want string
	}{
		"recreate":       {survey.Assessment{Strategy: cluster.Recreate}, "recreate: –"},
		"made":           {survey.Assessment{Strategy: cluster.Create}, "create: –"},
		"reimage":        {survey.Assessment{Strategy: cluster.Reimage, Host: "pve2", Against: impossible, ToRecreate: []cluster.Obstacle{snapshot}}, "reimage: as root on pve2: qm delsnapshot 9032 before"},
		"asked":          {survey.Assessment{Strategy: cluster.InPlace}, "in-place: in recast.yaml strategy: auto"},
		"asked, blocked": {survey.Assessment{Strategy: cluster.InPlace, Against: impossible}, "in-place: in recast.yaml strategy: auto; and it has snapshots"},
		"refused":        {survey.Assessment{Strategy: cluster.Recreate, Refused: []string{"it has snapshots"}, ToRecreate: []cluster.Obstacle{snapshot}}, "refused: as root on its host: qm delsnapshot 9032 before"},
		"nothing":        {survey.Assessment{Refused: []string{"no way"}}, "refused: no way"},
		"unread":         {survey.Assessment{Unread: true}, "not known: its machine could not be read: see above"},
	} {
		row := strategiesOf([]survey.Assessment{tc.a})[0]
		if got := row.strategy + ": " + row.line(); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}
