package kubeapi

import (
	"net/http"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
)

// dryRun says whether the request is a dry run.
func dryRun(r *http.Request) bool {
	return slices.Contains(r.URL.Query()["dryRun"], "All")
}

// add creates an object, or only pretends to in a dry run.
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

// put writes the target's part of an object, or only pretends to in a dry run.
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
