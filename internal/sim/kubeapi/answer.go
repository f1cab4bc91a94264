package kubeapi

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	metav1beta1 "k8s.io/apimachinery/pkg/apis/meta/v1beta1"
	"k8s.io/apimachinery/pkg/apis/meta/v1beta1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/streaming"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/yaml"

	"github.com/recast-sh/recast/internal/sim/kubeapi/openapi"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
	"github.com/recast-sh/recast/internal/sim/kubeapi/table"
)

const maxBodyBytes = 3 << 20 // the real server's limit

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

func (s *Server) typed(obj runtime.Object, gvk schema.GroupVersionKind) runtime.Object {
	obj = obj.DeepCopyObject()
	obj.GetObjectKind().SetGroupVersionKind(gvk)
	return obj
}

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

type target struct {
	resource        store.Resource // zero if the path names no served resource
	namespace, name string
	sub             string // subresource: "status", "eviction", "proxy"
	below           string // path after the subresource proxy
}

func (t target) known() bool { return t.resource.Kind != "" }

// target reads /api/v1/… and /apis/GROUP/VERSION/… paths.
func (s *Server) target(path string) target {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	var group, version string
	switch {
	case len(parts) >= 3 && parts[0] == "api":
		version, parts = parts[1], parts[2:]
	case len(parts) >= 4 && parts[0] == "apis":
		group, version, parts = parts[1], parts[2], parts[3:]
	default:
		return target{}
	}
	var t target
	if len(parts) >= 3 && parts[0] == "namespaces" && parts[2] != "status" && parts[2] != "finalize" {
		t.namespace, parts = parts[1], parts[2:]
	}
	served := s.serves()
	i := slices.IndexFunc(served, func(r store.Resource) bool {
		return r.Group == group && r.Version == version && r.Resource == parts[0]
	})
	if i < 0 {
		return target{}
	}
	t.resource = served[i]
	if len(parts) > 3 && parts[2] == "proxy" && t.resource.GroupVersionResource == store.Services() {
		t.below, parts = strings.Join(parts[3:], "/"), parts[:3]
	}
	if len(parts) > 3 {
		return target{}
	}
	if len(parts) > 1 {
		t.name = parts[1]
	}
	if len(parts) > 2 {
		t.sub = parts[2]
	}
	return t
}

func (t target) node() string {
	if t.resource.GroupVersionResource == store.Nodes() {
		return t.name
	}
	return ""
}

// verb returns the request's verb in Kubernetes' terms.
func (t target) verb(r *http.Request) string {
	verb := map[string]string{http.MethodPost: "create", http.MethodPut: "update", http.MethodPatch: "patch", http.MethodDelete: "delete"}[r.Method]
	switch {
	case verb == "delete" && t.name == "":
		return "deletecollection"
	case verb != "":
		return verb
	case isWatch(r):
		return "watch"
	case t.name == "":
		return "list"
	}
	return "get"
}

func isWatch(r *http.Request) bool {
	v := r.URL.Query().Get("watch")
	return v == "true" || v == "1"
}

// meta answers requests that are not about objects: health, version, discovery.
func (s *Server) meta(r *http.Request) answer {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		return s.unserved(r)
	}
	path := strings.Trim(r.URL.Path, "/")
	switch path {
	case "readyz":
		if asked, _ := r.Context().Value(identityKey{}).(Identity); asked.Unready {
			return answer{code: http.StatusInternalServerError, plain: unready} // healthz.go of k8s.io/apiserver
		}
		return answer{code: http.StatusOK, plain: "ok"}
	case "healthz", "livez":
		return answer{code: http.StatusOK, plain: "ok"}
	case "version":
		return s.version(r)
	case "api":
		return ok(&metav1.APIVersions{Versions: []string{"v1"}})
	case "apis":
		return ok(&metav1.APIGroupList{Groups: s.groups()})
	case "api/v1":
		return ok(s.resources(schema.GroupVersion{Version: "v1"}))
	case "openapi/v3":
		b, err := openapi.Index(s.serves(), s.o.Version)
		return described(r, b, err)
	}
	if group, is := strings.CutPrefix(path, "openapi/v3/"); is {
		return s.describe(r, group)
	}
	for _, g := range s.groups() {
		switch path {
		case "apis/" + g.Name:
			return ok(&g)
		case "apis/" + g.PreferredVersion.GroupVersion:
			return ok(s.resources(schema.GroupVersion{Group: g.Name, Version: g.PreferredVersion.Version}))
		}
	}
	return s.unserved(r)
}

func (s *Server) describe(r *http.Request, path string) answer {
	served := s.serves()
	i := slices.IndexFunc(served, func(r store.Resource) bool { return openapi.Path(r.GroupVersion()) == path })
	if i < 0 {
		return s.unserved(r)
	}
	b, err := openapi.Document(s.scheme, served, served[i].GroupVersion())
	return described(r, b, err)
}

// described sends OpenAPI as JSON; the real server has protobuf too.
func described(r *http.Request, b []byte, err error) answer {
	if err != nil {
		return failed(err)
	}
	accept := r.Header.Get("Accept")
	if accept != "" && !strings.Contains(accept, runtime.ContentTypeJSON) && !strings.Contains(accept, "*/*") {
		return answer{code: http.StatusNotAcceptable}
	}
	return answer{code: http.StatusOK, plain: string(b), media: runtime.ContentTypeJSON}
}

const unready = "[+]ping ok\n[+]etcd ok\n[-]poststarthook/rbac/bootstrap-roles failed: reason withheld\nreadyz check failed\n"

func (s *Server) unserved(r *http.Request) answer {
	return failed(apierrors.NewGenericServerResponse(http.StatusNotFound, strings.ToLower(r.Method), schema.GroupResource{}, "",
		"404 page not found", 0, true))
}

func (s *Server) version(r *http.Request) answer {
	asked, _ := r.Context().Value(identityKey{}).(Identity)
	own := cmp.Or(asked.Version, s.o.Version)
	major, rest, _ := strings.Cut(strings.TrimPrefix(own, "v"), ".")
	minor, _, _ := strings.Cut(rest, ".")
	b, err := json.MarshalIndent(version.Info{
		Major: major, Minor: minor, GitVersion: own, GitTreeState: "clean",
		Compiler: "gc", Platform: "linux/amd64",
	}, "", "  ")
	if err != nil {
		return failed(fmt.Errorf("encode version: %w", err))
	}
	return answer{code: http.StatusOK, plain: string(b), media: "application/json"}
}

// groups lists the named API groups, each in one version.
func (s *Server) groups() []metav1.APIGroup {
	var groups []metav1.APIGroup
	seen := map[string]bool{"": true}
	for _, r := range s.serves() {
		if seen[r.Group] {
			continue
		}
		seen[r.Group] = true
		v := metav1.GroupVersionForDiscovery{GroupVersion: r.GroupVersion().String(), Version: r.Version}
		groups = append(groups, metav1.APIGroup{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "APIGroup"},
			Name:     r.Group, Versions: []metav1.GroupVersionForDiscovery{v}, PreferredVersion: v,
		})
	}
	return groups
}

func (s *Server) resources(gv schema.GroupVersion) *metav1.APIResourceList {
	list := &metav1.APIResourceList{GroupVersion: gv.String()}
	for _, r := range s.serves() {
		if r.GroupVersion() != gv {
			continue
		}
		list.APIResources = append(list.APIResources, metav1.APIResource{
			Name: r.Resource, SingularName: strings.ToLower(r.Kind), Namespaced: r.Namespaced, Kind: r.Kind, ShortNames: r.Short, Categories: r.Categories,
			Verbs: metav1.Verbs{"create", "delete", "get", "list", "patch", "update", "watch"},
		})
		if r.Status {
			list.APIResources = append(list.APIResources, metav1.APIResource{
				Name: r.Resource + "/status", Namespaced: r.Namespaced, Kind: r.Kind, Verbs: metav1.Verbs{"get", "patch", "update"},
			})
		}
		if r.GroupVersionResource == store.Pods() {
			list.APIResources = append(list.APIResources, metav1.APIResource{
				Name: "pods/eviction", Namespaced: true, Group: "policy", Version: "v1", Kind: "Eviction", Verbs: metav1.Verbs{"create"},
			})
		}
	}
	return list
}

// Define serves a custom resource from now on, as if its definition had been applied. Its
// objects are *unstructured.Unstructured, in the store too.
func (s *Server) Define(r store.Resource) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.defined = append(s.defined, r)
}

// serves lists all served resources; custom resources come last.
func (s *Server) serves() []store.Resource {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Concat(s.built, s.defined)
}

func (s *Server) newObject(gvk schema.GroupVersionKind) (runtime.Object, error) {
	if s.scheme.Recognizes(gvk) {
		return s.scheme.New(gvk)
	}
	return custom(gvk), nil
}

func (s *Server) newList(gvk schema.GroupVersionKind) (runtime.Object, error) {
	listed := gvk
	listed.Kind += "List"
	if s.scheme.Recognizes(gvk) {
		return s.scheme.New(listed)
	}
	list := &unstructured.UnstructuredList{Object: map[string]any{}}
	list.SetGroupVersionKind(listed)
	return list, nil
}

func custom(gvk schema.GroupVersionKind) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{}}
	u.SetGroupVersionKind(gvk)
	return u
}

func isCustom(obj runtime.Object) bool {
	switch obj.(type) {
	case *unstructured.Unstructured, *unstructured.UnstructuredList:
		return true
	}
	return false
}

// decodeCustom reads JSON or YAML; custom resources have no protobuf.
func decodeCustom(b []byte, gvk schema.GroupVersionKind) (runtime.Object, error) {
	asJSON, err := yaml.YAMLToJSON(b)
	if err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("decode %s: %v", gvk.Kind, err))
	}
	obj, _, err := unstructured.UnstructuredJSONScheme.Decode(asJSON, &gvk, nil)
	if err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("decode %s: %v", gvk.Kind, err))
	}
	return obj, nil
}

func (t target) part() store.Part {
	if t.sub == "" && !t.resource.Status {
		return store.Whole
	}
	return store.Part(t.sub)
}
