package kube

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/recast-sh/recast/internal/foreign"
)

// behind is the HTTP API of a program in the cluster, which is asked through the API server's proxy of Services.
type behind struct {
	*conn
	service corev1.Service
	port    string
}

// find returns what a Service with that label leads to; ok is false if there is none. With several, it is the first.
func (c *conn) find(ctx context.Context, label, port string) (b behind, ok bool, err error) {
	list, err := c.api.CoreV1().Services("").List(ctx, metav1.ListOptions{LabelSelector: label})
	if err != nil {
		return b, false, fmt.Errorf("list services with %s: %w", label, c.translate(err))
	}
	if len(list.Items) == 0 {
		return b, false, nil
	}
	return behind{c, list.Items[0], port}, true, nil
}

// errSilent is an error of a program that gave no answer that can be used, though the API server did.
var errSilent = errors.New("no usable answer")

// get reads a path as JSON. The error is errSilent if the API server reaches no pod that is ready, or if the answer
// of the program itself is an error (ResourceLocation in pkg/registry/core/service/storage/storage.go of Kubernetes;
// Transport.RoundTrip in pkg/util/proxy of apimachinery).
func (b behind) get(ctx context.Context, path string, into any) error {
	name := b.service.Namespace + "/" + b.service.Name
	path, query, _ := strings.Cut(path, "?")
	params, err := url.ParseQuery(query)
	if err != nil {
		return fmt.Errorf("ask service %s for %s: %w", name, path, err)
	}
	request := b.api.CoreV1().RESTClient().Get().Namespace(b.service.Namespace).Resource("services").SubResource("proxy").
		Name(b.service.Name + ":" + b.port).Suffix(path)
	for key := range params {
		request = request.Param(key, params.Get(key))
	}
	err = b.getJSON(ctx, request, into)
	status, ok := errors.AsType[*apierrors.StatusError](err)
	switch {
	case err == nil:
		return nil
	case !ok:
	case apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse):
		return fmt.Errorf("%w from service %s: status %d for %s", errSilent, name, status.ErrStatus.Code, path)
	case apierrors.IsServiceUnavailable(err), apierrors.IsNotFound(err):
		return fmt.Errorf("%w from service %s: %s", errSilent, name, foreign.Line(status.ErrStatus.Message))
	}
	return fmt.Errorf("ask service %s for %s: %w", name, path, err)
}
