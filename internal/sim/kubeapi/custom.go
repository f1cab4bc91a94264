package kubeapi

import (
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
)

// Define serves a custom resource from now on, as if its definition had been applied. Its
// objects are *unstructured.Unstructured, in the store too.
func (s *Server) Define(r store.Resource) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.defined = append(s.defined, r)
}

// serves lists all served resources, custom ones last.
func (s *Server) serves() []store.Resource {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Concat(s.built, s.defined)
}

// newObject is an empty object or list of that kind.
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

// part is the part that an update of the target touches.
func (t target) part() store.Part {
	if t.sub == "" && !t.resource.Status {
		return store.Whole
	}
	return store.Part(t.sub)
}
