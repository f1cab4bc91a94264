package control

import (
	"context"
	"fmt"
	"maps"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
)

// podFrom makes a pod of a workload's template.
func podFrom(owner store.Object, kind string, t corev1.PodTemplateSpec) *corev1.Pod {
	t = *t.DeepCopy()
	gvk := appsv1.SchemeGroupVersion.WithKind(kind)
	t.Namespace = owner.GetNamespace()
	t.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(owner, gvk)}
	t.GenerateName = owner.GetName() + "-"
	return &corev1.Pod{ObjectMeta: t.ObjectMeta, Spec: t.Spec}
}

// active says whether a workload counts the pod: it has neither ended nor is it
// terminating.
func active(p *corev1.Pod) bool {
	return p.DeletionTimestamp == nil && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed
}

func readyPods(pods []*corev1.Pod) int32 {
	var n int32
	for _, p := range pods {
		if podReady(p) {
			n++
		}
	}
	return n
}

// wantedReplicas is the wanted number of pods: one by default.
func wantedReplicas(n *int32) int {
	if n == nil {
		return 1
	}
	return int(*n)
}

func (m *Manager) createPod(ctx context.Context, p *corev1.Pod) error {
	if m.terminating(ctx, p.Namespace) {
		return nil
	}
	if _, err := m.store.Create(ctx, store.Pods(), p); err != nil {
		return fmt.Errorf("create pod %s/%s%s: %w", p.Namespace, p.GenerateName, p.Name, err)
	}
	return nil
}

// syncDaemonSets creates a DaemonSet's pod on every Node that it selects.
func (m *Manager) syncDaemonSets(ctx context.Context) error {
	sets, err := all[*appsv1.DaemonSet](ctx, m.store, store.DaemonSets())
	if err != nil {
		return err
	}
	nodes, err := all[*corev1.Node](ctx, m.store, store.Nodes())
	if err != nil {
		return err
	}
	for _, ds := range sets {
		pods, err := all[*corev1.Pod](ctx, m.store, store.Pods())
		if err != nil {
			return err
		}
		pods = owned(pods, ds)
		hash, err := templateHash(ds.Spec.Template)
		if err != nil {
			return err
		}
		wanted, outdated := int32(0), []*corev1.Pod{}
		for _, n := range nodes {
			if !labels.SelectorFromSet(ds.Spec.Template.Spec.NodeSelector).Matches(labels.Set(n.Labels)) {
				continue
			}
			wanted++
			if i := slices.IndexFunc(pods, func(p *corev1.Pod) bool { return p.Spec.NodeName == n.Name }); i >= 0 {
				if pods[i].Labels[appsv1.DefaultDaemonSetUniqueLabelKey] != hash {
					outdated = append(outdated, pods[i])
				}
				continue
			}
			p := podFrom(ds, "DaemonSet", ds.Spec.Template)
			p.Labels = maps.Clone(p.Labels)
			if p.Labels == nil {
				p.Labels = map[string]string{}
			}
			p.Labels[appsv1.DefaultDaemonSetUniqueLabelKey] = hash
			p.Spec.NodeName = n.Name
			if err := m.createPod(ctx, p); err != nil {
				return err
			}
		}
		if err := m.renew(ctx, outdated, wanted-readyPods(living(pods))); err != nil {
			return err
		}
		fresh := *ds // a shallow copy: only unshared fields of its status change; likewise below
		fresh.Status.UpdatedNumberScheduled = int32(len(pods) - len(outdated))
		fresh.Status.NumberUnavailable = wanted - readyPods(pods)
		fresh.Status.DesiredNumberScheduled, fresh.Status.CurrentNumberScheduled = wanted, int32(len(pods))
		fresh.Status.NumberReady, fresh.Status.NumberAvailable = readyPods(pods), readyPods(pods)
		fresh.Status.ObservedGeneration = ds.Generation
		if err := m.writeStatus(ctx, store.DaemonSets(), &fresh, equality.Semantic.DeepEqual(ds.Status, fresh.Status)); err != nil {
			return err
		}
	}
	return nil
}

func living(pods []*corev1.Pod) []*corev1.Pod {
	return slices.DeleteFunc(slices.Clone(pods), func(p *corev1.Pod) bool { return !active(p) })
}

// renew deletes pods of an earlier template: unavailable ones at once, available ones one
// at a time while all are available (maxUnavailable is 1, the default).
func (m *Manager) renew(ctx context.Context, outdated []*corev1.Pod, unavailable int32) error {
	for _, p := range outdated {
		if p.DeletionTimestamp != nil {
			continue
		}
		if podReady(p) {
			if unavailable > 0 {
				continue
			}
			unavailable++
		}
		if _, err := m.store.Delete(ctx, store.Pods(), p.Namespace, p.Name, metav1.DeleteOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// writeStatus writes the status of an object unless it is unchanged. The store keeps a
// copy.
func (m *Manager) writeStatus(ctx context.Context, r schema.GroupVersionResource, fresh store.Object, same bool) error {
	if same {
		return nil
	}
	_, err := m.store.Update(ctx, r, fresh, store.Status)
	return err
}

// syncReplicaSets replaces pods as soon as they are terminating, not when they are gone.
func (m *Manager) syncReplicaSets(ctx context.Context) error {
	sets, err := all[*appsv1.ReplicaSet](ctx, m.store, store.ReplicaSets())
	if err != nil {
		return err
	}
	for _, rs := range sets {
		pods, err := all[*corev1.Pod](ctx, m.store, store.Pods())
		if err != nil {
			return err
		}
		pods = slices.DeleteFunc(owned(pods, rs), func(p *corev1.Pod) bool { return !active(p) })
		for range wantedReplicas(rs.Spec.Replicas) - len(pods) {
			if err := m.createPod(ctx, podFrom(rs, "ReplicaSet", rs.Spec.Template)); err != nil {
				return err
			}
		}
		for i := wantedReplicas(rs.Spec.Replicas); i < len(pods); i++ {
			if _, err := m.store.Delete(ctx, store.Pods(), rs.Namespace, pods[i].Name, metav1.DeleteOptions{}); err != nil {
				return err
			}
		}
		fresh := *rs
		fresh.Status.Replicas, fresh.Status.FullyLabeledReplicas = int32(len(pods)), int32(len(pods))
		fresh.Status.ReadyReplicas, fresh.Status.AvailableReplicas = readyPods(pods), readyPods(pods)
		fresh.Status.ObservedGeneration = rs.Generation
		if err := m.writeStatus(ctx, store.ReplicaSets(), &fresh, equality.Semantic.DeepEqual(rs.Status, fresh.Status)); err != nil {
			return err
		}
	}
	return nil
}

// syncStatefulSets recreates pod N only when the old one is gone.
func (m *Manager) syncStatefulSets(ctx context.Context) error {
	sets, err := all[*appsv1.StatefulSet](ctx, m.store, store.StatefulSets())
	if err != nil {
		return err
	}
	for _, sts := range sets {
		pods, err := all[*corev1.Pod](ctx, m.store, store.Pods())
		if err != nil {
			return err
		}
		pods = owned(pods, sts)
		for i := range wantedReplicas(sts.Spec.Replicas) {
			p := podFrom(sts, "StatefulSet", sts.Spec.Template)
			p.GenerateName, p.Name = "", fmt.Sprintf("%s-%d", sts.Name, i)
			if slices.ContainsFunc(pods, func(have *corev1.Pod) bool { return have.Name == p.Name }) {
				continue
			}
			if err := m.createPod(ctx, p); err != nil {
				return err
			}
		}
		fresh := *sts
		fresh.Status.Replicas, fresh.Status.CurrentReplicas = int32(len(pods)), int32(len(pods))
		fresh.Status.ReadyReplicas, fresh.Status.AvailableReplicas = readyPods(pods), readyPods(pods)
		fresh.Status.ObservedGeneration = sts.Generation
		if err := m.writeStatus(ctx, store.StatefulSets(), &fresh, equality.Semantic.DeepEqual(sts.Status, fresh.Status)); err != nil {
			return err
		}
	}
	return nil
}
