package etcd

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/wait"
)

// AfterRestore is what still has to be done by hand once etcd is restored. Its revision is lower than before: whoever
// watches Kubernetes from a revision that will only come again is told of nothing until then
// (https://github.com/etcd-io/etcd/issues/16028), and Talos restores without raising it (startInit in
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
	Fresh []string // nodes whose machines have only started since
	Say   func(text string)
	Left  func(text string) // gets what a person has to restart
}

// Step is the step that does.
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
		k.Say(m.node)
		who, err := cluster.ReadIdentity(ctx, k.Talos, m.addr)
		if err == nil {
			err = k.Talos.RestartKubelet(ctx, m.addr, who.UUID)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			k.Left(fmt.Sprintf("talosctl -n %s service kubelet restart: %s did not do it (%s)", m.addr, m.node, strings.ReplaceAll(err.Error(), "\n", " ")))
			continue
		}
		again = append(again, m.node)
	}
	return k.awaitReady(ctx, again)
}

// readyWithin is how long a kubelet that was restarted may take until its Node is Ready: at first it is not.
const readyWithin = time.Minute

// awaitReady waits for the Nodes of kubelets that were restarted.
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

type kubeletAt struct {
	node string
	addr netip.Addr
}

// machines are those that Talos' discovery or the restored Kubernetes knows: either may lack some.
func (k Kubelets) machines(ctx context.Context) (at []kubeletAt, err error) {
	members, err := k.Talos.Members(ctx)
	if err != nil {
		return nil, err
	}
	nodes, err := k.Kube.Nodes(ctx)
	if err != nil {
		return nil, err
	}
	add := func(node string, addrs []netip.Addr) {
		known := slices.ContainsFunc(at, func(m kubeletAt) bool { return m.node == node || slices.Contains(addrs, m.addr) })
		if len(addrs) > 0 && !known && !slices.Contains(k.Fresh, node) {
			at = append(at, kubeletAt{node, addrs[0]})
		}
	}
	for _, m := range members {
		add(m.Nodename, m.Addresses)
	}
	for _, n := range nodes {
		add(n.Name, n.Addresses)
	}
	slices.SortFunc(at, func(a, b kubeletAt) int { return strings.Compare(a.node, b.node) })
	return at, nil
}
