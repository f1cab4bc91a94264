package factory

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/sim/artefact"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/schematics"
)

// TestMirroredInstaller is the story of an installer that is copied, with the
// factory's signature, to the user's own registry, and suffices when the factory is
// gone.
func TestMirroredInstaller(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const mirror = registryAddr + "/acme/talos"
		s := newSite(t)
		s.relock(t)
		if err := s.build(t); err != nil {
			t.Fatal(err)
		}
		built := s.lock.Schematics["default"]
		_, digest, _ := strings.Cut(built.Installer, "@")
		signature := s.sign(t, built.SchematicID, digest)

		run := func() error {
			m := images.Mirror{
				Copier: s.registry, Repository: mirror,
				Ledger: images.NewLedger(s.lock, func(l schematics.Lock) error { s.lock = l; return nil }),
			}
			return new(step.Runner).Run(t.Context(), m.Step())
		}
		if err := run(); err != nil {
			t.Fatal(err)
		}
		if got := s.lock.Schematics["default"].Installer; got != mirror+"@"+digest {
			t.Errorf("installer = %s", got)
		}
		s.mirrorHolds(t, mirror, digest, signature, built)

		s.factory.Close()
		calls := len(s.recorder.Calls())
		if err := run(); err != nil {
			t.Fatal(err)
		}
		for _, c := range s.recorder.Calls()[calls:] {
			if c.Mutation {
				t.Errorf("there is nothing to do, but %+v", c)
			}
		}
	})
}

// sign puts a signature where the factory keeps those of its installers.
func (s *site) sign(t *testing.T, schematicID, digest string) (signature string) {
	t.Helper()
	sig, err := random.Image(64, 1)
	if err != nil {
		t.Fatal(err)
	}
	tag, err := name.NewTag(registryAddr + "/factory/nocloud-installer/" + schematicID + ":" + strings.Replace(digest, ":", "-", 1) + ".sig")
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(tag, sig, remote.WithTransport(s.catalog.Transport)); err != nil {
		t.Fatal(err)
	}
	hash, err := sig.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return hash.String()
}

// mirrorHolds reads the copy for both architectures, as nodes do, and its signature.
func (s *site) mirrorHolds(t *testing.T, mirror, digest, signature string, e schematics.Locked) {
	t.Helper()
	ref, err := name.NewDigest(mirror + "@" + digest)
	if err != nil {
		t.Fatal(err)
	}
	index, err := remote.Index(ref, remote.WithTransport(s.catalog.Transport))
	if err != nil {
		t.Fatal(err)
	}
	for _, arch := range []string{"amd64", "arm64"} {
		img, err := artefact.ReadInstaller(index, arch)
		if err != nil || img.SchematicID != e.SchematicID {
			t.Errorf("%s: schematic %q, %v", arch, img.SchematicID, err)
		}
	}
	for tag, want := range map[string]string{
		talos + "-" + schematics.Short(e.BuildID):     digest,
		strings.Replace(digest, ":", "-", 1) + ".sig": signature,
	} {
		if got, found, err := s.registry.Head(t.Context(), mirror+":"+tag); err != nil || !found || got != want {
			t.Errorf("%s: %q %t %v, want %s", tag, got, found, err, want)
		}
	}
}
