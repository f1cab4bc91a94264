package kubeapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"strings"
	"sync"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
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
