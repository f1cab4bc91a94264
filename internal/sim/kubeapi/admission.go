package kubeapi

import (
	"cmp"
	"context"
	"fmt"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
)

// Request is what a webhook or the authorization decides on.
type Request struct {
	Verb            string // "create", "delete", …
	Resource        string // with its subresource: "pods/eviction"
	Namespace, Name string
}

// Webhook denies a request with a status, or admits it with nil.
type Webhook func(Request) *metav1.Status

// SetWebhook sets a validating admission webhook of that name for all changes; nil removes
// it.
func (s *Server) SetWebhook(name string, w Webhook) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.webhookName, s.webhook = name, w
}

func (s *Server) hooked() (string, Webhook) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.webhookName, s.webhook
}

// request is the Request for a target.
func (t target) request(verb string) Request {
	resource := t.resource.Resource
	if t.sub != "" {
		resource += "/" + t.sub
	}
	return Request{Verb: verb, Resource: resource, Namespace: t.namespace, Name: t.name}
}

// admit admits a change: first the namespace decides, then the webhook.
func (s *Server) admit(ctx context.Context, t target, verb string) error {
	if verb == "get" || verb == "list" || verb == "watch" {
		return nil
	}
	if verb == "create" && t.namespace != "" {
		if err := s.admitNamespace(ctx, t); err != nil {
			return err
		}
	}
	name, hook := s.hooked()
	if hook == nil {
		return nil
	}
	if denied := hook(t.request(verb)); denied != nil {
		return deniedBy(name, denied)
	}
	return nil
}

// admitNamespace refuses new objects, and evictions, in a terminating namespace
// (plugin/namespace/lifecycle in apiserver).
func (s *Server) admitNamespace(ctx context.Context, t target) error {
	ns, err := s.store.Get(ctx, store.Namespaces(), "", t.namespace)
	if err != nil {
		return err
	}
	if ns.(*corev1.Namespace).Status.Phase != corev1.NamespaceTerminating {
		return nil
	}
	denied := apierrors.NewForbidden(schema.GroupResource{Group: t.resource.Group, Resource: t.resource.Resource}, t.name,
		fmt.Errorf("unable to create new content in namespace %s because it is being terminated", t.namespace))
	denied.ErrStatus.Details.Causes = append(denied.ErrStatus.Details.Causes, metav1.StatusCause{
		Type: corev1.NamespaceTerminatingCause, Field: "metadata.namespace",
		Message: fmt.Sprintf("namespace %s is being terminated", t.namespace),
	})
	return denied
}

// deniedBy is the server's error for a webhook's denial (ToStatusErr in apiserver's
// admission/plugin/webhook/errors).
func deniedBy(name string, denied *metav1.Status) error {
	status := *denied
	status.Status = metav1.StatusFailure
	status.Code = max(status.Code, http.StatusBadRequest)
	by := fmt.Sprintf("admission webhook %q denied the request", name)
	if why := cmp.Or(status.Message, string(status.Reason)); why != "" {
		status.Message = by + ": " + why
	} else {
		status.Message = by + " without explanation"
	}
	return &apierrors.StatusError{ErrStatus: status}
}
