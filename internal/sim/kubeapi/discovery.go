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
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"

	"github.com/recast-sh/recast/internal/sim/kubeapi/openapi"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
)

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
