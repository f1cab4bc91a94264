package kubeapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/applyconfigurations"
	"sigs.k8s.io/yaml"

	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
)

// apply is a server-side apply: it sets the manager's fields, keeps those of other owners,
// and creates a missing object.
func (s *Server) apply(r *http.Request, t target, body []byte) (answer, error) {
	manager := r.URL.Query().Get("fieldManager")
	if manager == "" {
		return answer{}, apierrors.NewInvalid(schema.GroupKind{Group: "meta.k8s.io", Kind: "PatchOptions"}, "", field.ErrorList{
			field.Required(field.NewPath("fieldManager"), "is required for apply patch"),
		})
	}
	for try := 1; ; try++ {
		a, err := s.applyOnce(r, t, body, manager)
		if apierrors.IsConflict(err) && !fieldConflict(err) && try < patchTries {
			continue
		}
		return a, err
	}
}

// fieldConflict says whether a conflict is about field ownership, not about the revision.
func fieldConflict(err error) bool {
	return apierrors.HasStatusCause(err, metav1.CauseTypeFieldManagerConflict)
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

// loose is the object as unstructured data; an empty one of the target's kind if obj is nil.
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

// builtIn has the schemas of the built-in kinds, which are read when they are first needed.
var builtIn = sync.OnceValues(func() (managedfields.TypeConverter, error) {
	scheme, err := store.NewScheme()
	if err != nil {
		return nil, err
	}
	return applyconfigurations.NewTypeConverter(scheme), nil
})

// fieldManager is the API server's own. A custom resource has no schema here: its lists are
// owned and replaced as a whole.
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

// own records field owners, on objects that were ever applied or if the client has a name
// for itself, as kubectl has; the real server does so on every object. old is nil for a new
// object.
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

// oneVersion is the field manager's view of versions and defaults: one version, no
// defaults.
type oneVersion struct{}

var (
	_ runtime.ObjectConvertor = oneVersion{}
	_ runtime.ObjectDefaulter = oneVersion{}
	_ runtime.ObjectCreater   = oneVersion{}
)

// Default implements runtime.ObjectDefaulter.
func (oneVersion) Default(runtime.Object) {}

// New implements runtime.ObjectCreater.
func (oneVersion) New(kind schema.GroupVersionKind) (runtime.Object, error) { return custom(kind), nil }

// Convert implements runtime.ObjectConvertor.
func (oneVersion) Convert(in, out, _ any) error {
	from, ok := in.(*unstructured.Unstructured)
	to, fits := out.(*unstructured.Unstructured)
	if !ok || !fits {
		return fmt.Errorf("convert %T to %T", in, out)
	}
	to.Object = from.Object
	return nil
}

// ConvertToVersion implements runtime.ObjectConvertor.
func (oneVersion) ConvertToVersion(in runtime.Object, _ runtime.GroupVersioner) (runtime.Object, error) {
	return in, nil
}

// ConvertFieldLabel implements runtime.ObjectConvertor.
func (oneVersion) ConvertFieldLabel(_ schema.GroupVersionKind, label, value string) (string, string, error) {
	return label, value, nil
}
