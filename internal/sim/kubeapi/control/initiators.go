package control

import (
	"cmp"
	"context"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// LetIn has the servers of iSCSI and NVMe-oF let in only machines by these names.
func (m *Manager) LetIn(names ...string) {
	m.mu.Lock()
	m.known = append([]string{}, names...)
	m.mu.Unlock()
	m.wake()
}

// letIn says whether the servers of the pod's volumes know the machine by its name.
func (m *Manager) letIn(ctx context.Context, p *corev1.Pod, k *kubelet) (bool, error) {
	m.mu.Lock()
	known := m.known
	m.mu.Unlock()
	if known == nil {
		return true, nil
	}
	volumes, err := m.volumesOf(ctx, p)
	if err != nil {
		return false, err
	}
	iscsi := slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool { return v.ISCSI != nil })
	nvme := false
	for _, v := range volumes {
		iscsi = iscsi || v.Spec.ISCSI != nil
		if v.Spec.CSI != nil {
			for _, value := range v.Spec.CSI.VolumeAttributes {
				iscsi, nvme = iscsi || strings.HasPrefix(value, "iqn."), nvme || strings.HasPrefix(value, "nqn.")
			}
		}
	}
	id := cmp.Or(k.MachineID, k.UUID)
	host := hex.EncodeToString([]byte(id[:16]))
	nqn := fmt.Sprintf("nqn.2017-11.dev.talos:uuid:%s-%s-%s-%s-%s", host[:8], host[8:12], host[12:16], host[16:20], host[20:])
	return (!iscsi || slices.Contains(known, "iqn.2017-11.dev.talos:"+id)) && (!nvme || slices.Contains(known, nqn)), nil
}

// waitForVolumes is what the API shows of a pod whose volumes are not mounted; one that ran in an earlier boot stays in
// the phase Running (getPhase in pkg/kubelet/kubelet_pods.go).
func (m *Manager) waitForVolumes(ctx context.Context, p *corev1.Pod) error {
	if slices.ContainsFunc(p.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool { return c.State.Waiting != nil }) {
		return nil
	}
	fresh := withReadiness(p, corev1.ConditionFalse)
	if fresh.Status.Phase != corev1.PodRunning {
		fresh.Status.Phase = corev1.PodPending
	}
	for i := range fresh.Status.ContainerStatuses {
		c := &fresh.Status.ContainerStatuses[i]
		c.State.Waiting = &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}
		if fresh.Status.Phase == corev1.PodRunning {
			c.LastTerminationState.Terminated = &corev1.ContainerStateTerminated{Reason: "ContainerStatusUnknown", ExitCode: 137}
		}
	}
	return m.writePod(ctx, fresh)
}
