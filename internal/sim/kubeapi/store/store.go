// Package store keeps the Kubernetes objects of a lab: in [Memory], or in a real API
// server ([Remote]), both behind the interface [Store].
package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

// Object is any Kubernetes object that has metadata.
type Object interface {
	runtime.Object
	metav1.Object
}

// Part says which part of an object an update may change.
type Part string

// The parts. An update of one part leaves the rest unchanged.
const (
	Main   Part = ""
	Status Part = "status"
	Whole  Part = "whole" // both: a custom resource without a status subresource
)

// Store reads and writes objects as an API server would: it assigns UIDs, revisions and generations, refuses stale
// writes, deletes pods gracefully and waits for finalizers. Errors are API statuses.
//
// Returned objects are shared: copy one before changing it.
type Store interface {
	Get(ctx context.Context, r schema.GroupVersionResource, namespace, name string) (Object, error)
	// List returns the objects of a namespace ("" for all), ordered by namespace
	// and name, and the revision at which they were read.
	List(ctx context.Context, r schema.GroupVersionResource, namespace string) ([]Object, string, error)
	Create(ctx context.Context, r schema.GroupVersionResource, obj Object) (Object, error)
	// Update writes one part. A revision in obj that is not the latest is a conflict.
	Update(ctx context.Context, r schema.GroupVersionResource, obj Object, part Part) (Object, error)
	// Delete returns the deleted object, or the object with its deletion timestamp.
	Delete(ctx context.Context, r schema.GroupVersionResource, namespace, name string, o metav1.DeleteOptions) (Object, error)
	// Watch starts after that revision, or now if it is "".
	Watch(ctx context.Context, r schema.GroupVersionResource, revision string) (Watch, error)
}

// Event is a change of one object.
type Event struct {
	Type   watch.EventType
	Object Object
	Before Object // nil for an added object
}

// Watch yields the changes of one resource in order.
type Watch interface {
	// Next waits for the next change, or until ctx ends. A Gone error says that the reader was
	// too slow and must list again.
	Next(ctx context.Context) (Event, error)
	Stop()
}

// Resource is one kind of object that a lab's API serves.
type Resource struct {
	schema.GroupVersionResource
	Kind       string
	Short      []string // short names of kubectl: "po"
	Categories []string // names of kubectl for several kinds: "all"
	Namespaced bool
	Status     bool // has a status subresource
}

// GVK returns the kind with its group and version.
func (r Resource) GVK() schema.GroupVersionKind { return r.GroupVersion().WithKind(r.Kind) }

var (
	core    = corev1.SchemeGroupVersion.WithResource
	apps    = appsv1.SchemeGroupVersion.WithResource
	storage = storagev1.SchemeGroupVersion.WithResource
)

// The resources that the lab itself works with.

func Nodes() schema.GroupVersionResource        { return core("nodes") }
func Namespaces() schema.GroupVersionResource   { return core("namespaces") }
func Pods() schema.GroupVersionResource         { return core("pods") }
func Services() schema.GroupVersionResource     { return core("services") }
func Volumes() schema.GroupVersionResource      { return core("persistentvolumes") }
func Claims() schema.GroupVersionResource       { return core("persistentvolumeclaims") }
func DaemonSets() schema.GroupVersionResource   { return apps("daemonsets") }
func Deployments() schema.GroupVersionResource  { return apps("deployments") }
func ReplicaSets() schema.GroupVersionResource  { return apps("replicasets") }
func StatefulSets() schema.GroupVersionResource { return apps("statefulsets") }
func Budgets() schema.GroupVersionResource {
	return policyv1.SchemeGroupVersion.WithResource("poddisruptionbudgets")
}
func Attachments() schema.GroupVersionResource { return storage("volumeattachments") }
func Leases() schema.GroupVersionResource {
	return coordinationv1.SchemeGroupVersion.WithResource("leases")
}

func CertificateRequests() schema.GroupVersionResource {
	return certificatesv1.SchemeGroupVersion.WithResource("certificatesigningrequests")
}

// Resources lists the resources that are served from the start, in discovery's order.
func Resources() []Resource {
	all := []string{"all"}
	return []Resource{
		{GroupVersionResource: core("configmaps"), Kind: "ConfigMap", Short: []string{"cm"}, Namespaced: true},
		{GroupVersionResource: core("events"), Kind: "Event", Short: []string{"ev"}, Namespaced: true},
		{GroupVersionResource: Namespaces(), Kind: "Namespace", Short: []string{"ns"}, Status: true},
		{GroupVersionResource: Nodes(), Kind: "Node", Short: []string{"no"}, Status: true},
		{GroupVersionResource: Claims(), Kind: "PersistentVolumeClaim", Short: []string{"pvc"}, Namespaced: true, Status: true},
		{GroupVersionResource: Volumes(), Kind: "PersistentVolume", Short: []string{"pv"}, Status: true},
		{GroupVersionResource: Pods(), Kind: "Pod", Short: []string{"po"}, Categories: all, Namespaced: true, Status: true},
		{GroupVersionResource: core("secrets"), Kind: "Secret", Namespaced: true},
		{GroupVersionResource: core("serviceaccounts"), Kind: "ServiceAccount", Short: []string{"sa"}, Namespaced: true},
		{GroupVersionResource: Services(), Kind: "Service", Short: []string{"svc"}, Categories: all, Namespaced: true, Status: true},
		{GroupVersionResource: DaemonSets(), Kind: "DaemonSet", Short: []string{"ds"}, Categories: all, Namespaced: true, Status: true},
		{GroupVersionResource: Deployments(), Kind: "Deployment", Short: []string{"deploy"}, Categories: all, Namespaced: true, Status: true},
		{GroupVersionResource: ReplicaSets(), Kind: "ReplicaSet", Short: []string{"rs"}, Categories: all, Namespaced: true, Status: true},
		{GroupVersionResource: StatefulSets(), Kind: "StatefulSet", Short: []string{"sts"}, Categories: all, Namespaced: true, Status: true},
		{
			GroupVersionResource: CertificateRequests(),
			Kind:                 "CertificateSigningRequest", Short: []string{"csr"}, Status: true,
		},
		{GroupVersionResource: Leases(), Kind: "Lease", Namespaced: true},
		{GroupVersionResource: Budgets(), Kind: "PodDisruptionBudget", Short: []string{"pdb"}, Namespaced: true, Status: true},
		{GroupVersionResource: rbacv1.SchemeGroupVersion.WithResource("clusterrolebindings"), Kind: "ClusterRoleBinding"},
		{GroupVersionResource: rbacv1.SchemeGroupVersion.WithResource("clusterroles"), Kind: "ClusterRole"},
		{GroupVersionResource: rbacv1.SchemeGroupVersion.WithResource("rolebindings"), Kind: "RoleBinding", Namespaced: true},
		{GroupVersionResource: rbacv1.SchemeGroupVersion.WithResource("roles"), Kind: "Role", Namespaced: true},
		{GroupVersionResource: storage("csinodes"), Kind: "CSINode"},
		{GroupVersionResource: storage("storageclasses"), Kind: "StorageClass", Short: []string{"sc"}},
		{GroupVersionResource: Attachments(), Kind: "VolumeAttachment", Status: true},
	}
}

// BuiltIn reports whether a resource is built in (see Resources), not custom.
func BuiltIn(r Resource) bool {
	return slices.ContainsFunc(Resources(), func(b Resource) bool { return b.GroupVersionResource == r.GroupVersionResource })
}

// NewScheme returns a scheme with the Go types of all resources and of other objects that clients send.
func NewScheme() (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	add := runtime.NewSchemeBuilder(
		corev1.AddToScheme, appsv1.AddToScheme, policyv1.AddToScheme,
		rbacv1.AddToScheme, storagev1.AddToScheme, coordinationv1.AddToScheme, certificatesv1.AddToScheme, authorizationv1.AddToScheme,
	)
	return s, add.AddToScheme(s)
}

// historyKept is the number of changes that a slow watcher may lag behind.
const historyKept = 8192

type key struct{ namespace, name string }

func (k key) compare(o key) int {
	return cmp.Or(cmp.Compare(k.namespace, o.namespace), cmp.Compare(k.name, o.name))
}

// Memory is a Store in memory. UIDs and generated names come from a counter, so that they are deterministic.
type Memory struct {
	mu       sync.Mutex
	objects  map[schema.GroupVersionResource]map[key]Object
	sorted   map[schema.GroupVersionResource][]Object // cached lists of a resource, by key, until an object changes
	revision uint64
	made     uint64 // number of objects and names made so far
	history  []change
	changed  chan struct{} // closed at the next change
}

var _ Store = (*Memory)(nil)

// NewMemory returns an empty store.
func NewMemory() *Memory {
	return &Memory{
		objects: map[schema.GroupVersionResource]map[key]Object{},
		sorted:  map[schema.GroupVersionResource][]Object{},
		changed: make(chan struct{}),
	}
}

func (m *Memory) Get(_ context.Context, r schema.GroupVersionResource, namespace, name string) (Object, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.get(r, key{namespace, name})
}

func (m *Memory) get(r schema.GroupVersionResource, k key) (Object, error) {
	obj, ok := m.objects[r][k]
	if !ok {
		return nil, apierrors.NewNotFound(r.GroupResource(), k.name)
	}
	return obj, nil
}

func (m *Memory) List(_ context.Context, r schema.GroupVersionResource, namespace string) ([]Object, string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	elsewhere := func(o Object) bool { return namespace != "" && o.GetNamespace() != namespace }
	return slices.DeleteFunc(slices.Clone(m.all(r)), elsewhere), m.revisionString(), nil
}

// all lists the objects of a resource by key. The caller must not change the list.
func (m *Memory) all(r schema.GroupVersionResource) []Object {
	list, known := m.sorted[r]
	if !known {
		for _, k := range slices.SortedFunc(maps.Keys(m.objects[r]), key.compare) {
			list = append(list, m.objects[r][k])
		}
		m.sorted[r] = list
	}
	return list
}

func (m *Memory) Create(_ context.Context, r schema.GroupVersionResource, obj Object) (Object, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	fresh := duplicate(obj)
	if fresh.GetName() == "" {
		if fresh.GetGenerateName() == "" {
			return nil, apierrors.NewBadRequest("name or generateName is required")
		}
		fresh.SetName(fresh.GetGenerateName() + m.suffix())
	}
	k := key{fresh.GetNamespace(), fresh.GetName()}
	if _, ok := m.objects[r][k]; ok {
		return nil, apierrors.NewAlreadyExists(r.GroupResource(), k.name)
	}
	if fresh.GetResourceVersion() != "" {
		return nil, apierrors.NewBadRequest("resourceVersion should not be set on objects to be created")
	}
	m.made++
	fresh.SetUID(types.UID(fmt.Sprintf("00000000-0000-4000-8000-%012x", m.made)))
	fresh.SetCreationTimestamp(metav1.Time{Time: time.Now().Truncate(time.Second)})
	fresh.SetDeletionTimestamp(nil)
	fresh.SetGeneration(1)
	prepare(fresh)
	m.put(r, watch.Added, fresh, nil)
	return fresh, nil
}

// prepare sets the server's own fields of a new object (PrepareForCreate in the strategies
// of Kubernetes' registry/core).
func prepare(fresh Object) {
	switch o := fresh.(type) {
	case *corev1.Pod:
		o.Status.Phase = cmp.Or(o.Status.Phase, corev1.PodPending)
	case *corev1.Namespace:
		o.Status.Phase = corev1.NamespaceActive
		o.Spec.Finalizers = []corev1.FinalizerName{corev1.FinalizerKubernetes}
	}
}

func (m *Memory) suffix() string {
	const alphabet = "bcdfghjklmnpqrstvwxz2456789" // as Kubernetes: no vowels, no look-alikes
	m.made++
	h := fnv.New64a()
	_, _ = h.Write([]byte(strconv.FormatUint(m.made, 10))) // a hash never fails
	sum := h.Sum64()
	b := make([]byte, 5)
	for i := range b {
		b[i] = alphabet[sum%uint64(len(alphabet))]
		sum /= uint64(len(alphabet))
	}
	return string(b)
}

func (m *Memory) Update(_ context.Context, r schema.GroupVersionResource, obj Object, part Part) (Object, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	k := key{obj.GetNamespace(), obj.GetName()}
	old, err := m.get(r, k)
	if err != nil {
		return nil, err
	}
	fresh, err := Preview(r, old, obj, part)
	if err != nil {
		return nil, err
	}
	if fresh == old {
		return old, nil
	}
	if fresh.GetDeletionTimestamp() != nil && len(fresh.GetFinalizers()) == 0 && len(old.GetFinalizers()) > 0 {
		m.remove(r, k, fresh, old)
		return fresh, nil
	}
	m.put(r, watch.Modified, fresh, old)
	return fresh, nil
}

// Preview returns the result of an update: old itself if nothing changes.
func Preview(r schema.GroupVersionResource, old, obj Object, part Part) (Object, error) {
	if err := sameAs(r, old, obj); err != nil {
		return nil, err
	}
	fresh, changed := merge(old, obj, part)
	if !changed {
		return old, nil
	}
	return fresh, nil
}

// sameAs refuses a write for another object or another revision of it.
func sameAs(r schema.GroupVersionResource, old, obj Object) error {
	if rv := obj.GetResourceVersion(); rv != "" && rv != old.GetResourceVersion() {
		return apierrors.NewConflict(r.GroupResource(), obj.GetName(),
			fmt.Errorf("the object has been modified; please apply your changes to the latest version and try again"))
	}
	if uid := obj.GetUID(); uid != "" && uid != old.GetUID() {
		return apierrors.NewConflict(r.GroupResource(), obj.GetName(),
			fmt.Errorf("precondition failed: UID in precondition: %s, UID in object meta: %s", uid, old.GetUID()))
	}
	return nil
}

// Objects returns all objects by resource.
func (m *Memory) Objects() map[schema.GroupVersionResource][]Object {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := map[schema.GroupVersionResource][]Object{}
	for r := range m.objects {
		out[r] = slices.Clone(m.all(r))
	}
	return out
}

// Replace makes the store contain exactly these objects, with their UIDs. Their new revisions are higher than all
// earlier revisions: the lab's controllers keep watching, and must not see revisions go back.
func (m *Memory) Replace(objects map[schema.GroupVersionResource][]Object) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range slices.SortedFunc(maps.Keys(m.objects), compareResources) {
		for _, k := range slices.SortedFunc(maps.Keys(m.objects[r]), key.compare) {
			stays := slices.ContainsFunc(objects[r], func(o Object) bool { return k == key{o.GetNamespace(), o.GetName()} })
			if old := m.objects[r][k]; !stays {
				m.remove(r, k, duplicate(old), old)
			}
		}
	}
	for _, r := range slices.SortedFunc(maps.Keys(objects), compareResources) {
		for _, o := range objects[r] {
			old, event := m.objects[r][key{o.GetNamespace(), o.GetName()}], watch.Modified
			if old == nil {
				event = watch.Added
			}
			m.put(r, event, duplicate(o), old)
		}
	}
}

func compareResources(a, b schema.GroupVersionResource) int {
	return cmp.Compare(a.String(), b.String())
}

// put stores fresh under a new revision and notifies the watchers.
func (m *Memory) put(r schema.GroupVersionResource, t watch.EventType, fresh, old Object) {
	m.revision++
	fresh.SetResourceVersion(m.revisionString())
	if m.objects[r] == nil {
		m.objects[r] = map[key]Object{}
	}
	m.objects[r][key{fresh.GetNamespace(), fresh.GetName()}] = fresh
	delete(m.sorted, r)
	m.tell(r, Event{Type: t, Object: fresh, Before: old})
}

// remove removes an object; last is its final state for watchers.
func (m *Memory) remove(r schema.GroupVersionResource, k key, last, old Object) {
	m.revision++
	last.SetResourceVersion(m.revisionString())
	delete(m.objects[r], k)
	delete(m.sorted, r)
	m.tell(r, Event{Type: watch.Deleted, Object: last, Before: old})
}

// Revision returns the revision of the last write.
func (m *Memory) Revision() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.revision
}

func (m *Memory) revisionString() string { return strconv.FormatUint(m.revision, 10) }

// Delete removes an object, or marks the object if something must happen first: a kubelet ends the pods of its node,
// finalizers must be removed, and a namespace's controller deletes its content.
func (m *Memory) Delete(_ context.Context, r schema.GroupVersionResource, namespace, name string, o metav1.DeleteOptions) (Object, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	k := key{namespace, name}
	old, err := m.get(r, k)
	if err != nil {
		return nil, err
	}
	if err := preconditions(r, old, o.Preconditions); err != nil {
		return nil, err
	}
	fresh := duplicate(old)
	grace := gracePeriod(old, o)
	ns, _ := fresh.(*corev1.Namespace)
	if grace == 0 && len(old.GetFinalizers()) == 0 && (ns == nil || len(ns.Spec.Finalizers) == 0) {
		m.remove(r, k, fresh, old)
		return fresh, nil
	}
	deadline := metav1.Time{Time: time.Now().Add(time.Duration(grace) * time.Second).Truncate(time.Second)}
	if at := old.GetDeletionTimestamp(); at != nil && !deadline.Before(at) {
		return old, nil
	}
	fresh.SetDeletionTimestamp(&deadline)
	fresh.SetDeletionGracePeriodSeconds(&grace)
	if ns != nil {
		ns.Status.Phase = corev1.NamespaceTerminating
	}
	m.put(r, watch.Modified, fresh, old)
	return fresh, nil
}

func preconditions(r schema.GroupVersionResource, old Object, p *metav1.Preconditions) error {
	if p == nil {
		return nil
	}
	if p.UID != nil && *p.UID != old.GetUID() {
		return apierrors.NewConflict(r.GroupResource(), old.GetName(),
			fmt.Errorf("precondition failed: UID in precondition: %s, UID in object meta: %s", *p.UID, old.GetUID()))
	}
	if p.ResourceVersion != nil && *p.ResourceVersion != old.GetResourceVersion() {
		return apierrors.NewConflict(r.GroupResource(), old.GetName(),
			fmt.Errorf("precondition failed: ResourceVersion in precondition: %s, ResourceVersion in object meta: %s",
				*p.ResourceVersion, old.GetResourceVersion()))
	}
	return nil
}

func gracePeriod(obj Object, o metav1.DeleteOptions) int64 {
	pod, ok := obj.(*corev1.Pod)
	if !ok || pod.Spec.NodeName == "" || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return 0
	}
	if o.GracePeriodSeconds != nil {
		return max(0, *o.GracePeriodSeconds)
	}
	if s := pod.Spec.TerminationGracePeriodSeconds; s != nil {
		return *s
	}
	return corev1.DefaultTerminationGracePeriodSeconds
}

func duplicate(obj Object) Object { return obj.DeepCopyObject().(Object) }

// merge returns old with one part of obj, and reports whether the result differs from old. Fields of the server stay
// unchanged.
func merge(old, obj Object, part Part) (Object, bool) {
	var fresh Object
	if part == Status {
		fresh = duplicate(old)
		copyField(fresh, duplicate(obj), "Status")
	} else {
		fresh = duplicate(obj)
		if part != Whole {
			copyField(fresh, duplicate(old), "Status")
		}
		fresh.SetUID(old.GetUID())
		fresh.SetCreationTimestamp(old.GetCreationTimestamp())
		fresh.SetDeletionTimestamp(old.GetDeletionTimestamp())
		fresh.SetDeletionGracePeriodSeconds(old.GetDeletionGracePeriodSeconds())
		fresh.SetGeneration(old.GetGeneration())
		if !equality.Semantic.DeepEqual(field(old, "Spec"), field(fresh, "Spec")) {
			fresh.SetGeneration(old.GetGeneration() + 1)
		}
	}
	fresh.SetResourceVersion(old.GetResourceVersion())
	fresh.GetObjectKind().SetGroupVersionKind(old.GetObjectKind().GroupVersionKind())
	return fresh, !equality.Semantic.DeepEqual(old, fresh)
}

func field(obj Object, name string) any {
	if u, ok := obj.(*unstructured.Unstructured); ok {
		return u.Object[strings.ToLower(name)]
	}
	f := reflect.ValueOf(obj).Elem().FieldByName(name)
	if !f.IsValid() {
		return nil
	}
	return f.Interface()
}

func copyField(to, from Object, name string) {
	if u, ok := to.(*unstructured.Unstructured); ok {
		if v := field(from, name); v != nil {
			u.Object[strings.ToLower(name)] = v
		} else {
			delete(u.Object, strings.ToLower(name))
		}
		return
	}
	if f := reflect.ValueOf(to).Elem().FieldByName(name); f.IsValid() {
		f.Set(reflect.ValueOf(from).Elem().FieldByName(name))
	}
}

// ClearStatus clears the status, which a client may not set at creation.
func ClearStatus(obj Object) {
	if u, ok := obj.(*unstructured.Unstructured); ok {
		delete(u.Object, "status")
		return
	}
	if f := reflect.ValueOf(obj).Elem().FieldByName("Status"); f.IsValid() {
		f.SetZero()
	}
}

type change struct {
	revision uint64
	resource schema.GroupVersionResource
	event    Event
}

// tell appends to the history and wakes the watchers.
func (m *Memory) tell(r schema.GroupVersionResource, e Event) {
	m.history = append(m.history, change{revision: m.revision, resource: r, event: e})
	if len(m.history) >= 2*historyKept {
		m.history = append([]change(nil), m.history[len(m.history)-historyKept:]...)
	}
	close(m.changed)
	m.changed = make(chan struct{})
}

// Watch reads the history from a revision on.
func (m *Memory) Watch(_ context.Context, r schema.GroupVersionResource, revision string) (Watch, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	w := &memoryWatch{store: m, resource: r, seen: m.revision}
	if revision != "" {
		seen, err := strconv.ParseUint(revision, 10, 64)
		if err != nil {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("invalid resource version %q", revision))
		}
		w.seen = seen
	}
	return w, nil
}

type memoryWatch struct {
	store    *Memory
	resource schema.GroupVersionResource
	seen     uint64 // revision
}

var _ Watch = (*memoryWatch)(nil)

func (w *memoryWatch) Next(ctx context.Context) (Event, error) {
	for {
		e, ok, changed, err := w.step()
		if ok || err != nil {
			return e, err
		}
		select {
		case <-ctx.Done():
			return Event{}, context.Cause(ctx)
		case <-changed:
		}
	}
}

// step does not wait: it returns an event, or the channel that is closed at the next change.
func (w *memoryWatch) step() (e Event, ok bool, changed <-chan struct{}, err error) {
	m := w.store
	m.mu.Lock()
	defer m.mu.Unlock()
	if w.seen >= m.revision {
		return Event{}, false, m.changed, nil
	}
	// Every change has its own revision, so the history has no gaps.
	first := m.history[0].revision
	if w.seen+1 < first {
		return Event{}, false, nil, apierrors.NewResourceExpired(
			fmt.Sprintf("too old resource version: %d (%d)", w.seen, first))
	}
	for _, c := range m.history[w.seen+1-first:] {
		w.seen = c.revision
		if c.resource == w.resource {
			return c.event, true, nil, nil
		}
	}
	return Event{}, false, m.changed, nil
}

// Stop does nothing: a watch in memory is only a position.
func (w *memoryWatch) Stop() {}

// Remote is a Store on a real API server, which assigns UIDs and revisions, validates and refuses.
type Remote struct {
	client dynamic.Interface
	scheme *runtime.Scheme
}

var _ Store = (*Remote)(nil)

// NewRemote makes the store of the server at base. transport has the credentials of a user who may do everything; the
// caller closes the transport.
func NewRemote(base *url.URL, transport http.RoundTripper) (*Remote, error) {
	scheme, err := NewScheme()
	if err != nil {
		return nil, fmt.Errorf("register kinds: %w", err)
	}
	unlimited := &rest.Config{Host: base.String(), UserAgent: "lab", QPS: -1}
	client, err := dynamic.NewForConfigAndClient(unlimited, &http.Client{Transport: transport})
	if err != nil {
		return nil, fmt.Errorf("make the API server's client: %w", err)
	}
	return &Remote{client: client, scheme: scheme}, nil
}

func (s *Remote) Get(ctx context.Context, r schema.GroupVersionResource, namespace, name string) (Object, error) {
	return s.typed(r)(s.client.Resource(r).Namespace(namespace).Get(ctx, name, metav1.GetOptions{}))
}

// List reads all pages in one request: no lab's cluster is too large for that.
func (s *Remote) List(ctx context.Context, r schema.GroupVersionResource, namespace string) ([]Object, string, error) {
	list, err := s.client.Resource(r).Namespace(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, "", err
	}
	objects := make([]Object, 0, len(list.Items))
	for i := range list.Items {
		o, err := s.typed(r)(&list.Items[i], nil)
		if err != nil {
			return nil, "", err
		}
		objects = append(objects, o)
	}
	slices.SortFunc(objects, func(a, b Object) int {
		return cmp.Or(cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()))
	})
	return objects, list.GetResourceVersion(), nil
}

// Create creates an object. As for any client, its status is dropped.
func (s *Remote) Create(ctx context.Context, r schema.GroupVersionResource, obj Object) (Object, error) {
	u, err := loose(r, obj)
	if err != nil {
		return nil, err
	}
	return s.typed(r)(s.client.Resource(r).Namespace(obj.GetNamespace()).Create(ctx, u, metav1.CreateOptions{}))
}

// Update writes one part.
func (s *Remote) Update(ctx context.Context, r schema.GroupVersionResource, obj Object, part Part) (Object, error) {
	u, err := loose(r, obj)
	if err != nil {
		return nil, err
	}
	var below []string
	if part == Status {
		below = append(below, string(Status))
	}
	return s.typed(r)(s.client.Resource(r).Namespace(obj.GetNamespace()).Update(ctx, u, metav1.UpdateOptions{}, below...))
}

// Delete deletes an object, and reads what became of the object.
func (s *Remote) Delete(ctx context.Context, r schema.GroupVersionResource, namespace, name string, o metav1.DeleteOptions) (Object, error) {
	before, err := s.Get(ctx, r, namespace, name)
	if err != nil {
		return nil, err
	}
	if err := s.client.Resource(r).Namespace(namespace).Delete(ctx, name, o); err != nil {
		return nil, err
	}
	after, err := s.Get(ctx, r, namespace, name)
	if apierrors.IsNotFound(err) || err == nil && after.GetUID() != before.GetUID() {
		return before, nil
	}
	return after, err
}

// Evict evicts a pod if its budget allows it.
func (s *Remote) Evict(ctx context.Context, namespace, name string, o metav1.DeleteOptions) error {
	eviction := &policyv1.Eviction{
		TypeMeta:   metav1.TypeMeta{APIVersion: policyv1.SchemeGroupVersion.String(), Kind: "Eviction"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, DeleteOptions: &o,
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(eviction)
	if err != nil {
		return fmt.Errorf("encode eviction: %w", err)
	}
	_, err = s.client.Resource(Pods()).Namespace(namespace).Create(ctx, &unstructured.Unstructured{Object: content}, metav1.CreateOptions{}, "eviction")
	return err
}

// loose returns an object as the dynamic client sends it.
func loose(r schema.GroupVersionResource, obj Object) (*unstructured.Unstructured, error) {
	kind, err := kindOf(r)
	if err != nil {
		return nil, err
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", kind.Kind, err)
	}
	u := &unstructured.Unstructured{Object: content}
	u.SetGroupVersionKind(kind)
	return u, nil
}

// typed turns an answer of the dynamic client into an object of the resource's Go type.
func (s *Remote) typed(r schema.GroupVersionResource) func(*unstructured.Unstructured, error) (Object, error) {
	return func(u *unstructured.Unstructured, err error) (Object, error) {
		if err != nil {
			return nil, err
		}
		kind, err := kindOf(r)
		if err != nil {
			return nil, err
		}
		made, err := s.scheme.New(kind)
		if err != nil {
			return nil, fmt.Errorf("make %s: %w", kind.Kind, err)
		}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, made); err != nil {
			return nil, fmt.Errorf("read %s: %w", kind.Kind, err)
		}
		o, ok := made.(Object)
		if !ok {
			return nil, errors.New(kind.Kind + " is no object")
		}
		o.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{}) // the store's objects don't have it
		return o, nil
	}
}

func kindOf(r schema.GroupVersionResource) (schema.GroupVersionKind, error) {
	i := slices.IndexFunc(Resources(), func(known Resource) bool { return known.GroupVersionResource == r })
	if i < 0 {
		return schema.GroupVersionKind{}, apierrors.NewNotFound(r.GroupResource(), "")
	}
	return Resources()[i].GVK(), nil
}

// reconnect is the pause before a broken stream is reopened.
const reconnect = 200 * time.Millisecond

// Watch follows a resource from a revision on, over as many streams as needed.
func (s *Remote) Watch(ctx context.Context, r schema.GroupVersionResource, revision string) (Watch, error) {
	if revision == "" {
		var err error
		if _, revision, err = s.List(ctx, r, ""); err != nil {
			return nil, err
		}
	}
	return &remoteWatch{store: s, resource: r, seen: revision}, nil
}

// remoteWatch belongs to one reader at a time.
type remoteWatch struct {
	store    *Remote
	resource schema.GroupVersionResource
	seen     string // revision; "": start at present
	stream   watch.Interface
}

var _ Watch = (*remoteWatch)(nil)

// Next returns the next event. It waits while the server is down: only ctx, or a revision that the server has
// dropped, ends the wait.
func (w *remoteWatch) Next(ctx context.Context) (Event, error) {
	for {
		e, err := w.step(ctx)
		if err == nil && e.Type != watch.Bookmark {
			return e, nil
		}
		if ctx.Err() != nil {
			w.Stop()
			return Event{}, context.Cause(ctx)
		}
		if err == nil {
			continue
		}
		w.Stop()
		if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
			w.seen = ""
			return Event{}, apierrors.NewResourceExpired(err.Error())
		}
		select {
		case <-ctx.Done():
		case <-time.After(reconnect):
		}
	}
}

var errStreamEnded = errors.New("the stream has ended")

// step reads one event of the stream, and opens a stream if none is open.
func (w *remoteWatch) step(ctx context.Context) (Event, error) {
	if err := w.open(ctx); err != nil {
		return Event{}, err
	}
	var e watch.Event
	var more bool
	select {
	case <-ctx.Done():
		return Event{}, ctx.Err()
	case e, more = <-w.stream.ResultChan():
	}
	u, ok := e.Object.(*unstructured.Unstructured)
	switch {
	case !more:
		return Event{}, errStreamEnded
	case e.Type == watch.Error || !ok:
		return Event{}, apierrors.FromObject(e.Object)
	}
	o, err := w.store.typed(w.resource)(u, nil)
	if err != nil {
		return Event{}, err
	}
	w.seen = o.GetResourceVersion()
	return Event{Type: e.Type, Object: o}, nil
}

// open opens a stream if none is open. The stream outlives the call, and ends with its context.
func (w *remoteWatch) open(ctx context.Context) (err error) {
	if w.stream != nil {
		return nil
	}
	if w.seen == "" {
		if _, w.seen, err = w.store.List(ctx, w.resource, ""); err != nil {
			return err
		}
	}
	w.stream, err = w.store.client.Resource(w.resource).Watch(ctx, metav1.ListOptions{ResourceVersion: w.seen, AllowWatchBookmarks: true})
	return err
}

// Stop ends the stream.
func (w *remoteWatch) Stop() {
	if w.stream != nil {
		w.stream.Stop()
		w.stream = nil
	}
}
