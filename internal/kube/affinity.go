package kube

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// allowed lists the nodes on which a volume may be used. Most selectors name their
// nodes, which avoids checking every volume against every node.
func (l *localScan) allowed(s *corev1.NodeSelector) []*localNode {
	if s == nil {
		return l.nodes
	}
	var nodes []*localNode
	for _, t := range s.NodeSelectorTerms {
		names, ok := namedBy(t)
		if !ok {
			nodes = l.nodes
			break
		}
		for _, name := range names {
			nodes = append(nodes, l.named[name]...)
		}
	}
	var at []*localNode
	for _, n := range nodes {
		if allows(s, n) && !slices.Contains(at, n) {
			at = append(at, n)
		}
	}
	return at
}

// namedBy lists the names or hostnames that the term accepts; ok is false if it
// restricts neither.
func namedBy(t corev1.NodeSelectorTerm) (names []string, ok bool) {
	for _, r := range t.MatchExpressions {
		if r.Key == corev1.LabelHostname && isList(r) {
			return r.Values, true
		}
	}
	for _, r := range t.MatchFields {
		if r.Key == metav1.ObjectNameField && isList(r) {
			return r.Values, true
		}
	}
	return nil, false
}

// isList reports whether a requirement lists the accepted values and is valid: see meets.
func isList(r corev1.NodeSelectorRequirement) bool {
	_, err := labels.NewRequirement(r.Key, selection.In, r.Values)
	return r.Operator == corev1.NodeSelectorOpIn && err == nil
}

// allows reports whether a volume may be used on the node: as for the scheduler, one
// term must match.
func allows(s *corev1.NodeSelector, n *localNode) bool {
	byName := labels.Set{metav1.ObjectNameField: n.name}
	return slices.ContainsFunc(s.NodeSelectorTerms, func(t corev1.NodeSelectorTerm) bool {
		if len(t.MatchExpressions)+len(t.MatchFields) == 0 {
			return false
		}
		differs := func(set labels.Set) func(corev1.NodeSelectorRequirement) bool {
			return func(r corev1.NodeSelectorRequirement) bool { return !meets(set, r) }
		}
		return !slices.ContainsFunc(t.MatchExpressions, differs(n.labels)) && !slices.ContainsFunc(t.MatchFields, differs(byName))
	})
}

// meets reports whether the labels meet a requirement. An invalid one counts as met.
func meets(set labels.Set, r corev1.NodeSelectorRequirement) bool {
	operators := map[corev1.NodeSelectorOperator]selection.Operator{
		corev1.NodeSelectorOpIn: selection.In, corev1.NodeSelectorOpNotIn: selection.NotIn,
		corev1.NodeSelectorOpExists: selection.Exists, corev1.NodeSelectorOpDoesNotExist: selection.DoesNotExist,
		corev1.NodeSelectorOpGt: selection.GreaterThan, corev1.NodeSelectorOpLt: selection.LessThan,
	}
	requirement, err := labels.NewRequirement(r.Key, operators[r.Operator], r.Values)
	return err != nil || requirement.Matches(set)
}

// pinned lists the node that a volume is confined to: each term requires that node's
// own name. Labels that several nodes may share, such as a zone, pin nothing.
func (l *localScan) pinned(s *corev1.NodeSelector) []*localNode {
	if s == nil || len(s.NodeSelectorTerms) == 0 {
		return nil
	}
	var at []*localNode
	first := s.NodeSelectorTerms[0]
	for _, r := range slices.Concat(first.MatchExpressions, first.MatchFields) {
		for _, value := range r.Values {
			for _, n := range l.named[value] {
				if pins(s, n) && !slices.Contains(at, n) {
					at = append(at, n)
				}
			}
		}
	}
	return at
}

func pins(s *corev1.NodeSelector, n *localNode) bool {
	names := []string{n.name, n.hostname()}
	itself := func(r corev1.NodeSelectorRequirement) bool {
		return r.Operator == corev1.NodeSelectorOpIn && len(r.Values) == 1 && slices.Contains(names, r.Values[0])
	}
	return !slices.ContainsFunc(s.NodeSelectorTerms, func(t corev1.NodeSelectorTerm) bool {
		return !slices.ContainsFunc(t.MatchExpressions, itself) && !slices.ContainsFunc(t.MatchFields, itself)
	})
}
