// Package openapi describes the kinds that a lab's API serves as OpenAPI v3, for kubectl
// explain, apply and diff. Documents are made when they are asked for and not kept.
package openapi

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
)

// Path is where the documents of a group and version are: "apis/apps/v1".
func Path(gv schema.GroupVersion) string {
	if gv.Group == "" {
		return "api/" + gv.Version
	}
	return "apis/" + gv.String()
}

// Index lists the documents of the served resources. Clients keep a document as long as its
// hash stays: it is that of what is served.
func Index(served []store.Resource, version string) ([]byte, error) {
	paths := object{}
	for _, r := range served {
		var kinds []string
		for _, other := range served {
			if other.GroupVersion() == r.GroupVersion() {
				kinds = append(kinds, other.Kind)
			}
		}
		at := Path(r.GroupVersion())
		hash := sha256.Sum256([]byte(strings.Join(append(kinds, version), ",")))
		paths[at] = object{"serverRelativeURL": fmt.Sprintf("/openapi/v3/%s?hash=%X", at, hash)}
	}
	return json.Marshal(object{"paths": paths})
}

// Document describes the served resources of a group and version.
func Document(scheme *runtime.Scheme, served []store.Resource, gv schema.GroupVersion) ([]byte, error) {
	s, paths := schemas{scheme, gv, object{}}, object{}
	for _, r := range served {
		if r.GroupVersion() != gv {
			continue
		}
		name, err := s.add(r)
		if err != nil {
			return nil, err
		}
		describe(paths, r, name)
	}
	s.schema(reflect.TypeFor[metav1.DeleteOptions]())
	s.schema(reflect.TypeFor[metav1.Patch]())
	s.schema(reflect.TypeFor[metav1.Status]())
	return json.Marshal(object{
		"openapi": "3.0.0", "info": object{"title": "Kubernetes", "version": "unversioned"},
		"paths": paths, "components": object{"schemas": s.models},
	})
}

// add adds the models of a resource's object and list, and returns the object's name. A
// custom resource has no schema here, so anything is allowed in it.
func (s schemas) add(r store.Resource) (string, error) {
	names := map[string]string{}
	for _, kind := range []string{r.Kind, r.Kind + "List"} {
		gvk := r.GroupVersion().WithKind(kind)
		if !s.scheme.Recognizes(gvk) {
			parts := strings.Split(r.Group, ".")
			slices.Reverse(parts)
			names[kind] = strings.Join(append(parts, r.Version, kind), ".")
			s.models[names[kind]] = object{
				"type": "object", "x-kubernetes-preserve-unknown-fields": true, "x-kubernetes-group-version-kind": []object{kindOf(gvk)},
			}
			continue
		}
		empty, err := s.scheme.New(gvk)
		if err != nil {
			return "", fmt.Errorf("describe %s: %w", kind, err)
		}
		ref := s.schema(reflect.TypeOf(empty))["$ref"].(string)
		names[kind] = ref[strings.LastIndexByte(ref, '/')+1:]
	}
	return names[r.Kind], nil
}

func kindOf(gvk schema.GroupVersionKind) object {
	return object{"group": gvk.Group, "version": gvk.Version, "kind": gvk.Kind}
}
