package kubeapi

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"

	"github.com/recast-sh/recast/internal/sim/kubeapi/control"
	"github.com/recast-sh/recast/internal/sim/kubeapi/linstor"
	"github.com/recast-sh/recast/internal/sim/kubeapi/mayastor"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
)

// stillProcessing is the Retry-After of a budget whose controller lags behind.
const stillProcessing = 10

// evict deletes the pod if its PodDisruptionBudget allows it. As on the real server, the budget's status decides.
func (s *Server) evict(r *http.Request, t target) (answer, error) {
	b, err := read(r)
	if err != nil {
		return answer{}, err
	}
	decoded, err := s.decode(b, policyv1.SchemeGroupVersion.WithKind("Eviction"))
	if err != nil {
		return answer{}, err
	}
	e, ok := decoded.(*policyv1.Eviction)
	if !ok {
		return answer{}, apierrors.NewBadRequest(fmt.Sprintf("not an Eviction object: %T", decoded))
	}
	if e.Name != t.name {
		return answer{}, apierrors.NewBadRequest("name in URL does not match name in Eviction object")
	}
	options := metav1.DeleteOptions{}
	if e.DeleteOptions != nil {
		options = *e.DeleteOptions
	}
	if err := s.Evict(r.Context(), t.namespace, t.name, options); err != nil {
		return answer{}, err
	}
	return answer{code: http.StatusCreated, body: &metav1.Status{Status: metav1.StatusSuccess}}, nil
}

// Evict deletes a pod if its PodDisruptionBudget allows it. It does not wait for the end of the pod.
func (s *Server) Evict(ctx context.Context, namespace, name string, options metav1.DeleteOptions) error {
	if s.remote != nil {
		return s.remote.Evict(ctx, namespace, name, options)
	}
	obj, err := s.store.Get(ctx, store.Pods(), namespace, name)
	if err != nil {
		return err
	}
	dryRun := len(options.DryRun) > 0
	if pod := obj.(*corev1.Pod); !ignoresBudget(pod) {
		if err := s.grant(ctx, pod, dryRun); err != nil {
			return err
		}
	}
	if dryRun {
		return nil
	}
	if err := samePod(obj, options.Preconditions); err != nil {
		return err
	}
	_, err = s.store.Delete(ctx, store.Pods(), namespace, name, options)
	return err
}

// samePod refuses to evict another pod than the intended one, with the error text of the eviction
// (addConditionAndDeletePod in Kubernetes' registry/core/pod/storage).
func samePod(pod store.Object, p *metav1.Preconditions) error {
	if p == nil || p.UID == nil || *p.UID == pod.GetUID() {
		return nil
	}
	return apierrors.NewConflict(schema.GroupResource{Resource: "Pod"}, pod.GetName(),
		fmt.Errorf("the UID in the precondition (%s) does not match the UID in record (%s). The object might have been deleted and then recreated", *p.UID, pod.GetUID()))
}

// ignoresBudget reports whether ending the pod disrupts nothing.
func ignoresBudget(p *corev1.Pod) bool {
	switch p.Status.Phase {
	case corev1.PodSucceeded, corev1.PodFailed, corev1.PodPending:
		return true
	}
	return p.DeletionTimestamp != nil
}

// grant takes one disruption from the pod's budget, or refuses with 429.
func (s *Server) grant(ctx context.Context, pod *corev1.Pod, dryRun bool) error {
	for {
		budgets, err := s.budgetsOf(ctx, pod)
		if err != nil || len(budgets) == 0 {
			return err
		}
		if len(budgets) > 1 {
			return &apierrors.StatusError{ErrStatus: metav1.Status{
				Status: metav1.StatusFailure, Code: http.StatusInternalServerError,
				Message: "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
			}}
		}
		b := budgets[0].DeepCopy()
		if !control.PodReady(pod) && b.Spec.UnhealthyPodEvictionPolicy != nil && *b.Spec.UnhealthyPodEvictionPolicy == policyv1.AlwaysAllow {
			return nil
		}
		if !control.PodReady(pod) && b.Status.CurrentHealthy >= b.Status.DesiredHealthy && b.Status.DesiredHealthy > 0 {
			return nil
		}
		if err := refusal(b); err != nil || dryRun {
			return err
		}
		b.Status.DisruptionsAllowed--
		if b.Status.DisruptedPods == nil {
			b.Status.DisruptedPods = map[string]metav1.Time{}
		}
		b.Status.DisruptedPods[pod.Name] = metav1.Time{Time: time.Now()}
		if _, err := s.store.Update(ctx, store.Budgets(), b, store.Status); !apierrors.IsConflict(err) {
			return err
		}
	}
}

// refusal returns the error of a budget that does not allow an eviction (checkAndDecrement in Kubernetes'
// registry/core/pod/storage).
func refusal(b *policyv1.PodDisruptionBudget) error {
	retry, why := 0, ""
	condition := meta.FindStatusCondition(b.Status.Conditions, policyv1.DisruptionAllowedCondition)
	says := condition != nil && condition.Status == metav1.ConditionFalse && condition.Message != ""
	switch {
	case b.Status.ObservedGeneration < b.Generation:
		retry = stillProcessing
		why = fmt.Sprintf("The disruption budget %s is still being processed by the server.", b.Name)
	case b.Status.DisruptionsAllowed > 0:
		return nil
	case says && condition.Reason == policyv1.SyncFailedReason:
		why = fmt.Sprintf("The disruption budget %s does not allow evicting pods currently because it failed sync: %s", b.Name, condition.Message)
	case b.Status.CurrentHealthy <= b.Status.DesiredHealthy:
		why = fmt.Sprintf("The disruption budget %s needs %d healthy pods and has %d currently",
			b.Name, b.Status.DesiredHealthy, b.Status.CurrentHealthy)
	case says:
		why = fmt.Sprintf("The disruption budget %s does not allow evicting pods currently (%s): %s", b.Name, condition.Reason, condition.Message)
	default:
		why = fmt.Sprintf("The disruption budget %s does not allow evicting pods currently", b.Name)
	}
	err := apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", retry)
	err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes,
		metav1.StatusCause{Type: policyv1.DisruptionBudgetCause, Message: why})
	return err
}

func (s *Server) budgetsOf(ctx context.Context, pod *corev1.Pod) ([]*policyv1.PodDisruptionBudget, error) {
	objects, _, err := s.store.List(ctx, store.Budgets(), pod.Namespace)
	if err != nil {
		return nil, err
	}
	var budgets []*policyv1.PodDisruptionBudget
	for _, o := range objects {
		b := o.(*policyv1.PodDisruptionBudget)
		selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
		if err == nil && selector.Matches(labels.Set(pod.Labels)) {
			budgets = append(budgets, b)
		}
	}
	return budgets, nil
}

// LINSTOR returns the controller that a pod with a container linstor-controller runs.
func (s *Server) LINSTOR() *linstor.Controller { return s.control.LINSTOR }

// Mayastor returns the control plane that answers for a pod with a container api-rest.
func (s *Server) Mayastor() *mayastor.ControlPlane { return s.control.Mayastor }

// programs returns the programs with an HTTP API, by the names of their containers.
func (s *Server) programs() map[string]http.Handler {
	return map[string]http.Handler{"linstor-controller": s.control.LINSTOR, "api-rest": s.control.Mayastor}
}

// proxy passes a request on to a pod behind a Service (ResourceLocation in pkg/registry/core/service/storage/storage.go
// of Kubernetes).
func (s *Server) proxy(r *http.Request, t target) (answer, error) {
	scheme, name, port, ok := utilnet.SplitSchemeNamePort(t.name)
	if !ok {
		return answer{}, apierrors.NewBadRequest(fmt.Sprintf("invalid service request %q", t.name))
	}
	o, err := s.store.Get(r.Context(), store.Services(), t.namespace, name)
	if err != nil {
		return answer{}, err
	}
	service := o.(*corev1.Service)
	if !hasPort(service, port) {
		return answer{}, apierrors.NewServiceUnavailable(fmt.Sprintf("no service port %s found for service %q", port, name))
	}
	program, err := s.endpoint(r.Context(), service)
	if err != nil {
		return answer{}, err
	}
	if scheme == "https" {
		return answer{}, apierrors.NewServiceUnavailable("error trying to reach service: http: server gave HTTP response to HTTPS client")
	}
	return answer{program: program, path: "/" + t.below}, nil
}

func hasPort(service *corev1.Service, port string) bool {
	return slices.ContainsFunc(service.Spec.Ports, func(p corev1.ServicePort) bool {
		return p.Name == port || strconv.Itoa(int(p.Port)) == port
	})
}

// endpoint returns the program that a ready pod behind a Service runs.
func (s *Server) endpoint(ctx context.Context, service *corev1.Service) (http.Handler, error) {
	pods, _, err := s.store.List(ctx, store.Pods(), service.Namespace)
	if err != nil {
		return nil, err
	}
	selector := labels.SelectorFromSet(service.Spec.Selector)
	for _, o := range pods {
		pod := o.(*corev1.Pod)
		if len(service.Spec.Selector) == 0 || !selector.Matches(labels.Set(pod.Labels)) || pod.DeletionTimestamp != nil || !control.PodReady(pod) {
			continue
		}
		for _, container := range pod.Spec.Containers {
			if program := s.programs()[container.Name]; program != nil {
				return program, nil
			}
		}
		return nil, apierrors.NewServiceUnavailable("error trying to reach service: dial tcp: connect: connection refused")
	}
	return nil, apierrors.NewServiceUnavailable(fmt.Sprintf("no endpoints available for service %q", service.Name))
}
