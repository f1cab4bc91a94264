package kubeupgrade

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/etcd"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/wait"
	"github.com/recast-sh/recast/internal/words"
)

// Observe reads which parts of Kubernetes run on every node that Kubernetes knows, and which flags and objects in use
// the wanted version has removed. It changes nothing. If a machine does not answer, its NodeSeen has the error.
func Observe(ctx context.Context, talos cluster.TalosReader, kube cluster.KubeReader, o observe.Observation, to string) (Seen, error) {
	wanted, err := cluster.ParseVersion(to)
	if err != nil {
		return Seen{}, err
	}
	seen := Seen{Nodes: make([]NodeSeen, len(o.Nodes))}
	if o.Dark != nil {
		return seen, o.Dark
	}
	g := errgroup.Group{}
	g.SetLimit(observe.ObserveLimit)
	for i, k := range o.Nodes {
		g.Go(func() error { seen.Nodes[i] = readKubernetes(ctx, talos, kube, k, wanted); return nil })
	}
	_ = g.Wait() // each node has its own error
	seen.readEtcd(ctx, talos)
	if seen.Pods, err = kube.StaticPods(ctx); err != nil {
		return seen, fmt.Errorf("list the pods of the control planes: %w", err)
	}
	set, err := kube.ProxySet(ctx)
	switch {
	case err == nil:
		seen.Proxy = &set
	case !errors.Is(err, cluster.ErrNotFound):
		return seen, err
	}
	if seen.Owners, err = kube.OtherOwners(ctx); err != nil {
		return seen, fmt.Errorf("look for other upgraders: %w", err)
	}
	for _, f := range o.Found {
		if f.Unfinished() {
			seen.Open = append(seen.Open, f.Name)
		}
		if f.Machine == nil {
			continue
		}
		for _, arg := range f.Machine.Omni() {
			if owner := "Omni (" + arg + ")"; !slices.Contains(seen.Owners, owner) {
				seen.Owners = append(seen.Owners, owner)
			}
		}
	}
	seen.Removed, err = removed(ctx, talos, kube, seen, wanted)
	return seen, err
}

// Await waits until the Kubernetes API answers.
func Await(ctx context.Context, kube cluster.NodeReader, t cluster.Timing, say func(string)) error {
	return wait.Until(ctx, wait.For{Name: "the Kubernetes API to answer", Every: t.Poll, Timeout: t.Join, Seen: say}, func(ctx context.Context) (bool, string, error) {
		_, err := kube.Nodes(ctx)
		return err == nil, "", err
	})
}

func readKubernetes(ctx context.Context, talos cluster.MachineReader, kube cluster.ComponentReader, k cluster.KubeNode, wanted cluster.Version) NodeSeen {
	n := NodeSeen{Node: k, Addr: observe.FirstAddr(k.Addresses)}
	if !n.Addr.IsValid() {
		n.Err = observe.NoAddress(k.Name)
		return n
	}
	m, err := talos.Kubernetes(ctx, n.Addr)
	if err != nil {
		n.Err = err
		return n
	}
	n.Machine, n.Unsupported = &m, talos.UnsupportedKubernetes(m.TalosVersion, wanted.String())
	if m.APIPort != 0 {
		n.Serves, n.ServesErr = kube.APIServer(ctx, netip.AddrPortFrom(n.Addr, uint16(m.APIPort)))
	}
	return n
}

// removed lists what the versions on the way have removed, one minor version at a time, because the tables list
// single steps. If the way is refused anyway, it asks nothing.
func removed(ctx context.Context, talos cluster.KubernetesReader, kube cluster.ComponentReader, seen Seen, wanted cluster.Version) (out []string, err error) {
	lowest, _ := seen.lowest(wanted)
	if lowest.Major != wanted.Major || wanted.Minor-lowest.Minor > 1 || wanted.Before(lowest) {
		return nil, nil
	}
	for _, n := range sortedNodes(seen.Nodes) {
		if n.Machine == nil || n.Unsupported != "" {
			continue
		}
		from := n.lowest(wanted)
		if from.Major != wanted.Major || wanted.Minor-from.Minor > maxKubeletSkew {
			continue // its kubelet is refused
		}
		if from.Before(lowest) {
			lowest = from
		}
		for _, s := range minorSteps(from, wanted) {
			flags, err := talos.RemovedFlags(ctx, n.Addr, n.Node.ControlPlane, s.from.String(), s.to.String())
			if err != nil {
				return nil, fmt.Errorf("look for what %s has removed on %s: %w", s.to, n.Node.Name, err)
			}
			for _, f := range flags {
				out = append(out, n.Node.Name+": "+f)
			}
		}
	}
	for _, s := range minorSteps(lowest, wanted) {
		objects, err := kube.RemovedObjects(ctx, s.from.String(), s.to.String())
		if err != nil {
			return nil, fmt.Errorf("look for what %s has removed: %w", s.to, err)
		}
		out = append(out, objects...)
	}
	return out, nil
}

// lowest returns the lowest version that the node runs: of its static pods, and of its kubelet, which may be some
// minor versions older.
func (n NodeSeen) lowest(wanted cluster.Version) cluster.Version {
	v, _ := Seen{Nodes: []NodeSeen{n}}.lowest(wanted)
	if kubelet, err := cluster.ParseVersion(n.Node.KubeletVersion); err == nil && kubelet.Before(v) {
		return kubelet
	}
	return v
}

type minorStep struct{ from, to cluster.Version }

// minorSteps lists the steps from a version to the wanted one; there are none within one minor version.
func minorSteps(from, wanted cluster.Version) (steps []minorStep) {
	for from.Major == wanted.Major && from.Minor < wanted.Minor {
		to := cluster.Version{Major: from.Major, Minor: from.Minor + 1}
		if to.Minor == wanted.Minor {
			to = wanted
		}
		steps = append(steps, minorStep{from, to})
		from = to
	}
	return steps
}

// awaitOthers waits until everything except one component is healthy: a component that has just lost its API server
// may be about to recover. If the wait times out, it returns the error of requireOthers.
func (u *Upgrade) awaitOthers(ctx context.Context, path string, except spotOf) error {
	var last error
	err := wait.Until(ctx, wait.For{
		Name: "everything else healthy", Every: u.Timing.Poll, Timeout: u.Timing.Join,
		Seen: func(seen string) { u.Say(path, "waiting until everything else is healthy: "+seen) },
	}, func(inTime context.Context) (bool, string, error) {
		err := u.requireOthers(inTime, except)
		if hopeless(err) {
			return false, "", wait.Stop(err)
		}
		if inTime.Err() == nil {
			last = err
		}
		return err == nil, "", err
	})
	if err != nil && !hopeless(err) && last != nil && ctx.Err() == nil {
		return fault.Prefix(fmt.Sprintf("waited %s for everything else to be healthy", u.Timing.Join), last)
	}
	return err
}

// requireOthers refuses to restart a component while something else is down: one more would be
// too many. Everything but the component itself counts, also on its own node.
func (u *Upgrade) requireOthers(ctx context.Context, except spotOf) error {
	nodes, err := u.Kube.Nodes(ctx)
	if err != nil {
		return fmt.Errorf("list Kubernetes nodes: %w", err)
	}
	down := u.Plan.downNodes(nodes, except)
	pods, err := u.Kube.StaticPods(ctx)
	if err != nil {
		return fmt.Errorf("list the pods of the control planes: %w", err)
	}
	var hints []string
	for _, c := range cluster.StaticPods {
		for _, n := range u.Plan.with(c) {
			i := slices.IndexFunc(pods, func(p cluster.StaticPod) bool { return p.Node == n.Node && p.Component == c })
			switch {
			case except == spotOf{n.Node, c}:
			case i < 0:
				down = append(down, fmt.Sprintf("Kubernetes does not show the pod of the %s of %s", c, n.Node))
			case !pods[i].Ready:
				down = append(down, fmt.Sprintf("the %s of %s is not Ready: %s", c, n.Node, words.OrNone(pods[i].Why)))
			case c == cluster.APIServer:
				if err := cluster.RequireAPIServer(ctx, u.Talos, u.Kube, n.Node, n.Addr); err != nil {
					down, hints = append(down, err.Error()), append(hints, fault.Hints(err)...)
				}
			}
		}
	}
	if len(down) > 0 {
		slices.Sort(down)
		err := fault.WithHint(fault.GateClosed.Refusedf("%s", strings.Join(down, ", ")), "bring them back first; one more out would be one too many")
		for _, hint := range hints {
			err = fault.WithHint(err, "%s", hint)
		}
		return err
	}
	return u.requireEtcd(ctx)
}

// downNodes lists the nodes that are not Ready, and control planes that are not in the plan.
func (p Plan) downNodes(nodes []cluster.KubeNode, except spotOf) (down []string) {
	for _, k := range nodes {
		planned := slices.ContainsFunc(p.Nodes, func(n Node) bool { return n.Node == k.Name && n.UUID == k.UUID })
		switch {
		case k.ControlPlane && !planned:
			down = append(down, "control plane "+k.Name+" was not there when this was planned: the same command again takes it into account")
		case !k.Ready && (except != spotOf{k.Name, cluster.Kubelet}):
			down = append(down, "node "+k.Name+" is not Ready")
		}
	}
	return down
}

// requireEtcd refuses unless etcd is healthy and each of its members is a machine whose API server is in the plan:
// another machine's API server would not be watched.
func (u *Upgrade) requireEtcd(ctx context.Context) error {
	ask := cluster.Each(u.Plan.with(cluster.APIServer), func(n Node) cluster.Endpoint {
		return cluster.Endpoint{Node: n.Node, Addr: n.Addr}
	})
	v, err := etcd.Look(ctx, u.Talos, ask)
	if err != nil {
		return fault.WithHint(fault.EtcdUnhealthy.Of(fault.As(fault.Refused, err)), "talosctl etcd status; bring etcd back first")
	}
	if wrong := v.Unhealthy(""); len(wrong) > 0 {
		return fault.WithHint(fault.EtcdUnhealthy.Refusedf("etcd is not healthy: %s", strings.Join(wrong, "; ")), "talosctl etcd status; talosctl etcd alarm list; put etcd right first")
	}
	for _, m := range v.Members {
		if err := u.requireMember(ctx, m, ask); err != nil {
			return fault.WithHint(fault.EtcdUnhealthy.Refusedf("etcd member %s is no control plane of the plan: %w", m.Label(), err),
				"a control plane that joins has to be a Ready node of Kubernetes first, and the same command again takes it into account; one that is gone has to leave etcd (talosctl etcd members)")
		}
	}
	return nil
}

var errNotPlanned = errors.New("its machine is none that was planned for")

// requireMember finds a member's machine in the plan: by name, or, since a Node's name may differ, by its UUID.
func (u *Upgrade) requireMember(ctx context.Context, m cluster.EtcdMember, ask []cluster.Endpoint) error {
	if slices.ContainsFunc(ask, func(e cluster.Endpoint) bool { return e.Node == m.Name }) {
		return nil
	}
	addr, err := m.Address(ask)
	if err != nil {
		return err
	}
	machine, err := u.Talos.Kubernetes(ctx, addr)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(u.Plan.with(cluster.APIServer), func(n Node) bool { return n.UUID == machine.UUID }) {
		return errNotPlanned
	}
	return nil
}

// finish makes sure that everything is healthy at the end, and that no node has joined meanwhile with another version.
func (u *Upgrade) finish(ctx context.Context) error {
	const path = upgradeKubernetes + "/finish"
	if err := u.awaitOthers(ctx, path, spotOf{}); err != nil {
		return err
	}
	nodes, err := u.Kube.Nodes(ctx)
	if err != nil {
		return fmt.Errorf("list Kubernetes nodes: %w", err)
	}
	var others []string
	for _, k := range nodes {
		if v, err := cluster.ParseVersion(k.KubeletVersion); err != nil || v.String() != u.Plan.To {
			others = append(others, fmt.Sprintf("%s runs %s", k.Name, k.KubeletVersion))
		}
	}
	if len(others) > 0 {
		return fault.WithHint(fmt.Errorf("not all nodes run %s: %s", u.Plan.To, strings.Join(others, ", ")),
			"a node that joined meanwhile is brought along by the same command again; its machine configuration should name the new version from the start")
	}
	return nil
}
