package kubeupgrade

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/words"
)

// lacks names the first thing that a component of a node lacks to run in the wanted version; ""
// if it lacks nothing.
func (u *Upgrade) lacks(ctx context.Context, n Node, c cluster.Component) (string, error) {
	m, err := u.Talos.Kubernetes(ctx, n.Addr)
	if err != nil {
		return "", err
	}
	r, err := cluster.ParseImage(m.Images.Of(c))
	switch {
	case m.UUID != n.UUID:
		return "", otherMachine(n, m.UUID)
	case err != nil || r.Version.String() != u.Plan.To:
		return fmt.Sprintf("its configuration names %s", words.OrNone(m.Images.Of(c))), nil
	case c == cluster.Kubelet:
		return u.lacksKubelet(ctx, n, m)
	case c == cluster.KubeProxy:
		return "", nil // the DaemonSet decides what runs
	}
	pods, err := u.Kube.StaticPods(ctx)
	if err != nil {
		return "", err
	}
	return cluster.LacksStaticPod(ctx, u.Kube, pods, n.Node, n.Addr, c, m)
}

func (u *Upgrade) lacksKubelet(ctx context.Context, n Node, m cluster.MachineKubernetes) (string, error) {
	if !m.KubeletHealthy {
		return "Talos' service kubelet is not healthy", nil
	}
	nodes, err := u.Kube.Nodes(ctx)
	if err != nil {
		return "", err
	}
	i := slices.IndexFunc(nodes, func(k cluster.KubeNode) bool { return k.Name == n.Node })
	if i >= 0 {
		if runs, err := cluster.ParseVersion(nodes[i].KubeletVersion); err != nil || runs.String() != u.Plan.To {
			return "Kubernetes still sees kubelet " + nodes[i].KubeletVersion, nil //nolint:nilerr // it says what it is
		}
	}
	if what, err := cluster.LacksNode(ctx, u.Kube, n.Node, m.UUID, m.BootID); err != nil || what != "" {
		return what, err
	}
	return cluster.LacksStaticPods(ctx, u.Kube, n.Node, n.Addr, m) // a kubelet of another version may restart them
}

// otherMachineError says that a node's address leads to another machine.
type otherMachineError struct {
	n    Node
	uuid string
}

func otherMachine(n Node, uuid string) error {
	return fault.UUIDMismatch.Of(fault.As(fault.Refused, &otherMachineError{n, uuid}))
}

func (e *otherMachineError) Error() string {
	return fmt.Sprintf("%s answers with UUID %s, not %s", e.n.Addr, e.uuid, e.n.UUID)
}

// hopeless says whether waiting can't help: it is another machine, or the claim is not ours.
func hopeless(err error) bool {
	_, other := errors.AsType[*otherMachineError](err)
	_, unproven := errors.AsType[*cluster.UnprovenError](err)
	return other || unproven || fault.KindOf(err) == fault.Claimed
}

// check refuses to begin unless everything is healthy. It first waits for what an earlier run
// changed, which may still be starting.
func (u *Upgrade) check(ctx context.Context) error {
	foreseen, err := u.Plan.Foresee(ctx, u.Talos, u.Maintenance, u.Kube)
	if err != nil {
		return err
	}
	if len(foreseen) > 0 {
		return fault.Refusedf("nothing was restarted: %s", strings.Join(foreseen, "; "))
	}
	changed, err := u.changed(ctx)
	if err != nil {
		return err
	}
	if len(changed) > 0 {
		const path = upgradeKubernetes + "/check"
		if err := u.settle(ctx, path, changed); err != nil {
			return err
		}
		return u.awaitOthers(ctx, path, spotOf{})
	}
	return u.requireOthers(ctx, spotOf{})
}

// changed are the components whose configuration names the wanted version.
func (u *Upgrade) changed(ctx context.Context) (out []spotOf, err error) {
	for _, n := range u.Plan.Nodes {
		m, err := u.Talos.Kubernetes(ctx, n.Addr)
		if err != nil {
			return nil, err
		}
		for _, c := range cluster.Components {
			if r, err := cluster.ParseImage(m.Images.Of(c)); err == nil && r.Version.String() == u.Plan.To {
				out = append(out, spotOf{n.Node, c})
			}
		}
	}
	return out, nil
}

// lacks notes what should run in the wanted version and does not, as far as Kubernetes and
// Talos show it: an earlier run may have left it so.
func (p *kubernetesPlanner) lacks(seen Seen) {
	for i := range p.Nodes {
		n := &p.Nodes[i]
		j := slices.IndexFunc(seen.Nodes, func(s NodeSeen) bool { return s.Node.Name == n.Node })
		m := seen.Nodes[j].Machine
		if m == nil {
			continue // refused
		}
		for _, c := range cluster.Components {
			if r, err := cluster.ParseImage(n.images.Of(c)); err != nil || r.Version != p.wanted {
				continue
			}
			what := ""
			switch c {
			case cluster.Kubelet:
				what = kubeletDown(seen.Nodes[j])
			case cluster.APIServer, cluster.ControllerManager, cluster.Scheduler:
				what = cluster.LacksPod(seen.Pods, n.Node, c, *m)
			}
			if c == cluster.APIServer && what == "" {
				what = p.serverLacks(seen.Nodes[j])
			}
			if what != "" {
				n.Lacks = append(n.Lacks, fmt.Sprintf("%s: %s", c, what))
			}
		}
	}
}

// serverLacks says what an API server lacks although it counts as Ready: its pod has no
// readiness probe.
func (p *kubernetesPlanner) serverLacks(seen NodeSeen) string {
	if seen.ServesErr != nil {
		return seen.ServesErr.Error()
	}
	if v, err := cluster.ParseVersion(seen.Serves); err != nil || v != p.wanted {
		return "it answers as " + words.OrNone(seen.Serves) //nolint:nilerr // it says what it is
	}
	return ""
}

// kubeletDown says why a kubelet is not available, whatever its version.
func kubeletDown(seen NodeSeen) string {
	switch {
	case !seen.Machine.KubeletHealthy:
		return "Talos' service kubelet is not healthy"
	case !seen.Node.Ready:
		return "its node is not Ready"
	}
	return ""
}
