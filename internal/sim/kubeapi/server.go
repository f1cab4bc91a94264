// Package kubeapi is the Kubernetes API of a lab: a [Server] speaks the real wire
// protocol over a small store, with the kubelets and controllers of a cluster.
package kubeapi

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"sigs.k8s.io/yaml"

	"github.com/recast-sh/recast/internal/sim/kubeapi/control"
	"github.com/recast-sh/recast/internal/sim/kubeapi/linstor"
	"github.com/recast-sh/recast/internal/sim/kubeapi/mayastor"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
	"github.com/recast-sh/recast/internal/sim/record"
)

// NodeInfo is a machine as its kubelet reports it.
type NodeInfo = control.NodeInfo

// StaticPod is a pod that a machine runs independently of the API.
type StaticPod = control.StaticPod

// Options are the options of New.
type Options struct {
	Version  string           // of a new cluster: "v1.35.4"
	Recorder *record.Recorder // records every request
	Speed    float64          // a second of the cluster takes 1/Speed seconds; 0: 1
	// Upstream is a real control plane that replaces store and controllers; nil: the lab's own.
	Upstream *Upstream
	// Refused gets the upstream's errors for the lab's kubelets.
	Refused func(error)
	// Manifests are Talos' objects in a new cluster; nil: the objects of a default configuration.
	Manifests []map[string]any
	// Storage is etcd's result for a read now, and may block like etcd; nil: etcd always answers.
	Storage func(context.Context) error
}

// Server is the API of one cluster, served on any number of listeners.
type Server struct {
	o       Options
	store   store.Store
	remote  *store.Remote // store, if it is Upstream's
	control *control.Manager
	scheme  *runtime.Scheme
	codecs  serializer.CodecFactory
	built   []store.Resource // served from the start

	closing chan struct{} // closed by Close

	mu          sync.Mutex
	defined     []store.Resource               // custom resources
	pages       map[string]kept                // of lists that can be continued
	granted     map[string]func(Request) bool  // by group
	verified    map[client][]*x509.Certificate // chains of clients' certificates
	webhook     Webhook                        // nil: none
	webhookName string
	closed      bool
	handling    sync.WaitGroup // requests and Serve calls
}

// New starts the controllers; Serve makes the API reachable. The caller closes the server.
func New(ctx context.Context, o Options) (*Server, error) {
	if o.Manifests == nil {
		var err error
		if o.Manifests, err = bootstrap(o.Version); err != nil {
			return nil, err
		}
	}
	scheme, err := store.NewScheme()
	if err != nil {
		return nil, fmt.Errorf("register kinds: %w", err)
	}
	s := &Server{
		o: o, store: store.NewMemory(), scheme: scheme, codecs: serializer.NewCodecFactory(scheme), built: store.Resources(),
		closing: make(chan struct{}), pages: map[string]kept{}, verified: map[client][]*x509.Certificate{},
	}
	if o.Upstream != nil {
		if s.remote, err = store.NewRemote(o.Upstream.base, o.Upstream.masters); err != nil {
			return nil, err
		}
		s.store = s.remote
	}
	if err := s.seed(ctx, o.Manifests); err != nil {
		return nil, err
	}
	if o.Upstream != nil {
		s.control, err = control.NewKubelets(ctx, s.store, cmp.Or(o.Speed, 1), o.Refused)
	} else {
		s.control, err = control.New(ctx, s.store, cmp.Or(o.Speed, 1), &o.Recorder.Timeline)
	}
	if err != nil {
		return nil, err
	}
	return s, nil
}

// Store returns the lab's direct access to the objects.
func (s *Server) Store() store.Store { return s.store }

// NodeUp starts the kubelet of a machine that has booted; it does not wait.
func (s *Server) NodeUp(info NodeInfo) { s.control.NodeUp(info) }

// LetIn sets the names of the machines that the servers of iSCSI and NVMe-oF let in; they refuse all others.
func (s *Server) LetIn(names ...string) { s.control.LetIn(names...) }

// NodeDown ends the kubelet of the machine with that UUID; it does not wait, and the API notices later.
func (s *Server) NodeDown(uuid string) { s.control.NodeDown(uuid) }

// StaticPods sets the static pods of the running kubelet of the machine with that UUID.
func (s *Server) StaticPods(uuid string, pods []StaticPod) { s.control.StaticPods(uuid, pods) }

// Node reads the present Node object.
func (s *Server) Node(ctx context.Context, name string) (*corev1.Node, error) {
	o, err := s.store.Get(ctx, store.Nodes(), "", name)
	if err != nil {
		return nil, err
	}
	return o.(*corev1.Node).DeepCopy(), nil
}

// NodeNow returns the Node object without a copy: the caller must not change it.
func (s *Server) NodeNow(ctx context.Context, name string) (*corev1.Node, error) {
	o, err := s.store.Get(ctx, store.Nodes(), "", name)
	if err != nil {
		return nil, err
	}
	return o.(*corev1.Node), nil
}

// Identity says which of a cluster's API servers answers.
type Identity struct {
	Version     string
	Certificate *tls.Certificate
	ClientCA    *x509.CertPool // issuers of clients' certificates; O=system:masters may do everything, others what is granted
	Unready     bool           // the API server answers, but its start never completes
}

// identityKey is the context key of a request's Identity.
type identityKey struct{}

// As returns the context of requests to one of the cluster's API servers.
func (*Server) As(ctx context.Context, who Identity) context.Context {
	return context.WithValue(ctx, identityKey{}, who)
}

// Serve answers on l as one of the cluster's API servers until l, the server or ctx ends, then closes the connections
// of l. The controllers keep running.
func (s *Server) Serve(ctx context.Context, l net.Listener, who Identity) error {
	if !s.enter() {
		return l.Close()
	}
	defer s.handling.Done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.handling.Go(func() {
		defer cancel()
		select {
		case <-s.closing:
		case <-ctx.Done():
		}
		_ = l.Close() // it may be closed already
	})
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	srv := &http.Server{
		Handler:   s,
		Protocols: protocols,
		// Any certificate is accepted here: the API answers invalid ones with a status.
		TLSConfig:         &tls.Config{Certificates: []tls.Certificate{*who.Certificate}, ClientAuth: tls.RequestClientCert, MinVersion: tls.VersionTLS12},
		BaseContext:       func(net.Listener) context.Context { return s.As(ctx, who) },
		ReadHeaderTimeout: 30 * time.Second,
		ErrorLog:          log.New(io.Discard, "", 0), // tests break connections
	}
	err := srv.ServeTLS(l, "", "")
	over := ctx.Err() != nil || errors.Is(err, net.ErrClosed)
	cancel()
	_ = srv.Close() // the listener is closed already
	if over {
		return nil
	}
	return err
}

// enter counts a request or a listener, unless the server is closed.
func (s *Server) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.handling.Add(1)
	return true
}

// Close ends watches, requests, listeners and controllers, and returns when all of them have ended.
func (s *Server) Close() error {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		close(s.closing)
	}
	s.mu.Unlock()
	s.handling.Wait()
	return s.control.Close()
}

func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !s.enter() {
		panic(http.ErrAbortHandler)
	}
	defer s.handling.Done()
	user := s.authenticate(r)
	t := s.target(r.URL.Path)
	call := record.Call{
		Proto: "kubernetes", Target: t.node(), Method: r.Method, Path: r.URL.RequestURI(), User: user.name,
		Mutation: r.Method != http.MethodGet && r.Method != http.MethodHead,
	}
	if s.o.Recorder.Await(r.Context(), "kubernetes") != nil {
		panic(http.ErrAbortHandler)
	}
	call, err := s.o.Recorder.Begin(call)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	if s.o.Upstream != nil {
		s.pass(w, r, user, call)
		return
	}
	a := s.answer(r, user, t)
	s.o.Recorder.End(call)
	if a.watch == nil {
		w = s.o.Recorder.Counted(w, call)
	}
	s.write(w, r, a)
}

// masters is the group whose members may do everything; others may do what Grant allows.
const masters = "system:masters"

// reviews is where everybody may ask for their own permissions (system:basic-user).
const reviews = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"

type user struct {
	name   string // "": anonymous
	groups []string
}

// Grant sets what the members of a group may do.
func (s *Server) Grant(group string, may func(Request) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.granted == nil {
		s.granted = map[string]func(Request) bool{}
	}
	s.granted[group] = may
}

// authenticate takes user and groups from the CN and O of the client certificate, as Kubernetes does.
func (s *Server) authenticate(r *http.Request) user {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return user{}
	}
	cert := r.TLS.PeerCertificates[0]
	who, _ := r.Context().Value(identityKey{}).(Identity)
	if who.ClientCA == nil || !s.verifies(cert, who.ClientCA, time.Now()) {
		return user{}
	}
	return user{name: cert.Subject.CommonName, groups: cert.Subject.Organization}
}

// client is a certificate in DER, and the issuers that an API server trusts.
type client struct {
	cert   string
	issuer *x509.CertPool
}

// verifies reports whether a certificate is valid now. Its chains are cached.
func (s *Server) verifies(cert *x509.Certificate, issuer *x509.CertPool, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	who := client{string(cert.Raw), issuer}
	chain, known := s.verified[who]
	if !known {
		chains, err := cert.Verify(x509.VerifyOptions{Roots: issuer, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
		if err != nil {
			return false
		}
		chain = chains[0]
		s.verified[who] = chain
	}
	return !slices.ContainsFunc(chain, func(c *x509.Certificate) bool { return now.Before(c.NotBefore) || now.After(c.NotAfter) })
}

func (s *Server) may(u user, r Request) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(u.groups, func(group string) bool {
		may := s.granted[group]
		return group == masters || may != nil && may(r)
	})
}

// authorize refuses unknown users with 401 and others without permission with 403. Health,
// version and reviews are open to everybody.
func (s *Server) authorize(u user, r *http.Request, t target) error {
	switch r.URL.Path {
	case "/healthz", "/livez", "/readyz", "/version":
		return nil
	}
	if u.name == "" {
		return apierrors.NewUnauthorized("Unauthorized")
	}
	asked := t.request(t.verb(r))
	if r.URL.Path == reviews || s.may(u, asked) {
		return nil
	}
	where := "at the cluster scope"
	if t.namespace != "" {
		where = fmt.Sprintf("in the namespace %q", t.namespace)
	}
	return apierrors.NewForbidden(schema.GroupResource{Group: t.resource.Group, Resource: t.resource.Resource}, t.name,
		//lint:ignore ST1005 the API server's own wording
		fmt.Errorf("User %q cannot %s resource %q in API group %q %s", u.name, asked.Verb, asked.Resource, t.resource.Group, where))
}

// review answers whether the user may do something.
func (s *Server) review(r *http.Request, u user) answer {
	b, err := read(r)
	if err != nil {
		return failed(err)
	}
	decoded, err := s.decode(b, authorizationv1.SchemeGroupVersion.WithKind("SelfSubjectAccessReview"))
	if err != nil {
		return failed(err)
	}
	review, ok := decoded.(*authorizationv1.SelfSubjectAccessReview)
	if !ok || review.Spec.ResourceAttributes == nil {
		return failed(apierrors.NewBadRequest("only SelfSubjectAccessReviews of resources are served"))
	}
	a := review.Spec.ResourceAttributes
	resource := strings.TrimSuffix(a.Resource+"/"+a.Subresource, "/")
	review.Status.Allowed = s.may(u, Request{Verb: a.Verb, Resource: resource, Namespace: a.Namespace, Name: a.Name})
	return answer{code: http.StatusCreated, body: review}
}

// Request is what a webhook or the authorization decides on.
type Request struct {
	Verb            string // "create", "delete", …
	Resource        string // with its subresource: "pods/eviction"
	Namespace, Name string
}

// Webhook denies a request with a status, or admits it with nil.
type Webhook func(Request) *metav1.Status

// SetWebhook sets a validating admission webhook of that name for all changes; nil removes it.
func (s *Server) SetWebhook(name string, w Webhook) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.webhookName, s.webhook = name, w
}

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
	s.mu.Lock()
	name, hook := s.webhookName, s.webhook
	s.mu.Unlock()
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

// deniedBy returns the server's error for a webhook's denial (ToStatusErr in apiserver's
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

// Upstream is a real control plane behind the lab's Kubernetes API: a real API server stores the objects, real
// controllers and a real scheduler work on them, and the lab only provides kubelets.
type Upstream struct {
	base      *url.URL
	masters   *http.Transport // with the credentials of a user who may do everything
	anonymous *http.Transport // without credentials
}

// ReadUpstream reads the control plane's address and the credentials of a user who may do everything from a kubeconfig
// with inline certificates. A nil dial uses the network of this machine. The caller closes it.
func ReadUpstream(kubeconfig []byte, dial func(ctx context.Context, network, addr string) (net.Conn, error)) (*Upstream, error) {
	var file struct {
		Clusters []struct {
			Cluster struct {
				Server string `json:"server"`
				CA     []byte `json:"certificate-authority-data"`
			} `json:"cluster"`
		} `json:"clusters"`
		Users []struct {
			User struct {
				Certificate []byte `json:"client-certificate-data"`
				Key         []byte `json:"client-key-data"`
			} `json:"user"`
		} `json:"users"`
	}
	if err := yaml.Unmarshal(kubeconfig, &file); err != nil {
		return nil, fmt.Errorf("read kubeconfig of the control plane: %w", err)
	}
	if len(file.Clusters) != 1 || len(file.Users) != 1 {
		return nil, errors.New("read kubeconfig of the control plane: it has to have one cluster and one user")
	}
	base, err := url.Parse(file.Clusters[0].Cluster.Server)
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig of the control plane: %w", err)
	}
	pair, err := tls.X509KeyPair(file.Users[0].User.Certificate, file.Users[0].User.Key)
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig of the control plane: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(file.Clusters[0].Cluster.CA) {
		return nil, errors.New("read kubeconfig of the control plane: no certificate authority in it")
	}
	transport := func(certificates ...tls.Certificate) *http.Transport {
		return &http.Transport{
			TLSClientConfig:     &tls.Config{RootCAs: roots, Certificates: certificates, MinVersion: tls.VersionTLS12},
			MaxIdleConnsPerHost: 16,
			DialContext:         dial,
		}
	}
	return &Upstream{base: base, masters: transport(pair), anonymous: transport()}, nil
}

// Close closes idle connections.
func (u *Upstream) Close() error {
	u.masters.CloseIdleConnections()
	u.anonymous.CloseIdleConnections()
	return nil
}

// The headers for impersonation.
const (
	asUser  = "Impersonate-User"
	asGroup = "Impersonate-Group"
)

// pass forwards a request, unless the request needs the etcd of the lab's own machines and this etcd does not answer.
// A watch is recorded as ended when it begins.
func (s *Server) pass(w http.ResponseWriter, r *http.Request, u user, call record.Call) {
	if s.o.Storage != nil && ofObjects(r.URL.Path) {
		if err := s.o.Storage(r.Context()); err != nil {
			s.o.Recorder.End(call)
			s.write(w, r, unstored(err))
			return
		}
	}
	if isWatch(r) {
		s.o.Recorder.End(call)
	} else {
		defer s.o.Recorder.End(call)
	}
	s.forward(w, r, u)
}

// ofObjects reports whether a path names objects: more than a group and its version.
func ofObjects(path string) bool {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	return parts[0] == "api" && len(parts) > 2 || parts[0] == "apis" && len(parts) > 3
}

// forward forwards a request to the real API server. The real API server does not trust the client's certificate,
// which is the lab's, so the request impersonates the user.
func (s *Server) forward(w http.ResponseWriter, r *http.Request, u user) {
	up := s.o.Upstream
	asOther := r.Header.Get(asUser) != ""
	if asOther && u.name != "" && !slices.Contains(u.groups, masters) {
		s.write(w, r, failed(apierrors.NewForbidden(s.target(r.URL.Path).resource.GroupResource(), "",
			fmt.Errorf("user %q cannot impersonate", u.name))))
		return
	}
	proxy := &httputil.ReverseProxy{
		Transport:     up.anonymous,
		FlushInterval: -1, // a watch is sent without buffering
		ErrorLog:      log.New(io.Discard, "", 0),
		Rewrite: func(p *httputil.ProxyRequest) {
			p.SetURL(up.base)
			if u.name == "" || asOther {
				return
			}
			p.Out.Header.Set(asUser, u.name)
			p.Out.Header[asGroup] = slices.Clone(u.groups)
		},
		// An API server that is down sends no answer.
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	if u.name != "" {
		proxy.Transport = up.masters
	}
	proxy.ServeHTTP(w, r)
}

// Kubeconfig returns a kubeconfig file with inline certificates, like talosctl's. The server is a URL; the rest is PEM.
func Kubeconfig(cluster, server string, ca, cert, key []byte) ([]byte, error) {
	encode := base64.StdEncoding.EncodeToString
	user := "admin@" + cluster
	b, err := yaml.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Config", "current-context": user,
		"clusters": []any{map[string]any{"name": cluster, "cluster": map[string]any{
			"server": server, "certificate-authority-data": encode(ca),
		}}},
		"users": []any{map[string]any{"name": user, "user": map[string]any{
			"client-certificate-data": encode(cert), "client-key-data": encode(key),
		}}},
		"contexts": []any{map[string]any{"name": user, "context": map[string]any{
			"cluster": cluster, "user": user, "namespace": "default",
		}}},
	})
	if err != nil {
		return nil, fmt.Errorf("encode kubeconfig: %w", err)
	}
	return b, nil
}
