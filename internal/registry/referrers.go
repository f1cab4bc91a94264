package registry

import (
	"mime"
	"net/http"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/v1/types"
)

// referrersAPI turns the various answers of registries without OCI 1.1's referrers
// API into 404. go-containerregistry understands 404, and then keeps the list under
// a tag; of the other answers it knows some where it reads the list, and different
// ones where it writes it.
type referrersAPI struct{ inner http.RoundTripper }

func (a referrersAPI) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := a.inner.RoundTrip(req)
	if err != nil || req.Method != http.MethodGet || !missing(req.URL.Path, resp) {
		return resp, err
	}
	// Nobody reads the original body.
	_ = resp.Body.Close()
	return &http.Response{
		Status: "404 Not Found", StatusCode: http.StatusNotFound, Proto: resp.Proto, ProtoMajor: resp.ProtoMajor, ProtoMinor: resp.ProtoMinor,
		Header: http.Header{}, Body: http.NoBody, Request: req,
	}, nil
}

var (
	referrersPath = regexp.MustCompile(`^/v2/.+/referrers/(sha256:[0-9a-f]{64})$`)
	fallbackPath  = regexp.MustCompile(`^/v2/.+/manifests/sha256-([0-9a-f]{64})$`)
)

// missing reports whether an answer means that there is no list of referrers.
func missing(asked string, resp *http.Response) bool {
	if m := referrersPath.FindStringSubmatch(asked); m != nil {
		return noReferrers(m[1], resp)
	}
	// GitLab takes the tag for the digest, and answers with the subject itself:
	// oras-project/oras-go issue 1396.
	m := fallbackPath.FindStringSubmatch(asked)
	return m != nil && resp.StatusCode == http.StatusOK && resp.Header.Get("Docker-Content-Digest") == "sha256:"+m[1]
}

func noReferrers(digest string, resp *http.Response) bool {
	// Artifactory answers 406: go-containerregistry pull request 2026.
	none := []int{http.StatusMethodNotAllowed, http.StatusNotAcceptable, http.StatusNotImplemented}
	switch {
	case slices.Contains(none, resp.StatusCode):
		return true
	case resp.StatusCode/100 == 3:
		// ghcr.io redirects to web pages of github.com, which answer 429 or anything
		// else: artifacthub/hub issue 4785.
		to, err := resp.Location()
		return err != nil || path.Base(to.Path) != digest || !strings.HasSuffix(path.Dir(to.Path), "/referrers")
	case resp.StatusCode != http.StatusOK:
		return false
	}
	// Some answer 200 with other content: sigstore/sigstore-js pull request 1187.
	kind, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if err != nil || kind != string(types.OCIImageIndex) {
		return true
	}
	resp.Header.Set("Content-Type", kind) // go-containerregistry compares it verbatim
	return false
}
