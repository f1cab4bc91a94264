package kubeapi

import (
	"net/http"
	"slices"
	"strings"

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

// node is the node in the request's path, if any.
func (t target) node() string {
	if t.resource.GroupVersionResource == store.Nodes() {
		return t.name
	}
	return ""
}

// verb is the request's verb in Kubernetes' terms.
func (t target) verb(r *http.Request) string {
	switch r.Method {
	case http.MethodPost:
		return "create"
	case http.MethodPut:
		return "update"
	case http.MethodPatch:
		return "patch"
	case http.MethodDelete:
		if t.name == "" {
			return "deletecollection"
		}
		return "delete"
	}
	switch {
	case isWatch(r):
		return "watch"
	case t.name == "":
		return "list"
	}
	return "get"
}

// isWatch says whether a GET asks for a stream of changes.
func isWatch(r *http.Request) bool {
	v := r.URL.Query().Get("watch")
	return v == "true" || v == "1"
}
