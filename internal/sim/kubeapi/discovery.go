package kubeapi

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
	"sigs.k8s.io/yaml"

	"github.com/recast-sh/recast/internal/sim/kubeapi/openapi"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
)

// target is what a request's path names.
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

// node returns the node in the request's path, if any.
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

// isWatch reports whether a GET asks for a stream of changes.
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

// describe answers with the OpenAPI document of a group and version.
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
			Verbs: metav1.Verbs{"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"},
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

// newObject returns an empty object or list of that kind.
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

// part returns the part that an update of the target touches.
func (t target) part() store.Part {
	if t.sub == "" && !t.resource.Status {
		return store.Whole
	}
	return store.Part(t.sub)
}
