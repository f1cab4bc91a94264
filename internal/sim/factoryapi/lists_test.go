package factoryapi_test

import (
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/recast-sh/recast/internal/sim/factoryapi"
	"github.com/recast-sh/recast/internal/sim/record"
)

// TestLists: the factory's lists for versions that are marked as broken, and of overlays.
func TestLists(t *testing.T) {
	t.Parallel()
	rec := record.New()
	registry := factoryapi.NewRegistry(rec)
	factory, err := factoryapi.New(factoryapi.Options{
		URL: "http://factory", Registry: "127.0.0.1:5000", Transport: registry.Transport(), Recorder: rec,
		Versions: []string{"v1.13.7", "v1.13.8", "v1.13.9"}, Broken: []string{"v1.13.8"},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer factory.Close()
	digest := "sha256:" + strings.Repeat("a", 64)
	publish := func(talos, name string) {
		t.Helper()
		catalog := factoryapi.Catalog{Registry: "127.0.0.1:5000", Transport: registry.Transport()}
		list := []factoryapi.Overlay{{Name: name, Image: "ghcr.io/siderolabs/sbc-raspberrypi:v0.2.0", Digest: digest}}
		if name == "" {
			list = nil
		}
		if err := catalog.PublishOverlays(t.Context(), talos, list); err != nil {
			t.Fatal(err)
		}
	}
	publish("v1.13.9", "rpi_generic")
	publish("v1.13.7", "")
	ask := func(path string) string {
		w := httptest.NewRecorder()
		factory.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		return strings.TrimSpace(w.Body.String())
	}
	listed := func(name string) string {
		return `[{"name":"` + name + `","image":"siderolabs/sbc-raspberrypi","ref":"ghcr.io/siderolabs/sbc-raspberrypi:v0.2.0","digest":"` + digest + `"}]`
	}
	const overlays = "/version/v1.13.9/overlays/official"
	for _, q := range []struct{ path, want string }{
		{"/versions", `["v1.13.7","v1.13.9"]`},
		{"/versions?broken=true", `["v1.13.8"]`},
		{"/version/v1.13.8/extensions/official", "version 1.13.8 is not available"},
		{"/version/v1.13.8/overlays/official", "version 1.13.8 is not available"},
		{"/version/v1.13.7/overlays/official", "internal server error"},
		{"/secureboot/signing-cert.pem", "internal server error"},
		{overlays, listed("rpi_generic")},
	} {
		if diff := cmp.Diff(q.want, ask(q.path)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", q.path, diff)
		}
	}
	publish("v1.13.9", "rpi_5")
	if diff := cmp.Diff(listed("rpi_generic"), ask(overlays)); diff != "" {
		t.Errorf("the list is not the remembered one (-want +got):\n%s", diff)
	}
	factory.Restart()
	if diff := cmp.Diff(listed("rpi_5"), ask(overlays)); diff != "" {
		t.Errorf("after a restart (-want +got):\n%s", diff)
	}
}
