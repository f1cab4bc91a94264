package control

import (
	"context"
	"fmt"
	"hash/fnv"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
)

// runPods does what a kubelet does with the pods of its node. Pods of a node without a
// running kubelet stay as they are, but become unready once the node is lost.
func (m *Manager) runPods(ctx context.Context) error {
	pods, err := all[*corev1.Pod](ctx, m.store, store.Pods())
	if err != nil {
		return err
	}
	nodes, err := all[*corev1.Node](ctx, m.store, store.Nodes())
	if err != nil {
		return err
	}
	byName := map[string]*corev1.Node{}
	for _, n := range nodes {
		byName[n.Name] = n
	}
	kubelets := m.running()
	for _, p := range pods {
		n := byName[p.Spec.NodeName]
		if n == nil {
			continue
		}
		if err := m.runPod(ctx, p, n, kubelets[n.Name]); err != nil {
			return fmt.Errorf("pod %s/%s: %w", p.Namespace, p.Name, err)
		}
	}
	return nil
}

func (m *Manager) runPod(ctx context.Context, p *corev1.Pod, n *corev1.Node, k *kubelet) error {
	up := k != nil && k.BootID == n.Status.NodeInfo.BootID && readiness(n) == corev1.ConditionTrue
	switch {
	case k != nil && k.deaf:
		return nil
	case k != nil && p.DeletionTimestamp != nil:
		if !m.timers.due("end/"+string(p.UID), endsAfter(p)) {
			return nil
		}
		m.took(n.Name, "pod", endsAfter(p))
		_, err := m.store.Delete(ctx, store.Pods(), p.Namespace, p.Name, metav1.DeleteOptions{
			GracePeriodSeconds: new(int64), Preconditions: &metav1.Preconditions{UID: &p.UID},
		})
		return err
	case p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed:
		return nil
	case !up:
		if m.alone() && podReady(p) && readiness(n) != corev1.ConditionTrue {
			lost := withReadiness(p, corev1.ConditionFalse)
			lost.Status.ContainerStatuses = p.Status.ContainerStatuses // only the kubelet knows them
			return m.writePod(ctx, lost)
		}
		return nil
	case isMirror(p):
		return m.reflect(ctx, p, k)
	case podReady(p):
		return nil
	case !m.timers.due("start/"+string(p.UID)+k.BootID, startAfter):
		return nil
	}
	if in, err := m.letIn(ctx, p, k); err != nil {
		return err
	} else if !in {
		return m.waitForVolumes(ctx, p)
	}
	fresh := withReadiness(p, corev1.ConditionTrue)
	fresh.Status.Phase = corev1.PodRunning
	fresh.Status.HostIP = k.hostIP()
	if fresh.Status.PodIP = podIP(p); p.Spec.HostNetwork {
		fresh.Status.PodIP = fresh.Status.HostIP
	}
	fresh.Status.PodIPs = []corev1.PodIP{{IP: fresh.Status.PodIP}}
	now := metav1.Now().Rfc3339Copy()
	fresh.Status.StartTime = &now
	for i := range fresh.Status.ContainerStatuses {
		c := &fresh.Status.ContainerStatuses[i]
		c.Started, c.State.Running = new(true), &corev1.ContainerStateRunning{StartedAt: now}
	}
	return m.writePod(ctx, fresh)
}

// ignoresSIGTERM says whether a container's first process has no handler for the signal,
// such as sleep: the kernel does not deliver it to PID 1, and the kubelet kills the
// container after the grace period.
func ignoresSIGTERM(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Spec.Containers, func(c corev1.Container) bool { return len(c.Command) > 0 && c.Command[0] == "sleep" })
}

func (k *kubelet) hostIP() string {
	if len(k.Addresses) == 0 {
		return ""
	}
	return k.Addresses[0]
}

func (m *Manager) writePod(ctx context.Context, p *corev1.Pod) error {
	_, err := m.store.Update(ctx, store.Pods(), p, store.Status)
	return err
}

// podIP is an address of the cluster's pod network, derived from the pod.
func podIP(p *corev1.Pod) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(p.UID)) // a hash never fails
	s := h.Sum32()
	return fmt.Sprintf("10.244.%d.%d", byte(s>>8), byte(s))
}

func podReady(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

func withReadiness(p *corev1.Pod, s corev1.ConditionStatus) *corev1.Pod {
	fresh := p.DeepCopy()
	for _, t := range []corev1.PodConditionType{corev1.PodScheduled, corev1.PodInitialized, corev1.ContainersReady, corev1.PodReady} {
		c := corev1.PodCondition{Type: t, Status: s, LastTransitionTime: metav1.Now().Rfc3339Copy()}
		if t == corev1.PodScheduled || t == corev1.PodInitialized {
			c.Status = corev1.ConditionTrue
		}
		fresh.Status.Conditions = slices.DeleteFunc(fresh.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == t })
		fresh.Status.Conditions = append(fresh.Status.Conditions, c)
	}
	fresh.Status.ContainerStatuses = nil
	for _, c := range p.Spec.Containers {
		fresh.Status.ContainerStatuses = append(fresh.Status.ContainerStatuses,
			corev1.ContainerStatus{Name: c.Name, Image: c.Image, Ready: s == corev1.ConditionTrue})
	}
	return fresh
}

// endsAfter is how long the pod's processes run after the request to end: a preStop hook
// sleeps first, and a process that ignores SIGTERM is killed after the grace period.
func endsAfter(p *corev1.Pod) time.Duration {
	const grace = 30 * time.Second // default of a pod
	most, ends := grace, endAfter
	if s := p.DeletionGracePeriodSeconds; s != nil {
		most = time.Duration(*s) * time.Second
	}
	if ignoresSIGTERM(p) {
		return max(most, endAfter)
	}
	for _, c := range p.Spec.Containers {
		if c.Lifecycle != nil && c.Lifecycle.PreStop != nil && c.Lifecycle.PreStop.Sleep != nil {
			ends = max(ends, time.Duration(c.Lifecycle.PreStop.Sleep.Seconds)*time.Second+endAfter)
		}
	}
	return min(ends, max(most, endAfter))
}

// evictFromLost deletes the pods of a node that has been unreachable for long; without a
// kubelet they stay terminating.
func (m *Manager) evictFromLost(ctx context.Context) error {
	nodes, err := all[*corev1.Node](ctx, m.store, store.Nodes())
	if err != nil {
		return err
	}
	for _, n := range nodes {
		if readiness(n) != corev1.ConditionUnknown || !m.timers.due("evict/"+string(n.UID), evictAfter) {
			continue
		}
		pods, err := all[*corev1.Pod](ctx, m.store, store.Pods())
		if err != nil {
			return err
		}
		for _, p := range pods {
			if p.Spec.NodeName != n.Name || p.DeletionTimestamp != nil || staysOnNode(p) {
				continue
			}
			if _, err := m.store.Delete(ctx, store.Pods(), p.Namespace, p.Name, metav1.DeleteOptions{}); err != nil {
				return err
			}
		}
	}
	return nil
}

// staysOnNode says whether the pod belongs to its node: a DaemonSet's or a static one.
func staysOnNode(p *corev1.Pod) bool {
	ref := metav1.GetControllerOfNoCopy(p)
	return ref != nil && (ref.Kind == "DaemonSet" || ref.Kind == "Node")
}
