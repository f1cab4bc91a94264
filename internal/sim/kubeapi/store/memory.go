package store

import (
	"cmp"
	"context"
	"fmt"
	"hash/fnv"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

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

// suffix makes the suffix of a generated name.
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

// gracePeriod returns the object's grace period in seconds.
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

// field returns a field of the object, nil if its type has none.
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
