package kube

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/recast-sh/recast/internal/foreign"
)

// longestPause bounds the pause that a server can ask for.
const longestPause = 30 * time.Second

// askOne evicts or deletes one pod. It records the answer; an error ends the drain.
func (d *draining) askOne(ctx context.Context, l *leaving) error {
	let := d.evict
	if l.toDelete {
		let = d.remove
	} else {
		d.sayOnce(fmt.Sprintf("evicting pod %s", l))
	}
	err := let(ctx, &l.pod)
	if ctx.Err() != nil {
		return nil //nolint:nilerr // cancelled: it says nothing about the pod
	}
	l.answer, l.notBefore, l.accepted = nil, time.Time{}, err == nil
	switch {
	case err == nil, missing(err), apierrors.IsConflict(err):
		return nil // terminating, gone, or replaced by a pod of the same name: the next look tells
	case apierrors.IsUnauthorized(err):
		return d.translate(err)
	case isForbidden(err):
		if err := d.requireMay(ctx, &l.pod, l.toDelete, err); err != nil {
			return err
		}
	}
	l.answer = err
	if seconds, asked := apierrors.SuggestsClientDelay(err); asked {
		l.notBefore = time.Now().Add(min(time.Duration(seconds)*time.Second, longestPause))
	}
	d.sayOnce(fmt.Sprintf("pod %s can't go yet: %s", l, d.answerText(err)))
	return nil
}

// evict asks the API server to evict this very pod, without client-go's own retries:
// those would wait here for a budget.
func (d *draining) evict(ctx context.Context, p *corev1.Pod) error {
	return d.api.PolicyV1().RESTClient().Post().MaxRetries(0).
		AbsPath("/api/v1").Namespace(p.Namespace).Resource("pods").Name(p.Name).SubResource("eviction").
		Body(&policyv1.Eviction{
			ObjectMeta:    metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name},
			DeleteOptions: onlyThisPod(p),
		}).Do(ctx).Error()
}

// remove deletes this very pod, with its own grace period.
func (d *draining) remove(ctx context.Context, p *corev1.Pod) error {
	return d.api.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, *onlyThisPod(p))
}

func onlyThisPod(p *corev1.Pod) *metav1.DeleteOptions {
	return &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &p.UID}}
}

// isForbidden reports whether a 403 may be about our rights, rather than a budget's
// or that of a terminating namespace (plugin/namespace/lifecycle in apiserver).
func isForbidden(err error) bool {
	return apierrors.IsForbidden(err) &&
		!apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) && !apierrors.HasStatusCause(err, policyv1.DisruptionBudgetCause)
}

// requireMay distinguishes missing rights, which waiting does not fix, from an
// admission webhook that denies with the same code: the API server knows our rights.
func (d *draining) requireMay(ctx context.Context, p *corev1.Pod, remove bool, denied error) error {
	what := &authorizationv1.ResourceAttributes{Namespace: p.Namespace, Name: p.Name, Verb: "create", Resource: "pods", Subresource: "eviction"}
	if remove {
		what.Verb, what.Subresource = "delete", ""
	}
	review, err := d.api.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
		Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: what},
	}, metav1.CreateOptions{})
	if err != nil || review.Status.Allowed {
		return nil //nolint:nilerr // unknown: it is retried until the timeout
	}
	return d.translate(denied)
}

// answerText is the API server's answer, with its additional causes.
func (d *draining) answerText(err error) string {
	status, ok := errors.AsType[*apierrors.StatusError](err)
	if !ok {
		return d.translate(err).Error()
	}
	text := status.ErrStatus.Message
	if details := status.ErrStatus.Details; details != nil {
		for _, cause := range details.Causes {
			if cause.Message != "" && !strings.Contains(text, cause.Message) {
				text += " " + cause.Message
			}
		}
	}
	return foreign.Line(text)
}

// denies reports whether an answer is a refusal by a webhook or a policy, which
// choose their code (admission/plugin/webhook/errors in apiserver), and not that of
// a server that cannot answer.
func denies(err error) bool {
	status, ok := errors.AsType[*apierrors.StatusError](err)
	if !ok || apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return false
	}
	switch code := status.ErrStatus.Code; code {
	case http.StatusRequestTimeout, http.StatusTooManyRequests:
		return false
	default:
		return code >= http.StatusBadRequest && code < http.StatusInternalServerError
	}
}

// deleteRefused marks the pods for deletion that were refused to the end, and reports
// whether there are any. Pods that are merely slow are not touched.
func (d *draining) deleteRefused() bool {
	found := false
	for _, l := range d.pods {
		if !l.refused.IsZero() && l.pod.DeletionTimestamp == nil {
			l.toDelete, l.notBefore, found = true, time.Time{}, true
			d.tell(fmt.Sprintf("deleting pod %s, which was refused for %s (roll.drain.onTimeout: delete): %s", l, time.Since(l.refused).Round(time.Second), l.why))
		}
	}
	return found
}

// hint adds a remedy, once.
func (d *draining) hint(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if slices.Contains(d.hints, text) {
		return
	}
	d.hints = append(d.hints, text)
}
