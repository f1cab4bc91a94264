package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"
)

// ObserveKubernetes reads what of Kubernetes runs on every node that Kubernetes
// knows, and what in use the wanted version has removed. It changes nothing. A
// machine that does not answer is no error of its own.
func ObserveKubernetes(ctx context.Context, talos MachineReader, kube KubeReader, o Observation, to string) (KubernetesSeen, error) {
	wanted, err := parseKubeVersion(to)
	if err != nil {
		return KubernetesSeen{}, err
	}
	seen := KubernetesSeen{Nodes: make([]KubernetesNodeSeen, len(o.Nodes))}
	if o.Dark != nil {
		return seen, o.Dark
	}
	g := errgroup.Group{}
	g.SetLimit(observeLimit)
	for i, k := range o.Nodes {
		g.Go(func() error { seen.Nodes[i] = readKubernetes(ctx, talos, k, wanted); return nil })
	}
	_ = g.Wait() // each has its own error
	set, err := kube.ProxySet(ctx)
	switch {
	case err == nil:
		seen.Proxy = &set
	case !errors.Is(err, ErrNotFound):
		return seen, err
	}
	if seen.Owners, err = kube.OtherOwners(ctx); err != nil {
		return seen, fmt.Errorf("look for other upgraders: %w", err)
	}
	for _, f := range o.Found {
		if f.unfinished() {
			seen.Open = append(seen.Open, f.Name)
		}
		if f.Machine == nil {
			continue
		}
		for _, arg := range f.Machine.omni() {
			if owner := "Omni (" + arg + ")"; !slices.Contains(seen.Owners, owner) {
				seen.Owners = append(seen.Owners, owner)
			}
		}
	}
	seen.Removed, err = removed(ctx, talos, kube, seen, wanted)
	return seen, err
}

func readKubernetes(ctx context.Context, talos MachineReader, k KubeNode, wanted kubeVersion) KubernetesNodeSeen {
	n := KubernetesNodeSeen{Node: k, Addr: firstAddr(k.Addresses)}
	if !n.Addr.IsValid() {
		n.Err = errors.New("Kubernetes has no address of it")
		return n
	}
	m, err := talos.Kubernetes(ctx, n.Addr)
	if err != nil {
		n.Err = err
		return n
	}
	n.Machine, n.Unsupported = &m, talos.UnsupportedKubernetes(m.TalosVersion, wanted.String())
	return n
}

// removed asks for what the next minor version has no more. Where the way there
// is refused anyway, there is nothing to ask.
func removed(ctx context.Context, talos MachineReader, kube KubeReader, seen KubernetesSeen, wanted kubeVersion) (out []string, err error) {
	lowest, _ := seen.lowest(wanted)
	if lowest.major != wanted.major || wanted.minor-lowest.minor > 1 || wanted.before(lowest) {
		return nil, nil
	}
	for _, n := range sortedNodes(seen.Nodes) {
		if n.Machine == nil || n.Unsupported != "" {
			continue
		}
		flags, err := talos.RemovedFlags(ctx, n.Addr, n.Node.ControlPlane, lowest.String(), wanted.String())
		if err != nil {
			return nil, fmt.Errorf("look for what %s has removed on %s: %w", wanted, n.Node.Name, err)
		}
		for _, f := range flags {
			out = append(out, n.Node.Name+": "+f)
		}
	}
	objects, err := kube.RemovedObjects(ctx, lowest.String(), wanted.String())
	if err != nil {
		return nil, fmt.Errorf("look for what %s has removed: %w", wanted, err)
	}
	return append(out, objects...), nil
}
