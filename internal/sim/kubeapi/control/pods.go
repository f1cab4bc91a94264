package control

import (
	"context"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
)

// runPods does what a kubelet does with the pods of its node. Pods of a node without a
// running kubelet stay as they are, but become unready once the node is lost.
func (m *Manager) runPods(ctx context.Context) error {
	nodes, err := all[*corev1.Node](ctx, m.store, store.Nodes())
	if err != nil {
		return err
	}
	byName := map[string]*corev1.Node{}
	for _, n := range nodes {
		byName[n.Name] = n
	}
	kubelets := m.running()
	return each(ctx, m.store, store.Pods(), func(p *corev1.Pod) error {
		n := byName[p.Spec.NodeName]
		if n == nil {
			return nil
		}
		return m.runPod(ctx, p, n, kubelets[n.Name])
	})
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
		if m.alone() && PodReady(p) && readiness(n) != corev1.ConditionTrue {
			lost := withReadiness(p, corev1.ConditionFalse)
			lost.Status.ContainerStatuses = p.Status.ContainerStatuses // only the kubelet knows them
			return m.writePod(ctx, lost)
		}
		return nil
	case isMirror(p):
		return m.reflect(ctx, p, k)
	case PodReady(p):
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

// ignoresSIGTERM reports whether a container's first process, such as sleep, has no handler for the signal: the
// kernel does not deliver the signal to PID 1, and the kubelet kills the container after the grace period.
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

// podIP returns an address of the cluster's pod network, derived from the pod.
func podIP(p *corev1.Pod) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(p.UID)) // a hash never fails
	s := h.Sum32()
	return fmt.Sprintf("10.244.%d.%d", byte(s>>8), byte(s))
}

func PodReady(p *corev1.Pod) bool {
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

// endsAfter returns how long the pod's processes run after the request to end: a preStop hook sleeps first, and a
// process that ignores SIGTERM is killed after the grace period.
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

// evictFromLost deletes the pods of a node that has been unreachable for long; without a kubelet the pods stay
// terminating.
func (m *Manager) evictFromLost(ctx context.Context) error {
	return each(ctx, m.store, store.Nodes(), func(n *corev1.Node) error {
		if readiness(n) != corev1.ConditionUnknown || !m.timers.due("evict/"+string(n.UID), evictAfter) {
			return nil
		}
		return each(ctx, m.store, store.Pods(), func(p *corev1.Pod) error {
			if p.Spec.NodeName != n.Name || p.DeletionTimestamp != nil || staysOnNode(p) {
				return nil
			}
			return m.deletePod(ctx, p)
		})
	})
}

// staysOnNode reports whether the pod belongs to its node: a DaemonSet's pod or a static pod.
func staysOnNode(p *corev1.Pod) bool {
	ref := metav1.GetControllerOfNoCopy(p)
	return ref != nil && (ref.Kind == "DaemonSet" || ref.Kind == "Node")
}

// StaticPod is a pod that a machine runs independently of the API.
type StaticPod struct {
	Pod      *corev1.Pod // as on the machine, without the node's name
	Hash     string      // of the pod
	Ready    bool
	Waiting  string // why its container does not run, "" if it does
	Message  string // details of Waiting
	Restarts int
	Started  time.Time // when its container last started; zero: never
}

// The annotations that mark mirror pods (kubelet/types).
const (
	configHash   = "kubernetes.io/config.hash"
	configSource = "kubernetes.io/config.source"
	configSeen   = "kubernetes.io/config.seen"
)

// StaticPods sets the static pods of the running kubelet of the machine with that UUID.
func (m *Manager) StaticPods(uuid string, pods []StaticPod) {
	m.mu.Lock()
	for _, k := range m.kubelets {
		if k.UUID == uuid {
			k.static, k.told = pods, true
		}
	}
	m.mu.Unlock()
	m.wake()
}

// syncMirrorPods updates the mirror pods of running kubelets: a changed static pod becomes a new pod of the same name.
func (m *Manager) syncMirrorPods(ctx context.Context) error {
	kubelets := m.running()
	for _, name := range slices.Sorted(maps.Keys(kubelets)) {
		n, err := m.store.Get(ctx, store.Nodes(), "", name)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return err
		}
		if err := m.syncMirrorPodsOf(ctx, kubelets[name], n.(*corev1.Node)); err != nil {
			return err
		}
	}
	return nil
}

func (m *Manager) syncMirrorPodsOf(ctx context.Context, k *kubelet, n *corev1.Node) error {
	static, told := m.staticPods(k)
	if !told {
		return nil
	}
	pods, err := all[*corev1.Pod](ctx, m.store, store.Pods())
	if err != nil {
		return err
	}
	there := map[string]bool{}
	for _, p := range pods {
		if p.Spec.NodeName != n.Name || !isMirror(p) {
			continue
		}
		there[p.Namespace+"/"+p.Name] = true
		if slices.ContainsFunc(static, func(s StaticPod) bool { return s.mirrors(p, n) }) {
			continue
		}
		if _, err := m.store.Delete(ctx, store.Pods(), p.Namespace, p.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil {
			return fmt.Errorf("mirror pod %s: %w", p.Name, err)
		}
		m.wake()
	}
	for _, s := range static {
		p := s.mirror(n)
		if there[p.Namespace+"/"+p.Name] {
			continue
		}
		if _, err := m.store.Create(ctx, store.Pods(), p); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("mirror pod %s: %w", p.Name, err)
		}
	}
	return nil
}

// staticPods returns the kubelet's static pods; told is false until the kubelet has reported them.
func (m *Manager) staticPods(k *kubelet) (pods []StaticPod, told bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return k.static, k.told
}

func isMirror(p *corev1.Pod) bool {
	_, ok := p.Annotations[corev1.MirrorPodAnnotationKey]
	return ok
}

// mirrors reports whether p is the mirror of exactly this static pod.
func (s StaticPod) mirrors(p *corev1.Pod, n *corev1.Node) bool {
	return p.Name == s.Pod.Name+"-"+n.Name && p.Namespace == s.Pod.Namespace && p.Annotations[corev1.MirrorPodAnnotationKey] == s.Hash
}

// mirror returns the mirror pod as the kubelet creates it (mirror_client.go).
func (s StaticPod) mirror(n *corev1.Node) *corev1.Pod {
	p := s.Pod.DeepCopy()
	p.Name += "-" + n.Name
	p.Annotations = labels.Merge(p.Annotations, labels.Set{
		corev1.MirrorPodAnnotationKey: s.Hash, configHash: s.Hash,
		configSource: "http", configSeen: time.Now().UTC().Format(time.RFC3339Nano),
	})
	p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: n.Name, UID: n.UID, Controller: new(true)}}
	p.Spec.NodeName = n.Name
	p.Spec.Tolerations = []corev1.Toleration{{Effect: corev1.TaintEffectNoExecute, Operator: corev1.TolerationOpExists}}
	return p
}

// reflection caches what a mirror pod already shows.
type reflection struct {
	revision         string // of the pod
	ready            bool
	waiting, message string
	restarts         int
	started          time.Time
	host             string
}

// reflect updates a mirror pod's status from the static pod.
func (m *Manager) reflect(ctx context.Context, p *corev1.Pod, k *kubelet) error {
	static, _ := m.staticPods(k)
	for _, s := range static {
		if s.Pod.Name+"-"+k.Name != p.Name || s.Hash != p.Annotations[corev1.MirrorPodAnnotationKey] {
			continue
		}
		now := reflection{p.ResourceVersion, s.Ready, s.Waiting, s.Message, s.Restarts, s.Started, k.hostIP()}
		if m.reflected[p.UID] == now {
			return nil
		}
		fresh := s.status(p, k)
		if equality.Semantic.DeepEqual(p.Status, fresh.Status) {
			m.reflected[p.UID] = now
			return nil
		}
		return m.writePod(ctx, fresh)
	}
	return nil
}

// status returns p with the static pod's status. Unchanged conditions keep the time of their last change.
func (s StaticPod) status(p *corev1.Pod, k *kubelet) *corev1.Pod {
	ready := map[bool]corev1.ConditionStatus{true: corev1.ConditionTrue, false: corev1.ConditionFalse}[s.Ready]
	fresh := withReadiness(p, ready)
	for i, c := range fresh.Status.Conditions {
		for _, old := range p.Status.Conditions {
			if old.Type == c.Type && old.Status == c.Status {
				fresh.Status.Conditions[i] = old
			}
		}
	}
	fresh.Status.Phase = corev1.PodRunning
	if s.Started.IsZero() {
		fresh.Status.Phase = corev1.PodPending
	}
	fresh.Status.HostIP, fresh.Status.PodIP = k.hostIP(), k.hostIP()
	if fresh.Status.StartTime == nil {
		fresh.Status.StartTime = new(metav1.Now().Rfc3339Copy())
	}
	for i := range fresh.Status.ContainerStatuses {
		c := &fresh.Status.ContainerStatuses[i]
		c.RestartCount, c.Started = int32(s.Restarts), &s.Ready
		if s.Waiting != "" {
			c.State.Waiting = &corev1.ContainerStateWaiting{Reason: s.Waiting, Message: s.Message}
		} else {
			c.State.Running = &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(s.Started.Truncate(time.Second))}
		}
	}
	return fresh
}

// schedule assigns each pending pod to the fitting node with the fewest pods.
func (m *Manager) schedule(ctx context.Context) error {
	pods, err := all[*corev1.Pod](ctx, m.store, store.Pods())
	if err != nil {
		return err
	}
	nodes, err := all[*corev1.Node](ctx, m.store, store.Nodes())
	if err != nil {
		return err
	}
	load := map[string]int{}
	for _, p := range pods {
		if active(p) {
			load[p.Spec.NodeName]++
		}
	}
	for _, p := range pods {
		if p.Spec.NodeName != "" || !active(p) {
			continue
		}
		volumes, err := m.volumesOf(ctx, p)
		if err != nil {
			return err
		}
		fits := slices.DeleteFunc(slices.Clone(nodes), func(n *corev1.Node) bool { return !fits(p, n, volumes) })
		if len(fits) == 0 {
			if err := m.unschedulable(ctx, p, len(nodes)); err != nil {
				return err
			}
			continue
		}
		best := slices.MinFunc(fits, func(a, b *corev1.Node) int { return load[a.Name] - load[b.Name] })
		load[best.Name]++
		bound := p.DeepCopy()
		bound.Spec.NodeName = best.Name
		if _, err := m.store.Update(ctx, store.Pods(), bound, store.Main); err != nil {
			return fmt.Errorf("bind pod %s/%s: %w", p.Namespace, p.Name, err)
		}
	}
	return nil
}

func fits(p *corev1.Pod, n *corev1.Node, volumes []*corev1.PersistentVolume) bool {
	if readiness(n) != corev1.ConditionTrue || n.Spec.Unschedulable || !tolerated(p, n.Spec.Taints) {
		return false
	}
	if !labels.SelectorFromSet(p.Spec.NodeSelector).Matches(labels.Set(n.Labels)) {
		return false
	}
	for _, v := range volumes {
		if a := v.Spec.NodeAffinity; a != nil && a.Required != nil && !matchesTerms(n, a.Required.NodeSelectorTerms) {
			return false
		}
	}
	if a := p.Spec.Affinity; a != nil && a.NodeAffinity != nil {
		if r := a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution; r != nil {
			return matchesTerms(n, r.NodeSelectorTerms)
		}
	}
	return true
}

// matchesTerms reports whether one of the terms matches the node's labels.
func matchesTerms(n *corev1.Node, terms []corev1.NodeSelectorTerm) bool {
	operators := map[corev1.NodeSelectorOperator]selection.Operator{
		corev1.NodeSelectorOpIn: selection.In, corev1.NodeSelectorOpNotIn: selection.NotIn,
		corev1.NodeSelectorOpExists: selection.Exists, corev1.NodeSelectorOpDoesNotExist: selection.DoesNotExist,
	}
	return slices.ContainsFunc(terms, func(t corev1.NodeSelectorTerm) bool {
		for _, e := range t.MatchExpressions {
			r, err := labels.NewRequirement(e.Key, operators[e.Operator], e.Values)
			if err != nil || !r.Matches(labels.Set(n.Labels)) {
				return false
			}
		}
		return len(t.MatchExpressions) > 0
	})
}

// unschedulable sets the pod's condition once when no node fits.
func (m *Manager) unschedulable(ctx context.Context, p *corev1.Pod, nodes int) error {
	if slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodScheduled }) {
		return nil
	}
	fresh := p.DeepCopy()
	fresh.Status.Conditions = append(fresh.Status.Conditions, corev1.PodCondition{
		Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable,
		Message:            fmt.Sprintf("0/%d nodes are available.", nodes),
		LastTransitionTime: metav1.Now().Rfc3339Copy(),
	})
	return m.writePod(ctx, fresh)
}
