package talos

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/siderolabs/talos/pkg/machinery/api/common"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"

	"github.com/recast-sh/recast/cluster"
)

// PullImage makes the machine fetch a component's image to the namespace that runs
// it: Talos runs the kubelet in a namespace of its own, the kubelet the rest
// (prePullImages in pkg/cluster/kubernetes/talos_managed.go).
func (c *Client) PullImage(ctx context.Context, addr netip.Addr, uuid string, part cluster.Component, image string, say func(string)) error {
	namespace := common.ContainerdNamespace_NS_CRI
	if part == cluster.Kubelet {
		namespace = common.ContainerdNamespace_NS_SYSTEM
	}
	return c.callPatient(ctx, addr.String(), func(ctx context.Context, s session, wait patience) error {
		if err := checkUUID(ctx, s, uuid, "nothing was pulled"); err != nil {
			return err
		}
		silence, err := lifecycleAPI(ctx, s)
		if err != nil {
			return err
		}
		if silence == 0 {
			wait(patientPullSilence)
			return oldPull(ctx, s, namespace, image)
		}
		return pull(ctx, s, &common.ContainerdInstance{Driver: common.ContainerDriver_CRI, Namespace: namespace}, image, silence, wait, say)
	})
}

// oldPull uses the only API before 1.13, which sends a single answer.
func oldPull(ctx context.Context, s session, namespace common.ContainerdNamespace, image string) error {
	//lint:ignore SA1019 there is no other before 1.13
	_, err := s.MachineClient.ImagePull(ctx, &machineapi.ImagePullRequest{Namespace: namespace, Reference: image})
	if err != nil {
		return fmt.Errorf("pull %s: %w", image, answer(err))
	}
	return nil
}
