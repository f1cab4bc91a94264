package control

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
)

func podFrom(owner store.Object, kind string, t corev1.PodTemplateSpec) *corev1.Pod {
	t = *t.DeepCopy()
	gvk := appsv1.SchemeGroupVersion.WithKind(kind)
	t.Namespace = owner.GetNamespace()
	t.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(owner, gvk)}
	t.GenerateName = owner.GetName() + "-"
	return &corev1.Pod{ObjectMeta: t.ObjectMeta, Spec: t.Spec}
}

// active reports whether a workload counts the pod: the pod has not ended and is not terminating.
func active(p *corev1.Pod) bool {
	return p.DeletionTimestamp == nil && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed
}

func readyPods(pods []*corev1.Pod) int32 {
	var n int32
	for _, p := range pods {
		if PodReady(p) {
			n++
		}
	}
	return n
}

// wantedReplicas returns the wanted number of pods, by default one.
func wantedReplicas(n *int32) int {
	if n == nil {
		return 1
	}
	return int(*n)
}

// deletePod lets a pod end in its grace period.
func (m *Manager) deletePod(ctx context.Context, p *corev1.Pod) error {
	_, err := m.store.Delete(ctx, store.Pods(), p.Namespace, p.Name, metav1.DeleteOptions{})
	return err
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
	nodes, err := all[*corev1.Node](ctx, m.store, store.Nodes())
	if err != nil {
		return err
	}
	return each(ctx, m.store, store.DaemonSets(), func(ds *appsv1.DaemonSet) error {
		pods, err := m.podsOf(ctx, ds)
		if err != nil {
			return err
		}
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
			metav1.SetMetaDataLabel(&p.ObjectMeta, appsv1.DefaultDaemonSetUniqueLabelKey, hash)
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
		return m.writeStatus(ctx, store.DaemonSets(), &fresh, ds.Status, fresh.Status)
	})
}

func (m *Manager) podsOf(ctx context.Context, owner store.Object) ([]*corev1.Pod, error) {
	pods, err := all[*corev1.Pod](ctx, m.store, store.Pods())
	return owned(pods, owner), err
}

func living(pods []*corev1.Pod) []*corev1.Pod {
	return slices.DeleteFunc(slices.Clone(pods), func(p *corev1.Pod) bool { return !active(p) })
}

// renew deletes pods of an earlier template: unavailable pods at once, available pods one at a time while all are
// available (maxUnavailable is 1, the default).
func (m *Manager) renew(ctx context.Context, outdated []*corev1.Pod, unavailable int32) error {
	for _, p := range outdated {
		if p.DeletionTimestamp != nil {
			continue
		}
		if PodReady(p) {
			if unavailable > 0 {
				continue
			}
			unavailable++
		}
		if err := m.deletePod(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

// writeStatus writes the status of an object unless the status is unchanged. The store keeps a copy.
func (m *Manager) writeStatus(ctx context.Context, r schema.GroupVersionResource, fresh store.Object, was, is any) error {
	if equality.Semantic.DeepEqual(was, is) {
		return nil
	}
	_, err := m.store.Update(ctx, r, fresh, store.Status)
	return err
}

// syncReplicaSets replaces pods as soon as they are terminating, before they are gone.
func (m *Manager) syncReplicaSets(ctx context.Context) error {
	return each(ctx, m.store, store.ReplicaSets(), func(rs *appsv1.ReplicaSet) error {
		pods, err := m.podsOf(ctx, rs)
		if err != nil {
			return err
		}
		pods = living(pods)
		for range wantedReplicas(rs.Spec.Replicas) - len(pods) {
			if err := m.createPod(ctx, podFrom(rs, "ReplicaSet", rs.Spec.Template)); err != nil {
				return err
			}
		}
		for i := wantedReplicas(rs.Spec.Replicas); i < len(pods); i++ {
			if err := m.deletePod(ctx, pods[i]); err != nil {
				return err
			}
		}
		fresh := *rs
		fresh.Status.Replicas, fresh.Status.FullyLabeledReplicas = int32(len(pods)), int32(len(pods))
		fresh.Status.ReadyReplicas, fresh.Status.AvailableReplicas = readyPods(pods), readyPods(pods)
		fresh.Status.ObservedGeneration = rs.Generation
		return m.writeStatus(ctx, store.ReplicaSets(), &fresh, rs.Status, fresh.Status)
	})
}

// syncStatefulSets recreates pod N only when the old pod N is gone.
func (m *Manager) syncStatefulSets(ctx context.Context) error {
	return each(ctx, m.store, store.StatefulSets(), func(sts *appsv1.StatefulSet) error {
		pods, err := m.podsOf(ctx, sts)
		if err != nil {
			return err
		}
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
		return m.writeStatus(ctx, store.StatefulSets(), &fresh, sts.Status, fresh.Status)
	})
}

// syncDeployments keeps one ReplicaSet per template; older ReplicaSets are scaled down at once.
func (m *Manager) syncDeployments(ctx context.Context) error {
	return each(ctx, m.store, store.Deployments(), func(d *appsv1.Deployment) error {
		sets, err := all[*appsv1.ReplicaSet](ctx, m.store, store.ReplicaSets())
		if err != nil {
			return err
		}
		return m.syncDeployment(ctx, d, owned(sets, d))
	})
}

func (m *Manager) syncDeployment(ctx context.Context, d *appsv1.Deployment, sets []*appsv1.ReplicaSet) error {
	hash, err := templateHash(d.Spec.Template)
	if err != nil {
		return err
	}
	replicas := int32(wantedReplicas(d.Spec.Replicas))
	fresh := *d
	fresh.Status = appsv1.DeploymentStatus{ObservedGeneration: d.Generation, Conditions: d.Status.Conditions}
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
	fresh.Status.UnavailableReplicas = max(0, replicas-fresh.Status.AvailableReplicas)
	fresh.Status.Conditions = deploymentConditions(&fresh, replicas)
	return m.writeStatus(ctx, store.Deployments(), &fresh, d.Status, fresh.Status)
}

// deploymentConditions say whether the deployment is available and complete; an unchanged
// condition keeps the time of its last change.
func deploymentConditions(d *appsv1.Deployment, replicas int32) []appsv1.DeploymentCondition {
	truth := map[bool]corev1.ConditionStatus{true: corev1.ConditionTrue, false: corev1.ConditionFalse}
	available := appsv1.DeploymentCondition{Type: appsv1.DeploymentAvailable, Status: truth[d.Status.AvailableReplicas >= replicas-mayMiss(d, replicas)], Reason: "MinimumReplicasAvailable"}
	if available.Status == corev1.ConditionFalse {
		available.Reason = "MinimumReplicasUnavailable"
	}
	progressing := appsv1.DeploymentCondition{Type: appsv1.DeploymentProgressing, Status: corev1.ConditionTrue, Reason: "NewReplicaSetAvailable"}
	if d.Status.UpdatedReplicas < replicas || d.Status.AvailableReplicas < replicas {
		progressing.Reason = "ReplicaSetUpdated"
	}
	all := []appsv1.DeploymentCondition{available, progressing}
	for i, c := range all {
		all[i].LastTransitionTime, all[i].LastUpdateTime = metav1.Now().Rfc3339Copy(), metav1.Now().Rfc3339Copy()
		for _, old := range d.Status.Conditions {
			if old.Type == c.Type && old.Status == c.Status && old.Reason == c.Reason {
				all[i] = old
			}
		}
	}
	return all
}

// mayMiss returns the number of replicas that a deployment may lack: a quarter by default.
func mayMiss(d *appsv1.Deployment, replicas int32) int32 {
	share := intstr.FromString("25%")
	if s := d.Spec.Strategy.RollingUpdate; s != nil && s.MaxUnavailable != nil {
		share = *s.MaxUnavailable
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(&share, int(replicas), false)
	if err != nil {
		return 0
	}
	return int32(n)
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
	return fmt.Sprintf("%08x", hashed(string(b))), nil
}

// grantedFor is how long a granted eviction counts until its deletion must come.
const grantedFor = 2 * time.Minute

func (m *Manager) syncBudgets(ctx context.Context) error {
	return each(ctx, m.store, store.Budgets(), func(b *policyv1.PodDisruptionBudget) (err error) {
		fresh := *b
		if fresh.Status, err = m.budgetStatus(ctx, b); err != nil {
			return err
		}
		return m.writeStatus(ctx, store.Budgets(), &fresh, b.Status, fresh.Status)
	})
}

func (m *Manager) budgetStatus(ctx context.Context, b *policyv1.PodDisruptionBudget) (policyv1.PodDisruptionBudgetStatus, error) {
	status := policyv1.PodDisruptionBudgetStatus{ObservedGeneration: b.Generation}
	selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
	if err != nil {
		return status, err
	}
	objects, _, err := m.store.List(ctx, store.Pods(), b.Namespace)
	if err != nil {
		return status, err
	}
	var pods []*corev1.Pod
	for _, o := range objects {
		if p := o.(*corev1.Pod); selector.Matches(labels.Set(p.Labels)) && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed {
			pods = append(pods, p)
		}
	}
	expected, err := m.expectedPods(ctx, pods)
	if err != nil {
		return status, err
	}
	desired, err := desiredHealthy(b.Spec, expected)
	if err != nil {
		return status, err
	}
	for _, p := range pods {
		at, disrupted := b.Status.DisruptedPods[p.Name]
		switch {
		case p.DeletionTimestamp != nil:
		case disrupted && time.Since(at.Time) < grantedFor:
			// Its eviction was granted; the deletion will follow.
			if status.DisruptedPods == nil {
				status.DisruptedPods = map[string]metav1.Time{}
			}
			status.DisruptedPods[p.Name] = at
		case PodReady(p):
			status.CurrentHealthy++
		}
	}
	status.ExpectedPods, status.DesiredHealthy = int32(expected), int32(desired)
	status.DisruptionsAllowed = max(0, status.CurrentHealthy-status.DesiredHealthy)
	if expected == 0 {
		status.DisruptionsAllowed = 0
	}
	return status, nil
}

// expectedPods returns the number of pods that the pods' workloads want, plus bare pods.
func (m *Manager) expectedPods(ctx context.Context, pods []*corev1.Pod) (int, error) {
	expected := 0
	counted := map[string]bool{}
	for _, p := range pods {
		ref := metav1.GetControllerOfNoCopy(p)
		if ref == nil {
			expected++
			continue
		}
		if counted[string(ref.UID)] {
			continue
		}
		counted[string(ref.UID)] = true
		r, scales := map[string]schema.GroupVersionResource{"ReplicaSet": store.ReplicaSets(), "StatefulSet": store.StatefulSets()}[ref.Kind]
		if !scales {
			continue
		}
		o, err := m.store.Get(ctx, r, p.Namespace, ref.Name)
		if err != nil && !apierrors.IsNotFound(err) {
			return 0, err
		}
		switch o := o.(type) {
		case *appsv1.ReplicaSet:
			expected += wantedReplicas(o.Spec.Replicas)
		case *appsv1.StatefulSet:
			expected += wantedReplicas(o.Spec.Replicas)
		}
	}
	return expected, nil
}

func desiredHealthy(s policyv1.PodDisruptionBudgetSpec, expected int) (int, error) {
	if s.MaxUnavailable != nil {
		n, err := intstr.GetScaledValueFromIntOrPercent(s.MaxUnavailable, expected, true)
		return max(0, expected-n), err
	}
	if s.MinAvailable != nil {
		return intstr.GetScaledValueFromIntOrPercent(s.MinAvailable, expected, true)
	}
	return 0, nil
}

// collect deletes objects without their owners, and the pods of deleted Nodes.
func (m *Manager) collect(ctx context.Context) error {
	owners := map[string]bool{}
	for _, r := range watched() {
		objects, _, err := m.store.List(ctx, r, "")
		if err != nil {
			return err
		}
		for _, o := range objects {
			owners[string(o.GetUID())] = true
		}
	}
	for _, r := range []schema.GroupVersionResource{store.ReplicaSets(), store.Pods(), store.Leases()} {
		objects, _, err := m.store.List(ctx, r, "")
		if err != nil {
			return err
		}
		for _, o := range objects {
			if err := m.collectOne(ctx, r, o, owners); err != nil {
				return err
			}
		}
	}
	return nil
}

func (m *Manager) collectOne(ctx context.Context, r schema.GroupVersionResource, o store.Object, owners map[string]bool) error {
	if p, ok := o.(*corev1.Pod); ok && p.Spec.NodeName != "" {
		if _, err := m.store.Get(ctx, store.Nodes(), "", p.Spec.NodeName); apierrors.IsNotFound(err) {
			_, err := m.store.Delete(ctx, r, p.Namespace, p.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)})
			return err
		} else if err != nil {
			return err
		}
	}
	refs := o.GetOwnerReferences()
	if len(refs) == 0 || o.GetDeletionTimestamp() != nil ||
		slices.ContainsFunc(refs, func(ref metav1.OwnerReference) bool { return !collects(ref) || owners[string(ref.UID)] }) {
		return nil
	}
	_, err := m.store.Delete(ctx, r, o.GetNamespace(), o.GetName(), metav1.DeleteOptions{})
	return err
}

// collects reports whether the lab knows objects of that kind, so that a missing object was really deleted.
// Kubernetes keeps objects whose owner's kind it can't map (apiResource in its controller/garbagecollector).
func collects(ref metav1.OwnerReference) bool {
	kinds := []string{"DaemonSet.apps", "Deployment.apps", "ReplicaSet.apps", "StatefulSet.apps", "Node"}
	return slices.Contains(kinds, schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind).GroupKind().String())
}

// terminateAfter is the namespace controller's delay, in which others can notice the deletion
// (namespaceDeletionGracePeriod in Kubernetes).
const terminateAfter = 5 * time.Second

func (m *Manager) terminateNamespaces(ctx context.Context) error {
	return each(ctx, m.store, store.Namespaces(), func(ns *corev1.Namespace) error {
		if ns.DeletionTimestamp == nil || !m.timers.due("terminate/"+string(ns.UID), terminateAfter) {
			return nil
		}
		if left, err := m.emptyNamespace(ctx, ns.Name); err != nil || left > 0 {
			return err
		}
		fresh := ns.DeepCopy()
		fresh.Spec.Finalizers = nil
		if _, err := m.store.Update(ctx, store.Namespaces(), fresh, store.Main); err != nil {
			return err
		}
		_, err := m.store.Delete(ctx, store.Namespaces(), "", ns.Name, metav1.DeleteOptions{})
		return err
	})
}

func (m *Manager) emptyNamespace(ctx context.Context, name string) (left int, err error) {
	for _, r := range store.Resources() {
		if !r.Namespaced {
			continue
		}
		objects, _, err := m.store.List(ctx, r.GroupVersionResource, name)
		if err != nil {
			return 0, err
		}
		left += len(objects)
		for _, o := range objects {
			if o.GetDeletionTimestamp() != nil {
				continue
			}
			if _, err := m.store.Delete(ctx, r.GroupVersionResource, name, o.GetName(), metav1.DeleteOptions{}); err != nil {
				return 0, err
			}
		}
	}
	return left, nil
}

// terminating reports whether a namespace refuses new objects.
func (m *Manager) terminating(ctx context.Context, name string) bool {
	ns, err := m.store.Get(ctx, store.Namespaces(), "", name)
	return err == nil && ns.GetDeletionTimestamp() != nil
}

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

func podIP(p *corev1.Pod) string {
	s := hashed(string(p.UID))
	return fmt.Sprintf("10.244.%d.%d", byte(s>>8), byte(s))
}

func hashed(text string) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(text)) // a hash never fails
	return h.Sum32()
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

type reflection struct {
	revision         string // of the pod
	ready            bool
	waiting, message string
	restarts         int
	started          time.Time
	host             string
}

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
