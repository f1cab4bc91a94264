package factoryapi

import (
	"encoding/json"
	"net/http"
	"regexp"
)

var manifestByDigest = regexp.MustCompile(`^/v2/(.+)/manifests/(sha256:[0-9a-f]{64})$`)

// untagging deletes the tags of a deleted manifest, like distribution/distribution
// (registry/handlers/manifests.go, DeleteManifest) and others; go-containerregistry's
// registry would keep serving the manifest under them.
type untagging struct{ store http.Handler }

func (u untagging) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	m := manifestByDigest.FindStringSubmatch(r.URL.Path)
	if r.Method != http.MethodDelete || m == nil {
		u.store.ServeHTTP(w, r)
		return
	}
	repository, digest := m[1], m[2]
	var list struct {
		Tags []string `json:"tags"`
	}
	if a := u.ask(r, http.MethodGet, "/v2/"+repository+"/tags/list"); a.status == http.StatusOK {
		if err := json.Unmarshal(a.body.Bytes(), &list); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
	}
	for _, tag := range list.Tags {
		path := "/v2/" + repository + "/manifests/" + tag
		if u.ask(r, http.MethodHead, path).header.Get("Docker-Content-Digest") == digest {
			u.ask(r, http.MethodDelete, path)
		}
	}
	u.store.ServeHTTP(w, r)
}

// ask sends a request to the store while handling another.
func (u untagging) ask(r *http.Request, method, path string) *answer {
	inner := r.Clone(r.Context())
	inner.Method, inner.Body, inner.ContentLength = method, http.NoBody, 0
	inner.URL.Path, inner.URL.RawPath, inner.URL.RawQuery = path, "", ""
	a := newAnswer()
	u.store.ServeHTTP(a, inner)
	return a
}
