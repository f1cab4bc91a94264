package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/recast-sh/recast/internal/fault"
)

// Addr is where the member's machine is reached, by its peer URL.
func (m EtcdMember) Addr() (netip.Addr, error) {
	for _, peer := range m.Peers {
		u, err := url.Parse(peer)
		if err != nil {
			continue
		}
		if addr, err := netip.ParseAddr(u.Hostname()); err == nil {
			return addr, nil
		}
	}
	return netip.Addr{}, fmt.Errorf("etcd member %s: no address in its peer URLs %v", m.name(), m.Peers)
}

func (m EtcdMember) name() string {
	if m.Name != "" {
		return m.Name
	}
	return fmt.Sprintf("%x", m.ID) // added, but not started yet
}

// etcdView is the cluster as all of its members describe it.
type etcdView struct {
	Members  []EtcdMember
	statuses map[uint64]EtcdStatus
	errs     map[uint64]error
}

// viewEtcd asks the first of the control planes that answers for the list of
// members, then every member but the ones named in without for its own status.
func viewEtcd(ctx context.Context, talos Talos, ask []netip.Addr, without ...string) (etcdView, error) {
	v := etcdView{statuses: map[uint64]EtcdStatus{}, errs: map[uint64]error{}}
	var errs []error
	for _, addr := range ask {
		members, err := talos.EtcdMembers(ctx, addr)
		if err == nil {
			v.Members = members
			break
		}
		errs = append(errs, fmt.Errorf("ask %s for the members of etcd: %w", addr, err))
	}
	if len(v.Members) == 0 {
		return v, errors.Join(append(errs, errors.New("no control plane says who the members of etcd are"))...)
	}
	for _, m := range v.Members {
		if slices.Contains(without, m.Name) {
			continue
		}
		addr, err := m.Addr()
		var s EtcdStatus
		if err == nil {
			s, err = talos.EtcdStatus(ctx, addr)
		}
		switch {
		case err != nil:
			v.errs[m.ID] = err
		case s.MemberID != m.ID:
			v.errs[m.ID] = fmt.Errorf("at %s there is member %x, not %x", addr, s.MemberID, m.ID)
		default:
			v.statuses[m.ID] = s
		}
	}
	return v, nil
}

// member finds the one member of a machine; two of the same name are an error:
// Talos would remove the wrong one when the machine joins again.
func (v etcdView) member(name string) (m EtcdMember, found bool, err error) {
	for _, o := range v.Members {
		if o.Name != name {
			continue
		}
		if found {
			return m, true, fault.WithHint(fault.Refusedf("etcd has two members named %s: %x and %x", name, m.ID, o.ID),
				"give every machine a hostname of its own: Talos removes the member of its name when a machine joins anew")
		}
		m, found = o, true
	}
	return m, found, nil
}

// unhealthy lists what is wrong with every member but the one named except.
func (v etcdView) unhealthy(except string) []string {
	var out []string
	leaders := map[uint64][]string{} // who says so, by leader
	told := map[string]bool{}
	for _, m := range v.Members {
		if m.Name == except {
			continue
		}
		s, err := v.statuses[m.ID], v.errs[m.ID]
		switch {
		case err != nil:
			out = append(out, fmt.Sprintf("%s does not answer: %v", m.name(), err))
			continue
		case m.Learner || s.Learner:
			out = append(out, m.name()+" is a learner: it does not vote yet")
		case s.Leader == 0:
			out = append(out, m.name()+" knows no leader")
		}
		for _, e := range s.Errors {
			if text := m.name() + ": " + e; !told[e] {
				told[e] = true // every member tells all alarms
				out = append(out, text)
			}
		}
		if s.Leader != 0 {
			leaders[s.Leader] = append(leaders[s.Leader], m.name())
		}
	}
	if len(leaders) > 1 {
		out = append(out, "its members do not agree who leads: "+camps(leaders))
	}
	return out
}

// camps says who takes whom for the leader.
func camps(leaders map[uint64][]string) string {
	var out []string
	for leader, by := range leaders {
		out = append(out, fmt.Sprintf("%s say %x", strings.Join(by, " and "), leader))
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

// askEtcd lists whom to ask about etcd, the node itself last.
func (n *nodeRoll) askEtcd() []netip.Addr {
	var others []netip.Addr
	for _, addr := range n.plan.controlPlanes {
		if addr != n.plan.Addr {
			others = append(others, addr)
		}
	}
	return append(others, n.plan.Addr)
}

// requireEtcd refuses to take a control plane out unless etcd goes on without it.
func (n *nodeRoll) requireEtcd(ctx context.Context) error {
	if n.plan.Role != controlPlane {
		return nil
	}
	v, err := viewEtcd(ctx, n.Talos, n.askEtcd())
	if err != nil {
		return fault.WithHint(fault.Refusedf("whether etcd would survive losing %s can't be told: %w", n.plan.Node, err), "talosctl etcd status; bring etcd back first")
	}
	m, member, err := v.member(n.plan.Node)
	if err != nil {
		return err
	}
	except := n.plan.Node
	if member && len(v.Members) == 1 {
		except = "" // nobody else tells what is wrong with it
	}
	if wrong := v.unhealthy(except); len(wrong) > 0 {
		return fault.WithHint(fault.Refusedf("etcd would not survive losing %s: %s", n.plan.Node, strings.Join(wrong, "; ")),
			"talosctl etcd status; talosctl etcd alarm list; put etcd right first")
	}
	voters := len(v.Members)
	if !member {
		voters++ // it is out already: the others are all there are
	}
	if err := errors.Join(n.requireSameEtcd(ctx, v, m), n.requireAllMembers(v, voters)); err != nil {
		return err
	}
	refused, _ := etcdRules(voters, !n.plan.etcdKept, n.plan.Strategy, n.AcceptOutage)
	if len(refused) > 0 {
		return fault.Refusedf("%s", strings.Join(refused, "; "))
	}
	return nil
}

// requireSameEtcd refuses where the member of the node's name is not the one
// that runs on the node: when it joins again Talos would remove another
// machine's member, and what it has now would be another cluster's data.
func (n *nodeRoll) requireSameEtcd(ctx context.Context, v etcdView, m EtcdMember) error {
	own, err := n.Talos.EtcdStatus(ctx, n.plan.Addr)
	_, answers := v.statuses[m.ID]
	switch {
	case err == nil && own.MemberID != m.ID && m.ID == 0:
		err = fault.Refusedf("%s runs etcd member %x, which the others (%s) do not know", n.plan.Node, own.MemberID, v.names())
	case err == nil && own.MemberID != m.ID, err != nil && answers:
		err = fault.Refusedf("etcd member %x is named %s, but is not what runs on %s: another machine has its name", m.ID, n.plan.Node, n.plan.Addr)
	default:
		return nil // that it does not answer is no reason not to replace it
	}
	return fault.WithHint(err, "talosctl get members and talosctl etcd members, asked of each control plane, show who is who")
}

// requireAllMembers refuses where a control plane has no part in the etcd that
// was looked at. A resumed run may not see them all.
func (n *nodeRoll) requireAllMembers(v etcdView, voters int) error {
	if n.plan.Resume || voters == len(n.plan.controlPlanes) {
		return nil
	}
	return fault.WithHint(
		fault.Refusedf("the cluster has %d control planes, but etcd without %s only these members: %s", len(n.plan.controlPlanes), n.plan.Node, v.names(n.plan.Node)),
		"talosctl etcd members, asked of each control plane; each must be a member, and nobody else")
}

// names lists the members but the ones named in without.
func (v etcdView) names(without ...string) string {
	var out []string
	for _, m := range v.Members {
		if !slices.Contains(without, m.Name) {
			out = append(out, m.name())
		}
	}
	return cmpNone(strings.Join(out, ", "))
}

// leftEtcd is the goal of leaving: the record says so and no member of that name is left.
func (n *nodeRoll) leftEtcd(ctx context.Context) (string, error) {
	park, err := n.parking(ctx)
	if err != nil || !park.Record.Left {
		return "", err
	}
	return n.plan.Node + " has left etcd", nil
}

// leaveEtcd makes the node leave etcd while the others can still agree to it:
// its data goes with the system disk, and a member without data is a vote lost.
// A machine that is off already stays listed; the fresh one takes its place by
// its name (talos internal/app/machined/pkg/system/services/etcd.go).
func (n *nodeRoll) leaveEtcd(ctx context.Context) error {
	if reason, err := n.stopped(ctx); err != nil || reason != "" {
		return err
	}
	v, err := viewEtcd(ctx, n.Talos, n.askEtcd(), n.plan.Node)
	if err != nil {
		return err
	}
	_, member, err := v.member(n.plan.Node)
	if err != nil {
		return err
	}
	if member {
		if wrong := v.unhealthy(n.plan.Node); len(wrong) > 0 {
			err := fault.WithHint(fault.Refusedf("etcd must be healthy for %s to leave it: %s", n.plan.Node, strings.Join(wrong, "; ")), "bring the other members back first")
			return errors.Join(err, n.backOut(ctx)) // it serves still, and goes on
		}
		if err := n.Talos.EtcdForfeit(ctx, n.plan.Addr, n.plan.UUID); err != nil {
			return fmt.Errorf("make %s hand etcd's leadership over: %w", n.plan.Node, err)
		}
		if err := n.Talos.EtcdLeave(ctx, n.plan.Addr, n.plan.UUID); err != nil && !errors.Is(err, ErrLostAnswer) {
			return fmt.Errorf("make %s leave etcd: %w", n.plan.Node, err)
		}
	}
	others := n.askEtcd()
	others = others[:len(others)-1]
	err = n.wait(ctx, "take-down/leave-etcd", n.plan.Node+" gone from etcd", n.Timing.Stop, func(ctx context.Context) (bool, string, error) {
		v, err := viewEtcd(ctx, n.Talos, others, n.plan.Node)
		if err != nil {
			return false, "", err
		}
		_, member, err := v.member(n.plan.Node)
		return !member && err == nil, "still a member", err
	})
	if err != nil {
		return err
	}
	return n.updateRecord(ctx, func(rec *Record) { rec.Left = true })
}

// lacksEtcd names what the node's own member still lacks after the roll.
func (n *nodeRoll) lacksEtcd(ctx context.Context, mem memory) (string, error) {
	if !mem.ControlPlane {
		return "", nil
	}
	v, err := viewEtcd(ctx, n.Talos, n.askEtcd())
	if err != nil {
		return "", err
	}
	m, member, err := v.member(n.plan.Node)
	switch {
	case err != nil:
		return "", err
	case !member:
		return "it is no member of etcd yet", nil
	case m.Learner:
		return "its etcd member is a learner still", nil
	case mem.EtcdKept && m.ID != mem.EtcdID:
		return fmt.Sprintf("its etcd member is %x, but its data is that of %x", m.ID, mem.EtcdID), nil
	case len(v.Members) != mem.EtcdMembers:
		return fmt.Sprintf("etcd has %d members, before: %d", len(v.Members), mem.EtcdMembers), nil
	}
	if wrong := v.unhealthy(""); len(wrong) > 0 {
		return "etcd: " + strings.Join(wrong, "; "), nil
	}
	return "", nil
}

// rememberEtcd notes which member the node is, to know it again.
func (n *nodeRoll) rememberEtcd(ctx context.Context, mem *memory) error {
	if !mem.ControlPlane {
		return nil
	}
	v, err := viewEtcd(ctx, n.Talos, n.askEtcd())
	if err != nil {
		return err
	}
	m, found, err := v.member(n.plan.Node)
	if err != nil {
		return err
	}
	mem.EtcdMembers = len(v.Members)
	if !found {
		mem.EtcdMembers++ // with this one, once it is back
	}
	mem.EtcdID, mem.Old.Etcd = m.ID, v.statuses[m.ID].Version
	return nil
}
