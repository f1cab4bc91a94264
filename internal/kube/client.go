// Package kube talks to the Kubernetes API of a cluster: a [Client] reads nodes, pods
// and attached volumes, and drains nodes, over client-go and kubectl's drain.
package kube

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	kjson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/transport"
	"k8s.io/klog/v2"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/expression"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/foreign"
)

// requestTimeout bounds one request other than a watch.
const requestTimeout = 30 * time.Second

type Options struct {
	Dial func(ctx context.Context, network, addr string) (net.Conn, error) // nil: the machine's network
	Wrap func(http.RoundTripper) http.RoundTripper                         // wraps the transport; nil: nothing
	Poll time.Duration                                                     // pause between polls; 0: 5 s
	Skip []string                                                          // storage systems that are not looked at, in lower case
	Own  cluster.OwnPod                                                    // the pod in which recast runs, perhaps of another cluster; zero: none
}

// Client talks to one cluster's API. It is safe for concurrent use; the caller closes it.
type Client struct {
	api kubernetes.Interface
	// streams is for watches, which have no timeout.
	streams kubernetes.Interface

	host string
	poll time.Duration
	own  cluster.OwnPod
	skip []string // as of Options
	base *http.Transport
	rt   http.RoundTripper // base with the credentials of the kubeconfig
	// direct reaches API servers at their own addresses.
	direct http.RoundTripper
}

var _ cluster.Kube = (*Client)(nil)

// New returns a client for a kubeconfig's current context, without connecting.
func New(kubeconfig []byte, o Options) (*Client, error) {
	quiet()
	cfg, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	if err != nil {
		return nil, fault.WithHint(fault.Credentials.Configf("read kubeconfig: %w", err),
			"fetch a fresh one with \"talosctl kubeconfig\"")
	}
	cfg.Dial = o.Dial
	if o.Wrap != nil {
		cfg.Wrap(o.Wrap)
	}
	cfg.UserAgent = "recast"
	cfg.QPS, cfg.Burst = 100, 200 // a drain asks for many pods at once
	cfg.WarningHandler = rest.NoWarnings{}
	c := &Client{host: cfg.Host, poll: cmp.Or(o.Poll, 5*time.Second), own: o.Own, skip: o.Skip}
	if c.base, c.rt, c.direct, err = newTransports(cfg); err != nil {
		return nil, fault.Credentials.Configf("credentials of the kubeconfig: %w", err)
	}
	// A program behind the API server's proxy may redirect to an address that means nothing here.
	stay := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	c.api, err = kubernetes.NewForConfigAndClient(cfg, &http.Client{Transport: c.rt, Timeout: requestTimeout, CheckRedirect: stay})
	if err != nil {
		return nil, fault.Credentials.Configf("kubeconfig: %w", err)
	}
	c.streams, err = kubernetes.NewForConfigAndClient(cfg, &http.Client{Transport: c.rt})
	if err != nil {
		return nil, fault.Credentials.Configf("kubeconfig: %w", err)
	}
	return c, nil
}

// newTransports makes transports of our own: client-go keeps its transports in a global cache, where they cannot be
// closed.
func newTransports(cfg *rest.Config) (base *http.Transport, rt, toServer http.RoundTripper, err error) {
	tc, err := cfg.TransportConfig()
	if err != nil {
		return nil, nil, nil, err
	}
	tlsConfig, err := transport.TLSConfigFor(tc)
	if err != nil {
		return nil, nil, nil, err
	}
	base = &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		TLSClientConfig:     tlsConfig,
		TLSHandshakeTimeout: 10 * time.Second,
		IdleConnTimeout:     90 * time.Second,
		MaxIdleConnsPerHost: 25,
		ForceAttemptHTTP2:   true,
		// A node that vanished must not leave us on its dead connection.
		HTTP2: &http.HTTP2Config{SendPingTimeout: 30 * time.Second, PingTimeout: 15 * time.Second},
	}
	if tc.Proxy != nil {
		base.Proxy = tc.Proxy
	}
	if tc.DialHolder != nil {
		base.DialContext = tc.DialHolder.Dial
	}
	if rt, err = transport.HTTPWrappersForConfig(tc, base); err != nil {
		return nil, nil, nil, fmt.Errorf("wrap transport: %w", err)
	}
	toServer, err = direct(tc, base, cfg.Host)
	return base, rt, toServer, err
}

func (c *Client) Close() error {
	c.base.CloseIdleConnections()
	return nil
}

// quiet keeps client-go from writing to our stderr: when it is throttled or told to
// retry, it logs through klog, whose logger is shared by the process. What concerns
// the user is in the errors, which we translate. The zero Logger drops everything.
var quiet = sync.OnceFunc(func() { klog.SetLogger(klog.Logger{}) })

// translate turns an error of client-go into ours. All changes of this client are repeatable, so the error of a
// change whose answer was lost is cluster.ErrNotNow as well.
func (c *Client) translate(err error) error {
	err = foreign.Error(err)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.Canceled):
		return err
	case missing(err):
		return fmt.Errorf("%w: %w", cluster.ErrNotFound, err)
	case apierrors.IsUnauthorized(err):
		return fault.WithHint(fault.Credentials.Of(fmt.Errorf("%s does not accept the kubeconfig's credentials: %w", c.host, err)),
			"the client certificate may have expired: fetch a new kubeconfig with \"talosctl kubeconfig\"")
	case apierrors.IsForbidden(err):
		return fault.WithHint(fault.Credentials.Of(fault.As(fault.Refused, err)),
			"the kubeconfig's user needs to read nodes, pods, daemonsets, deployments, poddisruptionbudgets, persistentvolumes, "+
				"volumeattachments, certificatesigningrequests and, where installed, the resources of Longhorn, Rook, Piraeus, Mayastor (and with these "+
				"two services, and to get services/proxy of their APIs), tuppr and system-upgrade-controller, to watch nodes, pods, volumeattachments, poddisruptionbudgets and the volumes of Longhorn and Rook (without that changes are seen later), "+
				"to patch nodes and Longhorn's settings, and to evict pods (with roll.drain.onTimeout: delete, to delete them too), and to read "+
				"what roll.gates asks about; Talos' own admin kubeconfig may do all of it")
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return fault.WithHint(fault.TLS.Of(fmt.Errorf("%s is not the server that the kubeconfig names: %w", c.host, err)),
			"the kubeconfig's certificate authority is another cluster's: fetch a new one with \"talosctl kubeconfig\"")
	}
	if _, ok := errors.AsType[*url.Error](err); ok {
		return fault.WithHint(fault.Unreachable.Of(&silentError{fmt.Errorf("no answer from %s: %w", c.host, err)}),
			"check that the address in the kubeconfig is reachable from here and does not depend on one node")
	}
	if status, ok := errors.AsType[*apierrors.StatusError](err); ok && isBusy(status.ErrStatus.Code) {
		return &silentError{err}
	}
	return err
}

// isBusy reports whether the server, or a proxy in front of it, could not answer for now.
func isBusy(code int32) bool {
	return code >= http.StatusInternalServerError || code == http.StatusTooManyRequests
}

// silentError is a request that got no clear answer.
type silentError struct{ error }

func (e *silentError) Unwrap() error        { return e.error }
func (e *silentError) Is(target error) bool { return target == cluster.ErrNotNow }

// missing reports whether the API itself answered that there is no object of that
// name; a proxy's 404, or one for an unknown path, does not count.
func missing(err error) bool {
	status, ok := errors.AsType[*apierrors.StatusError](err)
	if !ok || !apierrors.IsNotFound(err) || status.ErrStatus.Details == nil {
		return false
	}
	return status.ErrStatus.Details.Name != "" && !apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}

// Expires returns when the client certificate of a kubeconfig's current context expires; zero if there is no readable
// certificate.
func Expires(kubeconfig []byte) time.Time {
	cfg, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	if err != nil {
		return time.Time{}
	}
	data := cfg.CertData
	if len(data) == 0 && cfg.CertFile != "" {
		if data, err = os.ReadFile(cfg.CertFile); err != nil {
			return time.Time{}
		}
	}
	if block, _ := pem.Decode(data); block != nil {
		if crt, err := x509.ParseCertificate(block.Bytes); err == nil {
			return crt.NotAfter
		}
	}
	return time.Time{}
}

// direct returns the transport to API servers at addresses other than the kubeconfig's. It has the same credentials,
// and accepts a certificate for the kubeconfig's address. Each request has a new connection: an open connection
// proves nothing about a server that has taken over the port.
func direct(tc *transport.Config, base *http.Transport, host string) (http.RoundTripper, error) {
	d := base.Clone()
	d.DisableKeepAlives = true
	if u, err := url.Parse(host); err == nil && d.TLSClientConfig != nil {
		d.TLSClientConfig.ServerName = cmp.Or(d.TLSClientConfig.ServerName, u.Hostname())
	}
	rt, err := transport.HTTPWrappersForConfig(tc, d)
	if err != nil {
		return nil, fmt.Errorf("wrap transport: %w", err)
	}
	return rt, nil
}

// APIServer asks the API server at that address whether it is ready itself, and returns its version. A server reports
// its version long before it is ready.
func (c *Client) APIServer(ctx context.Context, addr netip.AddrPort) (string, error) {
	if _, err := c.askServer(ctx, addr, readyPath); err != nil {
		return "", err
	}
	body, err := c.askServer(ctx, addr, "/version")
	if err != nil {
		return "", err
	}
	var info version.Info
	if err := json.Unmarshal(body, &info); err != nil {
		return "", fmt.Errorf("%s: read its version: %w", addr, err)
	}
	return info.GitVersion, nil
}

// readyPath answers 500 with a line for each check (healthz.go of k8s.io/apiserver).
const readyPath = "/readyz"

func (c *Client) askServer(ctx context.Context, addr netip.AddrPort, path string) (body []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+addr.String()+path, nil)
	if err != nil {
		return nil, err
	}
	response, err := (&http.Client{Transport: c.direct}).Do(request)
	if err != nil {
		return nil, fault.WithHint(fault.Unreachable.Of(foreign.Error(err)), "recast has to reach the API server of every control plane, not only the kubeconfig's: port %d", addr.Port())
	}
	defer response.Body.Close()
	body, err = io.ReadAll(io.LimitReader(response.Body, 1<<16))
	switch code := response.StatusCode; {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", addr, err)
	case code == http.StatusInternalServerError && path == readyPath:
		return nil, fmt.Errorf("%s is not ready: %s", addr, failedChecks(body))
	case code != http.StatusOK:
		return nil, fmt.Errorf("%s answers %d %s", addr, code, http.StatusText(code))
	}
	return body, nil
}

func failedChecks(body []byte) string {
	var failed []string
	for line := range strings.Lines(string(body)) {
		if what, ok := strings.CutPrefix(line, "[-]"); ok {
			name, _, _ := strings.Cut(what, " ")
			failed = append(failed, foreign.Line(name))
		}
	}
	return cmp.Or(strings.Join(failed, ", "), "it does not say why")
}

// The Lease that holds the claim of a run.
const (
	leaseNamespace  = metav1.NamespaceSystem
	leaseName       = "recast"
	claimAnnotation = "recast.dev/claim"
)

func (c *Client) Lease(ctx context.Context) (cluster.Lease, error) {
	l, err := c.api.CoordinationV1().Leases(leaseNamespace).Get(ctx, leaseName, metav1.GetOptions{})
	if err != nil {
		return cluster.Lease{}, c.translateLease(err)
	}
	return cluster.Lease{
		Name: leaseNamespace + "/" + leaseName, UID: string(l.UID), Revision: l.ResourceVersion, Claim: l.Annotations[claimAnnotation],
		Holder: deref(l.Spec.HolderIdentity), Duration: time.Duration(deref(l.Spec.LeaseDurationSeconds)) * time.Second,
		Acquired: deref(l.Spec.AcquireTime).Time, Renewed: deref(l.Spec.RenewTime).Time,
	}, nil
}

func deref[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

func (c *Client) CreateLease(ctx context.Context, l cluster.Lease) error {
	_, err := c.api.CoordinationV1().Leases(leaseNamespace).Create(ctx, leaseOf(l), metav1.CreateOptions{})
	return c.translateLeaseChange(err)
}

// UpdateLease writes the claim's Lease if it is as it was read.
func (c *Client) UpdateLease(ctx context.Context, l cluster.Lease) error {
	_, err := c.api.CoordinationV1().Leases(leaseNamespace).Update(ctx, leaseOf(l), metav1.UpdateOptions{})
	return c.translateLeaseChange(err)
}

// DeleteLease deletes the claim's Lease if it is as it was read. A missing Lease is not an error.
func (c *Client) DeleteLease(ctx context.Context, l cluster.Lease) error {
	err := c.translateLeaseChange(c.api.CoordinationV1().Leases(leaseNamespace).Delete(ctx, leaseName,
		metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: new(types.UID(l.UID)), ResourceVersion: &l.Revision}}))
	if errors.Is(err, cluster.ErrNotFound) {
		return nil
	}
	return err
}

// leaseOf returns the complete Lease: a write drops everything else that is in it. Without the UID an update would
// recreate a Lease that was deleted meanwhile, which the API server allows (AllowCreateOnUpdate in
// registry/coordination/lease/strategy.go).
func leaseOf(l cluster.Lease) *coordinationv1.Lease {
	acquired, renewed := metav1.NewMicroTime(l.Acquired), metav1.NewMicroTime(l.Renewed)
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: leaseNamespace, Name: leaseName, UID: types.UID(l.UID), ResourceVersion: l.Revision,
			Annotations: map[string]string{claimAnnotation: l.Claim},
		},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: &l.Holder, LeaseDurationSeconds: new(int32(l.Duration / time.Second)),
			AcquireTime: &acquired, RenewTime: &renewed,
		},
	}
}

func (c *Client) translateLease(err error) error {
	err = foreign.Error(err)
	if apierrors.IsForbidden(err) {
		return fault.WithHint(fault.As(fault.Refused, err),
			"the kubeconfig's user needs to get leases in kube-system, to see whether a run is at work; where the Proxmox token may not make VMs, "+
				"to create, update and delete them as well; Talos' own admin kubeconfig may do all of it")
	}
	status, answered := errors.AsType[*apierrors.StatusError](err)
	switch {
	case answered && status.ErrStatus.Code >= http.StatusInternalServerError: // etcd's time-outs are 500 (apiserver's etcd3, interpret.go)
		return fmt.Errorf("%w: %w", cluster.ErrNoAnswer, err)
	case isUnanswered(err):
		return fmt.Errorf("%w from %s: %w", cluster.ErrNoAnswer, c.host, err)
	}
	return c.translate(err)
}

// isUnanswered reports whether a request reached no server, or a server that fell silent.
func isUnanswered(err error) bool {
	_, request := errors.AsType[*url.Error](err)
	_, untrusted := errors.AsType[*tls.CertificateVerificationError](err)
	return request && !untrusted && !errors.Is(err, context.Canceled)
}

// translateLeaseChange is translateLease for a write, which the server may have made without answering.
func (c *Client) translateLeaseChange(err error) error {
	switch {
	case err == nil:
		return nil
	case apierrors.IsAlreadyExists(err):
		return fmt.Errorf("%w: %w", cluster.ErrExists, err)
	case apierrors.IsConflict(err):
		return fmt.Errorf("%w: %w", cluster.ErrChanged, err)
	}
	err = c.translateLease(err)
	if errors.Is(err, cluster.ErrNoAnswer) {
		return fmt.Errorf("%w: %w", cluster.ErrLostAnswer, err)
	}
	return err
}

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
	o := metav1.ListOptions{Limit: pageSize}
	for begun := 1; ; {
		next, err := read(o)
		switch expired := apierrors.IsResourceExpired(err); {
		case expired && begun == listBegins:
			return fmt.Errorf("the list went out of date while it was read, %d times in a row: %w", begun, err)
		case expired:
			begun, next = begun+1, ""
		case err != nil || next == "":
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
	if err := kjson.Unmarshal(body, into); err != nil {
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
	g, ok := cluster.Find(groups, func(g metav1.APIGroup) bool { return g.Name == name })
	return schema.GroupVersion{Group: name, Version: g.PreferredVersion.Version}, ok
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

// exchange sends JSON to a path of a program's API, or reads JSON from the path.
type exchange = func(ctx context.Context, path string, body any) error

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
	text, err := kjson.Marshal(body)
	if err != nil {
		return fmt.Errorf("encode what service %s is told: %w", b.name(), err)
	}
	result := b.request(http.MethodPut, path).SetHeader("Content-Type", "application/json").SetHeader("Accept", "application/json").Body(text).Do(ctx)
	return b.judge("tell", path, b.translate(result.Error()))
}

func (b behind) name() string { return b.service.Namespace + "/" + b.service.Name }

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

// Judge evaluates a gate's expression on the current state of every object that the gate selects. A kind that is not
// served is not an error.
func (c *Client) Judge(ctx context.Context, g cluster.ObjectGate) (cluster.Judged, error) {
	expr, err := expression.Compile(g.Expr)
	if err != nil {
		return cluster.Judged{}, fault.Configf("expression %q: %w", g.Expr, err)
	}
	resource, unserved, err := c.resourceOf(ctx, g)
	if err != nil || unserved != "" {
		return cluster.Judged{Unserved: foreign.Line(unserved)}, err
	}
	var j cluster.Judged
	err = c.eachObject(ctx, g, resource, func() { j = cluster.Judged{} }, func(object map[string]any) {
		j.Objects++
		if holds, why := expr.Judge(ctx, object); !holds {
			j.Failing = append(j.Failing, cluster.FailingObject{Name: nameOf(object), Why: why})
		}
	})
	return j, cmp.Or(err, ctx.Err()) // a cancelled evaluation says nothing about its object
}

func nameOf(object map[string]any) string {
	meta, _ := object["metadata"].(map[string]any)
	namespace, _ := meta["namespace"].(string)
	name, _ := meta["name"].(string)
	return foreign.Line(strings.TrimPrefix(namespace+"/"+name, "/"))
}

// resourceOf asks the API for a kind's resource; unserved says why there is none.
func (c *Client) resourceOf(ctx context.Context, g cluster.ObjectGate) (r metav1.APIResource, unserved string, err error) {
	gv, err := schema.ParseGroupVersion(g.APIVersion)
	if err != nil {
		return r, "", fault.Configf("apiVersion: %w", err)
	}
	if unserved, err := c.unservedGroup(ctx, gv); err != nil || unserved != "" {
		return r, unserved, err
	}
	list, err := c.resources(ctx, gv)
	if err != nil {
		return r, "", err
	}
	i := slices.IndexFunc(list, func(r metav1.APIResource) bool { return r.Kind == g.Kind && slices.Contains(r.Verbs, "list") })
	if i < 0 {
		kinds := cluster.Each(list, func(r metav1.APIResource) string { return r.Kind })
		slices.Sort(kinds)
		return r, fmt.Sprintf("%s has no kind %s, only %s", gv, g.Kind, strings.Join(slices.Compact(kinds), ", ")), nil
	}
	r = list[i]
	if !r.Namespaced && g.Namespace != "" {
		return r, "", fault.WithHint(fault.Refusedf("%s %s is in no namespace, so not in %s", gv, g.Kind, g.Namespace), "remove namespace from the gate in roll.gates")
	}
	if r.Namespaced && g.Namespace == "" && g.Name != "" {
		return r, "", fault.WithHint(fault.Refusedf("%s %s is in a namespace, and the gate names none", gv, g.Kind), "give the gate in roll.gates its namespace")
	}
	return r, "", nil
}

// unservedGroup says why a group's version is not served; "" if it is.
func (c *Client) unservedGroup(ctx context.Context, gv schema.GroupVersion) (string, error) {
	if gv.Group == "" {
		return "", nil
	}
	groups, err := c.groups(ctx)
	if err != nil {
		return "", err
	}
	switch served, installed := servedVersions(groups, gv.Group); {
	case !installed:
		return gv.Group + " is not installed: the API has no group of that name", nil
	case !slices.Contains(served, gv.Version):
		return fmt.Sprintf("%s is served as %s, not as %s", gv.Group, strings.Join(served, ", "), gv.Version), nil
	}
	return "", nil
}

// eachObject passes every selected object to see, after begin. A missing named object is skipped.
func (c *Client) eachObject(ctx context.Context, g cluster.ObjectGate, r metav1.APIResource, begin func(), see func(map[string]any)) error {
	what, path := "read "+r.Name, []string{"/apis", g.APIVersion}
	if !strings.Contains(g.APIVersion, "/") {
		path[0] = "/api"
	}
	if g.Namespace != "" {
		path = append(path, "namespaces", g.Namespace)
	}
	path = append(path, r.Name)
	if g.Name != "" {
		var object map[string]any
		err := c.getJSON(ctx, c.api.Discovery().RESTClient().Get().AbsPath(append(path, g.Name)...), &object)
		if errors.Is(err, cluster.ErrNotFound) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s %s: %w", what, g.Name, err)
		}
		see(object)
		return nil
	}
	request := func() *rest.Request {
		request := c.api.Discovery().RESTClient().Get().AbsPath(path...)
		if g.Labels != "" {
			request = request.Param("labelSelector", g.Labels)
		}
		return request
	}
	if err := eachJSON(ctx, c, request, begin, see); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// ParseSelector parses the syntax of kubectl -l: "zone=a,!gpu,tier in (web,db)".
func ParseSelector(text string) (cluster.Selector, error) {
	s, err := labels.Parse(text)
	switch {
	case err != nil:
		return cluster.Selector{}, fault.WithHint(fault.Configf("selector %q: %w", text, err), "it is written as for kubectl get nodes -l: key=value,key!=value,key in (a,b),key,!key")
	case s.Empty():
		return cluster.Selector{}, fault.WithHint(fault.Configf("selector %q is empty", text), "without one every node is looked at")
	}
	return cluster.Selector{Text: text, Matches: func(l map[string]string) bool { return s.Matches(labels.Set(l)) }}, nil
}

const (
	tuppr         = "tuppr.home-operations.com"
	tupprSuspend  = tuppr + "/suspend" // with any value: tuppr only checks that it exists
	systemUpgrade = "upgrade.cattle.io"
)

// OtherOwners describes programs and objects in the cluster that upgrade its nodes themselves and would undo a roll,
// or run at the same time. Suspended upgraders do neither.
func (c *Client) OtherOwners(ctx context.Context) ([]string, error) {
	groups, err := c.groups(ctx)
	if err != nil {
		return nil, err
	}
	upgrades, tupprErr := c.tupprUpgrades(ctx, groups)
	plans, plansErr := c.talosPlans(ctx, groups)
	if err := errors.Join(tupprErr, plansErr); err != nil {
		return nil, err
	}
	return slices.Concat(upgrades, plans), nil
}

type tupprTarget struct {
	Version string `json:"version"`
}

func (c *Client) tupprUpgrades(ctx context.Context, groups []metav1.APIGroup) ([]string, error) {
	gv, ok := preferred(groups, tuppr)
	if !ok {
		return nil, nil
	}
	resources, err := c.resources(ctx, gv)
	if err != nil {
		return nil, err
	}
	type upgrade struct {
		Metadata metav1.ObjectMeta `json:"metadata"`
		Spec     struct {
			Talos      tupprTarget `json:"talos"`
			Kubernetes tupprTarget `json:"kubernetes"`
		} `json:"spec"`
	}
	var owners []string
	for _, r := range resources {
		upgrades, err := listCustom[upgrade](ctx, c, gv.WithResource(r.Name), "")
		if err != nil {
			return nil, err
		}
		for _, u := range upgrades {
			if _, suspended := u.Metadata.Annotations[tupprSuspend]; suspended {
				continue
			}
			to := cmp.Or(u.Spec.Talos.Version, u.Spec.Kubernetes.Version, "a version of its own")
			owners = append(owners, foreign.Line(fmt.Sprintf("tuppr's %s %s, which brings nodes to %s", r.Kind, u.Metadata.Name, to)))
		}
	}
	return owners, nil
}

// talosPlans lists the plans of the system-upgrade-controller that concern Talos: the name or something in the spec,
// such as an image, a Secret or an argument, mentions Talos.
func (c *Client) talosPlans(ctx context.Context, groups []metav1.APIGroup) ([]string, error) {
	gv, ok := preferred(groups, systemUpgrade)
	if !ok {
		return nil, nil
	}
	type plan struct {
		Metadata metav1.ObjectMeta `json:"metadata"`
		Spec     json.RawMessage   `json:"spec"`
	}
	plans, err := listCustom[plan](ctx, c, gv.WithResource("plans"), "")
	if err != nil {
		return nil, err
	}
	owners := cluster.Where(plans, func(p plan) bool { return strings.Contains(strings.ToLower(p.Metadata.Name+string(p.Spec)), "talos") })
	return cluster.Each(owners, func(p plan) string {
		return foreign.Line(fmt.Sprintf("system-upgrade-controller's Plan %s/%s, which mentions Talos", p.Metadata.Namespace, p.Metadata.Name))
	}), nil
}
