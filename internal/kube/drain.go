package kube

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/kubectl/pkg/drain"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
)

// Drain evicts the node's pods until none but DaemonSet and mirror pods are
// left. Cordon the node first, or new ones keep coming. say is called by one
// goroutine at a time and must not block.
func (c *Client) Drain(ctx context.Context, node string, o cluster.DrainOptions, say func(string)) error {
	if err := c.drain(ctx, node, o, say); err != nil {
		return fmt.Errorf("drain node %s: %w", node, err)
	}
	return nil
}

func (c *Client) drain(ctx context.Context, node string, o cluster.DrainOptions, say func(string)) error {
	if _, err := c.node(ctx, node); err != nil {
		return err
	}
	bounded := ctx
	if o.Timeout > 0 {
		var cancel context.CancelFunc
		bounded, cancel = context.WithTimeout(ctx, o.Timeout)
		defer cancel()
	}
	out := &lines{say: say, said: map[string]bool{}}
	h := &drain.Helper{
		Ctx: bounded, Client: c.api, Timeout: o.Timeout, Force: o.Force,
		GracePeriodSeconds:   -1, // each pod's own
		IgnoreAllDaemonSets:  true,
		DeleteEmptyDirData:   true, // the disk that holds it goes away with the node's system disk
		EvictErrorRetryDelay: c.poll,
		Out:                  out, ErrOut: out,
		OnPodDeletionOrEvictionFinished: func(p *corev1.Pod, _ bool, err error) {
			if err == nil {
				out.line(fmt.Sprintf("pod %s/%s is gone", p.Namespace, p.Name))
			}
		},
	}
	for {
		if !o.Force {
			if err := c.refuseUnmanaged(bounded, node); err != nil {
				return c.blocked(ctx, node, o, err)
			}
		}
		list, errs := h.GetPodsForDeletion(node)
		if len(errs) > 0 {
			return c.blocked(ctx, node, o, c.translate(errors.Join(errs...)))
		}
		if len(list.Pods()) == 0 {
			return nil
		}
		if err := h.DeleteOrEvictPods(list.Pods()); err != nil {
			return c.blocked(ctx, node, o, err)
		}
	}
}

// refuseUnmanaged names pods that would be lost for good, before any other is
// evicted.
func (c *Client) refuseUnmanaged(ctx context.Context, node string) error {
	pods, err := c.podsOn(ctx, node)
	if err != nil {
		return err
	}
	var lost []string
	for _, p := range pods {
		_, mirror := p.Annotations[corev1.MirrorPodAnnotationKey]
		if !mirror && metav1.GetControllerOfNoCopy(&p) == nil && !finished(&p) && p.DeletionTimestamp == nil {
			lost = append(lost, p.Namespace+"/"+p.Name)
		}
	}
	if len(lost) == 0 {
		return nil
	}
	return fault.WithHint(fault.Refusedf("no controller would bring these pods back: %s", strings.Join(lost, ", ")),
		"delete them yourself, or set roll.drain.force: true")
}

func (c *Client) podsOn(ctx context.Context, node string) ([]corev1.Pod, error) {
	selector := fields.OneTermEqualSelector("spec.nodeName", node).String()
	list, err := c.api.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: selector})
	if err != nil {
		return nil, fmt.Errorf("list pods: %w", c.translate(err))
	}
	return list.Items, nil
}

func finished(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// lines passes on what kubectl's drain prints, each line once: it repeats a
// refusal at every try.
type lines struct {
	say func(string)

	mu   sync.Mutex
	rest string
	said map[string]bool
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rest += string(b)
	for {
		line, rest, ok := strings.Cut(l.rest, "\n")
		if !ok {
			return len(b), nil
		}
		l.rest = rest
		l.once(line)
	}
}

func (l *lines) line(s string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.once(s)
}

// once needs the lock.
func (l *lines) once(s string) {
	if !l.said[s] {
		l.said[s] = true
		l.say(s)
	}
}
