package kube

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
)

// OwnNode implements cluster.NodeReader. A pod of another cluster may have the same name, but not the
// same UID.
func (c *Client) OwnNode(ctx context.Context) (string, error) {
	if c.own == (cluster.OwnPod{}) {
		return "", nil
	}
	p, err := c.api.CoreV1().Pods(c.own.Namespace).Get(ctx, c.own.Name, metav1.GetOptions{})
	switch {
	case missing(err):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("read pod %s: %w", c.own, c.translate(err))
	case string(p.UID) != c.own.UID:
		return "", nil
	}
	if kind := stayingKind(p); kind != "" {
		return "", fault.Refusedf("pod %s, in which recast runs, is a %s pod, which a drain leaves on its node: run recast in a Job", c.own, kind)
	}
	return p.Spec.NodeName, nil
}

// self is recast's own pod, as a drain sees it.
type self struct {
	uid  types.UID // perhaps of a pod of another cluster; "": of none
	seen bool      // it was on the node
}

// waits reports whether the pod has to wait for the others because recast runs in it: it goes last.
func (s *self) waits(l *leaving, all map[types.UID]*leaving) bool {
	return s.uid != "" && l.pod.UID == s.uid && len(all) > 1
}

// ends reports whether recast's own pod was on the node and is ending, whoever caused that. Its
// kubelet ends this process; to wait for the pod would be to wait for ourselves.
func (s *self) ends(all map[types.UID]*leaving) bool {
	l := all[s.uid]
	if l == nil {
		return s.seen
	}
	s.seen = true
	return l.accepted || l.pod.DeletionTimestamp != nil
}
