package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/recast-sh/recast/cluster"
)

// LocalData lists what is on this very node and nowhere else, by name. Storage
// systems that are not installed have none; one that can't be read is an error.
func (c *Client) LocalData(ctx context.Context, node string) ([]cluster.LocalData, error) {
	n, err := c.node(ctx, node)
	if err != nil {
		return nil, fmt.Errorf("local data of node %s: %w", node, err)
	}
	var data []cluster.LocalData
	var errs []error
	add := func(found []cluster.LocalData, err error) {
		data, errs = append(data, found...), append(errs, err)
	}
	add(c.localVolumes(ctx, n))
	groups, err := c.groups(ctx)
	if err != nil {
		errs = append(errs, err)
	} else {
		add(c.longhornDisks(ctx, n, groups))
		add(c.rookDirectories(ctx, n, groups))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("local data of node %s: %w", node, err)
	}
	slices.SortFunc(data, func(a, b cluster.LocalData) int { return cmp.Compare(a.Name, b.Name) })
	return data, nil
}

func (c *Client) localVolumes(ctx context.Context, n *corev1.Node) ([]cluster.LocalData, error) {
	list, err := c.api.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list persistent volumes: %w", c.translate(err))
	}
	var data []cluster.LocalData
	for i := range list.Items {
		pv := &list.Items[i]
		if path, local := localTo(n, pv); local && holdsData(pv) {
			data = append(data, cluster.LocalData{Name: "pv/" + pv.Name, What: describe(pv), Path: path})
		}
	}
	return data, nil
}

// holdsData says whether somebody's data is on the volume: a claim has it, or
// had it and the volume is to be kept.
func holdsData(pv *corev1.PersistentVolume) bool {
	switch pv.Status.Phase {
	case corev1.VolumeBound:
		return true
	case corev1.VolumeReleased, corev1.VolumeFailed:
		return pv.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRetain
	}
	return false
}

// localTo says whether the volume is, or may be, on this node only, and where.
// A hostPath volume without affinity is wherever its pod happened to run. Local
// CSI drivers (TopoLVM, OpenEBS' LVM and ZFS) pin theirs to the node by its name.
func localTo(n *corev1.Node, pv *corev1.PersistentVolume) (path string, local bool) {
	var required *corev1.NodeSelector
	if pv.Spec.NodeAffinity != nil {
		required = pv.Spec.NodeAffinity.Required
	}
	switch source := pv.Spec.PersistentVolumeSource; {
	case source.Local != nil:
		return source.Local.Path, allows(required, n)
	case source.HostPath != nil:
		return source.HostPath.Path, allows(required, n)
	}
	return "", pins(required, n)
}

func describe(pv *corev1.PersistentVolume) string {
	claim := "no claim"
	if ref := pv.Spec.ClaimRef; ref != nil {
		claim = fmt.Sprintf("claim %s/%s", ref.Namespace, ref.Name)
	}
	if pv.Status.Phase != corev1.VolumeBound {
		claim = "kept after its release, " + claim
	}
	if pv.Spec.HostPath != nil && pv.Spec.NodeAffinity == nil {
		claim += ", on any node"
	}
	return fmt.Sprintf("PersistentVolume %s (%s)", pv.Name, claim)
}

// allows says whether the volume may be used on the node: one term must match,
// as for the scheduler. No selector allows all.
func allows(s *corev1.NodeSelector, n *corev1.Node) bool {
	if s == nil {
		return true
	}
	byName := labels.Set{metav1.ObjectNameField: n.Name}
	return slices.ContainsFunc(s.NodeSelectorTerms, func(t corev1.NodeSelectorTerm) bool {
		if len(t.MatchExpressions)+len(t.MatchFields) == 0 {
			return false
		}
		differs := func(set labels.Set) func(corev1.NodeSelectorRequirement) bool {
			return func(r corev1.NodeSelectorRequirement) bool { return !meets(set, r) }
		}
		return !slices.ContainsFunc(t.MatchExpressions, differs(n.Labels)) && !slices.ContainsFunc(t.MatchFields, differs(byName))
	})
}

// meets says whether the labels meet a requirement. One that can't be read is
// met: it might be.
func meets(set labels.Set, r corev1.NodeSelectorRequirement) bool {
	operators := map[corev1.NodeSelectorOperator]selection.Operator{
		corev1.NodeSelectorOpIn: selection.In, corev1.NodeSelectorOpNotIn: selection.NotIn,
		corev1.NodeSelectorOpExists: selection.Exists, corev1.NodeSelectorOpDoesNotExist: selection.DoesNotExist,
		corev1.NodeSelectorOpGt: selection.GreaterThan, corev1.NodeSelectorOpLt: selection.LessThan,
	}
	requirement, err := labels.NewRequirement(r.Key, operators[r.Operator], r.Values)
	return err != nil || requirement.Matches(set)
}

// pins says whether the volume can be used on this node and no other: each term
// has a requirement that is for the node's own name. Labels that several nodes
// may share, such as a zone, pin nothing.
func pins(s *corev1.NodeSelector, n *corev1.Node) bool {
	if s == nil || len(s.NodeSelectorTerms) == 0 {
		return false
	}
	names := []string{n.Name, cmp.Or(n.Labels[corev1.LabelHostname], n.Name)}
	itself := func(r corev1.NodeSelectorRequirement) bool {
		return r.Operator == corev1.NodeSelectorOpIn && len(r.Values) == 1 && slices.Contains(names, r.Values[0])
	}
	return !slices.ContainsFunc(s.NodeSelectorTerms, func(t corev1.NodeSelectorTerm) bool {
		return !slices.ContainsFunc(t.MatchExpressions, itself) && !slices.ContainsFunc(t.MatchFields, itself)
	})
}
