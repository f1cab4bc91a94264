package registry

import (
	"errors"
	"fmt"
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
	"github.com/google/go-containerregistry/pkg/v1/validate"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/factoryapi"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/sim/record"
)

func TestCopy(t *testing.T) {
	t.Parallel()
	must.Each(t, map[string]bool{"referrers API": true, "fallback tag": false}, func(t *testing.T, referrersAPI bool) {
		c := newCopier(t, ggcr.WithReferrersSupport(referrersAPI))
		sig := c.sign(t, c.source.Context())
		referrers := []string{c.refer(t).String(), c.refer(t).String()}
		must.Do(t, c.run(t))
		c.whole(t)
		must.Equal(t, "signature", sig, must.Get(remote.Head(c.mirror.Tag(c.signatureTag())))(t).Digest)
		must.Do(t, validate.Image(must.Get(remote.Image(c.mirror.Tag(c.signatureTag())))(t)))
		got := must.Get(c.referrers(t.Context(), c.mirror.Digest(c.source.DigestStr())))(t)
		slices.Sort(got)
		slices.Sort(referrers)
		must.Equal(t, "referrers", referrers, got)
		for _, r := range referrers {
			must.Do(t, validate.Image(must.Get(remote.Image(c.mirror.Digest(r)))(t)))
		}
		for _, r := range c.to.asked("PUT") {
			if strings.Contains(r, "/manifests/v") {
				t.Errorf("a tag was set: %s", r)
			}
		}

		c.to.set(nil)
		must.Do(t, c.run(t))
		if again := slices.Concat(c.to.asked("PUT"), c.to.asked("POST"), c.to.asked("PATCH")); len(again) > 0 {
			t.Errorf("sent again: %q", again)
		}
	})
}

// TestCopyWithoutAttachments: an image without signature and referrers is copied, too.
func TestCopyWithoutAttachments(t *testing.T) {
	t.Parallel()
	c := newCopier(t)
	must.Do(t, c.run(t))
	c.whole(t)
	if got := len(c.to.asked("PUT")); got != 2*3+3 { // blobs, manifests
		t.Errorf("%d PUTs", got)
	}
}

// TestCopyResumes interrupts a copy at each writing request, and copies again.
func TestCopyResumes(t *testing.T) {
	if testing.Short() {
		t.Skip("long: make stories")
	}
	t.Parallel()
	must.Each(t, map[string]bool{"referrers API": true, "fallback tag": false}, func(t *testing.T, referrersAPI bool) {
		c := newCopier(t, ggcr.WithReferrersSupport(referrersAPI))
		sig, referrer := c.attach(t)
		must.Do(t, c.run(t))
		total := len(c.to.asked("PUT"))
		if total < 2*3+3+5 {
			t.Fatalf("only %d writes", total)
		}
		for at := 1; at <= total; at++ {
			c.into(t, newPlace(t, ggcr.WithReferrersSupport(referrersAPI)))
			writes := 0
			c.to.set(func(r *http.Request) int {
				if r.Method == http.MethodPut {
					writes++
				}
				if writes < at {
					return 0
				}
				return http.StatusInsufficientStorage // a status that is not retried
			})
			if err := c.run(t); err == nil {
				t.Fatalf("cut at write %d of %d: no error", at, total)
			}
			c.to.let()
			if err := c.run(t); err != nil {
				t.Fatalf("again after a cut at write %d of %d: %v", at, total, err)
			}
			if again := c.to.sentAgain(); len(again) > 0 {
				t.Errorf("cut at write %d of %d: sent again: %q", at, total, again)
			}
			c.whole(t)
			got := must.Get(remote.Head(c.mirror.Tag(c.signatureTag())))(t).Digest.String()
			list := must.Get(c.referrers(t.Context(), c.mirror.Digest(c.source.DigestStr())))(t)
			if diff := cmp.Diff([]string{sig.String(), referrer.String()}, append([]string{got}, list...)); diff != "" {
				t.Errorf("cut at write %d of %d: signature and referrers (-want +got):\n%s", at, total, diff)
			}
		}
	})
}

func TestCopyNeverOverwritesASignature(t *testing.T) {
	t.Parallel()
	c := newCopier(t)
	c.sign(t, c.source.Context())
	theirs := c.sign(t, c.mirror)
	err := c.run(t)
	if fault.KindOf(err) != fault.Refused || !strings.Contains(err.Error(), theirs.String()) || len(fault.Hints(err)) != 1 {
		t.Errorf("err = %v, hints %q", err, fault.Hints(err))
	}
	must.Equal(t, "signature", theirs, must.Get(remote.Head(c.mirror.Tag(c.signatureTag())))(t).Digest)
}

// on is what a place answers to requests of a method, "" for any, for paths with that part.
func on(method, part string, status int) func(*http.Request) int {
	return func(r *http.Request) int {
		if (method == "" || r.Method == method) && strings.Contains(r.URL.Path, part) {
			return status
		}
		return 0
	}
}

// TestCopyPastDeniedSignatureTag: Artifactory's answer about a missing signature.
func TestCopyPastDeniedSignatureTag(t *testing.T) {
	t.Parallel()
	c := newCopier(t)
	sig := c.sign(t, c.source.Context())
	c.to.set(on(http.MethodHead, ".sig", http.StatusForbidden))
	must.Do(t, c.run(t))
	c.to.set(nil)
	must.Equal(t, "signature", sig, must.Get(remote.Head(c.mirror.Tag(c.signatureTag())))(t).Digest)
}

// TestCopyPastDeniedSignature: a registry that answers so for a missing tag
// (sigstore/cosign issue 2973) may be the one behind a factory, which expects that
// as well (image-factory, internal/frontend/http/registry.go).
func TestCopyPastDeniedSignature(t *testing.T) {
	t.Parallel()
	c := newCopier(t)
	c.from.set(on("", ".sig", http.StatusForbidden))
	must.Do(t, c.run(t))
}

func TestCopyExplains(t *testing.T) {
	t.Parallel()
	type row struct {
		target bool // the answer is of the registry that is copied to
		answer func(*http.Request) int
		denied bool
	}
	must.Each(t, map[string]row{
		"may not push":        {true, on(http.MethodPost, "/uploads/", http.StatusForbidden), true},
		"not logged in":       {true, on(http.MethodPost, "/uploads/", http.StatusUnauthorized), true},
		"may not pull":        {false, on(http.MethodGet, "/manifests/", http.StatusForbidden), true},
		"may not pull a blob": {false, on(http.MethodGet, "/blobs/", http.StatusForbidden), true},
		"a broken manifest":   {true, on(http.MethodPut, "/manifests/", http.StatusBadRequest), false},
		"referrers":           {false, on(http.MethodGet, "/referrers/", http.StatusForbidden), true},
		"a signature":         {false, on("", ".sig", http.StatusBadRequest), false},
	}, func(t *testing.T, tc row) {
		c := newCopier(t)
		blamed := c.from
		if tc.target {
			blamed = c.to
		}
		blamed.set(tc.answer)
		err := c.run(t)
		if err == nil || !strings.HasPrefix(err.Error(), "registry "+blamed.host+": ") {
			t.Fatalf("err = %v, want it to begin with registry %s", err, blamed.host)
		}
		must.Equal(t, "denied", tc.denied, errors.Is(err, images.ErrDenied))
		want := fmt.Sprintf("log in with `docker login %s`", blamed.host)
		if got := strings.Join(fault.Hints(err), "; "); tc.denied != strings.Contains(got, want) {
			t.Errorf("hints = %q", got)
		}
	})
}

// TestCopyHints: what a registry rejects, with the remedy.
func TestCopyHints(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]string{
		http.StatusRequestEntityTooLarge: "client_max_body_size",
		http.StatusMethodNotAllowed:      "accepts no images",
	} {
		c := newCopier(t)
		c.to.set(on(http.MethodPost, "", status))
		must.Contain(t, fmt.Sprint(status), strings.Join(fault.Hints(c.run(t)), "; "), want)
	}
}

func TestHeadAndTag(t *testing.T) {
	t.Parallel()
	c := newCopier(t)
	must.Do(t, c.run(t))
	tag, copied := c.mirror.Tag("v1.13.9-abc").String(), c.mirror.Digest(c.source.DigestStr()).String()
	if got, found, err := c.Head(t.Context(), tag); err != nil || found {
		t.Errorf("before: %q %t %v", got, found, err)
	}
	must.Do(t, c.Tag(t.Context(), copied, tag))
	c.to.set(nil)
	if got, found, err := c.Head(t.Context(), tag); err != nil || !found || got != c.source.DigestStr() {
		t.Errorf("after: %q %t %v", got, found, err)
	}
	want := []string{"HEAD /v2/acme/talos/manifests/v1.13.9-abc"}
	must.Equal(t, "requests", want, slices.Concat(c.to.asked("HEAD"), c.to.asked("GET")))
	c.to.set(on("", "", http.StatusForbidden))
	if _, _, err := c.Head(t.Context(), tag); !errors.Is(err, images.ErrDenied) {
		t.Errorf("denied: %v", err)
	}
	c.to.set(nil)
	if err := c.Tag(t.Context(), c.mirror.Digest("sha256:"+strings.Repeat("0", 64)).String(), tag); err == nil {
		t.Error("a missing manifest was tagged")
	}
}

func TestCopyOfAnImage(t *testing.T) {
	t.Parallel()
	c := newCopier(t)
	img := must.Get(random.Image(1<<17, 9))(t) // more layers than there are jobs
	d := must.Get(img.Digest())(t)
	must.Do(t, remote.Write(c.source.Context().Tag("one"), img))
	var last, total int64
	err := c.Copy(t.Context(), c.source.Context().Digest(d.String()).String(), c.mirror.String(), func(done, of int64) { last, total = done, of })
	must.Do(t, err)
	// go-containerregistry does not report the last piece of a blob if it arrives with its end.
	if want := sizeOf(t, img); total != want || last > want || last < want/2 {
		t.Errorf("progress ended at %d of %d bytes, want %d", last, total, want)
	}
	must.Equal(t, "digest", d, must.Get(remote.Head(c.mirror.Digest(d.String())))(t).Digest)
}

func sizeOf(t *testing.T, img v1.Image) int64 {
	t.Helper()
	m := must.Get(img.Manifest())(t)
	size := must.Get(img.Size())(t) + m.Config.Size
	for _, l := range m.Layers {
		size += l.Size
	}
	return size
}

const mirror = host + "/acme/talos"

// pushBuilt pushes an index of one image with that build time, under a tag.
func pushBuilt(t *testing.T, to http.RoundTripper, tag string, at time.Time) (index, img v1.Hash) {
	t.Helper()
	one := must.Get(mutate.CreatedAt(must.Get(random.Image(64, 1))(t), v1.Time{Time: at}))(t)
	all := mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: one})
	must.Do(t, remote.WriteIndex(must.Get(name.NewTag(mirror+":"+tag))(t), all, remote.WithTransport(to), remote.WithContext(t.Context())))
	return must.Get(all.Digest())(t), must.Get(one.Digest())(t)
}

func TestMirrorShelf(t *testing.T) {
	t.Parallel()
	s := direct{factoryapi.NewRegistry(record.New())}
	c := client(t, s)
	must.Equal(t, "of no repository", []string(nil), must.Get(c.Tags(t.Context(), mirror))(t))
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	index, img := pushBuilt(t, s, "v1.13.9-aaaaaaaaaaaa", at)
	pushBuilt(t, s, "v1.13.9-bbbbbbbbbbbb", time.Unix(0, 0))
	tags := must.Get(c.Tags(t.Context(), mirror))(t)
	must.Equal(t, "tags", []string{"v1.13.9-aaaaaaaaaaaa", "v1.13.9-bbbbbbbbbbbb"}, tags)
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
		must.Do(t, c.Delete(t.Context(), mirror+"@"+index.String()))
	}
	must.Equal(t, "tags after a deletion", []string{"v1.13.9-bbbbbbbbbbbb"}, must.Get(c.Tags(t.Context(), mirror))(t))
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
	must.Each(t, map[string]row{
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
		must.Contain(t, host, remedy(host), want)
	}
}
