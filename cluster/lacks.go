package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/words"
)

// LacksNode says what Kubernetes does not know yet about a node's current boot.
func LacksNode(ctx context.Context, kube NodeReader, node, uuid, bootID string) (string, error) {
	k, err := kube.Node(ctx, node)
	switch {
	case errors.Is(err, ErrNotFound):
		return nodeUnknown, nil
	case err != nil:
		return "", err
	}
	return LacksReady(ctx, kube, k, uuid, bootID)
}

// LacksReady is LacksNode for a Node that was read after the machine.
func LacksReady(ctx context.Context, kube NodeReader, k KubeNode, uuid, bootID string) (string, error) {
	switch {
	case k.UUID != uuid:
		return fmt.Sprintf("Kubernetes has another machine by its name, UUID %s", k.UUID), nil
	case k.BootID != bootID:
		return bootUnseen, nil
	case !k.Ready:
		return nodeNotReady, nil
	}
	pending, err := kube.PendingCertificates(ctx, k.Name)
	if err == nil && len(pending) > 0 {
		return fmt.Sprintf("certificate requests of its kubelet wait for approval: kubectl certificate approve %s, or have kubelet-serving-cert-approver do it",
			strings.Join(pending, " ")), nil
	}
	return "", err
}

// IsWatched says whether the watches of a machine and its Node report when the lack is over.
func IsWatched(lacks string) bool {
	return strings.HasPrefix(lacks, StandsIn) || slices.Contains([]string{nodeUnknown, bootUnseen, nodeNotReady}, lacks)
}

// Settling is what a wait reports of a node that lacks nothing, until the settling time is over.
const Settling = "healthy, settling"

const bootUnseen = "Kubernetes has not seen this boot yet"

const nodeNotReady = "its Node is not Ready"

const nodeUnknown = "Kubernetes does not know it yet"

// Unanswered adds to a failed wait the change that got no answer: it may never have happened.
func Unanswered(lost, waited error) error {
	if lost == nil || waited == nil {
		return waited
	}
	return fmt.Errorf("%w; before that: %w", waited, lost)
}

// LacksStaticPods names the first thing that the static pods of a control plane lack to run as its
// machine's configuration says; "" if they lack nothing.
func LacksStaticPods(ctx context.Context, kube ComponentReader, node string, addr netip.Addr, m MachineKubernetes) (string, error) {
	pods, err := kube.StaticPods(ctx)
	if err != nil {
		return "", err
	}
	for _, c := range StaticPods {
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
func LacksStaticPod(ctx context.Context, kube ComponentReader, pods []StaticPod, node string, addr netip.Addr, c Component, m MachineKubernetes) (string, error) {
	if what := LacksPod(pods, node, c, m); what != "" || c != APIServer {
		return what, nil
	}
	return lacksAPIServer(ctx, kube, addr, m)
}

// LacksPod says how a static pod, as Kubernetes shows it, differs from the one that its machine
// should run.
func LacksPod(pods []StaticPod, node string, c Component, m MachineKubernetes) string {
	i := slices.IndexFunc(pods, func(p StaticPod) bool { return p.Node == node && p.Component == c })
	if i < 0 {
		return "Kubernetes does not show its pod"
	}
	switch p := pods[i]; {
	case !SameVersion(p.Image, m.Images.Of(c)) || p.Revision < m.Revisions[c]:
		return fmt.Sprintf("its pod still is the old one: %s, of revision %d", p.Image, p.Revision)
	case !p.Ready:
		return "its pod is not Ready: " + words.OrNone(p.Why)
	}
	return ""
}

// RequireAPIServer fails unless a control plane's API server answers at its own address.
func RequireAPIServer(ctx context.Context, talos KubernetesReader, kube ComponentReader, node string, addr netip.Addr) error {
	m, err := talos.Kubernetes(ctx, addr)
	if err == nil {
		_, err = kube.APIServer(ctx, netip.AddrPortFrom(addr, uint16(m.APIPort)))
	}
	return fault.Prefix(fmt.Sprintf("the API server of %s does not serve at its own address", node), err)
}

// lacksAPIServer asks the API server itself: its pod has no readiness probe unless
// StartupProbesEnabled is set, and counts as Ready from its start (k8stemplates/apiserver.go of
// Talos).
func lacksAPIServer(ctx context.Context, kube ComponentReader, addr netip.Addr, m MachineKubernetes) (string, error) {
	version, err := kube.APIServer(ctx, netip.AddrPortFrom(addr, uint16(m.APIPort)))
	if err != nil {
		return "", fmt.Errorf("its API server: %w", err)
	}
	if r, err := ParseImage(m.Images.APIServer); err == nil { // else its image names no version
		if v, err := ParseVersion(version); err != nil || v != r.Version {
			return "it answers as " + version, nil //nolint:nilerr // it says what it is
		}
	}
	return "", nil
}
