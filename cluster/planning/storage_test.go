package planning

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
)

// TestNoteInitiators: only a node that gets another system disk has another name, for the protocols that volumes use.
func TestNoteInitiators(t *testing.T) {
	t.Parallel()
	of := func(s cluster.Strategy, served ...cluster.LocalData) NodePlan {
		return NodePlan{Node: "wk1", Strategy: s, Found: observe.Found{Node: &cluster.KubeNode{MachineID: "4c4c4544004f5a10805ac7c04f4a3233"}, Served: served}}
	}
	volume := cluster.LocalData{What: "PersistentVolume a (claim default/db-0)", Access: cluster.ISCSI}
	note := "its name for iSCSI (iqn.2017-11.dev.talos:4c4c4544004f5a10805ac7c04f4a3233) changes with the system disk, as its machine-id does: " +
		"where the server of PersistentVolume a (claim default/db-0) lets in only names that it knows, add the new one, which the roll shows"
	p := Plan{Nodes: []NodePlan{of(cluster.Recreate, volume), of(cluster.Reimage, volume), of(cluster.InPlace, volume), of(cluster.Recreate)}}
	noteInitiators(&p)
	var got [][]string
	for _, n := range p.Nodes {
		got = append(got, n.Notes)
	}
	if diff := cmp.Diff([][]string{{note}, {note}, nil, nil}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestNodesWithOtherNamesGoOneByOne: they share a slot with room for one, however many may be out.
func TestNodesWithOtherNamesGoOneByOne(t *testing.T) {
	t.Parallel()
	p := Plan{MaxUnavailable: 3, PerHost: 3, Nodes: []NodePlan{
		{Node: "wk1", Strategy: cluster.Recreate, Phase: Workers, Host: "pve1", Initiators: []string{cluster.ISCSI}},
		{Node: "wk2", Strategy: cluster.Recreate, Phase: Workers, Host: "pve2"},
	}}
	p.Arrange()
	if diff := cmp.Diff([][]string{{"host/pve1", "initiator"}, {"host/pve2"}}, [][]string{p.Nodes[0].Slots, p.Nodes[1].Slots}); diff != "" || p.Room["initiator"] != 1 {
		t.Errorf("room %v (-want +got):\n%s", p.Room, diff)
	}
}
