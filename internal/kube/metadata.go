package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/wait"
)

// restoreTimeout bounds how long others may keep changing the node under us.
const restoreTimeout = time.Minute

// RestoreMetadata gives the node back what people had put on it. A node that
// lacks nothing is not written to.
func (c *Client) RestoreMetadata(ctx context.Context, node string, m cluster.NodeMetadata) error {
	w := wait.For{Name: "restore labels, annotations and taints of node " + node, Every: c.poll, Timeout: restoreTimeout}
	return wait.Until(ctx, w, func(ctx context.Context) (bool, string, error) {
		n, err := c.node(ctx, node)
		if err != nil {
			return false, "", wait.Stop(err)
		}
		patch, changed := lacks(n, m)
		if !changed {
			return true, "", nil
		}
		body, err := json.Marshal(patch)
		if err != nil {
			return false, "", wait.Stop(fmt.Errorf("encode patch: %w", err))
		}
		_, err = c.api.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, body, metav1.PatchOptions{})
		if apierrors.IsConflict(err) {
			return false, "changed by someone else meanwhile", nil
		}
		return err == nil, "", wait.Stop(c.translate(err))
	})
}

// nodePatch is a merge patch of a node. Taints are a list, which such a patch
// replaces whole: the revision makes sure that it is the list we have read.
type nodePatch struct {
	Metadata struct {
		ResourceVersion string            `json:"resourceVersion"`
		Labels          map[string]string `json:"labels,omitempty"`
		Annotations     map[string]string `json:"annotations,omitempty"`
	} `json:"metadata"`
	Spec struct {
		Taints []corev1.Taint `json:"taints,omitempty"`
	} `json:"spec"`
}

// lacks is the patch that gives n what m has and nobody else will give it, and
// whether there is any such thing.
func lacks(n *corev1.Node, m cluster.NodeMetadata) (nodePatch, bool) {
	o := ownership(n, m)
	var p nodePatch
	p.Metadata.ResourceVersion = n.ResourceVersion
	p.Metadata.Labels = different(n.Labels, m.Labels, o.label)
	p.Metadata.Annotations = different(n.Annotations, m.Annotations, o.annotation)
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
	return p, len(p.Metadata.Labels)+len(p.Metadata.Annotations)+len(p.Spec.Taints) > 0
}

func different(have, want map[string]string, skip func(string) bool) map[string]string {
	d := maps.Clone(want)
	maps.DeleteFunc(d, func(k, v string) bool {
		is, there := have[k]
		return skip(k) || there && is == v
	})
	return d
}
