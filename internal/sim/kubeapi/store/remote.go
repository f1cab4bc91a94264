package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

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
