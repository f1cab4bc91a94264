package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/recast-sh/recast/internal/foreign"
)

// behind is the HTTP API of a program in the cluster, which is asked through the API server's proxy of Services.
type behind struct {
	*Client
	service corev1.Service
	port    string
}

// findService returns what a Service with that label leads to; ok is false if there is none. With several, it is the
// first.
func (c *Client) findService(ctx context.Context, label, port string) (b behind, ok bool, err error) {
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

// get reads a path as JSON.
func (b behind) get(ctx context.Context, path string, into any) error {
	at, query, _ := strings.Cut(path, "?")
	params, err := url.ParseQuery(query)
	if err != nil {
		return fmt.Errorf("ask service %s for %s: %w", b.name(), at, err)
	}
	request := b.request(http.MethodGet, at)
	for key := range params {
		request = request.Param(key, params.Get(key))
	}
	return b.judge("ask", at, b.getJSON(ctx, request, into))
}

// put writes a body as JSON to a path.
func (b behind) put(ctx context.Context, path string, body any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("encode what service %s is told: %w", b.name(), err)
	}
	result := b.request(http.MethodPut, path).SetHeader("Content-Type", "application/json").SetHeader("Accept", "application/json").Body(text).Do(ctx)
	return b.judge("tell", path, b.translate(result.Error()))
}

func (b behind) name() string { return b.service.Namespace + "/" + b.service.Name }

// place is the path of the program in the API.
func (b behind) place() string {
	return fmt.Sprintf("/api/v1/namespaces/%s/services/%s:%s/proxy", b.service.Namespace, b.service.Name, b.port)
}

func (b behind) request(verb, path string) *rest.Request {
	return b.api.CoreV1().RESTClient().Verb(verb).AbsPath(b.place()).Suffix(path)
}

// judge says what an error of a request to the program means. It is errSilent if the API server reaches no pod that is
// ready, or if the answer of the program itself is an error (ResourceLocation in pkg/registry/core/service/storage/storage.go
// of Kubernetes; Transport.RoundTrip in pkg/util/proxy of apimachinery).
func (b behind) judge(verb, path string, err error) error {
	status, ok := errors.AsType[*apierrors.StatusError](err)
	switch {
	case err == nil:
		return nil
	case !ok:
	case apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse):
		return fmt.Errorf("%w from service %s: status %d for %s", errSilent, b.name(), status.ErrStatus.Code, path)
	case apierrors.IsServiceUnavailable(err), apierrors.IsNotFound(err):
		return fmt.Errorf("%w from service %s: %s", errSilent, b.name(), foreign.Line(status.ErrStatus.Message))
	}
	return fmt.Errorf("%s service %s for %s: %w", verb, b.name(), path, err)
}
