package kube

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/foreign"
)

// explain records which pods are left and why, and what can be done. The API server does not name the budgets if two
// cover a pod, so explain reads them.
func (d *draining) explain(ctx context.Context) error {
	budgets, err := d.budgets(ctx)
	if err != nil {
		return err
	}
	d.hints = nil
	var left []string
	for _, l := range d.pods {
		l.judge(d.why(l, budgets))
		left = append(left, fmt.Sprintf("%s (%s)", l, l.why))
	}
	slices.Sort(left)
	slices.Sort(d.hints)
	d.left = "pods left: " + strings.Join(left, "; ")
	return nil
}

// budgets lists all budgets of the cluster, or none if no pod can be covered by two. Budgets only improve messages:
// without the right to read them it returns none.
func (d *draining) budgets(ctx context.Context) ([]policyv1.PodDisruptionBudget, error) {
	waits := false
	for _, l := range d.pods {
		waits = waits || mayBeTwoBudgets(l.answer)
	}
	if !waits {
		return nil, nil
	}
	list, err := d.api.PolicyV1().PodDisruptionBudgets("").List(ctx, metav1.ListOptions{})
	switch {
	case apierrors.IsForbidden(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("list pod disruption budgets: %w", d.translate(err))
	}
	return list.Items, nil
}

// mayBeTwoBudgets reports whether an answer may come from two budgets on one pod: Kubernetes then answers 500 without
// a reason (registry/core/pod/storage/eviction.go).
func mayBeTwoBudgets(answer error) bool {
	status, ok := answer.(apierrors.APIStatus)
	return ok && status.Status().Code == http.StatusInternalServerError
}

// why says why a pod is still there, and whether it was refused.
func (d *draining) why(l *leaving, budgets []policyv1.PodDisruptionBudget) (why string, refused bool) {
	covering := slices.DeleteFunc(slices.Clone(budgets), func(b policyv1.PodDisruptionBudget) bool { return !covers(b, &l.pod) })
	budget, byBudget := apierrors.StatusCause(l.answer, policyv1.DisruptionBudgetCause)
	_, later := apierrors.SuggestsClientDelay(l.answer)
	switch {
	case l.pod.DeletionTimestamp != nil:
		return d.terminating(&l.pod), false
	case d.waits(l):
		return "recast runs in it, so it goes last", false
	case l.answer == nil:
		return "still running", false
	case mayBeTwoBudgets(l.answer) && len(covering) > 1:
		d.hint("change the PodDisruptionBudgets so that only one covers a pod, then run again%s", d.deleteHint())
		return "PodDisruptionBudgets " + names(covering) + " cover it, and Kubernetes evicts no pod that more than one covers", true
	case byBudget && later: // the budget was not checked yet: createTooManyRequestsError in eviction.go
		return budgetMessage(&l.pod, budget.Message), false
	case byBudget:
		d.hint("give the workload a replica to spare or loosen its budget, then run again%s", d.deleteHint())
		return budgetMessage(&l.pod, budget.Message), true
	case apierrors.HasStatusCause(l.answer, corev1.NamespaceTerminatingCause):
		return "its namespace is being terminated", false
	case denies(l.answer) && l.toDelete:
		d.hint("change the webhook or policy that denies it to allow the deletion of that pod, then run again: kubectl get validatingwebhookconfigurations, validatingadmissionpolicies")
		return d.answerText(l.answer), true
	case denies(l.answer):
		d.hint("change the webhook or policy that denies it to allow the eviction of that pod, then run again: kubectl get validatingwebhookconfigurations, validatingadmissionpolicies%s", d.deleteHint())
		return d.answerText(l.answer), true
	}
	return d.answerText(l.answer), false
}

// deleteHint suggests the deletion of pods, unless it is enabled.
func (d *draining) deleteHint() string {
	if d.Delete {
		return ""
	}
	return fmt.Sprintf("; roll.drain.onTimeout: delete deletes what is left after roll.drain.timeout (%s)", d.Timeout)
}

// budgetMessage returns the server's message about a pod's budget, with the budget's full name: only the server knows
// the numbers by which it decided.
func budgetMessage(p *corev1.Pod, cause string) string {
	cause = foreign.Line(cause)
	if rest, ok := strings.CutPrefix(cause, "The disruption budget "); ok {
		return "PodDisruptionBudget " + p.Namespace + "/" + rest
	}
	return "PodDisruptionBudget in " + p.Namespace + ": " + cause
}

// terminating says what a terminating pod waits for. At its deletion timestamp the pod's grace period ends, and its
// kubelet kills it.
func (d *draining) terminating(p *corev1.Pod) string {
	over := time.Since(p.DeletionTimestamp.Time)
	switch {
	case len(p.Finalizers) > 0:
		d.hint("whoever set the finalizers of a pod has to remove them: kubectl -n %s get pod %s -o yaml shows them; if that program is gone for good, remove them yourself", p.Namespace, p.Name)
		return "still terminating, waiting for finalizers " + strings.Join(p.Finalizers, ", ")
	case over < 0:
		return "still terminating, within its grace period"
	}
	d.hint("see why its kubelet does not end it: talosctl -n %s service kubelet, talosctl -n %s logs kubelet", d.node, d.node)
	why := fmt.Sprintf("still terminating, its grace period was over %s ago", over.Round(time.Second))
	if !d.ready {
		why += ", and its node is not Ready: its kubelet does not answer"
	}
	return why
}

// covers reports whether a budget covers the pod. A budget with an empty selector covers every pod of its namespace.
func covers(b policyv1.PodDisruptionBudget, p *corev1.Pod) bool {
	selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
	return err == nil && b.Namespace == p.Namespace && selector.Matches(labels.Set(p.Labels))
}

func names(budgets []policyv1.PodDisruptionBudget) string {
	out := cluster.Each(budgets, func(b policyv1.PodDisruptionBudget) string { return b.Namespace + "/" + b.Name })
	slices.Sort(out)
	return strings.Join(out, " and ")
}
