package factoryapi_test

import (
	"context"
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
	"testing/synctest"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/recast-sh/recast/internal/sim/artefact"
	"github.com/recast-sh/recast/internal/sim/factoryapi"
	"github.com/recast-sh/recast/internal/sim/must"
)

// TestPatchStory: what siderolabs/image-factory v1.4.0 was observed to do when an
// extension is republished under its version.
func TestPatchStory(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		agent := []string{"siderolabs/qemu-guest-agent"}
		first := l.register(agent)
		before := l.listed()
		require := func(step string, img artefact.Image, want string) {
			t.Helper()
			if len(img.Extensions) != 1 || digestOf(t, img.Extensions[0]) != want {
				t.Errorf("%s: built of %v, want %s", step, img.Extensions, want)
			}
		}
		require("ISO at first", l.iso(first), before)
		require("installer at first", l.installer(first), before)

		oldDigest, after, err := l.catalog.Patch(t.Context(), talosVersion, "qemu-guest-agent")
		must.Do(t, err)
		if oldDigest != before || after == before {
			t.Fatalf("patched %s to %s, was listed as %s", oldDigest, after, before)
		}

		must.Equal(t, "a running factory lists what it has cached", before, l.listed())
		require("ISO of a running factory", l.iso(first), before)
		require("installer of a running factory", l.installer(first), before)
		stale := l.register(agent, "recast.lock=sha256-stale")
		require("ISO of a new schematic of a running factory", l.iso(stale), before)
		require("installer of a new schematic of a running factory", l.installer(stale), before)

		l.factory.Restart()
		must.Equal(t, "a restarted factory lists", after, l.listed())
		require("ISO after a restart", l.iso(first), after)
		require("installer of an old schematic after a restart", l.installer(first), before)
		require("installer that a stale factory built, after a restart", l.installer(stale), before)
		fresh := l.register(agent, "recast.lock=sha256-fresh")
		require("ISO of a new schematic after a restart", l.iso(fresh), after)
		require("installer of a new schematic after a restart", l.installer(fresh), after)
	})
}

// TestInstallersSayWhenTheyWereBuilt: a lost installer is rebuilt from the cache, so that
// it is identical; other content is a new build.
func TestInstallersSayWhenTheyWereBuilt(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		id := l.register([]string{"siderolabs/qemu-guest-agent"})
		type made struct {
			Digest string
			At     time.Time
		}
		installer := func(image string) made {
			t.Helper()
			idx := must.Get(l.pull(factoryAddr + "/" + image + "/" + id + ":" + talosVersion))(t)
			m := must.Get(idx.IndexManifest())(t)
			var times []time.Time
			for _, d := range m.Manifests {
				img := must.Get(idx.Image(d.Digest))(t)
				config := must.Get(img.ConfigFile())(t)
				times = append(times, config.Created.UTC())
			}
			digest := must.Get(idx.Digest())(t)
			if len(times) != 2 || times[0] != times[1] {
				t.Errorf("%s says %s of its architectures", image, times)
			}
			return made{digest.String(), times[0]}
		}
		before := time.Now()
		first := installer("installer")
		if first.At.Before(before) || first.At.After(time.Now()) {
			t.Errorf("it says that it was built at %s, not after %s", first.At, before)
		}
		time.Sleep(time.Hour)
		must.Equal(t, "the same asset by its other name", first, installer("metal-installer"))
		if _, _, err := l.catalog.Patch(t.Context(), talosVersion, "qemu-guest-agent"); err != nil {
			t.Fatal(err)
		}
		l.factory.Restart()
		must.Equal(t, "what is in the registry is served as it is", first, installer("installer"))
		lost := must.Get(name.NewDigest(registryAddr + "/factory/metal-installer/" + id + "@" + first.Digest))(t)
		must.Do(t, remote.Delete(lost, remote.WithContext(t.Context()), remote.WithTransport(l.transport)))
		if got := installer("metal-installer"); got.At.Sub(first.At) < time.Hour {
			t.Errorf("new content says that it was built at %s", got.At)
		}
	})
}

func TestPatchChangesContentNotVersion(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		read := func() artefact.Extension {
			t.Helper()
			idx := must.Get(l.pull(registryAddr + "/siderolabs/iscsi-tools:v0.2.0"))(t)
			return must.Get(artefact.ReadExtension(idx, "amd64"))(t)
		}
		digests := map[string]bool{read().Digest: true}
		for range 3 {
			_, digest, err := l.catalog.Patch(t.Context(), talosVersion, "iscsi-tools")
			must.Do(t, err)
			e := read()
			must.Equal(t, "the tag holds", []any{digest, "v0.2.0"}, []any{e.Digest, e.Version})
			digests[digest] = true
		}
		must.Equal(t, "digests after three patches", 4, len(digests))
		if content := string(read().Files["/usr/local/etc/containers/iscsi-tools.yaml"]); !strings.HasSuffix(content, "# patch 1\n# patch 2\n# patch 3") {
			t.Errorf("content = %q", content)
		}
		if _, _, err := l.catalog.Patch(t.Context(), talosVersion, "nope"); err == nil {
			t.Error("an extension that does not exist was patched")
		}
	})
}

func TestBuildContinuesWithoutItsClient(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		id := l.register(nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet,
			"http://"+factoryAddr+"/v2/nocloud-installer/"+id+"/manifests/"+talosVersion, nil)
		must.Do(t, err)
		if resp, err := l.transport.RoundTrip(req); err == nil {
			t.Fatalf("answered in a second: %s", resp.Status)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if _, err := l.pull(registryAddr + "/factory/nocloud-installer/" + id + ":" + talosVersion); err != nil {
			t.Errorf("the installer was not finished: %v", err)
		}
	})
}

func TestConcurrentRequestsShareOneBuild(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		id := l.register([]string{"siderolabs/iscsi-tools"})
		started := time.Now()
		got := make(chan string)
		for range 3 {
			go func() {
				_, body := l.do(http.MethodGet, "/image/"+id+"/"+talosVersion+"/nocloud-amd64.iso", "")
				got <- body
			}()
		}
		first := <-got
		if second, third := <-got, <-got; first != second || first != third {
			t.Error("three requests got different images")
		}
		must.Equal(t, "took one list and one build", 3500*time.Millisecond, time.Since(started))
	})
}

// signature is the content of a signature tag, fetched through the factory.
type signature struct {
	payload, signature []byte
}

func (l *lab) signatureOf(id string) (digest string, sig signature, found bool) {
	l.t.Helper()
	idx := must.Get(l.pull(factoryAddr + "/nocloud-installer/" + id + ":" + talosVersion))(l.t)
	d, err := idx.Digest()
	must.Do(l.t, err)
	path := "/v2/nocloud-installer/" + id + "/manifests/sha256-" + d.Hex + ".sig"
	if resp, _ := l.do(http.MethodGet, path, ""); resp.StatusCode == http.StatusNotFound {
		return d.String(), signature{}, false
	}
	tag := must.Get(name.NewTag(factoryAddr + "/nocloud-installer/" + id + ":sha256-" + d.Hex + ".sig"))(l.t)
	img := must.Get(remote.Image(tag, remote.WithContext(l.t.Context()), remote.WithTransport(l.transport)))(l.t)
	m := must.Get(img.Manifest())(l.t)
	layers, err := img.Layers()
	if err != nil || len(layers) != 1 {
		l.t.Fatalf("%d layers, %v", len(layers), err)
	}
	content, err := layers[0].Compressed()
	must.Do(l.t, err)
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
	return must.Get(x509.ParsePKIXPublicKey(block.Bytes))(l.t).(*ecdsa.PublicKey)
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
		must.Do(t, json.Unmarshal(sig.payload, &got))
		want := map[string]any{
			"critical": map[string]any{
				"identity": map[string]any{"docker-reference": registryAddr + "/factory/nocloud-installer/" + id},
				"image":    map[string]any{"docker-manifest-digest": digest},
				"type":     "cosign container image signature",
			},
			"optional": nil,
		}
		must.Equal(t, "payload", want, got)
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
		must.Equal(t, "built times", 1, built())
		repository := must.Get(name.NewRepository(registryAddr + "/factory/nocloud-installer/" + id))(t)
		tag := repository.Tag("sha256-" + strings.TrimPrefix(digest, "sha256:") + ".sig")
		opts := []remote.Option{remote.WithContext(t.Context()), remote.WithTransport(l.transport)}
		must.Do(t, remote.Delete(tag, opts...))
		if _, sig, found := l.signatureOf(id); !found || !sig.by(l.published()) || built() != 2 {
			t.Errorf("unsigned: found %t, built %d times", found, built())
		}
		must.Do(t, remote.Write(tag, empty.Image, opts...))
		if _, sig, found := l.signatureOf(id); !found || !sig.by(l.published()) || built() != 3 {
			t.Errorf("unsigned: found %t, built %d times", found, built())
		}
	})
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	return must.Get(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
}
