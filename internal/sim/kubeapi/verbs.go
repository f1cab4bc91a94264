package kubeapi

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/applyconfigurations"
	"sigs.k8s.io/yaml"

	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
)

// answer processes a request and returns the answer; it does not write it.
func (s *Server) answer(r *http.Request, u user, t target) answer {
	if err := s.authorize(u, r, t); err != nil {
		return failed(err)
	}
	if r.URL.Path == reviews && r.Method == http.MethodPost {
		return s.review(r, u)
	}
	if !t.known() {
		return s.meta(r)
	}
	if t.resource.Namespaced && t.name != "" && t.namespace == "" {
		return s.unserved(r)
	}
	if s.o.Storage != nil {
		if err := s.o.Storage(r.Context()); err != nil {
			return unstored(err)
		}
	}
	a, err := s.serve(r, t)
	if err == nil {
		a, err = s.tabled(r, t, a)
	}
	if err != nil {
		return failed(err)
	}
	return a
}

func (s *Server) serve(r *http.Request, t target) (answer, error) {
	if err := s.admit(r.Context(), t, t.verb(r)); err != nil {
		return answer{}, err
	}
	if t.sub != "" && t.sub != "status" {
		return s.subresource(r, t)
	}
	if t.sub == "status" && !t.resource.Status {
		return s.unserved(r), nil
	}
	verb := t.verb(r)
	if verb == "get" {
		obj, err := s.store.Get(r.Context(), t.resource.GroupVersionResource, t.namespace, t.name)
		return answer{code: http.StatusOK, body: obj}, err
	}
	serve := map[string]func(*http.Request, target) (answer, error){
		"list": s.list, "watch": s.watch, "create": s.create, "update": s.update, "patch": s.patch, "delete": s.remove,
	}[verb]
	if serve == nil {
		return answer{}, apierrors.NewMethodNotSupported(t.resource.GroupResource(), verb)
	}
	return serve(r, t)
}

func (s *Server) subresource(r *http.Request, t target) (answer, error) {
	switch {
	case t.resource.GroupVersionResource == store.Pods() && t.sub == "eviction" && r.Method == http.MethodPost:
		return s.evict(r, t)
	case t.resource.GroupVersionResource == store.Services() && t.sub == "proxy":
		return s.proxy(r, t)
	}
	return s.unserved(r), nil
}

func (s *Server) list(r *http.Request, t target) (answer, error) {
	match, err := s.selection(r, t)
	if err != nil {
		return answer{}, err
	}
	objects, revision, err := s.store.List(r.Context(), t.resource.GroupVersionResource, t.namespace)
	if err != nil {
		return answer{}, err
	}
	objects, listed, err := s.page(t, r.URL.Query(), match, objects, revision)
	if err != nil {
		return answer{}, err
	}
	items := []runtime.Object{}
	for _, o := range objects {
		if isCustom(o) { // custom objects contain their kind, others don't
			items = append(items, s.typed(o, t.resource.GVK()))
		} else {
			items = append(items, o)
		}
	}
	list, err := s.newList(t.resource.GVK())
	if err != nil {
		return answer{}, fmt.Errorf("make list of %s: %w", t.resource.Kind, err)
	}
	if err := meta.SetList(list, items); err != nil {
		return answer{}, fmt.Errorf("fill list of %s: %w", t.resource.Kind, err)
	}
	if l, ok := list.(metav1.ListInterface); ok {
		l.SetResourceVersion(listed.ResourceVersion)
		l.SetContinue(listed.Continue)
		l.SetRemainingItemCount(listed.RemainingItemCount)
	}
	gvk := t.resource.GVK()
	gvk.Kind += "List"
	list.GetObjectKind().SetGroupVersionKind(gvk)
	return ok(list), nil
}

// received returns the object that a client has sent whole, and warnings about it.
func (s *Server) received(r *http.Request, t target) (obj store.Object, warnings []string, err error) {
	b, err := read(r)
	if err != nil {
		return nil, nil, err
	}
	if obj, err = s.decodeObject(b, t); err != nil {
		return nil, nil, err
	}
	if t.verb(r) == "create" && t.resource.Namespaced && t.namespace == "" {
		return nil, nil, apierrors.NewBadRequest("an empty namespace may not be set during creation")
	}
	warnings, err = s.unknownInObject(r, t, b)
	return obj, warnings, err
}

func (s *Server) create(r *http.Request, t target) (answer, error) {
	obj, warnings, err := s.received(r, t)
	if err != nil {
		return answer{}, err
	}
	if obj, err = s.own(r, t, nil, obj); err != nil {
		return answer{}, err
	}
	a, err := s.add(r, t, obj)
	a.warnings = warnings
	return a, err
}

func (s *Server) update(r *http.Request, t target) (answer, error) {
	obj, warnings, err := s.received(r, t)
	if err != nil {
		return answer{}, err
	}
	if obj.GetName() != t.name {
		return answer{}, apierrors.NewBadRequest("the name of the object does not match the name on the URL")
	}
	if isCustom(obj) && obj.GetResourceVersion() == "" {
		return answer{}, apierrors.NewInvalid(t.resource.GVK().GroupKind(), t.name, field.ErrorList{
			field.Invalid(field.NewPath("metadata", "resourceVersion"), 0, "must be specified for an update"),
		})
	}
	old, err := s.store.Get(r.Context(), t.resource.GroupVersionResource, t.namespace, t.name)
	switch {
	case apierrors.IsNotFound(err) && t.resource.GroupVersionResource == store.Leases() && obj.GetUID() == "":
		return s.add(r, t, obj) // AllowCreateOnUpdate (registry/coordination/lease/strategy.go), whatever the revision
	case apierrors.IsNotFound(err) && t.resource.GroupVersionResource == store.Leases():
		return answer{}, otherUID(t, obj, "")
	case err == nil && obj.GetUID() != "" && obj.GetUID() != old.GetUID():
		return answer{}, otherUID(t, obj, old.GetUID())
	case err == nil:
		if obj, err = s.own(r, t, old, obj); err != nil {
			return answer{}, err
		}
	}
	obj, err = s.put(r, t, obj)
	return answer{code: http.StatusOK, body: obj, warnings: warnings}, err
}

// otherUID refuses an update of an object that was replaced meanwhile (registry/rest/update.go in apiserver).
func otherUID(t target, sent store.Object, is types.UID) error {
	return apierrors.NewConflict(t.resource.GroupResource(), t.name,
		fmt.Errorf("precondition failed: UID in precondition: %s, UID in object meta: %s", sent.GetUID(), is))
}

// deleteOptions reads a DELETE's body; query parameters are the older form.
func (s *Server) deleteOptions(r *http.Request) (metav1.DeleteOptions, error) {
	b, err := read(r)
	if err != nil {
		return metav1.DeleteOptions{}, err
	}
	o := metav1.DeleteOptions{}
	if len(b) > 0 {
		obj, err := s.decode(b, schema.GroupVersionKind{Version: "v1", Kind: "DeleteOptions"})
		if err != nil {
			return o, err
		}
		given, ok := obj.(*metav1.DeleteOptions)
		if !ok {
			return o, apierrors.NewBadRequest(fmt.Sprintf("the body is a %T, not DeleteOptions", obj))
		}
		o = *given
	}
	if q := r.URL.Query().Get("gracePeriodSeconds"); q != "" {
		var seconds int64
		if _, err := fmt.Sscan(q, &seconds); err != nil {
			return o, apierrors.NewBadRequest("gracePeriodSeconds: " + err.Error())
		}
		o.GracePeriodSeconds = &seconds
	}
	return o, nil
}

func (s *Server) remove(r *http.Request, t target) (answer, error) {
	o, err := s.deleteOptions(r)
	if err != nil {
		return answer{}, err
	}
	if len(o.DryRun) > 0 {
		obj, err := s.store.Get(r.Context(), t.resource.GroupVersionResource, t.namespace, t.name)
		return answer{code: http.StatusOK, body: obj}, err
	}
	obj, err := s.store.Delete(r.Context(), t.resource.GroupVersionResource, t.namespace, t.name, o)
	if err != nil {
		return answer{}, err
	}
	if t.resource.GroupVersionResource == store.Pods() || obj.GetDeletionTimestamp() != nil {
		return ok(obj), nil
	}
	return ok(&metav1.Status{
		Status:  metav1.StatusSuccess,
		Details: &metav1.StatusDetails{Name: t.name, Group: t.resource.Group, Kind: t.resource.Resource, UID: obj.GetUID()},
	}), nil
}

func dryRun(r *http.Request) bool { return slices.Contains(r.URL.Query()["dryRun"], "All") }

// add creates an object; in a dry run it returns the object without creating it.
func (s *Server) add(r *http.Request, t target, obj store.Object) (answer, error) {
	if t.resource.Namespaced {
		ns := schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
		if _, err := s.store.Get(r.Context(), ns, "", t.namespace); err != nil {
			return answer{}, err
		}
	}
	if t.resource.Status {
		store.ClearStatus(obj)
	}
	if !dryRun(r) {
		obj, err := s.store.Create(r.Context(), t.resource.GroupVersionResource, obj)
		return answer{code: http.StatusCreated, body: obj}, err
	}
	if obj.GetName() == "" {
		obj.SetName(obj.GetGenerateName() + strings.Repeat("x", 5))
	}
	if _, err := s.store.Get(r.Context(), t.resource.GroupVersionResource, t.namespace, obj.GetName()); err == nil {
		return answer{}, apierrors.NewAlreadyExists(t.resource.GroupResource(), obj.GetName())
	}
	obj.SetUID(types.UID("00000000-0000-4000-8000-ffffffffffff"))
	obj.SetGeneration(1)
	return answer{code: http.StatusCreated, body: obj}, nil
}

// put writes the target's part of an object; in a dry run it returns the result without writing it.
func (s *Server) put(r *http.Request, t target, obj store.Object) (store.Object, error) {
	if !dryRun(r) {
		return s.store.Update(r.Context(), t.resource.GroupVersionResource, obj, t.part())
	}
	old, err := s.store.Get(r.Context(), t.resource.GroupVersionResource, t.namespace, t.name)
	if err != nil {
		return nil, err
	}
	return store.Preview(t.resource.GroupVersionResource, old, obj, t.part())
}

// selection returns the filter of a list or watch. As on the real server an unsupported field is an
// error: ignoring it would match everything.
func (s *Server) selection(r *http.Request, t target) (func(store.Object) bool, error) {
	q := r.URL.Query()
	byLabel, err := labels.Parse(q.Get("labelSelector"))
	if err != nil {
		return nil, apierrors.NewBadRequest("labelSelector: " + err.Error())
	}
	byField, err := fields.ParseSelector(q.Get("fieldSelector"))
	if err != nil {
		return nil, apierrors.NewBadRequest("fieldSelector: " + err.Error())
	}
	empty, err := s.newObject(t.resource.GVK())
	if err != nil {
		return nil, fmt.Errorf("make %s: %w", t.resource.Kind, err)
	}
	prototype := selectable(empty.(store.Object))
	for _, requirement := range byField.Requirements() {
		if !prototype.Has(requirement.Field) {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("field label not supported: %s", requirement.Field))
		}
	}
	return func(o store.Object) bool {
		switch {
		case t.namespace != "" && o.GetNamespace() != t.namespace, t.name != "" && o.GetName() != t.name:
			return false
		}
		return byLabel.Matches(labels.Set(o.GetLabels())) && byField.Matches(selectable(o))
	}, nil
}

func selectable(o store.Object) fields.Set {
	set := fields.Set{"metadata.name": o.GetName(), "metadata.namespace": o.GetNamespace()}
	switch o := o.(type) {
	case *corev1.Pod:
		set["spec.nodeName"] = o.Spec.NodeName
		set["spec.schedulerName"] = o.Spec.SchedulerName
		set["spec.restartPolicy"] = string(o.Spec.RestartPolicy)
		set["status.phase"] = string(o.Status.Phase)
		set["status.podIP"] = o.Status.PodIP
	case *corev1.Node:
		set["spec.unschedulable"] = strconv.FormatBool(o.Spec.Unschedulable)
	case *corev1.Namespace:
		set["status.phase"] = string(o.Status.Phase)
	case *corev1.Secret:
		set["type"] = string(o.Type)
	case *corev1.Event:
		selectEvent(set, o)
	case *certificatesv1.CertificateSigningRequest:
		set["spec.signerName"] = o.Spec.SignerName
	}
	return set
}

// selectEvent does the work of ToSelectableFields of Kubernetes' registry/core/event.
func selectEvent(set fields.Set, o *corev1.Event) {
	about := o.InvolvedObject
	set["involvedObject.kind"] = about.Kind
	set["involvedObject.namespace"] = about.Namespace
	set["involvedObject.name"] = about.Name
	set["involvedObject.uid"] = string(about.UID)
	set["involvedObject.apiVersion"] = about.APIVersion
	set["involvedObject.resourceVersion"] = about.ResourceVersion
	set["involvedObject.fieldPath"] = about.FieldPath
	set["reason"] = o.Reason
	set["reportingComponent"] = o.ReportingController
	set["source"] = cmp.Or(o.Source.Component, o.ReportingController)
	set["type"] = o.Type
}

// pageLife is how long a list can be continued: until etcd's compaction (kube-apiserver's --etcd-compaction-interval).
const pageLife = 5 * time.Minute

// kept is the content of a collection at a revision, for lists that continue.
type kept struct {
	objects  []store.Object
	revision string
	until    time.Time
}

// pageToken is the content of "continue" (apiserver, pkg/storage/continue.go).
type pageToken struct {
	APIVersion string `json:"v"`
	Revision   int64  `json:"rv"`
	Start      string `json:"start"` // key before the next page
}

// latest is the revision of a token that continues with the present objects.
const latest = -1

func keyOf(o store.Object) string { return o.GetNamespace() + "/" + o.GetName() }

// page cuts a list by "limit" and "continue". The first page has the present objects, the other pages the objects of
// the same revision. The remaining count is only given for lists without a selector (apiserver,
// pkg/storage/etcd3/store.go, GetList).
func (s *Server) page(t target, q url.Values, match func(store.Object) bool, objects []store.Object, revision string) ([]store.Object, metav1.ListMeta, error) {
	now := kept{objects: objects, revision: revision, until: time.Now().Add(pageLife)}
	start := ""
	if token := q.Get("continue"); token != "" {
		if rv := q.Get("resourceVersion"); rv != "" && rv != "0" {
			return nil, metav1.ListMeta{}, apierrors.NewBadRequest("specifying resource version is not allowed when using continue")
		}
		var err error
		if start, now, err = s.resume(t, token, now); err != nil {
			return nil, metav1.ListMeta{}, err
		}
	}
	limit, err := strconv.Atoi(q.Get("limit"))
	if q.Get("limit") != "" && (err != nil || limit < 0) {
		return nil, metav1.ListMeta{}, apierrors.NewBadRequest("limit: must be a non-negative integer")
	}
	var page []store.Object
	last := ""
	for i, o := range now.objects {
		switch {
		case start != "" && keyOf(o) <= start || !match(o):
		case limit > 0 && len(page) == limit:
			listed := metav1.ListMeta{ResourceVersion: now.revision, Continue: s.keep(t, now, last)}
			if q.Get("labelSelector") == "" && q.Get("fieldSelector") == "" {
				listed.RemainingItemCount = new(int64(len(now.objects) - i))
			}
			return page, listed, nil
		default:
			page, last = append(page, o), keyOf(o)
		}
	}
	return page, metav1.ListMeta{ResourceVersion: now.revision}, nil
}

// pagesOf returns the key of a kept collection.
func pagesOf(t target, revision string) string {
	return t.resource.GroupVersionResource.String() + " of " + t.namespace + "@" + revision
}

func (s *Server) keep(t target, k kept, last string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, old := range s.pages {
		if time.Now().After(old.until) {
			delete(s.pages, key)
		}
	}
	s.pages[pagesOf(t, k.revision)] = k
	revision, _ := strconv.ParseInt(k.revision, 10, 64) // the store's revisions are numbers
	return encodeToken(revision, last)
}

func encodeToken(revision int64, start string) string {
	b, _ := json.Marshal(pageToken{APIVersion: "meta.k8s.io/v1", Revision: revision, Start: start}) // never fails: strings and a number
	return base64.RawURLEncoding.EncodeToString(b)
}

// resume finds the list that a token continues. If etcd has dropped its revision, the error has a token for the rest of
// the present list (apiserver, pkg/storage/etcd3/errors.go, handleCompactedErrorForPaging).
func (s *Server) resume(t target, token string, now kept) (start string, k kept, err error) {
	b, err := base64.RawURLEncoding.DecodeString(token)
	var at pageToken
	if err != nil || json.Unmarshal(b, &at) != nil || at.Start == "" || at.Revision == 0 {
		return "", k, apierrors.NewBadRequest("continue key is not valid")
	}
	if at.Revision == latest {
		return at.Start, now, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	k, found := s.pages[pagesOf(t, strconv.FormatInt(at.Revision, 10))]
	if !found || time.Now().After(k.until) {
		expired := apierrors.NewResourceExpired("The provided continue parameter is too old to display a consistent list result. " +
			"You can start a new list without the continue parameter, or use the continue token in this response to retrieve the remainder " +
			"of the results. Continuing with the provided token results in an inconsistent list - objects that were created, modified, or " +
			"deleted between the time the first chunk was returned and now may show up in the list.")
		expired.ErrStatus.Continue = encodeToken(latest, at.Start)
		return "", k, expired
	}
	return at.Start, k, nil
}

// patchTries is how often a patch without its own revision is retried on a newer object.
const patchTries = 5

func (s *Server) patch(r *http.Request, t target) (answer, error) {
	b, err := read(r)
	if err != nil {
		return answer{}, err
	}
	media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil {
		return answer{}, apierrors.NewBadRequest("Content-Type: " + err.Error())
	}
	if types.PatchType(media) == types.ApplyYAMLPatchType {
		return s.apply(r, t, b)
	}
	for try := 1; ; try++ {
		a, err := s.patchOnce(r, t, types.PatchType(media), b)
		if apierrors.IsConflict(err) && try < patchTries {
			continue
		}
		return a, err
	}
}

// patchOnce applies the patch to the present object. A revision in the patch is kept in the result, so that a stale
// revision is a conflict.
func (s *Server) patchOnce(r *http.Request, t target, kind types.PatchType, patch []byte) (a answer, err error) {
	old, err := s.store.Get(r.Context(), t.resource.GroupVersionResource, t.namespace, t.name)
	if err != nil {
		return a, err
	}
	before, err := json.Marshal(old)
	if err != nil {
		return a, fmt.Errorf("encode %s: %w", t.name, err)
	}
	var after []byte
	switch kind {
	case types.StrategicMergePatchType:
		if isCustom(old) {
			return a, unsupportedPatch(t, kind)
		}
		after, err = strategicpatch.StrategicMergePatch(before, patch, old)
	case types.MergePatchType:
		after, err = mergePatch(before, patch)
	case types.JSONPatchType:
		after, err = jsonPatch(before, patch)
	default:
		return a, unsupportedPatch(t, kind)
	}
	if known := apierrors.APIStatus(nil); errors.As(err, &known) {
		return a, err
	}
	if err != nil {
		return a, apierrors.NewBadRequest(err.Error())
	}
	value := string(after)
	if kind == types.StrategicMergePatchType {
		sent := map[string]any{}
		_ = json.Unmarshal(patch, &sent) // it was read above
		value = fmt.Sprintf("%+v", sent)
	}
	if a.warnings, err = s.unknownFields(r, t, after); err != nil { // applyPatchToCurrentObject in apiserver's endpoints/handlers/patch.go
		return a, apierrors.NewInvalid(schema.GroupKind{}, "", field.ErrorList{field.Invalid(field.NewPath("patch"), value, err.Error())})
	}
	patched, err := s.decodeObject(after, t)
	if err != nil {
		return a, err
	}
	if patched.GetName() != t.name {
		return a, apierrors.NewBadRequest("the name of the object does not match the name on the URL")
	}
	if patched, err = s.own(r, t, old, patched); err != nil {
		return a, err
	}
	a.code = http.StatusOK
	a.body, err = s.put(r, t, patched)
	return a, err
}

func unsupportedPatch(t target, kind types.PatchType) error {
	return apierrors.NewGenericServerResponse(http.StatusUnsupportedMediaType, "patch", t.resource.GroupResource(), t.name,
		fmt.Sprintf("patches of type %q are not served", kind), 0, false)
}

// mergePatch applies a patch of RFC 7396. kubectl may send YAML, a superset of JSON.
func mergePatch(before, patch []byte) ([]byte, error) {
	patch, err := yaml.YAMLToJSON(patch)
	if err != nil {
		return nil, err
	}
	return jsonpatch.MergePatch(before, patch)
}

// jsonPatch applies a patch of RFC 6902, by the API server's own library (applyJSPatch in apiserver's
// endpoints/handlers/patch.go).
func jsonPatch(before, patch []byte) ([]byte, error) {
	operations, err := jsonpatch.DecodePatch(patch)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	after, err := operations.Apply(before)
	if err != nil {
		return nil, apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", schema.GroupResource{}, "", err.Error(), 0, false)
	}
	return after, nil
}

// apply makes a server-side apply: it sets the manager's fields, keeps the fields of other owners, and creates a
// missing object.
func (s *Server) apply(r *http.Request, t target, body []byte) (answer, error) {
	manager := r.URL.Query().Get("fieldManager")
	if manager == "" {
		return answer{}, apierrors.NewInvalid(schema.GroupKind{Group: "meta.k8s.io", Kind: "PatchOptions"}, "", field.ErrorList{
			field.Required(field.NewPath("fieldManager"), "is required for apply patch"),
		})
	}
	for try := 1; ; try++ {
		a, err := s.applyOnce(r, t, body, manager)
		ofFields := apierrors.HasStatusCause(err, metav1.CauseTypeFieldManagerConflict) // and not of the revision
		if apierrors.IsConflict(err) && !ofFields && try < patchTries {
			continue
		}
		return a, err
	}
}

func (s *Server) applyOnce(r *http.Request, t target, body []byte, manager string) (answer, error) {
	applied := map[string]any{}
	if err := yaml.Unmarshal(body, &applied); err != nil {
		return answer{}, apierrors.NewBadRequest("error decoding YAML: " + err.Error())
	}
	old, err := s.store.Get(r.Context(), t.resource.GroupVersionResource, t.namespace, t.name)
	if err != nil && !apierrors.IsNotFound(err) {
		return answer{}, err
	}
	live, err := loose(old, t)
	if err != nil {
		return answer{}, err
	}
	fields, err := fieldManager(t)
	if err != nil {
		return answer{}, err
	}
	merged, err := fields.Apply(live, &unstructured.Unstructured{Object: applied}, manager, r.URL.Query().Get("force") == "true")
	if known := apierrors.APIStatus(nil); err != nil && !errors.As(err, &known) { // a field that the kind does not have
		return unstored(err), nil
	}
	if err != nil {
		return answer{}, err
	}
	b, err := json.Marshal(merged)
	if err != nil {
		return answer{}, fmt.Errorf("encode %s: %w", t.name, err)
	}
	obj, err := s.decodeObject(b, t)
	if err != nil {
		return answer{}, err
	}
	if old == nil {
		return s.add(r, t, obj)
	}
	obj, err = s.put(r, t, obj)
	return answer{code: http.StatusOK, body: obj}, err
}

// loose returns the object as unstructured data; an empty object of the target's kind if obj is nil.
func loose(obj store.Object, t target) (*unstructured.Unstructured, error) {
	u := &unstructured.Unstructured{Object: map[string]any{}}
	if obj != nil {
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
		if err != nil {
			return nil, fmt.Errorf("encode %s: %w", t.name, err)
		}
		u.Object = content
	}
	u.SetGroupVersionKind(t.resource.GVK())
	u.SetName(t.name)
	if t.namespace != "" {
		u.SetNamespace(t.namespace)
	}
	return u, nil
}

// builtIn returns the schemas of the built-in kinds, which are read when they are first needed.
var builtIn = sync.OnceValues(func() (managedfields.TypeConverter, error) {
	scheme, err := store.NewScheme()
	if err != nil {
		return nil, err
	}
	return applyconfigurations.NewTypeConverter(scheme), nil
})

// fieldManager returns the API server's own field manager. A custom resource has no schema here: its lists are owned
// and replaced as a whole.
func fieldManager(t target) (m *managedfields.FieldManager, err error) {
	kind, version := t.resource.GVK(), t.resource.GroupVersion()
	if store.BuiltIn(t.resource) {
		types, failed := builtIn()
		if failed != nil {
			return nil, fmt.Errorf("read the schemas: %w", failed)
		}
		m, err = managedfields.NewDefaultFieldManager(types, oneVersion{}, oneVersion{}, oneVersion{}, kind, version, t.sub, nil)
	} else {
		m, err = managedfields.NewDefaultCRDFieldManager(managedfields.NewDeducedTypeConverter(), oneVersion{}, oneVersion{}, oneVersion{}, kind, version, t.sub, nil)
	}
	if err != nil {
		return nil, fmt.Errorf("track the fields of %s: %w", t.resource.Kind, err)
	}
	return m, nil
}

// own records field owners, if the object was ever applied or if the client has a name for itself, as kubectl has;
// the real server records them on every object. old is nil for a new object.
func (s *Server) own(r *http.Request, t target, old, obj store.Object) (store.Object, error) {
	manager := r.URL.Query().Get("fieldManager")
	if manager == "" && (old == nil || len(old.GetManagedFields()) == 0) {
		return obj, nil
	}
	before, err := loose(old, t)
	if err != nil {
		return nil, err
	}
	after, err := loose(obj, t)
	if err != nil {
		return nil, err
	}
	if t.part() == store.Main && t.resource.Status { // this write leaves the status as it is
		delete(before.Object, "status")
		delete(after.Object, "status")
	}
	fields, err := fieldManager(t)
	if err != nil {
		return nil, err
	}
	if manager == "" {
		manager, _, _ = strings.Cut(r.UserAgent(), "/")
	}
	updated, err := fields.Update(before, after, manager)
	if err != nil {
		return nil, fmt.Errorf("track the fields of %s: %w", t.name, err)
	}
	obj = obj.DeepCopyObject().(store.Object)
	obj.SetManagedFields(updated.(*unstructured.Unstructured).GetManagedFields())
	return obj, nil
}

// oneVersion is the field manager's view of versions and defaults: one version, no defaults.
type oneVersion struct{}

var (
	_ runtime.ObjectConvertor = oneVersion{}
	_ runtime.ObjectDefaulter = oneVersion{}
	_ runtime.ObjectCreater   = oneVersion{}
)

func (oneVersion) Default(runtime.Object) {}

func (oneVersion) New(kind schema.GroupVersionKind) (runtime.Object, error) { return custom(kind), nil }

func (oneVersion) Convert(in, out, _ any) error {
	from, ok := in.(*unstructured.Unstructured)
	to, fits := out.(*unstructured.Unstructured)
	if !ok || !fits {
		return fmt.Errorf("convert %T to %T", in, out)
	}
	to.Object = from.Object
	return nil
}

func (oneVersion) ConvertToVersion(in runtime.Object, _ runtime.GroupVersioner) (runtime.Object, error) {
	return in, nil
}

func (oneVersion) ConvertFieldLabel(_ schema.GroupVersionKind, label, value string) (string, string, error) {
	return label, value, nil
}

// unknownFields returns the fields of an object in JSON or YAML that its kind does not have or that the object has
// twice: as warnings, or as a strict decoding error if the client wants the error. A custom resource has no schema
// here, and a protobuf has no unknown fields.
func (s *Server) unknownFields(r *http.Request, t target, b []byte) (warnings []string, err error) {
	directive, gvk := r.URL.Query().Get("fieldValidation"), t.resource.GVK()
	if directive == metav1.FieldValidationIgnore || !s.scheme.Recognizes(gvk) || bytes.HasPrefix(b, []byte("k8s\x00")) {
		return nil, nil
	}
	media := runtime.ContentTypeYAML
	if bytes.HasPrefix(bytes.TrimSpace(b), []byte("{")) {
		media = runtime.ContentTypeJSON
	}
	info, _ := runtime.SerializerInfoForMediaType(s.codecs.SupportedMediaTypes(), media) // a codec factory has both
	into, err := s.scheme.New(gvk)
	if err != nil {
		return nil, fmt.Errorf("make %s: %w", gvk.Kind, err)
	}
	_, _, err = info.StrictSerializer.Decode(b, &gvk, into)
	strict, is := runtime.AsStrictDecodingError(err)
	switch {
	case !is:
		return nil, nil // decoding the object returns the other errors
	case directive == metav1.FieldValidationStrict:
		return nil, err
	}
	for _, e := range strict.Errors() {
		warnings = append(warnings, e.Error())
	}
	return warnings, nil
}

// unknownInObject does the work of unknownFields for an object that a client sends whole (transformDecodeError in
// apiserver's endpoints/handlers/rest.go).
func (s *Server) unknownInObject(r *http.Request, t target, b []byte) (warnings []string, err error) {
	warnings, err = s.unknownFields(r, t, b)
	if err != nil {
		gvk := t.resource.GVK()
		err = apierrors.NewBadRequest(fmt.Sprintf("%s in version %q cannot be handled as a %s: %v", gvk.Kind, t.resource.Version, gvk.Kind, err))
	}
	return warnings, err
}
