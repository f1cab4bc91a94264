package store

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
)

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
