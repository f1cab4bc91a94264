package control

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
)

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

// matchesTerms says whether one of the terms matches the node's labels.
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
