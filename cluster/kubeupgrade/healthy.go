package kubeupgrade

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/rolling"
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
	return u.lacksPod(ctx, n, m, c, pods)
}

// lacksPod names what a static pod lacks to run as the machine's configuration says.
func (u *Upgrade) lacksPod(ctx context.Context, n Node, m cluster.MachineKubernetes, c cluster.Component, pods []cluster.StaticPod) (string, error) {
	if what := podLacks(pods, n.Node, c, m); what != "" || c != cluster.APIServer {
		return what, nil
	}
	return u.lacksServer(ctx, n, m)
}

// lacksServer asks the API server itself: its pod has no readiness probe unless
// StartupProbesEnabled is set, and counts as Ready from its start (k8stemplates/apiserver.go of
// Talos).
func (u *Upgrade) lacksServer(ctx context.Context, n Node, m cluster.MachineKubernetes) (string, error) {
	version, err := u.Kube.APIServer(ctx, netip.AddrPortFrom(n.Addr, uint16(m.APIPort)))
	if err != nil {
		return "", fmt.Errorf("its API server: %w", err)
	}
	r, err := cluster.ParseImage(m.Images.APIServer)
	if v, errRuns := cluster.ParseVersion(version); err != nil || errRuns != nil || v != r.Version {
		return "it answers as " + version, nil //nolint:nilerr // it says what it is
	}
	return "", nil
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
	if what, err := rolling.LacksNode(ctx, u.Kube, n.Node, m.UUID, m.BootID); err != nil || what != "" {
		return what, err
	}
	return u.lacksPods(ctx, n, m)
}

// lacksPods names what the node's static pods lack: a kubelet of another version may restart them.
func (u *Upgrade) lacksPods(ctx context.Context, n Node, m cluster.MachineKubernetes) (string, error) {
	pods, err := u.Kube.StaticPods(ctx)
	if err != nil {
		return "", err
	}
	for _, c := range cluster.StaticPods {
		if m.Images.Of(c) == "" {
			continue
		}
		if what, err := u.lacksPod(ctx, n, m, c, pods); err != nil || what != "" {
			return fmt.Sprintf("its %s: %s", c, cmp.Or(what, fmt.Sprint(err))), err
		}
	}
	return "", nil
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
