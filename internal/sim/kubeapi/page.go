package kubeapi

import (
	"encoding/base64"
	"encoding/json"
	"net/url"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
)

// pageLife is how long a list can be continued: until etcd is compacted
// (kube-apiserver's --etcd-compaction-interval).
const pageLife = 5 * time.Minute

// kept is what a collection held at a revision, for lists that are to be continued.
type kept struct {
	objects  []store.Object
	revision string
	until    time.Time
}

// pageToken is what "continue" holds (apiserver, pkg/storage/continue.go).
type pageToken struct {
	APIVersion string `json:"v"`
	Revision   string `json:"rv"`
	Start      string `json:"start"` // key after which the next page begins
}

func keyOf(o store.Object) string { return o.GetNamespace() + "/" + o.GetName() }

// page cuts a list as "limit" and "continue" ask. The first page is of now, the
// others are of the same revision.
func (s *Server) page(t target, q url.Values, match func(store.Object) bool, objects []store.Object, revision string) ([]store.Object, metav1.ListMeta, error) {
	now := kept{objects: objects, revision: revision, until: time.Now().Add(pageLife)}
	start := ""
	if token := q.Get("continue"); token != "" {
		var err error
		if start, now, err = s.resume(t, token); err != nil {
			return nil, metav1.ListMeta{}, err
		}
	}
	limit, err := strconv.Atoi(q.Get("limit"))
	if q.Get("limit") != "" && (err != nil || limit < 0) {
		return nil, metav1.ListMeta{}, apierrors.NewBadRequest("limit: must be a non-negative integer")
	}
	var page []store.Object
	last := ""
	for _, o := range now.objects {
		switch {
		case start != "" && keyOf(o) <= start || !match(o):
		case limit > 0 && len(page) == limit:
			return page, metav1.ListMeta{ResourceVersion: now.revision, Continue: s.keep(t, now, last)}, nil
		default:
			page, last = append(page, o), keyOf(o)
		}
	}
	return page, metav1.ListMeta{ResourceVersion: now.revision}, nil
}

func (s *Server) keep(t target, k kept, last string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, old := range s.pages {
		if time.Now().After(old.until) {
			delete(s.pages, key)
		}
	}
	s.pages[t.resource.GroupVersionResource.String()+"@"+k.revision] = k
	b, _ := json.Marshal(pageToken{APIVersion: "meta.k8s.io/v1", Revision: k.revision, Start: last}) // three strings
	return base64.RawURLEncoding.EncodeToString(b)
}

func (s *Server) resume(t target, token string) (start string, k kept, err error) {
	b, err := base64.RawURLEncoding.DecodeString(token)
	var at pageToken
	if err != nil || json.Unmarshal(b, &at) != nil || at.Start == "" {
		return "", k, apierrors.NewBadRequest("continue key is not valid")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	k, found := s.pages[t.resource.GroupVersionResource.String()+"@"+at.Revision]
	if !found || time.Now().After(k.until) {
		return "", k, apierrors.NewResourceExpired("The provided continue parameter is too old to display a consistent list result. " +
			"You can start a new list without the continue parameter.")
	}
	return at.Start, k, nil
}
