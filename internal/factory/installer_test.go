package factory

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/sim/factoryapi"
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
	for name, tc := range map[string]struct {
		ask     func(context.Context, *site, images.ISORequest) error
		trouble func(*factoryapi.Factory) factoryapi.Trouble
		times   int
		notes   int
	}{
		"pulled":         {digest, func(*factoryapi.Factory) factoryapi.Trouble { return factoryapi.Down(503, 0) }, 2, 0},
		"built":          {build, func(*factoryapi.Factory) factoryapi.Trouble { return factoryapi.Down(503, 0) }, 2, 30 + 2},
		"not heard of":   {build, func(*factoryapi.Factory) factoryapi.Trouble { return factoryapi.Unaware() }, 2, 30 + 2},
		"behind a proxy": {build, impatient, 100, 30 + 13},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newSite(t)
				req := s.agents(t)
				s.factory.Slow(15 * time.Minute)
				s.factory.Strike(tc.times, "/v2/nocloud-installer/", tc.trouble(s.factory))
				if err := tc.ask(t.Context(), s, req); err != nil {
					t.Fatal(err)
				}
				s.built(t, "installer "+req.SchematicID+" v1.13.9 nocloud")
				if len(s.notes) != tc.notes {
					t.Errorf("%d notes, want %d: %q", len(s.notes), tc.notes, s.notes)
				}
			})
		})
	}
}

// TestInstallerInAnotherRegistry: the installer exists, whatever registry the
// factory redirects to, even if pulling it there needs a login.
func TestInstallerInAnotherRegistry(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]http.HandlerFunc{
		"redirected": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "https://ghcr.example"+r.URL.Path, http.StatusTemporaryRedirect)
		},
		"for its users": answer(http.StatusUnauthorized, "authentication required"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				if err := serve(t, answer).BuildInstaller(t.Context(), isoRequest, nil); err != nil {
					t.Error(err)
				}
			})
		})
	}
}
