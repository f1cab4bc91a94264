package kube

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/rest"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/foreign"
)

const (
	// pageSize is the number of objects per request.
	pageSize = 500
	// listBegins bounds how often a list is started that expires while it is read.
	listBegins = 3
)

// inPages reads a list page by page: read requests a page with these options and returns the token of the next page.
// All pages are of one revision, which etcd drops after some minutes (kube-apiserver's --etcd-compaction-interval).
// Then inPages restarts the list: read must drop its results whenever o.Continue is "".
func inPages(read func(o metav1.ListOptions) (next string, err error)) error {
	for begun := 1; ; begun++ {
		err := pagesOnce(read)
		switch {
		case !apierrors.IsResourceExpired(err):
			return err
		case begun == listBegins:
			return fmt.Errorf("the list went out of date while it was read, %d times in a row: %w", begun, err)
		}
	}
}

func pagesOnce(read func(o metav1.ListOptions) (next string, err error)) error {
	o := metav1.ListOptions{Limit: pageSize}
	for {
		next, err := read(o)
		if err != nil || next == "" {
			return err
		}
		o.Continue = next
	}
}

// each passes every object of a list of client-go to see. begin is called before the first one, and again if the list
// is restarted.
func each[T any, L interface {
	runtime.Object
	metav1.ListInterface
}](c *Client, what string, list func(metav1.ListOptions) (L, error), begin func(), see func(*T)) error {
	err := inPages(func(o metav1.ListOptions) (string, error) {
		page, err := list(o)
		if err != nil {
			return "", c.translate(err)
		}
		if o.Continue == "" {
			begin()
		}
		err = apimeta.EachListItem(page, func(object runtime.Object) error {
			see(any(object).(*T))
			return nil
		})
		return page.GetContinue(), err
	})
	if err != nil {
		return fmt.Errorf("list %s: %w", what, err)
	}
	return nil
}

func (c *Client) eachVolume(ctx context.Context, begin func(), see func(*corev1.PersistentVolume)) error {
	list := func(o metav1.ListOptions) (*corev1.PersistentVolumeList, error) {
		return c.api.CoreV1().PersistentVolumes().List(ctx, o)
	}
	return each(c, "persistent volumes", list, begin, see)
}

func (c *Client) eachPod(ctx context.Context, namespace string, selected metav1.ListOptions, begin func(), see func(*corev1.Pod)) error {
	list := func(o metav1.ListOptions) (*corev1.PodList, error) {
		o.LabelSelector, o.FieldSelector = selected.LabelSelector, selected.FieldSelector
		return c.api.CoreV1().Pods(namespace).List(ctx, o)
	}
	return each(c, "pods", list, begin, see)
}

// eachJSON passes every object of a list to see, decoded from JSON. begin is called
// before the first one, and again if the list is restarted.
func eachJSON[T any](ctx context.Context, c *Client, list func() *rest.Request, begin func(), see func(T)) error {
	return inPages(func(o metav1.ListOptions) (string, error) {
		request := list().Param("limit", strconv.FormatInt(o.Limit, 10))
		if o.Continue != "" {
			request = request.Param("continue", o.Continue)
		}
		var page struct {
			Metadata metav1.ListMeta `json:"metadata"`
			Items    *[]T            `json:"items"`
		}
		if err := c.getJSON(ctx, request, &page); err != nil {
			return "", err
		}
		if page.Items == nil {
			return "", errors.New("the answer is not a list")
		}
		if o.Continue == "" {
			begin()
		}
		for _, object := range *page.Items {
			see(object)
		}
		return page.Metadata.Continue, nil
	})
}

// getJSON decodes an answer and keeps integers as they are, because an expression compares them. Field names are
// case-sensitive.
func (c *Client) getJSON(ctx context.Context, request *rest.Request, into any) error {
	result := request.SetHeader("Accept", "application/json").Do(ctx)
	if err := result.Error(); err != nil {
		return c.translate(err)
	}
	body, err := result.Raw()
	if err != nil {
		return c.translate(err)
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	return nil
}

// groups lists the API groups that the cluster serves; a group that is not listed is not installed. client-go's own
// discovery takes a 403 or 404 for an empty list, which would hide groups that exist.
func (c *Client) groups(ctx context.Context) ([]metav1.APIGroup, error) {
	var list metav1.APIGroupList
	if err := c.api.Discovery().RESTClient().Get().AbsPath("/apis").Do(ctx).Into(&list); err != nil {
		return nil, fmt.Errorf("list API groups: %w", c.translate(err))
	}
	return list.Groups, nil
}

// preferred returns the cluster's preferred version of a group; ok is false if the group is not installed.
func preferred(groups []metav1.APIGroup, name string) (gv schema.GroupVersion, ok bool) {
	i := slices.IndexFunc(groups, func(g metav1.APIGroup) bool { return g.Name == name })
	if i < 0 {
		return schema.GroupVersion{}, false
	}
	return schema.GroupVersion{Group: name, Version: groups[i].PreferredVersion.Version}, true
}

// supports reports whether a group is installed. It fails if the group lacks the version whose fields we know: other
// versions could hide data.
func supports(groups []metav1.APIGroup, gv schema.GroupVersion) (bool, error) {
	served, installed := servedVersions(groups, gv.Group)
	if installed && !slices.Contains(served, gv.Version) {
		return false, foreign.Error(fmt.Errorf("%s is served as %s only, recast knows %s", gv.Group, strings.Join(served, ", "), gv.Version))
	}
	return installed, nil
}

// servedVersions lists the versions of a group; false if it is not installed.
func servedVersions(groups []metav1.APIGroup, name string) (versions []string, installed bool) {
	g, installed := cluster.Find(groups, func(g metav1.APIGroup) bool { return g.Name == name })
	return cluster.Each(g.Versions, func(v metav1.GroupVersionForDiscovery) string { return v.Version }), installed
}

// resources lists the resources of a group's version, without subresources.
func (c *Client) resources(ctx context.Context, gv schema.GroupVersion) ([]metav1.APIResource, error) {
	var list metav1.APIResourceList
	path := []string{"/apis", gv.Group, gv.Version}
	if gv.Group == "" {
		path = []string{"/api", gv.Version}
	}
	if err := c.api.Discovery().RESTClient().Get().AbsPath(path...).Do(ctx).Into(&list); err != nil {
		return nil, fmt.Errorf("list resources of %s: %w", gv, c.translate(err))
	}
	return slices.DeleteFunc(list.APIResources, func(r metav1.APIResource) bool { return strings.Contains(r.Name, "/") }), nil
}

// listCustom lists custom resources of all namespaces; named restricts them to that name, "" does not.
func listCustom[T any](ctx context.Context, c *Client, r schema.GroupVersionResource, named string) ([]T, error) {
	if named == "" {
		return listSelected[T](ctx, c, r, "", "")
	}
	return listSelected[T](ctx, c, r, "fieldSelector", fields.OneTermEqualSelector(metav1.ObjectNameField, named).String())
}

// listSelected is listCustom for the objects that a selector picks; "" picks all.
func listSelected[T any](ctx context.Context, c *Client, r schema.GroupVersionResource, by, selector string) (all []T, err error) {
	request := func() *rest.Request {
		request := c.api.Discovery().RESTClient().Get().AbsPath("/apis", r.Group, r.Version, r.Resource)
		if selector != "" {
			request = request.Param(by, selector)
		}
		return request
	}
	err = eachJSON(ctx, c, request, func() { all = nil }, func(object T) { all = append(all, object) })
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", r.GroupResource(), err)
	}
	return all, nil
}

// behind is the HTTP API of a program in the cluster, reached through the API server's proxy of Services.
type behind struct {
	*Client
	service corev1.Service
	port    string
}

// findService returns the program behind a Service with that label; ok is false if there is no such Service. If there
// are several, it takes the first.
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

// errSilent says that a program gave no usable answer, though the API server did.
var errSilent = errors.New("no usable answer")

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

func (b behind) put(ctx context.Context, path string, body any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("encode what service %s is told: %w", b.name(), err)
	}
	result := b.request(http.MethodPut, path).SetHeader("Content-Type", "application/json").SetHeader("Accept", "application/json").Body(text).Do(ctx)
	return b.judge("tell", path, b.translate(result.Error()))
}

func (b behind) name() string { return b.service.Namespace + "/" + b.service.Name }

// place returns the path of the program in the API.
func (b behind) place() string {
	return fmt.Sprintf("/api/v1/namespaces/%s/services/%s:%s/proxy", b.service.Namespace, b.service.Name, b.port)
}

func (b behind) request(verb, path string) *rest.Request {
	return b.api.CoreV1().RESTClient().Verb(verb).AbsPath(b.place()).Suffix(path)
}

// judge says what an error of a request to the program means. The error becomes errSilent if the API server reaches
// no ready pod, or if the program itself answered with an error (ResourceLocation in
// pkg/registry/core/service/storage/storage.go of Kubernetes; Transport.RoundTrip in pkg/util/proxy of apimachinery).
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
