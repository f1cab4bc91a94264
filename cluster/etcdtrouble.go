package cluster

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/recast-sh/recast/internal/fault"
)

// EtcdTroubles says what is wrong with etcd, each with what to do about it.
func (s Survey) EtcdTroubles(ctx context.Context, talos Talos, files FileReader) []error {
	planes := s.controlPlanes()
	if len(planes) == 0 {
		return nil // told where Kubernetes is
	}
	v, err := ViewEtcd(ctx, talos, planes)
	if err != nil {
		return []error{fault.WithHint(err, "talosctl etcd status; bring etcd back first")}
	}
	var out []error
	for _, wrong := range v.Unhealthy("") {
		hint := "talosctl etcd status; talosctl etcd alarm list"
		if i := slices.IndexFunc(planes, func(e Endpoint) bool { return wrong == e.Node+isLearner }); i >= 0 {
			hint = adviceForLearner(planes[i].Addr, s.machineOf(planes[i].Node))
		}
		out = append(out, fault.WithHint(fault.EtcdUnhealthy.Refusedf("%s", wrong), "%s; a roll takes no control plane out before that is put right", hint))
	}
	for _, e := range planes {
		if !v.has(e) {
			out = append(out, s.noMember(ctx, talos, files, v, e))
		}
	}
	return out
}

// has says whether a control plane is a member, if only one that was added and has not started yet.
func (v etcdView) has(e Endpoint) bool {
	return slices.ContainsFunc(v.Members, func(m EtcdMember) bool {
		addr, err := m.Address(nil)
		return m.Name == e.Node || m.Name == "" && err == nil && addr == e.Addr
	})
}

// noMember says what is known of a control plane that the members do not know. One
// that was removed while it kept its data restarts its etcd for ever, and says so
// in the log of that only.
func (s Survey) noMember(ctx context.Context, talos Talos, files FileReader, v etcdView, e Endpoint) error {
	err := fault.EtcdUnhealthy.Refusedf("%s is no member of etcd (%s are)", e.Node, v.names())
	if own, errOwn := talos.EtcdStatus(ctx, e.Addr); errOwn == nil {
		return fault.WithHint(fmt.Errorf("%w, but runs etcd member %x", err, own.MemberID),
			"there are two etcds: talosctl etcd members, asked of each control plane, shows who is in which; find out which has the cluster's data before anything is wiped")
	}
	m := s.machineOf(e.Node)
	if m == nil {
		return fault.WithHint(err, "bring its machine back, or delete its Node if it is gone for good")
	}
	data, errData := hasEtcdData(ctx, files, RestoreTarget{Node: e.Node, Addr: e.Addr, UUID: m.UUID})
	switch {
	case errData != nil:
		return fmt.Errorf("%w, and whether it has data of etcd can't be told: %w", err, errData)
	case data && len(v.Members)*2 > len(s.controlPlanes()):
		return fault.WithHint(fmt.Errorf("%w, but has data of one: it was removed, and its etcd restarts for ever (the member has been permanently removed from the cluster)", err),
			"make it a new one with empty data: %s, which also wipes whatever else that volume holds; or roll it to another build by recreate or reimage, if etcd's data is on its system disk", emptyEtcd(e.Addr, m))
	}
	return fault.WithHint(err, "talosctl -n %s service etcd says what it waits for", e.Addr)
}

// machineOf is the machine of a node, nil if it does not answer.
func (s Survey) machineOf(node string) *Machine {
	for _, f := range s.Found {
		if f.Name == node {
			return f.Machine
		}
	}
	return nil
}

// adviceForLearner is what makes a voter of a member that stays a learner. Talos
// promotes the member that it has added in this very start of etcd, and gives that
// up after ten minutes (learnerMemberID and promoteMember in
// internal/app/machined/pkg/system/services/etcd.go).
func adviceForLearner(addr netip.Addr, m *Machine) string {
	return fmt.Sprintf("Talos makes a member a voter within ten minutes of the start in which it joined: if %s has started again since, or that time is over, it stays a learner "+
		"until it joins anew with empty data: %s, which also wipes whatever else that volume holds", addr, emptyEtcd(addr, m))
}

// emptyEtcd is the command that empties what a control plane has of etcd, so that
// it joins anew; m may be nil.
func emptyEtcd(addr netip.Addr, m *Machine) string {
	label := "EPHEMERAL"
	if m != nil && len(m.disksWith("ETCD")) > 0 {
		label = "ETCD"
	}
	return fmt.Sprintf("talosctl reset -n %s --graceful=false --reboot --system-labels-to-wipe %s", addr, label)
}
