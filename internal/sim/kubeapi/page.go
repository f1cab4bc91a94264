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

// pageLife is how long a list can be continued: until etcd's compaction (kube-apiserver's
// --etcd-compaction-interval).
const pageLife = 5 * time.Minute

// kept is the content of a collection at a revision, for lists that continue.
type kept struct {
	objects  []store.Object
	revision string
	until    time.Time
}

// pageToken is the content of "continue" (apiserver, pkg/storage/continue.go).
type pageToken struct {
	APIVersion string `json:"v"`
	Revision   int64  `json:"rv"`
	Start      string `json:"start"` // key before the next page
}

// latest is the revision of a token that continues with the present objects.
const latest = -1

func keyOf(o store.Object) string { return o.GetNamespace() + "/" + o.GetName() }

// page cuts a list by "limit" and "continue". The first page has the present objects, the
// others those of the same revision. The remaining count is only given for lists without a
// selector (apiserver, pkg/storage/etcd3/store.go, GetList).
func (s *Server) page(t target, q url.Values, match func(store.Object) bool, objects []store.Object, revision string) ([]store.Object, metav1.ListMeta, error) {
	now := kept{objects: objects, revision: revision, until: time.Now().Add(pageLife)}
	start := ""
	if token := q.Get("continue"); token != "" {
		if rv := q.Get("resourceVersion"); rv != "" && rv != "0" {
			return nil, metav1.ListMeta{}, apierrors.NewBadRequest("specifying resource version is not allowed when using continue")
		}
		var err error
		if start, now, err = s.resume(t, token, now); err != nil {
			return nil, metav1.ListMeta{}, err
		}
	}
	limit, err := strconv.Atoi(q.Get("limit"))
	if q.Get("limit") != "" && (err != nil || limit < 0) {
		return nil, metav1.ListMeta{}, apierrors.NewBadRequest("limit: must be a non-negative integer")
	}
	var page []store.Object
	last := ""
	for i, o := range now.objects {
		switch {
		case start != "" && keyOf(o) <= start || !match(o):
		case limit > 0 && len(page) == limit:
			listed := metav1.ListMeta{ResourceVersion: now.revision, Continue: s.keep(t, now, last)}
			if q.Get("labelSelector") == "" && q.Get("fieldSelector") == "" {
				listed.RemainingItemCount = new(int64(len(now.objects) - i))
			}
			return page, listed, nil
		default:
			page, last = append(page, o), keyOf(o)
		}
	}
	return page, metav1.ListMeta{ResourceVersion: now.revision}, nil
}

// pagesOf is the key of a kept collection.
func pagesOf(t target, revision string) string {
	return t.resource.GroupVersionResource.String() + " of " + t.namespace + "@" + revision
}

func (s *Server) keep(t target, k kept, last string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, old := range s.pages {
		if time.Now().After(old.until) {
			delete(s.pages, key)
		}
	}
	s.pages[pagesOf(t, k.revision)] = k
	revision, _ := strconv.ParseInt(k.revision, 10, 64) // the store's revisions are numbers
	return encodeToken(revision, last)
}

func encodeToken(revision int64, start string) string {
	b, _ := json.Marshal(pageToken{APIVersion: "meta.k8s.io/v1", Revision: revision, Start: start}) // never fails: strings and a number
	return base64.RawURLEncoding.EncodeToString(b)
}

// resume finds the list that a token continues. If etcd has dropped its revision, the error
// has a token for the rest of the present list (apiserver, pkg/storage/etcd3/errors.go,
// handleCompactedErrorForPaging).
func (s *Server) resume(t target, token string, now kept) (start string, k kept, err error) {
	b, err := base64.RawURLEncoding.DecodeString(token)
	var at pageToken
	if err != nil || json.Unmarshal(b, &at) != nil || at.Start == "" || at.Revision == 0 {
		return "", k, apierrors.NewBadRequest("continue key is not valid")
	}
	if at.Revision == latest {
		return at.Start, now, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	k, found := s.pages[pagesOf(t, strconv.FormatInt(at.Revision, 10))]
	if !found || time.Now().After(k.until) {
		expired := apierrors.NewResourceExpired("The provided continue parameter is too old to display a consistent list result. " +
			"You can start a new list without the continue parameter, or use the continue token in this response to retrieve the remainder " +
			"of the results. Continuing with the provided token results in an inconsistent list - objects that were created, modified, or " +
			"deleted between the time the first chunk was returned and now may show up in the list.")
		expired.ErrStatus.Continue = encodeToken(latest, at.Start)
		return "", k, expired
	}
	return at.Start, k, nil
}
