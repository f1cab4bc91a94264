package simtest

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/factoryapi"
	"github.com/recast-sh/recast/internal/step"
)

// TestPublishThroughTrouble: an Image Factory takes five minutes for each image, behind a
// proxy with a timeout of one minute that is down at first, and a download breaks.
// Everything is built once, and the user sees what takes so long.
func TestPublishThroughTrouble(t *testing.T) {
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.Patch(sim.PatchedExtension)
		before := len(lab.Factory.Built())
		lab.Factory.Slow(5 * time.Minute)
		lab.Factory.Strike(1, "/schematics", factoryapi.Down(502, 0))
		lab.Factory.Strike(1, "/v2/", factoryapi.Down(503, 7*time.Second))
		lab.Factory.Strike(1, "/image/", factoryapi.CutByStore(5000))
		for _, images := range []string{"/v2/", "/image/"} {
			lab.Factory.Strike(100, images, lab.Factory.Impatient(time.Minute))
		}

		var notes []string
		c := lab.Client()
		c.Emit = func(e step.Event) {
			if e.Status == step.Note {
				_, name, _ := strings.Cut(strings.TrimPrefix(e.Path, "build/"), "/")
				notes = append(notes, name+": "+e.Text)
			}
		}
		must(t, c.Publish(t.Context()))
		const patience = "the factory answered 504 Gateway Timeout; the factory is still building, asking again in 10s"
		for _, want := range []string{
			"resolve-installer: the factory answered 503 Service Unavailable, trying again in 7s (2 of 5)",
			"resolve-installer: " + patience,
			"resolve-installer: the factory is building the installer, 4m30s",
			"fetch-iso: " + patience,
			"fetch-iso: the factory is building the ISO, 1m0s",
			"fetch-iso: the download broke off after 0 MiB (unexpected EOF), beginning again in 1s (2 of 5)",
		} {
			if !slices.Contains(notes, want) {
				t.Errorf("not told: %s\n%s", want, strings.Join(notes, "\n"))
			}
		}
		built := lab.Factory.Built()
		if once := slices.Compact(slices.Sorted(slices.Values(built))); len(built) == before || len(once) != len(built) {
			t.Errorf("built: %q, %d of them before", built, before)
		}
	})
}
