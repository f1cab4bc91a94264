package rolling

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
)

// LacksNode says what Kubernetes does not know yet about a node's current boot.
func LacksNode(ctx context.Context, kube cluster.NodeReader, node, uuid, bootID string) (string, error) {
	k, err := kube.Node(ctx, node)
	switch {
	case errors.Is(err, cluster.ErrNotFound):
		return nodeUnknown, nil
	case err != nil:
		return "", err
	}
	return LacksReady(ctx, kube, k, uuid, bootID)
}

// LacksReady is LacksNode for a Node that was read after the machine.
func LacksReady(ctx context.Context, kube cluster.NodeReader, k cluster.KubeNode, uuid, bootID string) (string, error) {
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
	return strings.HasPrefix(lacks, cluster.StandsIn) || slices.Contains([]string{nodeUnknown, bootUnseen, nodeNotReady}, lacks)
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
