package kubeupgrade

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/internal/wait"
)

// Observe reads which parts of Kubernetes run on every node that Kubernetes knows, and what in
// use the wanted version has removed. It changes nothing. A machine that does not answer is not
// an error of Observe.
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

// removed asks what the versions on the way have removed, one minor version at a time, because
// the tables list single steps. If the way is refused anyway, it asks nothing.
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

// lowest is the lowest version that the node runs: of its static pods, and of its kubelet,
// which may be some minor versions older.
func (n NodeSeen) lowest(wanted cluster.Version) cluster.Version {
	v, _ := Seen{Nodes: []NodeSeen{n}}.lowest(wanted)
	if kubelet, err := cluster.ParseVersion(n.Node.KubeletVersion); err == nil && kubelet.Before(v) {
		return kubelet
	}
	return v
}

// minorStep is a step to the next minor version.
type minorStep struct{ from, to cluster.Version }

// minorSteps are the steps from a version to the wanted one; there are none within one minor
// version.
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
