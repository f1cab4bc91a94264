package images

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
)

// signing is a key pair.
type signing struct {
	private crypto.Signer
	pem     []byte
	print   string
}

func newSigning(t *testing.T, private crypto.Signer) signing {
	t.Helper()
	der := must.Get(x509.MarshalPKIXPublicKey(private.Public()))(t)
	sum := sha256.Sum256(der)
	return signing{
		private: private, pem: pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), print: hex.EncodeToString(sum[:]),
	}
}

func newKey(t *testing.T) signing {
	t.Helper()
	key := must.Get(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	return newSigning(t, key)
}

// sign signs an image as cosign does.
func (s signing) sign(t *testing.T, digest string) Signature {
	t.Helper()
	return s.signPayload(t, fmt.Sprintf(
		`{"critical":{"identity":{"docker-reference":"x"},"image":{"docker-manifest-digest":%q},"type":"cosign container image signature"},"optional":null}`, digest))
}

func (s signing) signPayload(t *testing.T, payload string) Signature {
	t.Helper()
	sum, opts := sha256.Sum256([]byte(payload)), crypto.SignerOpts(crypto.SHA256)
	message := sum[:]
	if _, plain := s.private.(ed25519.PrivateKey); plain {
		message, opts = []byte(payload), crypto.Hash(0)
	}
	signature := must.Get(s.private.Sign(rand.Reader, message, opts))(t)
	return Signature{Payload: []byte(payload), Signature: signature}
}

func TestSignatures(t *testing.T) {
	t.Parallel()
	rsaKey := must.Get(rsa.GenerateKey(rand.Reader, 2048))(t)
	_, edKey, err := ed25519.GenerateKey(rand.Reader)
	must.Do(t, err)
	key, other := newKey(t), newKey(t)
	const ref = "factory.example/installer/x@"
	is, was := digest("is"), digest("was")
	broken := key.sign(t, is)
	broken.Signature = append([]byte(nil), broken.Signature...)
	broken.Signature[len(broken.Signature)-1] ^= 1
	edited := key.sign(t, was)
	edited.Payload = key.sign(t, is).Payload
	notBy := "installer " + ref + is + " is signed, but not by the key " + key.print
	type row struct {
		key  signing
		list []Signature
		want string
	}
	must.Each(t, map[string]row{
		"ECDSA":             {key, []Signature{key.sign(t, is)}, ""},
		"RSA":               {newSigning(t, rsaKey), []Signature{newSigning(t, rsaKey).sign(t, is)}, ""},
		"Ed25519":           {newSigning(t, edKey), []Signature{newSigning(t, edKey).sign(t, is)}, ""},
		"among others":      {key, []Signature{other.sign(t, is), key.sign(t, was), key.sign(t, is)}, ""},
		"none":              {key, nil, "installer " + ref + is + " is not signed"},
		"by someone else":   {key, []Signature{other.sign(t, is)}, notBy},
		"damaged":           {key, []Signature{broken}, notBy},
		"for other content": {key, []Signature{edited}, notBy},
		"of another image": {
			key,
			[]Signature{key.sign(t, was)},
			"the signature of installer " + ref + is + " is for another image, " + was + ": someone has copied it there",
		},
		"of something else": {
			key,
			[]Signature{key.signPayload(t, `{"critical":{"type":"atomic container signature","image":{"docker-manifest-digest":"`+is+`"}}}`)},
			"the signature of " + ref + is + `: it signs a "atomic container signature", not a container image`,
		},
		"of no digest": {
			key, []Signature{key.sign(t, "latest")}, "the signature of " + ref + is + `: it signs "latest", which is not a digest`,
		},
	}, func(t *testing.T, tc row) {
		k := must.Get(parseKey(tc.key.pem))(t)
		must.Equal(t, "fingerprint", tc.key.print, k.fingerprint)
		err := k.verify(ref+is, is, tc.list)
		must.Equal(t, "result", tc.want, message(err))
		if tc.want == "" {
			return
		}
		must.Equal(t, "kind", fault.Refused, fault.KindOf(err))
		t.Attr("corruptions-caught", "1")
	})
}

func TestSigningKeysRefused(t *testing.T) {
	t.Parallel()
	key := newKey(t)
	type row struct {
		text []byte
		want string
	}
	must.Each(t, map[string]row{
		"no PEM":    {[]byte("<html>"), "it is not one PEM block"},
		"two":       {append(append([]byte(nil), key.pem...), key.pem...), "it is not one PEM block"},
		"a private": {pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte("x")}), `it is a "PRIVATE KEY", not a public key`},
		"damaged":   {pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: []byte("x")}), "asn1: "},
	}, func(t *testing.T, tc row) {
		if _, err := parseKey(tc.text); !strings.HasPrefix(message(err), tc.want) {
			t.Errorf("err = %v, want %q", err, tc.want)
		}
	})
}

// TestSignaturePolicy builds one installer under every policy.
func TestSignaturePolicy(t *testing.T) {
	t.Parallel()
	key, other := newKey(t), newKey(t)
	type row struct {
		mode      SignatureMode
		published []byte // by the factory
		own       []byte // the user's choice
		signers   []signing
		locked    string // fingerprint
		before    string // that of the lock before
		wantErr   string
		wantNote  string
		want      string // fingerprint in the lock
	}
	must.Each(t, map[string]row{
		"signed":                  {mode: SignatureRequire, published: key.pem, signers: []signing{key}, want: key.print},
		"signed, as locked":       {mode: SignatureRequire, published: key.pem, signers: []signing{key}, locked: key.print, want: key.print},
		"not looked at":           {mode: SignatureOff},
		"unsigned":                {mode: SignatureRequire, published: key.pem, wantErr: " is not signed"},
		"unsigned, a warning":     {mode: SignatureWarn, published: key.pem, wantNote: " is not signed"},
		"no key":                  {mode: SignatureRequire, wantErr: "the factory publishes no key"},
		"no key, a warning":       {mode: SignatureWarn, wantNote: "the factory publishes no key"},
		"another key":             {mode: SignatureRequire, published: other.pem, signers: []signing{other}, locked: key.print, wantErr: "but the lock knows " + key.print},
		"another key, a warning":  {mode: SignatureWarn, published: other.pem, signers: []signing{other}, locked: key.print, wantNote: "but the lock knows " + key.print},
		"as before":               {mode: SignatureRequire, published: key.pem, signers: []signing{key}, before: key.print, want: key.print},
		"another than before":     {mode: SignatureRequire, published: other.pem, signers: []signing{other}, before: key.print, wantErr: "but the lock knows " + key.print},
		"the user's key":          {mode: SignatureRequire, published: other.pem, own: key.pem, signers: []signing{key}, want: key.print},
		"the user's other key":    {mode: SignatureRequire, own: key.pem, signers: []signing{key}, locked: other.print, want: key.print},
		"not by the user's key":   {mode: SignatureRequire, published: other.pem, own: key.pem, signers: []signing{other}, wantErr: "but not by the key " + key.print},
		"the user's key is wrong": {mode: SignatureRequire, own: []byte("x"), wantErr: "images.signingKey: it is not one PEM block"},
	}, func(t *testing.T, tc row) {
		b := newBench(t)
		lock := lockOf(t)
		if tc.before != "" {
			lock.Signers = []string{tc.before}
		}
		for _, s := range lock.Names() {
			e := lock.Schematics[s]
			e.Signer = tc.locked
			lock.Schematics[s] = e
		}
		b.again(lock)
		b.factory.key = tc.published
		b.factory.sign = func(digest string) (list []Signature) {
			for _, s := range tc.signers {
				list = append(list, s.sign(t, digest))
			}
			return list
		}
		builder := b.builder()
		builder.Signature.Mode = tc.mode
		if tc.own != nil {
			builder.Signature.Key = func() ([]byte, error) { return tc.own, nil }
		}
		err := b.run(t, builder.Step())
		if (err == nil) != (tc.wantErr == "") || !strings.Contains(message(err), tc.wantErr) {
			t.Fatalf("err = %v, want %q", err, tc.wantErr)
		}
		notes := strings.Join(b.notes, "\n")
		if !strings.Contains(notes, tc.wantNote) || strings.Contains(notes, "warning") != (tc.wantNote != "") {
			t.Errorf("notes:\n%s\nwant %q", notes, tc.wantNote)
		}
		e := b.ledger.Lock().Schematics["default"]
		if err != nil && e.Installer != "" {
			t.Error("the installer is recorded despite the error")
		}
		if err == nil && (e.Signer != tc.want || e.Installer == "") {
			t.Errorf("signer = %q of %q, want %q", e.Signer, e.Installer, tc.want)
		}
	})
}

// TestRequireLater: what was built without a check is checked once the policy requires it, and only then.
func TestRequireLater(t *testing.T) {
	t.Parallel()
	key := newKey(t)
	b := newBench(t)
	b.factory.key = key.pem
	b.factory.sign = func(digest string) []Signature { return []Signature{key.sign(t, digest)} }
	build := func(mode SignatureMode) error {
		b.again(b.saved)
		builder := b.builder()
		builder.Signature.Mode = mode
		return b.run(t, builder.Step())
	}
	must.Do(t, errors.Join(build(SignatureOff), build(SignatureWarn)))
	if b.saved.Schematics["default"].Signer != "" || b.saves != 0 {
		t.Errorf("signer %q, %d saves", b.saved.Schematics["default"].Signer, b.saves)
	}
	must.Do(t, build(SignatureRequire))
	must.Equal(t, "signer", key.print, b.saved.Schematics["default"].Signer)
	must.Equal(t, "downloads of ISOs", 0, b.factory.downloads)
	if err := build(SignatureRequire); err != nil || b.saves != 0 {
		t.Errorf("again: %v, %d saves", err, b.saves)
	}
}

// TestSignerStays: a verified signer of the same bytes is not forgotten because they moved and nothing is checked.
func TestSignerStays(t *testing.T) {
	t.Parallel()
	key := newKey(t)
	b := newBench(t)
	b.factory.key = key.pem
	b.factory.sign = func(digest string) []Signature { return []Signature{key.sign(t, digest)} }
	builder := b.builder()
	builder.Signature.Mode = SignatureRequire
	must.Do(t, b.run(t, builder.Step()))
	lock := b.saved.Clone()
	e := lock.Schematics["default"]
	factory := e.Installer
	_, bytes, _ := strings.Cut(factory, "@")
	e.Installer = "former.example/mirror@" + bytes
	lock.Schematics["default"] = e
	b.again(lock)
	must.Do(t, b.run(t, b.builder().Step()))
	if e := b.saved.Schematics["default"]; e.Signer != key.print || e.Installer != factory {
		t.Errorf("signer = %q of %s", e.Signer, e.Installer)
	}
}

// withoutSignatures is a registry that denies tags that do not exist, as Artifactory
// does (sigstore/cosign issue 2973) and as factories expect of theirs
// (image-factory, internal/frontend/http/registry.go).
type withoutSignatures struct{ Puller }

func (withoutSignatures) Signatures(context.Context, string) ([]Signature, error) {
	return nil, fmt.Errorf("403: %w", ErrDenied)
}

func TestSignaturesDenied(t *testing.T) {
	t.Parallel()
	for mode, refused := range map[SignatureMode]bool{SignatureRequire: true, SignatureWarn: false} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			b.factory.key = newKey(t).pem
			builder := b.builder()
			builder.Puller, builder.Signature.Mode = withoutSignatures{builder.Puller}, mode
			err := b.run(t, builder.Step())
			if refused != (fault.KindOf(err) == fault.Refused) || !refused && err != nil {
				t.Fatalf("err = %v", err)
			}
			if notes := strings.Join(b.notes, "\n"); strings.Contains(notes, "warning: look for the installer's signature: 403") == refused {
				t.Errorf("notes:\n%s", notes)
			}
		})
	}
}
