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
	"github.com/recast-sh/recast/internal/wait"
)

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
