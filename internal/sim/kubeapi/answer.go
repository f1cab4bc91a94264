package kubeapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1beta1 "k8s.io/apimachinery/pkg/apis/meta/v1beta1"
	"k8s.io/apimachinery/pkg/apis/meta/v1beta1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/streaming"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
	"github.com/recast-sh/recast/internal/sim/kubeapi/table"
)

const maxBodyBytes = 3 << 20 // the real server's limit

// answer is the result of a request, before it is written.
type answer struct {
	code  int
	body  runtime.Object // sent as JSON or protobuf
	plain string         // text, in place of body
	media string         // content type of plain; "" for text/plain
	watch *watching      // a stream, in place of both

	warnings []string // to the client, beside body
	// program answers in place of the server, at path.
	program http.Handler
	path    string
}

func ok(obj runtime.Object) answer { return answer{code: http.StatusOK, body: obj} }

// failed turns an error into the Status of a real server.
func failed(err error) answer {
	status := apierrors.NewInternalError(err).Status()
	var known apierrors.APIStatus
	if errors.As(err, &known) {
		status = known.Status()
	}
	status.TypeMeta = metav1.TypeMeta{}
	return answer{code: int(status.Code), body: &status}
}

// unstored returns the answer to an error of etcd: a Status without a reason (ErrorToAPIStatus in apiserver's
// responsewriters).
func unstored(err error) answer {
	return answer{code: http.StatusInternalServerError, body: &metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Message: err.Error(),
	}}
}

// read returns the request's body, with a limit.
func read(r *http.Request) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r.Body, maxBodyBytes+1))
	if err != nil {
		return nil, apierrors.NewBadRequest("read request body: " + err.Error())
	}
	if len(b) > maxBodyBytes {
		return nil, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d", maxBodyBytes))
	}
	return b, nil
}

// decode reads JSON, YAML or protobuf.
func (s *Server) decode(b []byte, into schema.GroupVersionKind) (runtime.Object, error) {
	obj, _, err := s.codecs.UniversalDeserializer().Decode(b, &into, nil)
	if err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("decode %s: %v", into.Kind, err))
	}
	return obj, nil
}

// decodeObject reads an object of the target's kind.
func (s *Server) decodeObject(b []byte, t target) (store.Object, error) {
	decode := s.decode
	if !s.scheme.Recognizes(t.resource.GVK()) {
		decode = decodeCustom
	}
	decoded, err := decode(b, t.resource.GVK())
	if err != nil {
		return nil, err
	}
	kinds, _, err := s.scheme.ObjectKinds(decoded)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	obj, ok := decoded.(store.Object)
	if !ok || kinds[0] != t.resource.GVK() {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("the object provided is a %s, not a %s", kinds[0].Kind, t.resource.Kind))
	}
	complete(obj)
	if t.namespace != "" && obj.GetNamespace() == "" {
		obj.SetNamespace(t.namespace)
	}
	if obj.GetNamespace() != t.namespace {
		return nil, apierrors.NewBadRequest("the namespace of the provided object does not match the namespace sent on the request")
	}
	return obj, nil
}

// serializer chooses JSON if the client accepts it, else protobuf.
func (s *Server) serializer(r *http.Request) (runtime.SerializerInfo, error) {
	accept := r.Header.Get("Accept")
	want := ""
	for part := range strings.SplitSeq(accept, ",") {
		media, params, err := mime.ParseMediaType(strings.TrimSpace(part))
		if err != nil || params["as"] != "" && params["as"] != "Table" {
			continue
		}
		switch media {
		case runtime.ContentTypeJSON, "*/*", "application/*":
			want = runtime.ContentTypeJSON
		case runtime.ContentTypeProtobuf:
			if want == "" {
				want = runtime.ContentTypeProtobuf
			}
		}
	}
	if accept == "" {
		want = runtime.ContentTypeJSON
	}
	info, found := runtime.SerializerInfoForMediaType(s.codecs.SupportedMediaTypes(), want)
	if !found {
		return info, apierrors.NewGenericServerResponse(http.StatusNotAcceptable, "", schema.GroupResource{}, "",
			"only application/json and application/vnd.kubernetes.protobuf are served", 0, false)
	}
	return info, nil
}

// typed returns a copy of obj with its kind set.
func (s *Server) typed(obj runtime.Object, gvk schema.GroupVersionKind) runtime.Object {
	obj = obj.DeepCopyObject()
	obj.GetObjectKind().SetGroupVersionKind(gvk)
	return obj
}

// kindOf returns the group, version and kind of obj in an answer.
func (s *Server) kindOf(obj runtime.Object) (schema.GroupVersionKind, error) {
	if gvk := obj.GetObjectKind().GroupVersionKind(); !gvk.Empty() {
		return gvk, nil
	}
	gvks, _, err := s.scheme.ObjectKinds(obj)
	if err != nil {
		return schema.GroupVersionKind{}, err
	}
	return gvks[0], nil
}

func (s *Server) write(w http.ResponseWriter, r *http.Request, a answer) {
	switch {
	case a.program != nil:
		passed := r.Clone(r.Context())
		passed.URL.Path, passed.URL.RawPath = a.path, ""
		passed.Header.Del("Authorization") // as the real server's authentication does
		a.program.ServeHTTP(w, passed)
		return
	case a.watch != nil:
		s.stream(w, r, a.watch)
		return
	case a.body == nil:
		w.Header().Set("Content-Type", cmp.Or(a.media, "text/plain; charset=utf-8"))
		w.WriteHeader(a.code)
		_, _ = io.WriteString(w, a.plain) // the client may be gone
		return
	}
	info, err := s.serializer(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusNotAcceptable)
		return
	}
	if isCustom(a.body) && info.MediaType != runtime.ContentTypeJSON {
		http.Error(w, "custom resources are served as application/json only", http.StatusNotAcceptable)
		return
	}
	gvk, err := s.kindOf(a.body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	if status, ok := a.body.(*metav1.Status); ok && status.Details != nil && status.Details.RetryAfterSeconds > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(status.Details.RetryAfterSeconds)))
	}
	for _, text := range a.warnings {
		if warning, err := utilnet.NewWarningHeader(299, "-", text); err == nil { // it can't be sent otherwise
			w.Header().Add("Warning", warning)
		}
	}
	w.Header().Set("Content-Type", info.MediaType)
	w.WriteHeader(a.code)
	_ = info.Serializer.Encode(s.typed(a.body, gvk), w) // the client may be gone
}

// tabular is how a client wants objects as a table.
type tabular struct {
	version schema.GroupVersion
	include metav1.IncludeObjectPolicy
}

// wantsTable returns nil unless the client prefers a table to the objects.
func wantsTable(r *http.Request) (*tabular, error) {
	for part := range strings.SplitSeq(r.Header.Get("Accept"), ",") {
		media, params, err := mime.ParseMediaType(strings.TrimSpace(part))
		if err != nil {
			continue
		}
		version := schema.GroupVersion{Group: params["g"], Version: params["v"]}
		switch {
		case params["as"] == "":
			return nil, nil
		case params["as"] != "Table" || media != runtime.ContentTypeJSON || version != metav1.SchemeGroupVersion && version != metav1beta1.SchemeGroupVersion:
			continue
		}
		options := &metav1.TableOptions{IncludeObject: metav1.IncludeObjectPolicy(r.URL.Query().Get("includeObject"))}
		if errs := validation.ValidateTableOptions(options); len(errs) > 0 {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("Unable to convert to Table as requested: %v", errs[0]))
		}
		return &tabular{version, options.IncludeObject}, nil
	}
	return nil, nil
}

// tabled returns an answer about the target's objects as the client wants it: the objects, or a table of them
// (asTable in apiserver's endpoints/handlers/response.go).
func (s *Server) tabled(r *http.Request, t target, a answer) (answer, error) {
	as, err := wantsTable(r)
	if err != nil || as == nil {
		return a, err
	}
	if a.watch != nil {
		a.watch.as = as
		return a, nil
	}
	if _, is := a.body.(*metav1.Status); is || a.body == nil {
		return a, nil
	}
	a.body, err = s.table(as, t.resource.GVK(), a.body)
	return a, err
}

func (s *Server) table(as *tabular, gvk schema.GroupVersionKind, body runtime.Object) (runtime.Object, error) {
	prototype, err := s.newObject(gvk)
	if err != nil {
		return nil, err
	}
	objects := []runtime.Object{body}
	list := meta.IsListType(body)
	if list {
		if objects, err = meta.ExtractList(body); err != nil {
			return nil, err
		}
	}
	out, err := table.Of(prototype.(metav1.Object), objects)
	if err != nil {
		return nil, err
	}
	out.SetGroupVersionKind(as.version.WithKind("Table"))
	if of, is := body.(metav1.ListInterface); is && list {
		out.ResourceVersion, out.Continue, out.RemainingItemCount = of.GetResourceVersion(), of.GetContinue(), of.GetRemainingItemCount()
	} else {
		out.ResourceVersion = body.(metav1.Object).GetResourceVersion()
	}
	for i := range out.Rows {
		row := &out.Rows[i].Object
		switch as.include {
		case metav1.IncludeNone:
			row.Object = nil
		case metav1.IncludeObject:
			row.Object = s.typed(row.Object, gvk)
		default:
			partial := meta.AsPartialObjectMetadata(row.Object.(metav1.Object))
			partial.SetGroupVersionKind(as.version.WithKind("PartialObjectMetadata"))
			row.Object = partial
		}
	}
	return out, nil
}

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

// watch prepares the stream. Without a revision the stream begins with the present objects; with sendInitialEvents a
// bookmark marks their end.
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

// selected returns the event for a watcher that sees only matching objects.
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
