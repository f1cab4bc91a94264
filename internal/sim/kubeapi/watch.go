package kubeapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/streaming"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
)

// watching is a stream of changes to send.
type watching struct {
	changes  store.Watch
	match    func(store.Object) bool
	gvk      schema.GroupVersionKind
	initial  []store.Object
	bookmark store.Object // sent after initial; nil: not requested
	timeout  time.Duration
	as       *tabular // nil: the objects themselves
}

// watch prepares the stream. Without a revision it begins with the present objects; with
// sendInitialEvents a bookmark marks their end.
func (s *Server) watch(r *http.Request, t target) (answer, error) {
	match, err := s.selection(r, t)
	if err != nil {
		return answer{}, err
	}
	q := r.URL.Query()
	w := &watching{match: match, gvk: t.resource.GVK()}
	if seconds, err := strconv.Atoi(q.Get("timeoutSeconds")); err == nil {
		w.timeout = time.Duration(seconds) * time.Second
	}
	from := q.Get("resourceVersion")
	sendInitial := q.Get("sendInitialEvents") == "true"
	if sendInitial && q.Get("resourceVersionMatch") != string(metav1.ResourceVersionMatchNotOlderThan) {
		return answer{}, apierrors.NewBadRequest("sendInitialEvents needs resourceVersionMatch=NotOlderThan")
	}
	if sendInitial || from == "" || from == "0" {
		objects, revision, err := s.store.List(r.Context(), t.resource.GroupVersionResource, t.namespace)
		if err != nil {
			return answer{}, err
		}
		w.initial, from = objects, revision
	}
	if sendInitial {
		if w.bookmark, err = s.bookmark(w.gvk, from); err != nil {
			return answer{}, err
		}
	}
	if w.changes, err = s.store.Watch(r.Context(), t.resource.GroupVersionResource, from); err != nil {
		return answer{}, err
	}
	return answer{watch: w}, nil
}

func (s *Server) bookmark(gvk schema.GroupVersionKind, revision string) (store.Object, error) {
	obj, err := s.newObject(gvk)
	if err != nil {
		return nil, fmt.Errorf("make %s: %w", gvk.Kind, err)
	}
	b := obj.(store.Object)
	b.SetResourceVersion(revision)
	b.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
	return b, nil
}

// stream sends events until the client leaves, the watch times out or the server closes.
func (s *Server) stream(rw http.ResponseWriter, r *http.Request, w *watching) {
	defer w.changes.Stop()
	info, err := s.serializer(r)
	custom := !s.scheme.Recognizes(w.gvk)
	if err != nil || info.StreamSerializer == nil || custom && info.MediaType != runtime.ContentTypeJSON {
		http.Error(rw, "no streaming in the accepted media types", http.StatusNotAcceptable)
		return
	}
	media := info.MediaType
	if media != runtime.ContentTypeJSON {
		media += ";stream=watch"
	}
	rw.Header().Set("Content-Type", media)
	rw.WriteHeader(http.StatusOK)
	out := http.NewResponseController(rw)
	frames := streaming.NewEncoder(info.StreamSerializer.Framer.NewFrameWriter(rw), info.StreamSerializer)
	headed := false
	send := func(t watch.EventType, obj runtime.Object, gvk schema.GroupVersionKind) error {
		shown := s.typed(obj, gvk)
		if w.as != nil && t != watch.Error {
			table, err := s.table(w.as, gvk, obj)
			if err != nil {
				return err
			}
			if headed { // only the first table has the columns' names
				table.(*metav1.Table).ColumnDefinitions = nil
			}
			shown, headed = table, true
		}
		raw, err := runtime.Encode(info.Serializer, shown)
		if err != nil {
			return err
		}
		if err := frames.Encode(&metav1.WatchEvent{Type: string(t), Object: runtime.RawExtension{Raw: raw}}); err != nil {
			return err
		}
		return out.Flush()
	}
	if err := out.Flush(); err != nil {
		return
	}
	ctx := r.Context()
	if w.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, w.timeout)
		defer cancel()
	}
	var status apierrors.APIStatus
	if errors.As(w.run(ctx, send), &status) {
		_ = send(watch.Error, new(status.Status()), schema.GroupVersionKind{Version: "v1", Kind: "Status"}) // the stream ends anyway
	}
}

// run sends the initial objects and then each change, filtered by the watcher's selection.
func (w *watching) run(ctx context.Context, send func(watch.EventType, runtime.Object, schema.GroupVersionKind) error) error {
	for _, o := range w.initial {
		if !w.match(o) {
			continue
		}
		if err := send(watch.Added, o, w.gvk); err != nil {
			return err
		}
	}
	if w.bookmark != nil {
		if err := send(watch.Bookmark, w.bookmark, w.gvk); err != nil {
			return err
		}
	}
	for {
		e, err := w.changes.Next(ctx)
		if err != nil {
			return err
		}
		t, seen := w.selected(e)
		if !seen {
			continue
		}
		if err := send(t, e.Object, w.gvk); err != nil {
			return err
		}
	}
}

// selected is the event for a watcher that sees only matching objects.
func (w *watching) selected(e store.Event) (watch.EventType, bool) {
	before := e.Before != nil && w.match(e.Before)
	now := e.Type != watch.Deleted && w.match(e.Object)
	switch {
	case before && now:
		return watch.Modified, true
	case now:
		return watch.Added, true
	case before:
		return watch.Deleted, true
	}
	return "", false
}
