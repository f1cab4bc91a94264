package control

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"

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

// active says whether a workload counts the pod: it lives and is to go on living.
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

// wantedReplicas is how many pods a workload is to have: one unless it says so.
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

// syncDaemonSets gives every Node that a DaemonSet selects its pod.
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
		var wanted int32
		for _, n := range nodes {
			if !labels.SelectorFromSet(ds.Spec.Template.Spec.NodeSelector).Matches(labels.Set(n.Labels)) {
				continue
			}
			wanted++
			if slices.ContainsFunc(pods, func(p *corev1.Pod) bool { return p.Spec.NodeName == n.Name }) {
				continue
			}
			p := podFrom(ds, "DaemonSet", ds.Spec.Template)
			p.Spec.NodeName = n.Name
			if err := m.createPod(ctx, p); err != nil {
				return err
			}
		}
		fresh := ds.DeepCopy()
		fresh.Status.DesiredNumberScheduled, fresh.Status.CurrentNumberScheduled = wanted, int32(len(pods))
		fresh.Status.NumberReady, fresh.Status.NumberAvailable = readyPods(pods), readyPods(pods)
		fresh.Status.ObservedGeneration = ds.Generation
		if err := m.writeStatus(ctx, store.DaemonSets(), ds, fresh); err != nil {
			return err
		}
	}
	return nil
}

func (m *Manager) writeStatus(ctx context.Context, r schema.GroupVersionResource, old, fresh store.Object) error {
	if equality.Semantic.DeepEqual(old, fresh) {
		return nil
	}
	_, err := m.store.Update(ctx, r, fresh, store.Status)
	return err
}

// syncReplicaSets replaces pods that are ending as soon as they end, not when they are gone.
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
		fresh := rs.DeepCopy()
		fresh.Status.Replicas, fresh.Status.FullyLabeledReplicas = int32(len(pods)), int32(len(pods))
		fresh.Status.ReadyReplicas, fresh.Status.AvailableReplicas = readyPods(pods), readyPods(pods)
		fresh.Status.ObservedGeneration = rs.Generation
		if err := m.writeStatus(ctx, store.ReplicaSets(), rs, fresh); err != nil {
			return err
		}
	}
	return nil
}

// syncStatefulSets makes pod N again only when the one before it is gone.
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
		fresh := sts.DeepCopy()
		fresh.Status.Replicas, fresh.Status.CurrentReplicas = int32(len(pods)), int32(len(pods))
		fresh.Status.ReadyReplicas, fresh.Status.AvailableReplicas = readyPods(pods), readyPods(pods)
		fresh.Status.ObservedGeneration = sts.Generation
		if err := m.writeStatus(ctx, store.StatefulSets(), sts, fresh); err != nil {
			return err
		}
	}
	return nil
}

// syncDeployments keeps one ReplicaSet per template; those of earlier templates go down at once.
func (m *Manager) syncDeployments(ctx context.Context) error {
	deployments, err := all[*appsv1.Deployment](ctx, m.store, store.Deployments())
	if err != nil {
		return err
	}
	for _, d := range deployments {
		sets, err := all[*appsv1.ReplicaSet](ctx, m.store, store.ReplicaSets())
		if err != nil {
			return err
		}
		if err := m.syncDeployment(ctx, d, owned(sets, d)); err != nil {
			return fmt.Errorf("deployment %s/%s: %w", d.Namespace, d.Name, err)
		}
	}
	return nil
}

func (m *Manager) syncDeployment(ctx context.Context, d *appsv1.Deployment, sets []*appsv1.ReplicaSet) error {
	hash, err := templateHash(d.Spec.Template)
	if err != nil {
		return err
	}
	replicas := int32(wantedReplicas(d.Spec.Replicas))
	fresh := d.DeepCopy()
	fresh.Status = appsv1.DeploymentStatus{ObservedGeneration: d.Generation}
	found := false
	for _, rs := range sets {
		want := int32(0)
		if strings.HasSuffix(rs.Name, "-"+hash) {
			found, want = true, replicas
			fresh.Status.UpdatedReplicas = rs.Status.Replicas
		}
		fresh.Status.Replicas += rs.Status.Replicas
		fresh.Status.ReadyReplicas += rs.Status.ReadyReplicas
		fresh.Status.AvailableReplicas += rs.Status.AvailableReplicas
		if int32(wantedReplicas(rs.Spec.Replicas)) != want {
			scaled := rs.DeepCopy()
			scaled.Spec.Replicas = &want
			if _, err := m.store.Update(ctx, store.ReplicaSets(), scaled, store.Main); err != nil {
				return err
			}
		}
	}
	if !found {
		if _, err := m.store.Create(ctx, store.ReplicaSets(), replicaSet(d, hash, replicas)); err != nil {
			return err
		}
	}
	return m.writeStatus(ctx, store.Deployments(), d, fresh)
}

func replicaSet(d *appsv1.Deployment, hash string, replicas int32) *appsv1.ReplicaSet {
	return &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{
			Name: d.Name + "-" + hash, Namespace: d.Namespace, Labels: d.Spec.Template.Labels,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(d, appsv1.SchemeGroupVersion.WithKind("Deployment"))},
		},
		Spec: appsv1.ReplicaSetSpec{Replicas: &replicas, Selector: d.Spec.Selector, Template: d.Spec.Template},
	}
}

func templateHash(t corev1.PodTemplateSpec) (string, error) {
	b, err := json.Marshal(t)
	if err != nil {
		return "", fmt.Errorf("hash pod template: %w", err)
	}
	h := fnv.New32a()
	_, _ = h.Write(b) // a hash cannot fail
	return fmt.Sprintf("%08x", h.Sum32()), nil
}
