package kube

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/recast-sh/recast/cluster"
)

// byBudget is an API server's answer when a budget forbids an eviction.
func byBudget(retry int, cause string) error {
	err := apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", retry)
	err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes, metav1.StatusCause{Type: policyv1.DisruptionBudgetCause, Message: cause})
	return err
}

// covering returns budgets with those names for every pod of the shop.
func covering(names ...string) []policyv1.PodDisruptionBudget {
	var budgets []policyv1.PodDisruptionBudget
	for _, name := range names {
		budgets = append(budgets, policyv1.PodDisruptionBudget{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "shop"},
			Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{}},
			Status:     policyv1.PodDisruptionBudgetStatus{DesiredHealthy: 2, CurrentHealthy: 3},
		})
	}
	return budgets
}

// TestWhy: a pod's budget is quoted in the server's words, and only a refusal counts
// as one: its pod would be deleted.
func TestWhy(t *testing.T) {
	t.Parallel()
	two := &apierrors.StatusError{ErrStatus: metav1.Status{Code: http.StatusInternalServerError, Message: "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."}}
	denied := &apierrors.StatusError{ErrStatus: metav1.Status{Code: http.StatusForbidden, Message: "not during trading hours"}}
	const numbers, failed = "The disruption budget web needs 2 healthy pods and has 2 currently", "The disruption budget web does not allow evicting pods currently because it failed sync: jobs.batch does not implement the scale subresource"
	for name, c := range map[string]struct {
		answer  error
		budgets []policyv1.PodDisruptionBudget
		why     string
		refused bool
		hint    string
	}{
		"by its numbers":          {byBudget(0, numbers), covering("web"), "PodDisruptionBudget shop/web needs 2 healthy pods and has 2 currently", true, "loosen its budget"},
		"none listed":             {byBudget(0, numbers), nil, "PodDisruptionBudget shop/web needs 2 healthy pods and has 2 currently", true, "loosen its budget"},
		"a second one since":      {byBudget(0, numbers), covering("web", "web-too"), "PodDisruptionBudget shop/web needs 2 healthy pods and has 2 currently", true, "loosen its budget"},
		"its sync failed":         {byBudget(0, failed), covering("web"), "PodDisruptionBudget shop/web does not allow evicting pods currently because it failed sync: jobs.batch does not implement the scale subresource", true, "loosen its budget"},
		"in other words":          {byBudget(0, "no"), covering("web"), "PodDisruptionBudget in shop: no", true, "loosen its budget"},
		"still processed":         {byBudget(10, "The disruption budget web is still being processed by the server."), covering("web"), "PodDisruptionBudget shop/web is still being processed by the server.", false, ""},
		"two of them":             {two, covering("web", "web-too"), "PodDisruptionBudgets shop/web and shop/web-too cover it, and Kubernetes evicts no pod that more than one covers", true, "change the PodDisruptionBudgets so that only one covers a pod"},
		"two that are not listed": {two, nil, two.ErrStatus.Message, false, ""},
		"denied":                  {denied, nil, "not during trading hours", true, "allow the eviction of that pod"},
		"too busy":                {apierrors.NewTooManyRequestsError("slowly"), nil, "Too many requests: slowly", false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, deletes := range []bool{false, true} {
				l := &leaving{pod: corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web-1", Namespace: "shop"}}, answer: c.answer}
				d := &draining{DrainOptions: cluster.DrainOptions{Timeout: time.Minute, Delete: deletes}}
				why, refused := d.why(l, c.budgets)
				if why != c.why || refused != c.refused {
					t.Errorf("%q, refused: %t", why, refused)
				}
				hints := strings.Join(d.hints, "\n")
				if (hints == "") != (c.hint == "") || !strings.Contains(hints, c.hint) || strings.Contains(hints, "onTimeout: delete") != (c.hint != "" && !deletes) {
					t.Errorf("deletes: %t, hints %q", deletes, d.hints)
				}
			}
		})
	}
}

// TestRefusedSince counts from the first refusal, and again after anything else.
func TestRefusedSince(t *testing.T) {
	t.Parallel()
	l := &leaving{}
	l.judge("no", true)
	first := l.refused
	if l.judge("no again", true); l.refused != first || first.IsZero() {
		t.Errorf("refused since %s, then since %s", first, l.refused)
	}
	if l.judge("busy", false); !l.refused.IsZero() {
		t.Errorf("refused since %s", l.refused)
	}
}

func TestMayPass(t *testing.T) {
	t.Parallel()
	for _, err := range []error{nil, errors.New("annotation"), apierrors.NewUnauthorized("no"), apierrors.NewBadRequest("no")} {
		if isTransient(err) {
			t.Errorf("%v may pass", err)
		}
	}
}
