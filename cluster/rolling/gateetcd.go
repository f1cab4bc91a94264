package rolling

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/etcd"
	"github.com/recast-sh/recast/cluster/strategy"
	"github.com/recast-sh/recast/internal/fault"
)

// RequireEtcd refuses to take out a control plane unless etcd survives without it.
func (n *Node) RequireEtcd(ctx context.Context) error {
	if n.Plan.Role != cluster.ControlPlane {
		return nil
	}
	v, err := etcd.Look(ctx, n.Talos, n.AskEtcd())
	if err != nil {
		return fault.WithHint(fault.EtcdUnhealthy.Refusedf("whether etcd would survive losing %s can't be determined: %w", n.Plan.Node, err), "talosctl etcd status; bring etcd back first")
	}
	m, member, err := v.Member(n.Plan.Node)
	if err != nil {
		return err
	}
	except := n.Plan.Node
	if member && len(v.Members) == 1 {
		except = "" // no other member reports what is wrong with it
	}
	if wrong := v.Unhealthy(except); len(wrong) > 0 {
		return v.SilentOr(fault.WithHint(fault.EtcdUnhealthy.Refusedf("etcd would not survive losing %s: %s", n.Plan.Node, strings.Join(wrong, "; ")),
			"talosctl etcd status; talosctl etcd alarm list; put etcd right first"), wrong)
	}
	voters := len(v.Members)
	if !member {
		voters++ // the node has already left: the members are the others
	}
	if err := errors.Join(n.RequireSameEtcd(ctx, v, m), n.requireAllMembers(v, voters)); err != nil {
		return err
	}
	var refused []string
	typeInit := n.Plan.Found.Machine != nil && n.Plan.Found.Machine.TypeInit
	if refused = strategy.AgainstInit(!n.Plan.EtcdKept, typeInit); member {
		refused, _ = strategy.EtcdRules(voters, !n.Plan.EtcdKept, typeInit, n.Plan.Strategy, n.AcceptOutage)
	}
	switch {
	case len(refused) > 0:
		return fault.EtcdUnhealthy.Refusedf("%s", strings.Join(refused, "; "))
	case !member && n.Plan.EtcdKept:
		return fault.WithHint(fault.EtcdUnhealthy.Refusedf("%s is no member of etcd (%s are), and with the data that it has it can never join again", n.Plan.Node, v.Names()),
			"make it a new member with empty data first: %s", etcd.EmptyData(n.Plan.Node, n.Plan.Addr, n.Plan.Found.Machine))
	}
	return nil
}

// RequireSameEtcd refuses if the member with the node's name is not the one that runs on the node: when the
// replaced node joined, Talos would remove another machine's member, and the node's present data would belong to
// another cluster.
func (n *Node) RequireSameEtcd(ctx context.Context, v etcd.View, m cluster.EtcdMember) error {
	own, err := n.Talos.EtcdStatus(ctx, n.Plan.Addr)
	_, answers := v.Statuses[m.ID]
	i := slices.IndexFunc(v.Members, func(o cluster.EtcdMember) bool { return err == nil && o.ID == own.MemberID && o.Name != n.Plan.Node })
	switch {
	case m.ID == 0 && i >= 0:
		err = fault.EtcdUnhealthy.Refusedf("%s runs etcd member %x, which is named %s: when the machine joins again, Talos removes only the member of the machine's own name",
			n.Plan.Node, own.MemberID, v.Members[i].Label())
	case err == nil && own.MemberID != m.ID && m.ID == 0:
		err = fault.EtcdUnhealthy.Refusedf("%s runs etcd member %x, which the others (%s) do not know", n.Plan.Node, own.MemberID, v.Names())
	case err == nil && own.MemberID != m.ID, err != nil && answers:
		err = fault.EtcdUnhealthy.Refusedf("etcd member %x is named %s, but is not what runs on %s: another machine has its name", m.ID, n.Plan.Node, n.Plan.Addr)
	case err != nil && m.ID != 0:
		return n.requireOwnMember(ctx, m)
	default:
		return nil // a member that does not answer may be replaced
	}
	return fault.WithHint(err, "talosctl get members and talosctl etcd members, asked of each control plane, show who is who")
}

// requireAllMembers refuses if a control plane is not a member of the etcd that answered. A resumed
// run may not see all of them.
func (n *Node) requireAllMembers(v etcd.View, voters int) error {
	if n.Plan.Resume || voters == len(n.Plan.ControlPlanes) {
		return nil
	}
	return fault.WithHint(
		fault.EtcdUnhealthy.Refusedf("the cluster has %d control planes, but etcd without %s only these members: %s", len(n.Plan.ControlPlanes), n.Plan.Node, v.Names(n.Plan.Node)),
		"talosctl etcd members, asked of each control plane, shows who is missing. One that was removed while it kept its data joins again only without them: "+
			"recast doctor sees whether that is so, and then has the command that wipes them")
}

// RequireJoins refuses a configuration with which a machine without etcd's data would begin an etcd of its own.
func (n *Node) RequireJoins(text cluster.Secret) error {
	if !cluster.OfTypeInit(text) {
		return nil
	}
	return fault.WithHint(fault.MachineConfig.Refusedf("the machine configuration of %s is of machine.type init, and its etcd directory is empty: %s there, a second one beside that of the others", n.Plan.Node, strategy.BeginsAlone),
		"boot it from the boot ISO, and give it that configuration with machine.type: controlplane by hand: talosctl apply-config --insecure -n %s --file %s.yaml, with the new system disk by its serial; then recast roll finishes it", n.Plan.Addr, n.Plan.Node)
}

// requireOldEtcd refuses to boot an old system disk whose etcd data belongs to a removed member:
// etcd would crash-loop on it forever ("the member has been permanently removed from the cluster").
func (n *Node) requireOldEtcd(ctx context.Context) error {
	mem, err := n.Memory(ctx)
	if err != nil {
		return err
	}
	rec := n.Plan.Found.Parking.Record
	switch {
	case !mem.ControlPlane, mem.EtcdKept, !rec.Left && mem.EtcdMembers < 2:
		return nil
	case rec.Left:
		had, _, err := n.Journal.Secret(n.Key("machine-config"))
		if err != nil {
			return fmt.Errorf("journal: %w", err)
		}
		return n.RequireJoins(had)
	}
	v, err := etcd.Look(ctx, n.Talos, n.AskEtcd(), n.Plan.Node)
	if err != nil {
		return err
	}
	m, found, err := v.Member(n.Plan.Node)
	if err == nil && (!found || m.ID != mem.EtcdID) {
		err = fault.WithHint(fault.NoWayBack.Refusedf("the old system disk of %s holds the data of etcd member %x, which is no member any more: it would never join again", n.Plan.Node, mem.EtcdID),
			"let recast roll finish the replacement instead; that needs its machine configuration (talos.machineConfigs)")
	}
	return err
}
