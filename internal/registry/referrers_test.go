package registry

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/schematics"
)

// quirk answers some requests differently from the registry behind it.
type quirk struct {
	inner  http.RoundTripper
	answer func(*http.Request) *http.Response // nil: the registry answers
}

func (q quirk) RoundTrip(r *http.Request) (*http.Response, error) {
	if resp := q.answer(r); resp != nil {
		resp.Request, resp.Proto, resp.ProtoMajor, resp.ProtoMinor = r, "HTTP/1.1", 1, 1
		if resp.Body == nil {
			resp.Body = io.NopCloser(strings.NewReader("<html>no such thing</html>"))
		}
		return resp, nil
	}
	return q.inner.RoundTrip(r)
}

func answers(status int, headers ...string) *http.Response {
	h := http.Header{}
	for i := 0; i < len(headers); i += 2 {
		h.Set(headers[i], headers[i+1])
	}
	return &http.Response{StatusCode: status, Status: http.StatusText(status), Header: h}
}

// TestReferrersOfRegistriesWithoutTheAPI: however a registry reports that it has no
// referrers API, the list under a tag replaces it, for writing and reading.
func TestReferrersOfRegistriesWithoutTheAPI(t *testing.T) {
	t.Parallel()
	each(t, map[string]*http.Response{
		"405":                          answers(http.StatusMethodNotAllowed),
		"406, like Artifactory":        answers(http.StatusNotAcceptable), // go-containerregistry pull request 2026
		"501":                          answers(http.StatusNotImplemented),
		"a web page":                   answers(http.StatusOK, "Content-Type", "text/html; charset=utf-8"), // sigstore-js pull request 1187
		"JSON that is no list":         answers(http.StatusOK, "Content-Type", "application/json"),
		"to web pages, like ghcr.io":   answers(http.StatusSeeOther, "Location", "https://github.com/-/v2/packages/container/package/acme%2Ftalos%2Freferrers%2Fsha256"), // artifacthub/hub issue 4785
		"to nowhere":                   answers(http.StatusFound),
		"404, as the specification is": answers(http.StatusNotFound),
	}, func(t *testing.T, answer *http.Response) {
		f := newFoundry(t)
		f.transport = quirk{f.transport, func(r *http.Request) *http.Response {
			switch {
			case r.URL.Host == "github.com":
				return answers(http.StatusTooManyRequests)
			case strings.Contains(r.URL.Path, "/referrers/"):
				again := *answer
				return &again
			}
			return nil
		}}
		digest := must(f.PushArchive(t.Context(), f.push(f.save(t, f.img))))(t)
		installer := f.mirror.Digest(digest).String()
		iso, file := isoOf(t, []byte("the ISO"))
		noError(t, f.Attach(t.Context(), installer, file, images.BootISO, iso, nil))
		list, err := f.Attached(t.Context(), installer)
		if diff := cmp.Diff([]schematics.BootFile{iso}, list); err != nil || diff != "" {
			t.Errorf("%v, beside it (-want +got):\n%s", err, diff)
		}
	})
}

// TestReferrersWhereATagIsADigest: GitLab takes the tag sha256-… for the digest, so
// that an index would refer to itself (oras-project/oras-go issue 1396).
func TestReferrersWhereATagIsADigest(t *testing.T) {
	t.Parallel()
	f := newFoundry(t)
	installer := f.mirror.Digest(must(f.PushArchive(t.Context(), f.push(f.save(t, f.img))))(t)).String()
	inner := f.transport
	f.transport = quirk{inner, func(r *http.Request) *http.Response {
		if !strings.Contains(r.URL.Path, "/manifests/sha256-") {
			return nil
		}
		same := r.Clone(r.Context())
		same.URL.Path = strings.Replace(r.URL.Path, "sha256-", "sha256:", 1)
		return must(inner.RoundTrip(same))(t)
	}}
	list, err := f.Referrers(t.Context(), installer)
	if err != nil || len(list) > 0 {
		t.Errorf("referrers = %v, %v", list, err)
	}
}

// TestReferrersWithParameters: a media type may have parameters.
func TestReferrersWithParameters(t *testing.T) {
	t.Parallel()
	resp := answers(http.StatusOK, "Content-Type", "application/vnd.oci.image.index.v1+json; charset=utf-8")
	digest := "sha256:" + strings.Repeat("a", 64)
	if missing("/v2/acme/talos/referrers/"+digest, resp) || resp.Header.Get("Content-Type") != "application/vnd.oci.image.index.v1+json" {
		t.Errorf("counts as no list, or stays unchanged: %v", resp.Header)
	}
	moved := answers(http.StatusTemporaryRedirect, "Location", "https://other.example/v2/acme/talos/referrers/"+digest)
	if missing("/v2/acme/talos/referrers/"+digest, moved) {
		t.Error("a redirected list counts as missing")
	}
}

// TestHeadOfRegistriesWithoutHead: crossplane pull request 3223, containerd issue 5124.
func TestHeadOfRegistriesWithoutHead(t *testing.T) {
	t.Parallel()
	each(t, map[string]*http.Response{
		"not allowed":    answers(http.StatusMethodNotAllowed),
		"nothing in it":  answers(http.StatusOK),
		"without a size": {StatusCode: http.StatusOK, ContentLength: -1, Header: answers(0, "Content-Type", "application/vnd.oci.image.index.v1+json").Header},
	}, func(t *testing.T, answer *http.Response) {
		f := newFoundry(t)
		digest := must(f.PushArchive(t.Context(), f.push(f.save(t, f.img))))(t)
		tag := f.mirror.Tag("v1.13.9-abc").String()
		noError(t, f.Tag(t.Context(), f.mirror.Digest(digest).String(), tag))
		f.transport = quirk{f.transport, func(r *http.Request) *http.Response {
			if r.Method != http.MethodHead {
				return nil
			}
			again := *answer
			again.Body = http.NoBody
			return &again
		}}
		if got, found, err := f.Head(t.Context(), tag); got != digest || !found || err != nil {
			t.Errorf("%q, %t, %v, want %s", got, found, err, digest)
		}
	})
}
