package registry

import (
	"encoding/base64"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/fault"
)

// signed is an image as cosign pushes signatures; each text is annotated verbatim.
func signed(t *testing.T, mediaType types.MediaType, payloads map[string]string) v1.Image {
	t.Helper()
	img := mutate.MediaType(empty.Image, types.OCIManifestSchema1)
	for payload, signature := range payloads {
		img = must(mutate.Append(img, mutate.Addendum{
			Layer: static.NewLayer([]byte(payload), mediaType), Annotations: map[string]string{signatureAnnotation: signature},
		}))(t)
	}
	return img
}

func TestSignatures(t *testing.T) {
	t.Parallel()
	good := base64.StdEncoding.EncodeToString([]byte("signature"))
	many := map[string]string{}
	for i := range maxSignatures + 1 {
		many[strings.Repeat("x", i+1)] = good
	}
	type row struct {
		sig  v1.Image
		want []images.Signature
		err  string
	}
	each(t, map[string]row{
		"none":             {},
		"one":              {sig: signed(t, signatureType, map[string]string{"{}": good}), want: []images.Signature{{Payload: []byte("{}"), Signature: []byte("signature")}}},
		"something else":   {sig: signed(t, "text/spdx", map[string]string{"{}": good})},
		"no annotation":    {sig: signed(t, signatureType, map[string]string{"{}": ""}), err: "annotation dev.cosignproject.cosign/signature is missing or damaged"},
		"a bad annotation": {sig: signed(t, signatureType, map[string]string{"{}": "!"}), err: "annotation dev.cosignproject.cosign/signature is missing or damaged"},
		"too large":        {sig: signed(t, signatureType, map[string]string{strings.Repeat("x", maxPayloadBytes+1): good}), err: "it has 1048577 bytes"},
		"too many":         {sig: signed(t, signatureType, many), err: "it has 65 layers"},
	}, func(t *testing.T, tc row) {
		s := server()
		of := must(name.NewDigest(host + "/metal-installer/abc@sha256:" + strings.Repeat("a", 64)))(t)
		if tc.sig != nil {
			push(t, s, of.Context().Tag("sha256-"+strings.Repeat("a", 64)+".sig").String(), tc.sig)
		}
		got, err := client(t, s).Signatures(t.Context(), of.String())
		same(t, "signatures", tc.want, got)
		if (err != nil) != (tc.err != "") || err != nil && !strings.Contains(err.Error(), tc.err) {
			t.Errorf("error = %v, want %q", err, tc.err)
		}
	})
}

func TestSignaturesOfWhatIsDenied(t *testing.T) {
	t.Parallel()
	locked := direct{http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v2/" {
			http.Error(w, `{"errors":[{"code":"DENIED","message":"no"}]}`, http.StatusForbidden)
		}
	})}
	c := client(t, locked)
	if _, err := c.Signatures(t.Context(), host+"/a/b@sha256:"+strings.Repeat("a", 64)); !errors.Is(err, images.ErrDenied) {
		t.Errorf("denied: %v", err)
	}
	if _, err := c.Signatures(t.Context(), host+"/a/b:v1"); fault.KindOf(err) != fault.Config {
		t.Errorf("a tag: %v", err)
	}
}
