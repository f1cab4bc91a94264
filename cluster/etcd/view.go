// Package etcd reads the state of the members of etcd from the control planes, and has the steps that begin and
// restore etcd. [Look] asks the control planes and makes a [View]; the View shows whether a member may be taken out.
// [Begin] makes a machine begin an etcd of its own. [Restore] has the steps that restore etcd on the only control
// plane of a cluster from a snapshot; [FindTarget] finds that machine, and refuses where there may be other control
// planes.
package etcd

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/wait"
	"github.com/recast-sh/recast/internal/words"
)

// View is etcd as all of its members describe it.
type View struct {
	Members  []cluster.EtcdMember
	Statuses map[uint64]cluster.EtcdStatus
	Errs     map[uint64]error
}

// Fit returns the members whose snapshot is usable, the best first.
func (v View) Fit() (fit []cluster.EtcdMember, err error) {
	unknown := maps.Clone(v.Statuses)
	for _, m := range v.Members {
		delete(unknown, m.ID)
		s, ok := v.Statuses[m.ID]
		if ok && s.Corrupt {
			return nil, fault.WithHint(fault.EtcdSnapshot.Refusedf("etcd's members do not hold the same data, so no snapshot of it can be trusted: %v", s.Errors),
				"talosctl etcd alarm list; replace the member that is wrong; talosctl etcd snapshot takes one of a member that you trust")
		}
		if ok && s.Leader != 0 && !s.Learner && !m.Learner {
			fit = append(fit, m)
		}
	}
	for id := range unknown {
		if len(v.Members) > 0 {
			return nil, fault.WithHint(fault.EtcdSnapshot.Refusedf("an endpoint of the talosconfig runs etcd member %x, which the others (%s) do not know: there are two etcds, and which is the cluster's can't be determined", id, v.Names()),
				"talosctl etcd members, asked of each endpoint, shows who is with whom; talosctl etcd snapshot takes one of a member that you trust")
		}
	}
	if len(fit) == 0 {
		return nil, fault.WithHint(fault.EtcdSnapshot.Refusedf("no member of etcd that answers follows a leader, so none is known to be up to date"),
			"talosctl etcd status; bring etcd back first; talosctl etcd snapshot takes what a member has without that")
	}
	// The leader comes first, because it has everything that was committed.
	leads := func(m cluster.EtcdMember) bool { return v.Statuses[m.ID].Leader == m.ID }
	slices.SortStableFunc(fit, func(a, b cluster.EtcdMember) int { return cluster.TrueFirst(leads(a), leads(b)) })
	return fit, nil
}

// Has reports whether a control plane is a member, even one that was added but has not started.
func (v View) Has(e cluster.Endpoint) bool {
	return slices.ContainsFunc(v.Members, func(m cluster.EtcdMember) bool {
		addr, err := m.Address(nil)
		return m.Name == e.Node || m.Name == "" && err == nil && addr == e.Addr
	})
}

// Member finds a machine's one member; of two with its name, Talos would remove the wrong one when it joins again.
func (v View) Member(name string) (m cluster.EtcdMember, found bool, err error) {
	for _, o := range v.Members {
		if o.Name != name {
			continue
		}
		if found {
			return m, true, fault.WithHint(fault.EtcdUnhealthy.Refusedf("etcd has two members named %s: %x and %x", name, m.ID, o.ID),
				"give every machine a hostname of its own: Talos removes the member of its name when a machine joins again")
		}
		m, found = o, true
	}
	return m, found, nil
}

// Names lists the members except those named in without.
func (v View) Names(without ...string) string {
	of := cluster.Where(v.Members, func(m cluster.EtcdMember) bool { return !slices.Contains(without, m.Name) })
	out := cluster.Each(of, func(m cluster.EtcdMember) string { return m.Label() })
	return words.OrNone(strings.Join(out, ", "))
}

// SilentOr returns the refusal, as a SilentError, so that the caller asks again, if all is only silence.
func (v View) SilentOr(refusal error, wrong []string) error {
	silent := cluster.Where(slices.Collect(maps.Values(v.Errs)), cluster.IsUnanswered)
	if len(silent) < len(wrong) {
		return refusal
	}
	return &cluster.SilentError{Err: refusal}
}

// Unhealthy lists the problems of every member but the one named except.
func (v View) Unhealthy(except string) []string {
	var out []string
	leaders := map[uint64][]string{} // members by the leader that they follow
	seen := map[string]bool{}
	for _, m := range v.Members {
		if m.Name == except {
			continue
		}
		s, err := v.Statuses[m.ID], v.Errs[m.ID]
		switch {
		case err != nil:
			out = append(out, m.Label()+" "+err.Error())
			continue
		case m.Learner || s.Learner:
			out = append(out, m.Label()+cluster.IsLearner)
		case s.Leader == 0:
			out = append(out, m.Label()+" knows no leader")
		}
		for _, e := range s.Errors {
			if text := m.Label() + ": " + e; !seen[e] {
				seen[e] = true // every member reports all alarms
				out = append(out, text)
			}
		}
		if s.Leader != 0 {
			leaders[s.Leader] = append(leaders[s.Leader], m.Label())
		}
	}
	if len(leaders) > 1 {
		out = append(out, "its members do not agree who leads: "+camps(leaders))
	}
	return append(out, v.skew(except)...)
}

func (v View) nameOf(id uint64) string {
	if m, known := cluster.Find(v.Members, func(m cluster.EtcdMember) bool { return m.ID == id }); known {
		return m.Label()
	}
	return fmt.Sprintf("%x", id)
}

// skew reports more than one minor version between members; a roll, as etcd's upgrade, passes through one.
func (v View) skew(except string) []string {
	var oldest, newest cluster.EtcdStatus
	for _, m := range v.Members {
		s := v.Statuses[m.ID]
		if m.Name == except || s.Version == "" {
			continue
		}
		if oldest.Version == "" || slices.Compare(versionOf(s), versionOf(oldest)) < 0 {
			oldest = s
		}
		if newest.Version == "" || slices.Compare(versionOf(newest), versionOf(s)) < 0 {
			newest = s
		}
	}
	from, to := versionOf(oldest), versionOf(newest)
	if from[0] == to[0] && to[1]-from[1] <= 1 {
		return nil
	}
	return []string{fmt.Sprintf("its members are more than one minor version apart: %s runs %s, %s runs %s",
		v.nameOf(oldest.MemberID), oldest.Version, v.nameOf(newest.MemberID), newest.Version)}
}

// Look asks the first control plane that answers for the members, then each but those in without for its status.
func Look(ctx context.Context, talos cluster.EtcdReader, ask []cluster.Endpoint, without ...string) (View, error) {
	v := View{Statuses: map[uint64]cluster.EtcdStatus{}, Errs: map[uint64]error{}}
	var errs []error
	for _, e := range ask {
		members, err := talos.EtcdMembers(ctx, e.Addr)
		if err == nil {
			v.Members = members
			break
		}
		errs = append(errs, fmt.Errorf("ask %s for the members of etcd: %w", e.Node, err))
	}
	if len(v.Members) == 0 {
		return v, errors.Join(append(errs, errors.New("no control plane says who the members of etcd are"))...)
	}
	for _, m := range v.Members {
		if slices.Contains(without, m.Name) {
			continue
		}
		addr, err := m.Address(ask)
		var s cluster.EtcdStatus
		if err == nil {
			s, err = talos.EtcdStatus(ctx, addr)
		}
		switch {
		case err != nil:
			v.Errs[m.ID] = fmt.Errorf("does not answer: %w", err)
		case s.MemberID != m.ID:
			v.Errs[m.ID] = fmt.Errorf("is member %x, but what runs on %s is member %x: another machine has its name", m.ID, addr, s.MemberID)
		default:
			v.Statuses[m.ID] = s
		}
	}
	return v, nil
}

// camps says which members follow which leader.
func camps(leaders map[uint64][]string) string {
	var out []string
	for leader, by := range leaders {
		out = append(out, fmt.Sprintf("%s say %x", strings.Join(by, " and "), leader))
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

// versionOf returns the major and the minor number.
func versionOf(s cluster.EtcdStatus) []int {
	v := make([]int, 2)
	_, _ = fmt.Sscanf(s.Version, "%d.%d", &v[0], &v[1]) // an invalid version counts as 0.0
	return v
}

// AdviceForLearner says how a member that stays a learner becomes a voter. Talos promotes a member
// only in the start of etcd in which it added the member, and stops trying after ten minutes
// (learnerMemberID and promoteMember in internal/app/machined/pkg/system/services/etcd.go).
func AdviceForLearner(node string, addr netip.Addr, m *cluster.Machine) string {
	return fmt.Sprintf("Talos makes a member a voter within ten minutes of the start in which it joined: if %s has started again since, or that time is over, it stays a learner "+
		"until it joins again with empty data: %s", addr, EmptyData(node, addr, m))
}

// Leftover says what to do about a member of no known control plane. One that answers is of some machine.
func (v View) Leftover(m cluster.EtcdMember) string {
	who := fmt.Sprintf("talosctl get members shows which machine has the name, and %s are its addresses", words.OrNone(strings.Join(m.Peers, ", ")))
	if _, answers := v.Statuses[m.ID]; answers {
		return "its etcd answers: " + who
	}
	return fmt.Sprintf("%s; it does not answer now: where its machine is gone for good, talosctl etcd remove-member %x removes it", who, m.ID)
}

// EmptyData says how to wipe a control plane's unused etcd data, so that it joins again; m may be nil.
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

// HasData reports whether the data directory of etcd on that machine holds anything.
func HasData(ctx context.Context, files cluster.FileReader, at cluster.Endpoint, uuid string) (found bool, err error) {
	err = files.Files(ctx, at.Addr, uuid, func(ctx context.Context, f cluster.MachineFiles) error {
		return f.List(ctx, DataDir, false, func(cluster.MachineFile) error { found = true; return nil })
	})
	if errors.Is(err, cluster.ErrNotFound) {
		err = nil
	}
	if err != nil {
		return false, fmt.Errorf("look for data of etcd on %s: %w", at.Node, err)
	}
	return found, nil
}

// DataDir is etcd's. Talos bootstraps only if it is empty (machined/internal/server/v1alpha1, Bootstrap).
const DataDir = "/var/lib/etcd"

// AfterRestore says what still has to be done by hand once etcd is restored. The restored revision is lower than
// before. A client that watches Kubernetes from a revision that etcd has not reached again gets no events until then
// (https://github.com/etcd-io/etcd/issues/16028). Talos restores without raising the revision (startInit in
// internal/app/machined/pkg/system/services/etcd.go).
const AfterRestore = "restart whatever watches Kubernetes and ran all the time: the network plugin (kubectl -n kube-system rollout restart daemonset, " +
	"each by its name), kube-proxy, CoreDNS, storage drivers, operators and controllers of your own, on each worker and outside of the cluster"

// Kubelets restarts the kubelets of the machines that ran while etcd was restored.
type Kubelets struct {
	Talos interface {
		cluster.MemberReader
		cluster.PartReader
		cluster.KubeletRestarter
	}
	Kube  cluster.NodeReader
	Fresh []string // nodes whose machines started only after that
	Say   func(text string)
	Left  func(text string) // gets what a person has to restart
}

func (k Kubelets) Step() step.Step {
	return step.Step{ID: "restart-kubelets", Title: "restart the kubelets that still watch the lost etcd", Risk: step.Disruptive, Do: k.restart}
}

// restart does not fail for a machine that does not answer: if that is off, its kubelet starts later.
func (k Kubelets) restart(ctx context.Context) error {
	at, err := k.machines(ctx)
	if err != nil {
		return fault.WithHint(fmt.Errorf("look for the machines whose kubelets still watch the lost etcd: %w", err),
			"etcd is restored; run the same command again, or restart them: talosctl -n ADDRESS service kubelet restart")
	}
	var again []string
	for _, m := range at {
		k.Say(m.Node)
		who, err := cluster.ReadIdentity(ctx, k.Talos, m.Addr)
		if err == nil {
			err = k.Talos.RestartKubelet(ctx, m.Addr, who.UUID)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			k.Left(fmt.Sprintf("talosctl -n %s service kubelet restart: %s did not do it (%s)", m.Addr, m.Node, strings.ReplaceAll(err.Error(), "\n", " ")))
			continue
		}
		again = append(again, m.Node)
	}
	return k.awaitReady(ctx, again)
}

// readyWithin is how long a Node may take to be Ready after its kubelet was restarted. At first the Node is not Ready.
const readyWithin = time.Minute

func (k Kubelets) awaitReady(ctx context.Context, again []string) error {
	w := wait.For{Name: "the nodes whose kubelets were restarted to be Ready", Every: 2 * time.Second, Timeout: readyWithin, Seen: k.Say}
	err := wait.Until(ctx, w, func(ctx context.Context) (bool, string, error) {
		nodes, err := k.Kube.Nodes(ctx)
		if err != nil {
			return false, err.Error(), nil // etcd has just begun again
		}
		missing := slices.DeleteFunc(slices.Clone(again), func(node string) bool {
			return slices.ContainsFunc(nodes, func(n cluster.KubeNode) bool { return n.Name == node && n.Ready })
		})
		return len(missing) == 0, "not Ready: " + strings.Join(missing, ", "), nil
	})
	if ctx.Err() == nil && err != nil {
		k.Left("see why nodes are not Ready (kubectl get nodes): " + strings.ReplaceAll(err.Error(), "\n", " "))
		return nil
	}
	return err
}

// machines are those of Talos' discovery and the restored Kubernetes, which may each lack some, without Fresh.
func (k Kubelets) machines(ctx context.Context) (at []cluster.Endpoint, err error) {
	members, err := k.Talos.Members(ctx)
	if err != nil {
		return nil, err
	}
	nodes, err := k.Kube.Nodes(ctx)
	if err != nil {
		return nil, err
	}
	add := func(node string, addrs []netip.Addr) {
		known := slices.ContainsFunc(at, func(m cluster.Endpoint) bool { return m.Node == node || slices.Contains(addrs, m.Addr) })
		if len(addrs) > 0 && !known && !slices.Contains(k.Fresh, node) {
			at = append(at, cluster.Endpoint{Node: node, Addr: addrs[0]})
		}
	}
	for _, m := range members {
		add(m.Nodename, m.Addresses)
	}
	for _, n := range nodes {
		add(n.Name, n.Addresses)
	}
	slices.SortFunc(at, func(a, b cluster.Endpoint) int { return strings.Compare(a.Node, b.Node) })
	return at, nil
}
