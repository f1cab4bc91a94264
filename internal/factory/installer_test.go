package factory

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/sim/artefact"
	"github.com/recast-sh/recast/internal/sim/factoryapi"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/schematics"
)

// TestInstallerOfSlowFactory: a request for the manifest waits for the build, from
// the registry's client as well as BuildInstaller, but only the latter outlasts a
// proxy's timeout.
func TestInstallerOfSlowFactory(t *testing.T) {
	t.Parallel()
	digest := func(ctx context.Context, s *site, req images.ISORequest) error {
		_, found, err := s.registry.Digest(ctx, s.client.InstallerRepository(req)+":"+talos)
		if err == nil && !found {
			return errors.New("not found")
		}
		return err
	}
	build := func(ctx context.Context, s *site, req images.ISORequest) error {
		return s.client.BuildInstaller(ctx, req, s.note)
	}
	impatient := func(f *factoryapi.Factory) factoryapi.Trouble { return f.Impatient(time.Minute) }
	type row struct {
		ask     func(context.Context, *site, images.ISORequest) error
		trouble func(*factoryapi.Factory) factoryapi.Trouble
		times   int
		notes   int
	}
	eachInBubble(t, map[string]row{
		"pulled":         {digest, func(*factoryapi.Factory) factoryapi.Trouble { return factoryapi.Down(503, 0) }, 2, 0},
		"built":          {build, func(*factoryapi.Factory) factoryapi.Trouble { return factoryapi.Down(503, 0) }, 2, 30 + 2},
		"not heard of":   {build, func(*factoryapi.Factory) factoryapi.Trouble { return factoryapi.Unaware() }, 2, 30 + 2},
		"behind a proxy": {build, impatient, 100, 30 + 13},
	}, func(t *testing.T, tc row) {
		s := newSite(t)
		req := s.agents(t)
		s.factory.Slow(15 * time.Minute)
		s.factory.Strike(tc.times, "/v2/nocloud-installer/", tc.trouble(s.factory))
		noError(t, tc.ask(t.Context(), s, req))
		s.built(t, "installer "+req.SchematicID+" v1.13.9 nocloud")
		if len(s.notes) != tc.notes {
			t.Errorf("%d notes, want %d: %q", len(s.notes), tc.notes, s.notes)
		}
	})
}

// TestInstallerInAnotherRegistry: the installer exists, whatever registry the
// factory redirects to, even if pulling it there needs a login.
func TestInstallerInAnotherRegistry(t *testing.T) {
	t.Parallel()
	eachInBubble(t, map[string]http.HandlerFunc{
		"redirected": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "https://ghcr.example"+r.URL.Path, http.StatusTemporaryRedirect)
		},
		"for its users": answer(http.StatusUnauthorized, "authentication required"),
	}, func(t *testing.T, answer http.HandlerFunc) {
		noError(t, serve(t, answer).BuildInstaller(t.Context(), isoRequest, nil))
	})
}

// TestMirroredInstaller is the story of an installer that is copied, with the
// factory's signature, to the user's own registry, and suffices when the factory is
// gone.
func TestMirroredInstaller(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const mirror = registryAddr + "/acme/talos"
		s := newSite(t)
		s.relock(t)
		noError(t, s.build(t))
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
		noError(t, run())
		if got := s.lock.Schematics["default"].Installer; got != mirror+"@"+digest {
			t.Errorf("installer = %s", got)
		}
		s.mirrorHolds(t, mirror, digest, signature, built)

		s.factory.Close()
		calls := len(s.recorder.Calls())
		noError(t, run())
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
	sig := must(random.Image(64, 1))(t)
	tag := must(name.NewTag(registryAddr + "/factory/nocloud-installer/" + schematicID + ":" + strings.Replace(digest, ":", "-", 1) + ".sig"))(t)
	noError(t, remote.Write(tag, sig, remote.WithTransport(s.catalog.Transport)))
	hash := must(sig.Digest())(t)
	return hash.String()
}

// mirrorHolds reads the copy for both architectures, as nodes do, and its signature.
func (s *site) mirrorHolds(t *testing.T, mirror, digest, signature string, e schematics.Locked) {
	t.Helper()
	ref := must(name.NewDigest(mirror + "@" + digest))(t)
	index := must(remote.Index(ref, remote.WithTransport(s.catalog.Transport)))(t)
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
