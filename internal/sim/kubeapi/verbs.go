package kubeapi

import (
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

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
	switch verb := t.verb(r); verb {
	case "get":
		obj, err := s.store.Get(r.Context(), t.resource.GroupVersionResource, t.namespace, t.name)
		return answer{code: http.StatusOK, body: obj}, err
	case "list":
		return s.list(r, t)
	case "watch":
		return s.watch(r, t)
	case "create":
		return s.create(r, t)
	case "update":
		return s.update(r, t)
	case "patch":
		return s.patch(r, t)
	case "delete":
		return s.remove(r, t)
	case "deletecollection":
		return s.removeAll(r, t)
	default:
		return answer{}, apierrors.NewMethodNotSupported(t.resource.GroupResource(), verb)
	}
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

func (s *Server) create(r *http.Request, t target) (answer, error) {
	b, err := read(r)
	if err != nil {
		return answer{}, err
	}
	obj, err := s.decodeObject(b, t)
	if err != nil {
		return answer{}, err
	}
	if t.resource.Namespaced && t.namespace == "" {
		return answer{}, apierrors.NewBadRequest("an empty namespace may not be set during creation")
	}
	warnings, err := s.unknownInObject(r, t, b)
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
	b, err := read(r)
	if err != nil {
		return answer{}, err
	}
	obj, err := s.decodeObject(b, t)
	if err != nil {
		return answer{}, err
	}
	warnings, err := s.unknownInObject(r, t, b)
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

// otherUID refuses an update of an object that was replaced meanwhile (registry/rest/update.go in
// apiserver).
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

func (s *Server) removeAll(r *http.Request, t target) (answer, error) {
	o, err := s.deleteOptions(r)
	if err != nil {
		return answer{}, err
	}
	match, err := s.selection(r, t)
	if err != nil {
		return answer{}, err
	}
	objects, _, err := s.store.List(r.Context(), t.resource.GroupVersionResource, t.namespace)
	if err != nil {
		return answer{}, err
	}
	for _, obj := range objects {
		if !match(obj) {
			continue
		}
		_, err := s.store.Delete(r.Context(), t.resource.GroupVersionResource, obj.GetNamespace(), obj.GetName(), o)
		if err != nil && !apierrors.IsNotFound(err) {
			return answer{}, err
		}
	}
	return ok(&metav1.Status{Status: metav1.StatusSuccess}), nil
}
