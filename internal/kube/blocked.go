package kube

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
)

// blocked says what stands in the way of a drain that ended with cause. kubectl
// names neither budgets nor, in its timeout, any reason, so we look ourselves.
func (c *Client) blocked(ctx context.Context, node string, o cluster.DrainOptions, cause error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if fault.KindOf(cause) == fault.Refused {
		return cause
	}
	pods, err := c.podsOn(ctx, node)
	if err != nil {
		return errors.Join(cause, err)
	}
	budgets, err := c.api.PolicyV1().PodDisruptionBudgets("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return errors.Join(cause, fmt.Errorf("list pod disruption budgets: %w", c.translate(err)))
	}
	var left []string
	budgeted := false
	for i := range pods {
		p := &pods[i]
		if stays(p) {
			continue
		}
		why := "still running"
		if b := blockingBudget(budgets.Items, p); p.DeletionTimestamp != nil {
			why = "still terminating"
			if len(p.Finalizers) > 0 {
				why += ", waiting for finalizers " + strings.Join(p.Finalizers, ", ")
			}
		} else if b != nil {
			budgeted = true
			why = fmt.Sprintf("PodDisruptionBudget %s/%s needs %d healthy pods and has %d",
				b.Namespace, b.Name, b.Status.DesiredHealthy, b.Status.CurrentHealthy)
		}
		left = append(left, fmt.Sprintf("%s/%s (%s)", p.Namespace, p.Name, why))
	}
	if len(left) == 0 {
		return cause
	}
	err = fmt.Errorf("pods left: %s: %w", strings.Join(left, "; "), cause)
	if budgeted {
		return fault.WithHint(err, "give the workload a replica to spare or loosen its budget, then run again; roll.drain.timeout is %s", o.Timeout)
	}
	return err
}

// stays says whether a drain leaves the pod alone.
func stays(p *corev1.Pod) bool {
	if _, mirror := p.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
		return true
	}
	ref := metav1.GetControllerOfNoCopy(p)
	return ref != nil && ref.Kind == "DaemonSet" && !finished(p)
}

// blockingBudget is the budget that refuses the pod's eviction right now.
func blockingBudget(budgets []policyv1.PodDisruptionBudget, p *corev1.Pod) *policyv1.PodDisruptionBudget {
	for i := range budgets {
		b := &budgets[i]
		if b.Namespace != p.Namespace || b.Status.DisruptionsAllowed > 0 {
			continue
		}
		selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
		if err == nil && !selector.Empty() && selector.Matches(labels.Set(p.Labels)) {
			return b
		}
	}
	return nil
}
