package survey

import (
	"context"
	"fmt"
	"slices"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/etcd"
	"github.com/recast-sh/recast/internal/fault"
)

// EtcdTroubles lists what is wrong with etcd, each with a hint.
func (s Survey) EtcdTroubles(ctx context.Context, talos cluster.EtcdReader, files cluster.FileReader) []error {
	planes := s.ControlPlanes()
	if len(planes) == 0 {
		return nil // reported with Kubernetes
	}
	v, err := etcd.Look(ctx, talos, planes)
	if err != nil {
		return []error{fault.WithHint(err, "talosctl etcd status; bring etcd back first")}
	}
	var out []error
	for _, wrong := range v.Unhealthy("") {
		hint := "talosctl etcd status; talosctl etcd alarm list"
		if i := slices.IndexFunc(planes, func(e cluster.Endpoint) bool { return wrong == e.Node+cluster.IsLearner }); i >= 0 {
			hint = etcd.AdviceForLearner(planes[i].Node, planes[i].Addr, s.machineOf(planes[i].Node))
		}
		out = append(out, fault.WithHint(fault.EtcdUnhealthy.Refusedf("%s", wrong), "%s; a roll takes no control plane out before that is put right", hint))
	}
	for _, e := range planes {
		if !v.Has(e) {
			out = append(out, s.noMember(ctx, talos, files, v, e))
		}
	}
	return out
}

// machineOf is the machine of a node; nil if it does not answer.
func (s Survey) machineOf(node string) *cluster.Machine {
	for _, f := range s.Found {
		if f.Name == node {
			return f.Machine
		}
	}
	return nil
}

// noMember says what is known about a control plane that is not among the members. One that was
// removed but kept its data restarts its etcd for ever, and reports it only in etcd's log.
func (s Survey) noMember(ctx context.Context, talos cluster.EtcdReader, files cluster.FileReader, v etcd.View, e cluster.Endpoint) error {
	err := fault.EtcdUnhealthy.Refusedf("%s is no member of etcd (%s are)", e.Node, v.Names())
	if own, errOwn := talos.EtcdStatus(ctx, e.Addr); errOwn == nil {
		return fault.WithHint(fmt.Errorf("%w, but runs etcd member %x", err, own.MemberID),
			"there are two etcds: talosctl etcd members, asked of each control plane, shows who is in which; find out which has the cluster's data before anything is wiped")
	}
	m := s.machineOf(e.Node)
	if m == nil {
		return fault.WithHint(err, "bring its machine back; in Proxmox, see whether its VM is there. Where it is gone for good: kubectl delete node %s", e.Node)
	}
	data, errData := etcd.HasData(ctx, files, e, m.UUID)
	switch {
	case errData != nil:
		return fmt.Errorf("%w, and whether it has data of etcd can't be determined: %w", err, errData)
	case data && len(v.Members)*2 > len(s.ControlPlanes()):
		return fault.WithHint(fmt.Errorf("%w, but has data of one: it was removed, and its etcd restarts for ever (the member has been permanently removed from the cluster)", err),
			"make it a new one with empty data: %s; or roll it to another build by recreate or reimage, if etcd's data is on its system disk", etcd.EmptyData(e.Node, e.Addr, m))
	}
	return fault.WithHint(err, "talosctl -n %s service etcd says what it waits for", e.Addr)
}
