package kubeapi

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/recast-sh/recast/internal/sim/kubeapi/linstor"
	"github.com/recast-sh/recast/internal/sim/kubeapi/mayastor"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
)

// LINSTOR is the controller that a pod with a container linstor-controller runs.
func (s *Server) LINSTOR() *linstor.Controller { return s.control.LINSTOR }

// Mayastor is the control plane that a pod with a container api-rest answers for.
func (s *Server) Mayastor() *mayastor.ControlPlane { return s.control.Mayastor }

// programs are those with an HTTP API, by their containers.
func (s *Server) programs() map[string]http.Handler {
	return map[string]http.Handler{"linstor-controller": s.control.LINSTOR, "api-rest": s.control.Mayastor}
}

// proxy passes a request on to a pod behind a Service (ResourceLocation in pkg/registry/core/service/storage/storage.go
// of Kubernetes).
func (s *Server) proxy(r *http.Request, t target) (answer, error) {
	scheme, name, port, ok := splitService(t.name)
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

// splitService is SplitSchemeNamePort in pkg/util/net/port_split.go of apimachinery.
func splitService(id string) (scheme, name, port string, ok bool) {
	switch parts := strings.Split(id, ":"); len(parts) {
	case 1:
		return "", parts[0], "", true
	case 2:
		return "", parts[0], parts[1], true
	case 3:
		return parts[0], parts[1], parts[2], parts[0] == "" || parts[0] == "http" || parts[0] == "https"
	}
	return "", "", "", false
}

func hasPort(service *corev1.Service, port string) bool {
	for _, p := range service.Spec.Ports {
		if p.Name == port || strconv.Itoa(int(p.Port)) == port {
			return true
		}
	}
	return false
}

// endpoint is what a ready pod behind a Service runs.
func (s *Server) endpoint(ctx context.Context, service *corev1.Service) (http.Handler, error) {
	pods, _, err := s.store.List(ctx, store.Pods(), service.Namespace)
	if err != nil {
		return nil, err
	}
	selector := labels.SelectorFromSet(service.Spec.Selector)
	for _, o := range pods {
		pod := o.(*corev1.Pod)
		if len(service.Spec.Selector) == 0 || !selector.Matches(labels.Set(pod.Labels)) || pod.DeletionTimestamp != nil || !ready(pod) {
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
