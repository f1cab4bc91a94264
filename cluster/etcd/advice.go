package etcd

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/words"
)

// AdviceForLearner says how a member that stays a learner becomes a voter. Talos promotes a member
// only in the start of etcd in which it added the member, and stops trying after ten minutes
// (learnerMemberID and promoteMember in internal/app/machined/pkg/system/services/etcd.go).
func AdviceForLearner(node string, addr netip.Addr, m *cluster.Machine) string {
	return fmt.Sprintf("Talos makes a member a voter within ten minutes of the start in which it joined: if %s has started again since, or that time is over, it stays a learner "+
		"until it joins again with empty data: %s", addr, EmptyData(node, addr, m))
}

// Leftover says what to do about a member that no control plane is known to run. One that answers is at work: it is
// somebody's.
func (v View) Leftover(m cluster.EtcdMember) string {
	who := fmt.Sprintf("talosctl get members shows which machine has the name, and %s are its addresses", words.OrNone(strings.Join(m.Peers, ", ")))
	if _, answers := v.Statuses[m.ID]; answers {
		return "its etcd answers: " + who
	}
	return fmt.Sprintf("%s; it does not answer now: where its machine is gone for good, talosctl etcd remove-member %x removes it", who, m.ID)
}

// EmptyData says how to wipe the etcd data of a control plane that nothing uses, so that it joins again; m may be
// nil. EPHEMERAL holds more than that.
func EmptyData(node string, addr netip.Addr, m *cluster.Machine) string {
	command := func(label string) string {
		return fmt.Sprintf("talosctl reset -n %s --graceful=false --reboot --system-labels-to-wipe %s, which also wipes whatever else that volume holds", addr, label)
	}
	switch {
	case m == nil:
		return fmt.Sprintf("talosctl -n %s get volumestatus ETCD shows whether that is a partition of its own, and recast doctor then has the command that wipes it", addr)
	case m.TypeInit:
		return fmt.Sprintf("as a machine of type init it would begin a new, empty etcd then: set machine.type: controlplane in its configuration first, which recast roll applies with its file in talos.machineConfigs, "+
			"or talosctl -n %s edit machineconfig --mode staged and a reboot; recast doctor then has the command", addr)
	case m.EtcdVolume() == cluster.PartitionVolume:
		return command("ETCD")
	}
	return fmt.Sprintf("recast plan --explain %s lists what else only EPHEMERAL has; where that may go, too: %s", node, command("EPHEMERAL"))
}
