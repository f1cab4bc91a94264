package control

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
)

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

// syncMirrorPods updates the mirror pods of running kubelets: a changed static pod becomes
// a new pod of the same name.
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

// staticPods are the kubelet's; told is false until it has reported them.
func (m *Manager) staticPods(k *kubelet) (pods []StaticPod, told bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return k.static, k.told
}

func isMirror(p *corev1.Pod) bool {
	_, ok := p.Annotations[corev1.MirrorPodAnnotationKey]
	return ok
}

// mirrors says whether p is the mirror of this very pod.
func (s StaticPod) mirrors(p *corev1.Pod, n *corev1.Node) bool {
	return p.Name == s.Pod.Name+"-"+n.Name && p.Namespace == s.Pod.Namespace && p.Annotations[corev1.MirrorPodAnnotationKey] == s.Hash
}

// mirror is the mirror pod as the kubelet creates it (mirror_client.go).
func (s StaticPod) mirror(n *corev1.Node) *corev1.Pod {
	p := s.Pod.DeepCopy()
	p.Name += "-" + n.Name
	if p.Annotations == nil {
		p.Annotations = map[string]string{}
	}
	p.Annotations[corev1.MirrorPodAnnotationKey], p.Annotations[configHash] = s.Hash, s.Hash
	p.Annotations[configSource], p.Annotations[configSeen] = "http", time.Now().UTC().Format(time.RFC3339Nano)
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

// status is p with the static pod's status. Unchanged conditions keep the time of their
// last change.
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
