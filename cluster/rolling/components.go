package rolling

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/words"
)

// LacksStaticPods names the first thing that the static pods of a control plane lack to run as its
// machine's configuration says; "" if they lack nothing.
func LacksStaticPods(ctx context.Context, kube cluster.ComponentReader, node string, addr netip.Addr, m cluster.MachineKubernetes) (string, error) {
	pods, err := kube.StaticPods(ctx)
	if err != nil {
		return "", err
	}
	for _, c := range cluster.StaticPods {
		if m.Images.Of(c) == "" {
			continue
		}
		if what, err := LacksStaticPod(ctx, kube, pods, node, addr, c, m); err != nil || what != "" {
			return fmt.Sprintf("its %s: %s", c, cmp.Or(what, fmt.Sprint(err))), err
		}
	}
	return "", nil
}

// LacksStaticPod is LacksStaticPods for one component.
func LacksStaticPod(ctx context.Context, kube cluster.ComponentReader, pods []cluster.StaticPod, node string, addr netip.Addr, c cluster.Component, m cluster.MachineKubernetes) (string, error) {
	if what := LacksPod(pods, node, c, m); what != "" || c != cluster.APIServer {
		return what, nil
	}
	return lacksAPIServer(ctx, kube, addr, m)
}

// LacksPod says how a static pod, as Kubernetes shows it, differs from the one that its machine
// should run.
func LacksPod(pods []cluster.StaticPod, node string, c cluster.Component, m cluster.MachineKubernetes) string {
	i := slices.IndexFunc(pods, func(p cluster.StaticPod) bool { return p.Node == node && p.Component == c })
	if i < 0 {
		return "Kubernetes does not show its pod"
	}
	switch p := pods[i]; {
	case !cluster.SameVersion(p.Image, m.Images.Of(c)) || p.Revision < m.Revisions[c]:
		return fmt.Sprintf("its pod still is the old one: %s, of revision %d", p.Image, p.Revision)
	case !p.Ready:
		return "its pod is not Ready: " + words.OrNone(p.Why)
	}
	return ""
}

// RequireAPIServer fails unless a control plane's API server answers at its own address.
func RequireAPIServer(ctx context.Context, talos cluster.KubernetesReader, kube cluster.ComponentReader, node string, addr netip.Addr) error {
	m, err := talos.Kubernetes(ctx, addr)
	if err == nil {
		_, err = kube.APIServer(ctx, netip.AddrPortFrom(addr, uint16(m.APIPort)))
	}
	return fault.Prefix(fmt.Sprintf("the API server of %s does not serve at its own address", node), err)
}

// lacksAPIServer asks the API server itself: its pod has no readiness probe unless
// StartupProbesEnabled is set, and counts as Ready from its start (k8stemplates/apiserver.go of
// Talos).
func lacksAPIServer(ctx context.Context, kube cluster.ComponentReader, addr netip.Addr, m cluster.MachineKubernetes) (string, error) {
	version, err := kube.APIServer(ctx, netip.AddrPortFrom(addr, uint16(m.APIPort)))
	if err != nil {
		return "", fmt.Errorf("its API server: %w", err)
	}
	if r, err := cluster.ParseImage(m.Images.APIServer); err == nil { // else its image names no version
		if v, err := cluster.ParseVersion(version); err != nil || v != r.Version {
			return "it answers as " + version, nil //nolint:nilerr // it says what it is
		}
	}
	return "", nil
}
