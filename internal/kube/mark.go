package kube

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/foreign"
	"github.com/recast-sh/recast/internal/format"
	"github.com/recast-sh/recast/internal/wait"
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

// amendTimeout bounds how long others may keep changing the node meanwhile, and how
// long the API may give no usable answer.
const amendTimeout = time.Minute

// nodePatch is a merge patch of a node. Its revision ensures that the node is the
// one that was read: such a patch replaces the whole list of taints, and a mark must
// not overwrite a concurrent one.
type nodePatch struct {
	Metadata struct {
		ResourceVersion string             `json:"resourceVersion"`
		Labels          map[string]string  `json:"labels,omitempty"`
		Annotations     map[string]*string `json:"annotations,omitempty"` // nil removes
	} `json:"metadata"`
	Spec struct {
		Unschedulable *bool          `json:"unschedulable,omitempty"`
		Taints        []corev1.Taint `json:"taints,omitempty"`
	} `json:"spec"`
}

// annotate sets one annotation, or removes it if value is nil.
func (p *nodePatch) annotate(key string, value *string) {
	if p.Metadata.Annotations == nil {
		p.Metadata.Annotations = map[string]*string{}
	}
	p.Metadata.Annotations[key] = value
}

// amendment returns the change to a node as it is; nil for none.
type amendment func(n *corev1.Node) (*nodePatch, error)

// amendNode changes a node in one write. If someone else writes between our read and our
// write, or the answer is lost, the node is read again and change called again: the
// revision prevents a second write of the same change.
func (c *Client) amendNode(ctx context.Context, what, node string, change amendment) error {
	return c.repeat(ctx, what+" node "+node, func(ctx context.Context) error { return c.amendNodeOnce(ctx, node, change) })
}

// DeleteNode deletes the Node object if it still has that UID.
func (c *Client) DeleteNode(ctx context.Context, node, uid string) error {
	err := c.repeat(ctx, "delete node "+node, func(ctx context.Context) error {
		n, err := c.api.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		if err == nil && string(n.UID) == uid {
			err = c.api.CoreV1().Nodes().Delete(ctx, node, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: new(n.UID)}})
		}
		return err
	})
	if errors.Is(err, cluster.ErrNotFound) {
		return nil
	}
	return err
}

// repeat repeats a change that is safe to repeat while the API does not answer, or someone else
// changes the same.
func (c *Client) repeat(ctx context.Context, name string, do func(context.Context) error) error {
	w := wait.For{Name: name, Every: c.poll, Timeout: amendTimeout}
	var transient error
	err := wait.Until(ctx, w, func(ctx context.Context) (bool, string, error) {
		err := do(ctx)
		switch {
		case apierrors.IsConflict(err):
			transient = nil
			return false, "changed by someone else meanwhile", nil
		case ctx.Err() != nil: // says nothing about the node
			return err == nil, "", err
		case isTransient(err):
			transient = c.translate(err)
			return false, "", transient
		}
		return err == nil, "", wait.Stop(c.translate(err))
	})
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		for _, hint := range fault.Hints(transient) {
			err = fault.WithHint(err, "%s", hint)
		}
	}
	return err
}

// isTransient reports whether the API gave no answer, or an error of its own.
func isTransient(err error) bool {
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return false
	}
	if _, ok := errors.AsType[*url.Error](err); ok || errors.Is(err, errSilent) {
		return true
	}
	status, ok := errors.AsType[*apierrors.StatusError](err)
	return ok && (status.ErrStatus.Code == http.StatusTooManyRequests || status.ErrStatus.Code >= http.StatusInternalServerError)
}

func (c *Client) amendNodeOnce(ctx context.Context, node string, change amendment) error {
	n, err := c.api.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	if err != nil {
		return err
	}
	patch, err := change(n)
	if err != nil || patch == nil {
		return err
	}
	patch.Metadata.ResourceVersion = n.ResourceVersion
	body, err := json.Marshal(patch)
	if err != nil {
		return fmt.Errorf("encode patch: %w", err)
	}
	_, err = c.api.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, body, metav1.PatchOptions{})
	return err
}
