package factoryapi

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Signing says how a factory signs installers. Zero: with its own random key, like a
// factory that runs with a key.
type Signing struct {
	Key       *ecdsa.PrivateKey // P-256; nil: random
	Published *ecdsa.PublicKey  // key that clients see; nil: that of Key
	// Keyless signs with a Google identity. That puts a bundle beside the image, which the lab
	// omits: there is no signature tag, and no public key.
	Keyless bool
}

// signer signs with a key, like siderolabs/image-factory, internal/image/signer.
type signer struct {
	key       *ecdsa.PrivateKey // nil: keyless
	published []byte            // PEM
}

const (
	simpleSigning       = "application/vnd.dev.cosign.simplesigning.v1+json"
	signatureAnnotation = "dev.cosignproject.cosign/signature"
)

func newSigner(s Signing) (signer, error) {
	if s.Keyless {
		return signer{}, nil
	}
	if s.Key == nil {
		var err error
		if s.Key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
			return signer{}, err
		}
	}
	if s.Published == nil {
		s.Published = &s.Key.PublicKey
	}
	der, err := x509.MarshalPKIXPublicKey(s.Published)
	if err != nil {
		return signer{}, fmt.Errorf("published signing key: %w", err)
	}
	return signer{key: s.Key, published: pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})}, nil
}

// signingKey answers /oci/cosign/signing-key.pub, with an empty body if there is no key.
func (f *Factory) signingKey(w http.ResponseWriter, _ *http.Request) error {
	w.Header().Set("Content-Type", "application/x-pem-file")
	w.WriteHeader(http.StatusOK)
	_, err := w.Write(f.signer.published)
	return err
}

// signaturePayload is the signed content: containers/image,
// docs/containers-signature.5.md.
type signaturePayload struct {
	Critical struct {
		Identity struct {
			DockerReference string `json:"docker-reference"`
		} `json:"identity"`
		Image struct {
			DockerManifestDigest string `json:"docker-manifest-digest"`
		} `json:"image"`
		Type string `json:"type"`
	} `json:"critical"`
	Optional map[string]any `json:"optional"`
}

func signatureTagOf(image name.Digest) name.Tag {
	return image.Context().Tag(strings.Replace(image.DigestStr(), ":", "-", 1) + ".sig")
}

// sign stores a signature under the image's signature tag, replacing an old one.
func (f *Factory) sign(ctx context.Context, image name.Digest) error {
	if f.signer.key == nil {
		return nil
	}
	var p signaturePayload
	p.Critical.Identity.DockerReference = image.Context().Name()
	p.Critical.Image.DockerManifestDigest = image.DigestStr()
	p.Critical.Type = "cosign container image signature"
	payload, err := json.Marshal(p)
	if err != nil {
		return err
	}
	hash := sha256.Sum256(payload)
	signature, err := ecdsa.SignASN1(rand.Reader, f.signer.key, hash[:])
	if err != nil {
		return err
	}
	signed, err := mutate.Append(
		mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON),
		mutate.Addendum{
			Layer:       static.NewLayer(payload, simpleSigning),
			Annotations: map[string]string{signatureAnnotation: base64.StdEncoding.EncodeToString(signature)},
		})
	if err != nil {
		return err
	}
	tag := signatureTagOf(image)
	if err := remote.Push(tag, signed, f.registry.options(ctx)...); err != nil {
		return fmt.Errorf("error pushing signature: %w", err)
	}
	return nil
}

// signed says whether an image has a signature by the factory's key. Others are rebuilt,
// as in internal/frontend/http/registry.go.
func (f *Factory) signed(ctx context.Context, image name.Digest) (bool, error) {
	if f.signer.key == nil {
		return true, nil
	}
	img, err := remote.Image(signatureTagOf(image), f.registry.options(ctx)...)
	if e, ok := errors.AsType[*transport.Error](err); ok && e.StatusCode == http.StatusNotFound {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	m, err := img.Manifest()
	if err != nil {
		return false, err
	}
	for _, layer := range m.Layers {
		payload, err := payloadIn(img, layer)
		if err != nil {
			return false, err
		}
		if f.signer.made(payload, layer.Annotations[signatureAnnotation], image.DigestStr()) {
			return true, nil
		}
	}
	return false, nil
}

func payloadIn(img v1.Image, d v1.Descriptor) ([]byte, error) {
	layer, err := img.LayerByDigest(d.Digest)
	if err != nil {
		return nil, err
	}
	content, err := layer.Compressed()
	if err != nil {
		return nil, err
	}
	defer content.Close()
	return io.ReadAll(content)
}

func (s signer) made(payload []byte, annotation, digest string) bool {
	signature, err := base64.StdEncoding.DecodeString(annotation)
	if err != nil {
		return false
	}
	hash := sha256.Sum256(payload)
	return bytes.Contains(payload, []byte(digest)) && ecdsa.VerifyASN1(&s.key.PublicKey, hash[:], signature)
}
