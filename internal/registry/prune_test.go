package registry

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	ggcr "github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/factoryapi"
	"github.com/recast-sh/recast/internal/sim/record"
)

const mirror = host + "/acme/talos"

// pushBuilt pushes an index of one image with that build time, under a tag.
func pushBuilt(t *testing.T, to http.RoundTripper, tag string, at time.Time) (index, img v1.Hash) {
	t.Helper()
	one := must(mutate.CreatedAt(must(random.Image(64, 1))(t), v1.Time{Time: at}))(t)
	all := mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: one})
	noError(t, remote.WriteIndex(must(name.NewTag(mirror+":"+tag))(t), all, remote.WithTransport(to), remote.WithContext(t.Context())))
	return must(all.Digest())(t), must(one.Digest())(t)
}

func TestMirrorShelf(t *testing.T) {
	t.Parallel()
	s := direct{factoryapi.NewRegistry(record.New())}
	c := client(t, s)
	if tags, err := c.Tags(t.Context(), mirror); err != nil || tags != nil {
		t.Errorf("of no repository: %q, %v", tags, err)
	}
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	index, img := pushBuilt(t, s, "v1.13.9-aaaaaaaaaaaa", at)
	pushBuilt(t, s, "v1.13.9-bbbbbbbbbbbb", time.Unix(0, 0))
	tags := must(c.Tags(t.Context(), mirror))(t)
	same(t, "tags", []string{"v1.13.9-aaaaaaaaaaaa", "v1.13.9-bbbbbbbbbbbb"}, tags)
	got, found, err := c.Named(t.Context(), mirror+":v1.13.9-aaaaaaaaaaaa")
	if diff := cmp.Diff(images.Named{Digest: index.String(), Lists: []string{img.String()}}, got); diff != "" || !found || err != nil {
		t.Errorf("found %t, %v (-want +got):\n%s", found, err, diff)
	}
	if _, found, err := c.Named(t.Context(), mirror+":v1.13.9-cccccccccccc"); found || err != nil {
		t.Errorf("no tag: found %t, %v", found, err)
	}
	for ref, want := range map[string]time.Time{
		mirror + "@" + index.String(): at, mirror + "@" + img.String(): at, mirror + ":v1.13.9-bbbbbbbbbbbb": {},
	} {
		if got, err := c.Built(t.Context(), ref); err != nil || !got.Equal(want) {
			t.Errorf("%s was built at %s, %v; want %s", ref, got, err, want)
		}
	}
	for range 2 { // the second time there is none
		noError(t, c.Delete(t.Context(), mirror+"@"+index.String()))
	}
	if got := must(c.Tags(t.Context(), mirror))(t); !slices.Equal(got, []string{"v1.13.9-bbbbbbbbbbbb"}) {
		t.Errorf("tags after a deletion: %q", got)
	}
}

func TestDeleteRefuses(t *testing.T) {
	t.Parallel()
	d := mirror + "@sha256:" + strings.Repeat("a", 64)
	type row struct {
		status              int
		body                string
		undeletable, denied bool
		hint                string
	}
	each(t, map[string]row{
		"turned off":  {405, `{"errors":[{"code":"UNSUPPORTED","message":"The operation is unsupported."}]}`, true, false, "REGISTRY_STORAGE_DELETE_ENABLED=true"},
		"unsupported": {400, `{"errors":[{"code":"UNSUPPORTED","message":"no"}]}`, true, false, "REGISTRY_STORAGE_DELETE_ENABLED=true"},
		"no route":    {405, ``, true, false, "where you manage the registry"},
		"denied":      {403, `{"errors":[{"code":"DENIED","message":"no"}]}`, false, true, "docker login " + host},
		"broken":      {400, `{"errors":[{"code":"UNKNOWN","message":"no"}]}`, false, false, ""},
	}, func(t *testing.T, tc row) {
		store := ggcr.New()
		c := client(t, direct{http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodDelete {
				http.Error(w, tc.body, tc.status)
				return
			}
			store.ServeHTTP(w, r)
		})})
		err := c.Delete(t.Context(), d)
		if err == nil || errors.Is(err, images.ErrUndeletable) != tc.undeletable || errors.Is(err, images.ErrDenied) != tc.denied {
			t.Errorf("error = %v", err)
		}
		if got := strings.Join(fault.Hints(err), "; "); !strings.Contains(got, tc.hint) || got != "" && tc.hint == "" {
			t.Errorf("hint = %q, want it to hold %q", got, tc.hint)
		}
	})
	for host, want := range map[string]string{"ghcr.io": "gh api", name.DefaultRegistry: "Docker Hub", "r.acme": "REGISTRY_STORAGE_DELETE_ENABLED"} {
		if got := remedy(host); !strings.Contains(got, want) {
			t.Errorf("%s: %s", host, got)
		}
	}
}
