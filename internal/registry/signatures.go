package registry

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/foreign"
)

// sigstore/cosign, specs/SIGNATURE_SPEC.md: a signature is a layer, with the
// signature itself in an annotation.
const (
	signatureType       = "application/vnd.dev.cosign.simplesigning.v1+json"
	signatureAnnotation = "dev.cosignproject.cosign/signature"

	maxSignatures   = 64
	maxPayloadBytes = 1 << 20 // the usual ones have some hundred bytes
)

// Signatures returns the cosign signatures of an image: see images.Puller.
func (c *Client) Signatures(ctx context.Context, ref string) ([]images.Signature, error) {
	of, err := name.NewDigest(ref)
	if err != nil {
		return nil, fault.Configf("image reference %q: %w", ref, err)
	}
	tag := of.Context().Tag(signatureTag(of))
	img, err := remote.Image(tag, c.options(ctx)...)
	if notFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, explain(err, of.Context())
	}
	signatures, err := signaturesIn(img)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", tag, explain(err, of.Context()))
	}
	return signatures, nil
}

// signatureTag is where cosign keeps the signatures of a digest.
func signatureTag(of name.Digest) string {
	return strings.Replace(of.DigestStr(), ":", "-", 1) + ".sig"
}

func signaturesIn(img v1.Image) ([]images.Signature, error) {
	m, err := img.Manifest()
	if err != nil {
		return nil, err
	}
	if len(m.Layers) > maxSignatures {
		return nil, fmt.Errorf("it has %d layers; no more than %d signatures are read", len(m.Layers), maxSignatures)
	}
	var signatures []images.Signature
	for _, d := range m.Layers {
		if d.MediaType != signatureType {
			continue
		}
		signature, err := base64.StdEncoding.DecodeString(d.Annotations[signatureAnnotation])
		if err != nil || len(signature) == 0 {
			return nil, fmt.Errorf("layer %s: annotation %s is missing or damaged", d.Digest, signatureAnnotation)
		}
		payload, err := payloadOf(img, d)
		if err != nil {
			return nil, fmt.Errorf("layer %s: %w", d.Digest, foreign.Error(err))
		}
		signatures = append(signatures, images.Signature{Payload: payload, Signature: signature})
	}
	return signatures, nil
}

func payloadOf(img v1.Image, d v1.Descriptor) ([]byte, error) {
	if d.Size > maxPayloadBytes {
		return nil, fmt.Errorf("it has %d bytes; no more than %d are read", d.Size, maxPayloadBytes)
	}
	layer, err := img.LayerByDigest(d.Digest)
	if err != nil {
		return nil, err
	}
	content, err := layer.Compressed() // as it was pushed: signatures are not compressed
	if err != nil {
		return nil, err
	}
	defer content.Close()
	return io.ReadAll(content) // as long as the manifest says, or an error
}
