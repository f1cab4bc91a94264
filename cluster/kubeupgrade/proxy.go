package kubeupgrade

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/wait"
)

// proxyStep brings kube-proxy to the version: first the configuration from which Talos makes
// its manifest, then the DaemonSet itself, which Talos creates and never changes
// (controllers/k8s/manifest_apply.go).
func (u *Upgrade) proxyStep() step.Step {
	var steps []step.Step
	for _, n := range u.Plan.with(cluster.KubeProxy) {
		k := kubernetesStep{Upgrade: u, n: n, c: cluster.KubeProxy, path: upgradeKubernetes + "/" + string(cluster.KubeProxy) + "/" + n.Node}
		steps = append(steps, step.Step{ID: n.Node, Kind: string(cluster.KubeProxy), Title: "name it in the configuration of " + n.Node, Risk: step.Safe, Whole: true, Skip: k.named, Do: k.name})
	}
	if u.Plan.Proxy != nil {
		steps = append(steps, step.Step{ID: "roll-out", Title: "roll the DaemonSet kube-proxy out", Risk: step.Disruptive, Skip: u.proxyDone, Do: u.rollOutProxy})
	}
	return step.Step{
		ID: string(cluster.KubeProxy), Title: "kube-proxy to " + u.Plan.To, Risk: step.Disruptive,
		Steps: func(context.Context) ([]step.Step, error) { return steps, nil },
	}
}

func (k *kubernetesStep) named(ctx context.Context) (string, error) {
	if what, err := k.lacks(ctx, k.n, k.c); err != nil || what != "" {
		return "", nil //nolint:nilerr // setting it reports what is wrong
	}
	return "it is named", nil
}

func (k *kubernetesStep) name(ctx context.Context) error {
	lost, err := k.set(ctx)
	if err != nil {
		return err
	}
	return cluster.Unanswered(lost, wait.Until(ctx, wait.For{
		Name: fmt.Sprintf("%s named by the configuration of %s", k.c, k.n.Node), Every: k.Timing.Poll, Timeout: k.Timing.Join,
		Seen: func(seen string) { k.Say(k.path, seen) },
	}, func(ctx context.Context) (bool, string, error) {
		what, err := k.lacks(ctx, k.n, k.c)
		if hopeless(err) {
			err = wait.Stop(err)
		}
		return what == "" && err == nil, what, err
	}))
}

// proxyDone is the goal: every pod of kube-proxy runs in that version.
func (u *Upgrade) proxyDone(ctx context.Context) (string, error) {
	set, err := u.Kube.ProxySet(ctx)
	if err != nil || !runs(set, u.Plan.Proxy.To) {
		return "", err
	}
	return fmt.Sprintf("%d pods run %s", set.Wanted, u.Plan.To), nil
}

// runs says whether every pod of kube-proxy has that image.
func runs(p cluster.ProxySet, image string) bool {
	return p.Image == image && p.Seen && p.Updated == p.Wanted && p.Available == p.Wanted
}

func (u *Upgrade) rollOutProxy(ctx context.Context) error {
	const path = upgradeKubernetes + "/" + string(cluster.KubeProxy) + "/roll-out"
	change := u.Plan.Proxy
	if err := u.awaitOthers(ctx, path, spotOf{}); err != nil {
		return err
	}
	if err := u.Kube.SetProxyImage(ctx, change.From, change.To); err != nil {
		return fmt.Errorf("set the image of DaemonSet kube-proxy: %w", err)
	}
	r := proxyRollOut{image: change.To, patience: u.Timing.Join, moved: time.Now()}
	err := wait.Until(ctx, wait.For{
		Name: "kube-proxy rolled out", Every: u.Timing.Poll, Seen: func(seen string) { u.Say(path, seen) },
	}, func(ctx context.Context) (bool, string, error) {
		set, err := u.Kube.ProxySet(ctx)
		return r.look(set, err)
	})
	return fault.WithHint(err, "kubectl -n kube-system get pods -l k8s-app=kube-proxy -o wide shows which pod does not start; run the same command again to continue")
}

// proxyRollOut is the progress of the DaemonSet's rollout. It may take any time while something
// moves.
type proxyRollOut struct {
	image    string
	patience time.Duration
	best     cluster.ProxySet
	moved    time.Time // when something last moved
}

func (r *proxyRollOut) look(set cluster.ProxySet, err error) (done bool, seen string, _ error) {
	switch {
	case errors.Is(err, cluster.ErrNotFound):
		return false, "", wait.Stop(fmt.Errorf("someone has deleted it: %w", err))
	case err != nil:
		seen = err.Error()
	case set.Image != r.image:
		return false, "", wait.Stop(fault.WithHint(fmt.Errorf("someone has set its image to %s meanwhile", set.Image), "see who manages DaemonSet kube-proxy, too"))
	case runs(set, r.image):
		return true, "", nil
	case !set.Seen:
		seen = "its controller has not looked at it yet"
	default:
		seen = fmt.Sprintf("%d of %d pods are updated, %d available", set.Updated, set.Wanted, set.Available)
	}
	if err == nil && set.Seen && (set.Updated > r.best.Updated || set.Available > r.best.Available) {
		r.best, r.moved = set, time.Now()
	}
	if time.Since(r.moved) > r.patience {
		return false, "", wait.Stop(fmt.Errorf("nothing has moved for %s: %s", r.patience, seen))
	}
	return false, seen, nil
}
