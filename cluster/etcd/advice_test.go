package etcd

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
)

// TestEmptyData: a command that wipes is given only for the volume that has etcd's data, and after a look at what else
// that volume has.
func TestEmptyData(t *testing.T) {
	t.Parallel()
	const wipes = "talosctl reset -n 10.0.0.1 --graceful=false --reboot --system-labels-to-wipe "
	for name, c := range map[string]struct {
		machine *cluster.Machine
		want    string
	}{
		"a partition of its own":   {&cluster.Machine{VolumeStatuses: []cluster.VolumeStatus{{ID: "ETCD", Type: cluster.PartitionVolume}}}, wipes + "ETCD, which"},
		"on EPHEMERAL":             {&cluster.Machine{}, "recast plan --explain cp1 lists what else only EPHEMERAL has; where that may go, too: " + wipes + "EPHEMERAL, which"},
		"of type init":             {&cluster.Machine{TypeInit: true}, "as a machine of type init it would begin a new, empty etcd then"},
		"a machine that is silent": {nil, "talosctl -n 10.0.0.1 get volumestatus ETCD shows"},
	} {
		got := EmptyData("cp1", netip.MustParseAddr("10.0.0.1"), c.machine)
		if !strings.HasPrefix(got, c.want) || (c.machine == nil || c.machine.TypeInit) && strings.Contains(got, "reset") {
			t.Errorf("%s: %s", name, got)
		}
	}
}

// TestLeftover: a member that answers is not to be removed.
func TestLeftover(t *testing.T) {
	t.Parallel()
	m := cluster.EtcdMember{ID: 0xc1, Name: "cp1", Peers: []string{"https://10.0.0.1:2380"}}
	silent, answers := View{}.Leftover(m), View{Statuses: map[uint64]cluster.EtcdStatus{0xc1: {}}}.Leftover(m)
	if !strings.Contains(silent, "remove-member c1") || strings.Contains(answers, "remove-member") || !strings.Contains(answers, "https://10.0.0.1:2380") {
		t.Errorf("silent: %s\nanswers: %s", silent, answers)
	}
}
