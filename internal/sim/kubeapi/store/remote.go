package store

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
)

// Remote is a Store on a real API server, which assigns UIDs and revisions, validates and
// refuses.
type Remote struct {
	base   *url.URL
	client *http.Client
	scheme *runtime.Scheme
}

var _ Store = (*Remote)(nil)

// NewRemote is the store of the server at base. transport has the credentials of a user
// who may do everything; the caller closes it.
func NewRemote(base *url.URL, transport http.RoundTripper) (*Remote, error) {
	scheme, err := NewScheme()
	if err != nil {
		return nil, fmt.Errorf("register kinds: %w", err)
	}
	return &Remote{base: base, client: &http.Client{Transport: transport}, scheme: scheme}, nil
}

func (s *Remote) Get(ctx context.Context, r schema.GroupVersionResource, namespace, name string) (Object, error) {
	return s.object(ctx, http.MethodGet, r, namespace, []string{name}, nil)
}

// List reads all pages in one request: no lab's cluster is too large for that.
func (s *Remote) List(ctx context.Context, r schema.GroupVersionResource, namespace string) ([]Object, string, error) {
	var list struct {
		Metadata metav1.ListMeta   `json:"metadata"`
		Items    []json.RawMessage `json:"items"`
	}
	b, err := s.do(ctx, http.MethodGet, s.path(r, namespace), nil)
	if err != nil {
		return nil, "", err
	}
	if err := json.Unmarshal(b, &list); err != nil {
		return nil, "", fmt.Errorf("read list of %s: %w", r.Resource, err)
	}
	objects := make([]Object, 0, len(list.Items))
	for _, item := range list.Items {
		o, err := s.decode(r, item)
		if err != nil {
			return nil, "", err
		}
		objects = append(objects, o)
	}
	slices.SortFunc(objects, func(a, b Object) int {
		return cmp.Or(cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()))
	})
	return objects, list.Metadata.ResourceVersion, nil
}

// Create creates an object. As for any client, its status is dropped.
func (s *Remote) Create(ctx context.Context, r schema.GroupVersionResource, obj Object) (Object, error) {
	return s.object(ctx, http.MethodPost, r, obj.GetNamespace(), nil, obj)
}

// Update writes one part.
func (s *Remote) Update(ctx context.Context, r schema.GroupVersionResource, obj Object, part Part) (Object, error) {
	path := []string{obj.GetName()}
	if part == Status {
		path = append(path, string(Status))
	}
	return s.object(ctx, http.MethodPut, r, obj.GetNamespace(), path, obj)
}

// Delete deletes an object. If the server answers with a Status, the object is gone.
func (s *Remote) Delete(ctx context.Context, r schema.GroupVersionResource, namespace, name string, o metav1.DeleteOptions) (Object, error) {
	o.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "DeleteOptions"}
	before, err := s.Get(ctx, r, namespace, name)
	if err != nil {
		return nil, err
	}
	b, err := s.do(ctx, http.MethodDelete, s.path(r, namespace, name), o)
	if err != nil {
		return nil, err
	}
	var kind metav1.TypeMeta
	if err := json.Unmarshal(b, &kind); err != nil {
		return nil, fmt.Errorf("read what became of %s %s: %w", r.Resource, name, err)
	}
	if kind.Kind == "Status" {
		return before, nil
	}
	return s.decode(r, b)
}

// Evict evicts a pod if its budget allows it.
func (s *Remote) Evict(ctx context.Context, namespace, name string, o metav1.DeleteOptions) error {
	_, err := s.do(ctx, http.MethodPost, s.path(Pods(), namespace, name, "eviction"), &policyv1.Eviction{
		TypeMeta:   metav1.TypeMeta{APIVersion: policyv1.SchemeGroupVersion.String(), Kind: "Eviction"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, DeleteOptions: &o,
	})
	return err
}

// object sends obj, unless it is nil, and returns the object in the answer.
func (s *Remote) object(ctx context.Context, method string, r schema.GroupVersionResource, namespace string, path []string, obj Object) (Object, error) {
	var body any
	if obj != nil {
		kind, err := kindOf(r)
		if err != nil {
			return nil, err
		}
		obj = duplicate(obj)
		obj.GetObjectKind().SetGroupVersionKind(kind)
		body = obj
	}
	b, err := s.do(ctx, method, s.path(r, namespace, path...), body)
	if err != nil {
		return nil, err
	}
	return s.decode(r, b)
}

// path is the URL of a resource, an object or a subresource.
func (s *Remote) path(r schema.GroupVersionResource, namespace string, rest ...string) *url.URL {
	parts := []string{"apis", r.Group, r.Version}
	if r.Group == "" {
		parts = []string{"api", r.Version}
	}
	if namespace != "" {
		parts = append(parts, "namespaces", namespace)
	}
	return s.base.JoinPath(append(append(parts, r.Resource), rest...)...)
}

// do sends a request; an unsuccessful answer becomes an API status.
func (s *Remote) do(ctx context.Context, method string, at *url.URL, body any) ([]byte, error) {
	resp, err := s.send(ctx, method, at, body)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("read the API server's answer: %w", err)
	}
	return b, nil
}

// send is do for an answer that the caller reads and closes.
func (s *Remote) send(ctx context.Context, method string, at *url.URL, body any) (*http.Response, error) {
	var content io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return nil, fmt.Errorf("encode request: %w", err)
		}
		content = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, at.String(), content)
	if err != nil {
		return nil, fmt.Errorf("ask the API server: %w", err)
	}
	req.Header.Set("Accept", runtime.ContentTypeJSON)
	req.Header.Set("User-Agent", "lab")
	if body != nil {
		req.Header.Set("Content-Type", runtime.ContentTypeJSON)
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("ask the API server: %w", err)
	}
	if resp.StatusCode/100 != 2 {
		defer resp.Body.Close()
		return nil, refusal(resp)
	}
	return resp, nil
}

// refusal reads the Status of an unsuccessful answer.
func refusal(resp *http.Response) error {
	b, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return fmt.Errorf("read the API server's refusal: %w", err)
	}
	var status metav1.Status
	if json.Unmarshal(b, &status) != nil || status.Kind != "Status" {
		status = metav1.Status{Status: metav1.StatusFailure, Message: string(b)}
	}
	status.Code = int32(resp.StatusCode)
	return &apierrors.StatusError{ErrStatus: status}
}

func (s *Remote) decode(r schema.GroupVersionResource, b []byte) (Object, error) {
	kind, err := kindOf(r)
	if err != nil {
		return nil, err
	}
	decoded, err := s.scheme.New(kind)
	if err != nil {
		return nil, fmt.Errorf("make %s: %w", kind.Kind, err)
	}
	if err := json.Unmarshal(b, decoded); err != nil {
		return nil, fmt.Errorf("read %s: %w", kind.Kind, err)
	}
	o, ok := decoded.(Object)
	if !ok {
		return nil, errors.New(kind.Kind + " is no object")
	}
	o.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{}) // the store's objects don't have it
	return o, nil
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
	stream   io.ReadCloser
	events   *json.Decoder
	end      context.CancelFunc
}

var _ Watch = (*remoteWatch)(nil)

// Next reads on. It waits while the server is down: only ctx, or a revision that the
// server has dropped, ends the wait.
func (w *remoteWatch) Next(ctx context.Context) (Event, error) {
	for {
		e, ok, err := w.step(ctx)
		if ok {
			return e, nil
		}
		if ctx.Err() != nil {
			w.Stop()
			return Event{}, context.Cause(ctx)
		}
		if err == nil {
			continue // a bookmark
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

// step reads one event of the stream, and opens one if needed.
func (w *remoteWatch) step(ctx context.Context) (e Event, ok bool, err error) {
	if w.stream == nil {
		if err := w.open(ctx); err != nil {
			return Event{}, false, err
		}
	}
	var frame struct {
		Type   watch.EventType `json:"type"`
		Object json.RawMessage `json:"object"`
	}
	if err := w.events.Decode(&frame); err != nil {
		return Event{}, false, err
	}
	if frame.Type == watch.Error {
		var status metav1.Status
		if err := json.Unmarshal(frame.Object, &status); err != nil {
			return Event{}, false, err
		}
		return Event{}, false, &apierrors.StatusError{ErrStatus: status}
	}
	o, err := w.store.decode(w.resource, frame.Object)
	if err != nil {
		return Event{}, false, err
	}
	w.seen = o.GetResourceVersion()
	return Event{Type: frame.Type, Object: o}, frame.Type != watch.Bookmark, nil
}

func (w *remoteWatch) open(ctx context.Context) error {
	if w.seen == "" {
		var err error
		if _, w.seen, err = w.store.List(ctx, w.resource, ""); err != nil {
			return err
		}
	}
	at := w.store.path(w.resource, "")
	at.RawQuery = url.Values{"watch": {"1"}, "resourceVersion": {w.seen}, "allowWatchBookmarks": {"true"}}.Encode()
	// The stream outlives the call that opened it, and ends with its context.
	ctx, end := context.WithCancel(ctx)
	resp, err := w.store.send(ctx, http.MethodGet, at, nil)
	if err != nil {
		end()
		return err
	}
	w.stream, w.events, w.end = resp.Body, json.NewDecoder(resp.Body), end
	return nil
}

// Stop ends the stream.
func (w *remoteWatch) Stop() {
	if w.stream != nil {
		w.end()
		_ = w.stream.Close() // it has ended
		w.stream = nil
	}
}
