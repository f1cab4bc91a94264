package images

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/schematics"
)

// SignatureMode says what to do about an installer without a valid signature.
type SignatureMode string

// The modes of signature checks.
const (
	SignatureRequire SignatureMode = "require" // refuse it
	SignatureWarn    SignatureMode = "warn"    // report it
	SignatureOff     SignatureMode = "off"     // do not check
)

// SignaturePolicy is the user's choice for the installers of a factory.
type SignaturePolicy struct {
	Mode SignatureMode
	// Key returns the public key, in PEM, that must have signed the installers. Nil: the key that the factory
	// publishes, which at least detects that the key changes.
	Key func() ([]byte, error)
}

// settled reports whether the signer in the lock satisfies the policy.
func (p SignaturePolicy) settled(e schematics.Locked) (bool, error) {
	if p.Mode != SignatureRequire || p.Key == nil {
		return p.Mode != SignatureRequire || e.Signer != "", nil
	}
	key, err := p.key()
	return err == nil && key.fingerprint == e.Signer, err
}

// key reads the user's key.
func (p SignaturePolicy) key() (signingKey, error) {
	text, err := p.Key()
	if err != nil {
		return signingKey{}, fault.Configf("images.signingKey: %w", err)
	}
	key, err := parseKey(text)
	if err != nil {
		return signingKey{}, fault.WithHint(fault.Configf("images.signingKey: %w", err), "it is a PEM file that begins with -----BEGIN PUBLIC KEY-----")
	}
	return key, nil
}

// signer checks who signed an installer (repository@digest) and returns the fingerprint of the key, to be recorded;
// "" without an error if there is no valid signature and the policy accepts this. note receives what the policy only
// warns about.
func (b Builder) signer(ctx context.Context, name, installer string, note func(text string)) (string, error) {
	if b.Signature.Mode == SignatureOff {
		return "", nil
	}
	fingerprint, err := b.signature(ctx, name, installer)
	if err == nil || b.Signature.Mode == SignatureRequire || fault.KindOf(err) != fault.Refused {
		return fingerprint, err
	}
	for _, hint := range append([]string{err.Error()}, fault.Hints(err)...) {
		note("warning: " + strings.ReplaceAll(hint, "\n", "; "))
	}
	return "", nil
}

// signature returns the fingerprint of the key that signed an installer. Without a valid signature it fails with kind
// Refused.
func (b Builder) signature(ctx context.Context, name, installer string) (string, error) {
	_, digest, _ := strings.Cut(installer, "@")
	key, err := b.signingKey(ctx)
	if err != nil {
		return "", err
	}
	signatures, err := b.Puller.Signatures(ctx, installer)
	if errors.Is(err, ErrDenied) {
		return "", fault.WithHint(fault.ImageDiffers.Refusedf("look for the installer's signature: %w", err),
			"some registries answer so if there is no signature: check whether the factory signs its installers")
	}
	if err != nil {
		return "", fmt.Errorf("look for the installer's signature: %w", err)
	}
	if err := key.verify(installer, digest, signatures); err != nil {
		return "", err
	}
	if known := b.signers(name); len(known) > 0 && !slices.Contains(known, key.fingerprint) {
		return "", fault.WithHint(
			fault.ImageDiffers.Refusedf("installer %s is signed by the key %s, but the lock knows %s", installer, key.fingerprint, strings.Join(known, ", ")),
			"the factory has a new key: ask its operator. To trust the new key, put it into a file and name it in images.signingKey")
	}
	return key.fingerprint, nil
}

// signers returns the keys that the lock knows. It returns none if the user names a key: that key is trusted, whoever
// signed before.
func (b Builder) signers(name string) []string {
	if b.Signature.Key != nil {
		return nil
	}
	lock := b.Ledger.Lock()
	if own := lock.Schematics[name].Signer; own != "" {
		return []string{own}
	}
	return lock.KnownSigners()
}

// signingKey is a public key that signs installers.
type signingKey struct {
	key         crypto.PublicKey
	fingerprint string // SHA-256 of the key's DER form, in hex
}

func (b Builder) signingKey(ctx context.Context) (signingKey, error) {
	if b.Signature.Key != nil {
		return b.Signature.key()
	}
	text, err := b.Factory.SigningKey(ctx)
	if err != nil {
		return signingKey{}, fmt.Errorf("get the factory's signing key: %w", err)
	}
	if len(text) == 0 {
		return signingKey{}, fault.WithHint(fault.ImageDiffers.Refusedf("the factory publishes no key with which it signs installers"),
			"name the key in images.signingKey, or set images.signature to off: an installer's content is compared with the lock in any case")
	}
	key, err := parseKey(text)
	if err != nil {
		return signingKey{}, fault.ImageDiffers.Refusedf("the factory's signing key: %w", err)
	}
	return key, nil
}

func parseKey(text []byte) (signingKey, error) {
	block, rest := pem.Decode(text)
	if block == nil || len(bytes.TrimSpace(rest)) > 0 {
		return signingKey{}, errors.New("it is not one PEM block")
	}
	if block.Type != "PUBLIC KEY" {
		return signingKey{}, fmt.Errorf("it is a %q, not a public key", block.Type)
	}
	key, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		return signingKey{}, err
	}
	der, err := x509.MarshalPKIXPublicKey(key) // one form, whatever the encoding
	if err != nil {
		return signingKey{}, err
	}
	sum := sha256.Sum256(der)
	return signingKey{key: key, fingerprint: hex.EncodeToString(sum[:])}, nil
}

// verify accepts an image if one of its signatures is by the key and names the
// image's digest: see the Simple Signing format of cosign's specification.
func (k signingKey) verify(ref, digest string, signatures []Signature) error {
	var others []string
	for _, s := range signatures {
		if !k.signed(s) {
			continue
		}
		signed, err := signedDigest(s.Payload)
		if err != nil {
			return fault.ImageDiffers.Refusedf("the signature of %s: %w", ref, err)
		}
		if signed == digest {
			return nil
		}
		others = append(others, signed)
	}
	const rebuild = "rebuild the installer, or set images.signature to warn; its content is compared with the lock in any case"
	switch {
	case len(signatures) == 0:
		return fault.WithHint(fault.ImageDiffers.Refusedf("installer %s is not signed", ref), rebuild)
	case len(others) > 0:
		return fault.WithHint(fault.ImageDiffers.Refusedf("the signature of installer %s is for another image, %s: someone has copied it there", ref, strings.Join(others, ", ")),
			"do not use this installer before you know who did it")
	default:
		return fault.WithHint(fault.ImageDiffers.Refusedf("installer %s is signed, but not by the key %s", ref, k.fingerprint),
			"someone else signed it, or the factory has another key now: compare images.signingKey with the factory's /oci/cosign/signing-key.pub")
	}
}

// signed reports whether the key made the signature s.
func (k signingKey) signed(s Signature) bool {
	sum := sha256.Sum256(s.Payload)
	switch key := k.key.(type) {
	case *ecdsa.PublicKey:
		return ecdsa.VerifyASN1(key, sum[:], s.Signature)
	case *rsa.PublicKey:
		return rsa.VerifyPKCS1v15(key, crypto.SHA256, sum[:], s.Signature) == nil
	case ed25519.PublicKey:
		return ed25519.Verify(key, s.Payload, s.Signature)
	default:
		return false
	}
}

// signedDigest reads the digest that a signature signs.
func signedDigest(payload []byte) (string, error) {
	var p struct {
		Critical struct {
			Type  string `json:"type"`
			Image struct {
				Digest string `json:"docker-manifest-digest"`
			} `json:"image"`
		} `json:"critical"`
	}
	if err := json.Unmarshal(payload, &p); err != nil {
		return "", fmt.Errorf("its payload is not JSON: %w", err)
	}
	if p.Critical.Type != "cosign container image signature" {
		return "", fmt.Errorf("it signs a %q, not a container image", p.Critical.Type)
	}
	if !schematics.IsDigest(p.Critical.Image.Digest) {
		return "", fmt.Errorf("it signs %q, which is not a digest", p.Critical.Image.Digest)
	}
	return p.Critical.Image.Digest, nil
}
