package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/foreign"
	"github.com/recast-sh/recast/internal/format"
)

// The annotations in which recast records on a Node what it does to it. A kubelet
// that registers again keeps them.
const (
	rollAnnotation        = "recast.dev/roll" // JSON of a cluster.Mark
	failedBuildAnnotation = "recast.dev/failed-build"
	bootedAnnotation      = "recast.dev/booted"
)

// Cordon makes the node unschedulable and marks it with why, in one write. A node
// that was unschedulable without a mark, or with a Foreign one, was cordoned by
// someone else: then the new mark is Foreign, too.
func (c *Client) Cordon(ctx context.Context, node string, why cluster.Mark) error {
	return c.amendNode(ctx, "cordon", node, func(n *corev1.Node) (*nodePatch, error) {
		had, err := markOf(n)
		if err != nil {
			return nil, err
		}
		mark := why
		mark.Foreign = why.Foreign || n.Spec.Unschedulable && (had == nil || had.Foreign)
		if had != nil && *had == mark && n.Spec.Unschedulable {
			return nil, nil
		}
		text, err := json.Marshal(mark)
		if err != nil {
			return nil, fmt.Errorf("encode mark: %w", err)
		}
		p := &nodePatch{}
		p.annotate(rollAnnotation, new(string(text)))
		p.Spec.Unschedulable = new(true)
		return p, nil
	})
}

// Uncordon removes the mark and, unless it is Foreign, makes the node
// schedulable again, in one write.
func (c *Client) Uncordon(ctx context.Context, node string) error {
	return c.amendNode(ctx, "uncordon", node, func(n *corev1.Node) (*nodePatch, error) {
		had, err := markOf(n)
		if had == nil || err != nil {
			return nil, err
		}
		p := &nodePatch{}
		p.annotate(rollAnnotation, nil)
		if !had.Foreign {
			p.Spec.Unschedulable = new(false)
		}
		return p, nil
	})
}

// SetFailedBuild records on the Node a build that it came back from as the old
// system; "" removes the record.
func (c *Client) SetFailedBuild(ctx context.Context, node, build string) error {
	return c.amendNode(ctx, "note the failed build on", node, func(n *corev1.Node) (*nodePatch, error) {
		if n.Annotations[failedBuildAnnotation] == build {
			return nil, nil
		}
		p := &nodePatch{}
		if build == "" {
			p.annotate(failedBuildAnnotation, nil)
		} else {
			p.annotate(failedBuildAnnotation, &build)
		}
		return p, nil
	})
}

// SetBooted implements cluster.NodeWriter.
func (c *Client) SetBooted(ctx context.Context, node string, b cluster.Booted) error {
	return c.amendNode(ctx, "note the boot entry on", node, func(n *corev1.Node) (*nodePatch, error) {
		if bootedOf(n) == b {
			return nil, nil
		}
		text, err := json.Marshal(b)
		if err != nil {
			return nil, err
		}
		p := &nodePatch{}
		if p.annotate(bootedAnnotation, new(string(text))); b == (cluster.Booted{}) {
			p.annotate(bootedAnnotation, nil)
		}
		return p, nil
	})
}

// bootedOf is empty if someone has edited the annotation: then the machine is believed.
func bootedOf(n *corev1.Node) (b cluster.Booted) {
	if json.Unmarshal([]byte(n.Annotations[bootedAnnotation]), &b) != nil {
		return cluster.Booted{}
	}
	return b
}

// markOf reads the node's mark; nil if it has none. An unreadable one is an error:
// it would be unclear whose cordon it is.
func markOf(n *corev1.Node) (*cluster.Mark, error) {
	text, ok := n.Annotations[rollAnnotation]
	if !ok {
		return nil, nil
	}
	var m cluster.Mark
	err := format.Decode([]byte(text), &m)
	if err == nil && m.Run == "" {
		err = errors.New("it names no run")
	}
	if err != nil {
		return nil, fault.WithHint(fmt.Errorf("annotation %s of node %s: %w", rollAnnotation, n.Name, foreign.Error(err)),
			"if a newer recast has worked here, use that one. Else recast status shows whether a roll is under way; if none is, remove it: kubectl annotate node %s %s-", n.Name, rollAnnotation)
	}
	return &m, nil
}
