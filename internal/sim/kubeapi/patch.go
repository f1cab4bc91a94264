package kubeapi

import (
	"encoding/json"
	"fmt"
	"mime"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"
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

// patchOnce applies the patch to the present object. A revision in the patch is kept in
// the result, so that a stale one is a conflict.
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

// mergePatch is RFC 7396.
func mergePatch(before, patch []byte) ([]byte, error) {
	var doc, p any
	if err := json.Unmarshal(before, &doc); err != nil {
		return nil, err
	}
	// kubectl may send YAML, a superset of JSON.
	if err := yaml.Unmarshal(patch, &p); err != nil {
		return nil, err
	}
	return json.Marshal(merge(doc, p))
}

func merge(doc, patch any) any {
	p, ok := patch.(map[string]any)
	if !ok {
		return patch
	}
	d, ok := doc.(map[string]any)
	if !ok {
		d = map[string]any{}
	}
	for k, v := range p {
		if v == nil {
			delete(d, k)
		} else {
			d[k] = merge(d[k], v)
		}
	}
	return d
}
