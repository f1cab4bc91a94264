package etcd

import (
	"fmt"
	"net/netip"

	"github.com/recast-sh/recast/cluster"
)

// AdviceForLearner says how a member that stays a learner becomes a voter. Talos promotes a member
// only in the start of etcd in which it added the member, and stops trying after ten minutes
// (learnerMemberID and promoteMember in internal/app/machined/pkg/system/services/etcd.go).
func AdviceForLearner(addr netip.Addr, m *cluster.Machine) string {
	return fmt.Sprintf("Talos makes a member a voter within ten minutes of the start in which it joined: if %s has started again since, or that time is over, it stays a learner "+
		"until it joins again with empty data: %s, which also wipes whatever else that volume holds", addr, ResetEtcd(addr, m))
}

// ResetEtcd returns the command that wipes a control plane's etcd data, so that it joins again; m
// may be nil.
func ResetEtcd(addr netip.Addr, m *cluster.Machine) string {
	label := "EPHEMERAL"
	if m != nil && len(m.DisksWith("ETCD")) > 0 {
		label = "ETCD"
	}
	return fmt.Sprintf("talosctl reset -n %s --graceful=false --reboot --system-labels-to-wipe %s", addr, label)
}
