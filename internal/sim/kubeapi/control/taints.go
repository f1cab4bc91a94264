package control

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

func taint(key string, effect corev1.TaintEffect) corev1.Taint {
	return corev1.Taint{Key: key, Effect: effect}
}

// conditionTaints are the node's taints, with those for its state updated: cordoned, not
// ready, unreachable.
func conditionTaints(n *corev1.Node) []corev1.Taint {
	var due []corev1.Taint
	switch readiness(n) {
	case corev1.ConditionTrue:
	case corev1.ConditionUnknown:
		due = append(due,
			taint(corev1.TaintNodeUnreachable, corev1.TaintEffectNoSchedule),
			taint(corev1.TaintNodeUnreachable, corev1.TaintEffectNoExecute))
	default:
		due = append(due, taint(corev1.TaintNodeNotReady, corev1.TaintEffectNoSchedule))
	}
	if n.Spec.Unschedulable {
		due = append(due, taint(corev1.TaintNodeUnschedulable, corev1.TaintEffectNoSchedule))
	}
	var taints []corev1.Taint
	for _, t := range n.Spec.Taints {
		switch t.Key {
		case corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable, corev1.TaintNodeUnschedulable:
		default:
			taints = append(taints, t)
		}
	}
	return append(taints, due...)
}

// join adds the missing taints.
func join(have, more []corev1.Taint) []corev1.Taint {
	for _, t := range more {
		if !slices.ContainsFunc(have, func(h corev1.Taint) bool { return h.MatchTaint(&t) }) {
			have = append(have, t)
		}
	}
	return have
}

// tolerated says whether the pod tolerates these taints.
func tolerated(pod *corev1.Pod, taints []corev1.Taint) bool {
	for _, t := range taints {
		if t.Effect == corev1.TaintEffectPreferNoSchedule {
			continue
		}
		if !slices.ContainsFunc(pod.Spec.Tolerations, func(tol corev1.Toleration) bool { return tolerates(tol, t) }) {
			return false
		}
	}
	return true
}

func tolerates(tol corev1.Toleration, t corev1.Taint) bool {
	if tol.Effect != "" && tol.Effect != t.Effect || tol.Key != "" && tol.Key != t.Key {
		return false
	}
	if tol.Operator == corev1.TolerationOpExists {
		return true
	}
	return tol.Key != "" && tol.Value == t.Value
}
