package kube

import (
	"context"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/recast-sh/recast/cluster"
)

// RestoreMetadata restores what people had put on the node. A node that lacks
// nothing is not written to.
func (c *Client) RestoreMetadata(ctx context.Context, node string, m cluster.NodeMetadata) error {
	return c.amendNode(ctx, "restore labels, annotations and taints of", node, func(n *corev1.Node) (*nodePatch, error) {
		return missingMetadata(n, m), nil
	})
}

// missingMetadata is the patch that gives n the keys of m that no other program writes; nil if
// there are none.
func missingMetadata(n *corev1.Node, m cluster.NodeMetadata) *nodePatch {
	o := ownership(n, m)
	p := &nodePatch{}
	p.Metadata.Labels = differing(n.Labels, m.Labels, o.label)
	for k, v := range differing(n.Annotations, m.Annotations, o.annotation) {
		p.annotate(k, &v)
	}
	taints := slices.Clone(n.Spec.Taints)
	for _, t := range m.Taints {
		if o.taint(t.Key) {
			continue
		}
		want := corev1.Taint{Key: t.Key, Value: t.Value, Effect: corev1.TaintEffect(t.Effect)}
		i := slices.IndexFunc(taints, func(have corev1.Taint) bool { return have.MatchTaint(&want) })
		switch {
		case i < 0:
			taints = append(taints, want)
		case taints[i].Value != want.Value:
			taints[i].Value = want.Value
		default:
			continue
		}
		p.Spec.Taints = taints
	}
	if len(p.Metadata.Labels)+len(p.Metadata.Annotations)+len(p.Spec.Taints) == 0 {
		return nil
	}
	return p
}

func differing(have, want map[string]string, skip func(string) bool) map[string]string {
	d := maps.Clone(want)
	maps.DeleteFunc(d, func(k, v string) bool {
		is, there := have[k]
		return skip(k) || there && is == v
	})
	return d
}
