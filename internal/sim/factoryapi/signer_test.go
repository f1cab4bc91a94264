package factoryapi_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/recast-sh/recast/internal/sim/factoryapi"
)

// signature is the content of a signature tag, fetched through the factory.
type signature struct {
	payload, signature []byte
}

func (l *lab) signatureOf(id string) (digest string, sig signature, found bool) {
	l.t.Helper()
	idx, err := l.pull(factoryAddr + "/nocloud-installer/" + id + ":" + talosVersion)
	if err != nil {
		l.t.Fatal(err)
	}
	d, err := idx.Digest()
	if err != nil {
		l.t.Fatal(err)
	}
	path := "/v2/nocloud-installer/" + id + "/manifests/sha256-" + d.Hex + ".sig"
	if resp, _ := l.do(http.MethodGet, path, ""); resp.StatusCode == http.StatusNotFound {
		return d.String(), signature{}, false
	}
	tag, err := name.NewTag(factoryAddr + "/nocloud-installer/" + id + ":sha256-" + d.Hex + ".sig")
	if err != nil {
		l.t.Fatal(err)
	}
	img, err := remote.Image(tag, remote.WithContext(l.t.Context()), remote.WithTransport(l.transport))
	if err != nil {
		l.t.Fatal(err)
	}
	m, err := img.Manifest()
	if err != nil {
		l.t.Fatal(err)
	}
	layers, err := img.Layers()
	if err != nil || len(layers) != 1 {
		l.t.Fatalf("%d layers, %v", len(layers), err)
	}
	content, err := layers[0].Compressed()
	if err != nil {
		l.t.Fatal(err)
	}
	defer content.Close()
	if sig.payload, err = io.ReadAll(content); err != nil {
		l.t.Fatal(err)
	}
	sig.signature, err = base64.StdEncoding.DecodeString(m.Layers[0].Annotations["dev.cosignproject.cosign/signature"])
	if err != nil || m.Layers[0].MediaType != "application/vnd.dev.cosign.simplesigning.v1+json" {
		l.t.Fatalf("layer of type %s: %v", m.Layers[0].MediaType, err)
	}
	return d.String(), sig, true
}

// published is the factory's public key; nil if it has none.
func (l *lab) published() *ecdsa.PublicKey {
	l.t.Helper()
	resp, body := l.do(http.MethodGet, "/oci/cosign/signing-key.pub", "")
	if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "application/x-pem-file" {
		l.t.Fatalf("%s, %s", resp.Status, resp.Header.Get("Content-Type"))
	}
	if body == "" {
		return nil
	}
	block, _ := pem.Decode([]byte(body))
	if block == nil || block.Type != "PUBLIC KEY" {
		l.t.Fatalf("no key: %s", body)
	}
	key, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		l.t.Fatal(err)
	}
	return key.(*ecdsa.PublicKey)
}

func (s signature) by(key *ecdsa.PublicKey) bool {
	hash := sha256.Sum256(s.payload)
	return ecdsa.VerifyASN1(key, hash[:], s.signature)
}

func TestInstallersAreSigned(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		id := l.register(nil)
		digest, sig, found := l.signatureOf(id)
		if !found || !sig.by(l.published()) {
			t.Errorf("found %t; by the published key: %t", found, found && sig.by(l.published()))
		}
		var got any
		if err := json.Unmarshal(sig.payload, &got); err != nil {
			t.Fatal(err)
		}
		want := map[string]any{
			"critical": map[string]any{
				"identity": map[string]any{"docker-reference": registryAddr + "/factory/nocloud-installer/" + id},
				"image":    map[string]any{"docker-manifest-digest": digest},
				"type":     "cosign container image signature",
			},
			"optional": nil,
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("payload (-want +got):\n%s", diff)
		}
	})
}

func TestSigningKeys(t *testing.T) {
	t.Parallel()
	mine, theirs := newKey(t), newKey(t)
	for title, tc := range map[string]struct {
		factoryapi.Signing
		signedBy, published *ecdsa.PublicKey
	}{
		"handed in":      {factoryapi.Signing{Key: mine}, &mine.PublicKey, &mine.PublicKey},
		"another's told": {factoryapi.Signing{Key: mine, Published: &theirs.PublicKey}, &mine.PublicKey, &theirs.PublicKey},
		"keyless":        {factoryapi.Signing{Keyless: true}, nil, nil},
	} {
		t.Run(title, func(t *testing.T) {
			inSigningLab(t, tc.Signing, func(t *testing.T, l *lab) {
				_, sig, found := l.signatureOf(l.register(nil))
				if found != (tc.signedBy != nil) || found && !sig.by(tc.signedBy) {
					t.Errorf("signature: found %t, not by the key", found)
				}
				if got := l.published(); got == nil != (tc.published == nil) || got != nil && !got.Equal(tc.published) {
					t.Errorf("another key is published")
				}
			})
		})
	}
}

// TestUnsignedIsBuiltAgain: an installer in the registry is served only with the factory's signature.
func TestUnsignedIsBuiltAgain(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		id := l.register(nil)
		digest, _, _ := l.signatureOf(id)
		built := func() int { return strings.Count(strings.Join(l.factory.Built(), "\n"), "installer "+id) }
		l.signatureOf(id)
		if got := built(); got != 1 {
			t.Errorf("built %d times", got)
		}
		repository, err := name.NewRepository(registryAddr + "/factory/nocloud-installer/" + id)
		if err != nil {
			t.Fatal(err)
		}
		tag := repository.Tag("sha256-" + strings.TrimPrefix(digest, "sha256:") + ".sig")
		opts := []remote.Option{remote.WithContext(t.Context()), remote.WithTransport(l.transport)}
		if err := remote.Delete(tag, opts...); err != nil {
			t.Fatal(err)
		}
		if _, sig, found := l.signatureOf(id); !found || !sig.by(l.published()) || built() != 2 {
			t.Errorf("unsigned: found %t, built %d times", found, built())
		}
		if err := remote.Write(tag, empty.Image, opts...); err != nil {
			t.Fatal(err)
		}
		if _, sig, found := l.signatureOf(id); !found || !sig.by(l.published()) || built() != 3 {
			t.Errorf("unsigned: found %t, built %d times", found, built())
		}
	})
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}
