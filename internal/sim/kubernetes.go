package sim

import (
	"context"
	"fmt"

	"github.com/recast-sh/recast/internal/sim/kubeapi"
)

// upstream is the real control plane behind the API, nil if the lab has none.
func (l *Lab) upstream() (*kubeapi.Upstream, error) {
	if l.o.Kubernetes == nil {
		return nil, nil
	}
	u, err := kubeapi.ReadUpstream(l.o.Kubernetes)
	if err != nil {
		return nil, err
	}
	l.closers = append(l.closers, u.Close)
	return u, nil
}

// refused puts on the console what the real control plane refuses to the lab's kubelets.
func (l *Lab) refused(err error) {
	if l.o.Console != nil {
		fmt.Fprintf(l.o.Console, "kubelets: %v\n", err)
	}
}

// serveKubernetes makes the Kubernetes API reachable at its one address while
// any control plane runs an API server; there is nobody at it otherwise.
func (l *Lab) serveKubernetes(ctx context.Context, addr string) {
	for ctx.Err() == nil {
		runs, changed := l.machines.KubernetesRuns()
		if runs {
			if err := l.serveKubernetesOnce(ctx, addr); err != nil && l.o.Console != nil {
				fmt.Fprintf(l.o.Console, "Kubernetes API: %v\n", err)
			}
			continue
		}
		select {
		case <-ctx.Done():
		case <-changed:
		}
	}
}

// serveKubernetesOnce answers until the last API server is gone.
func (l *Lab) serveKubernetesOnce(ctx context.Context, addr string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	listener, err := l.o.Network.Listen(addr)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", addr, err)
	}
	l.serving.Go(func() {
		defer cancel()
		for runs, changed := l.machines.KubernetesRuns(); runs; runs, changed = l.machines.KubernetesRuns() {
			select {
			case <-ctx.Done():
				return
			case <-changed:
			}
		}
	})
	return l.Kube.Serve(ctx, listener)
}
