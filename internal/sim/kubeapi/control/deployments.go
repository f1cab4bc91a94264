package control

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
)

// syncDeployments keeps one ReplicaSet per template; older ones are scaled down at once.
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
	return m.writeStatus(ctx, store.Deployments(), &fresh, equality.Semantic.DeepEqual(d.Status, fresh.Status))
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

// mayMiss is the number of replicas that a deployment may lack: a quarter by default.
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
	h := fnv.New32a()
	_, _ = h.Write(b) // a hash never fails
	return fmt.Sprintf("%08x", h.Sum32()), nil
}
