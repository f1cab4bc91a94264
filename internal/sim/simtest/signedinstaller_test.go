package simtest

import (
	"testing"

	"github.com/recast-sh/recast/internal/sim"
)

// TestSignedInstallers: an Image Factory signs boot loader and UKI of ordinary installers, and not those of its ISOs.
// What it builds is of the lock, and is rolled.
func TestSignedInstallers(t *testing.T) {
	inLab(t, sim.Options{Workers: 1, SignsInstallers: true}, func(t *testing.T, lab *Lab) {
		lab.Patch(sim.PatchedExtension)
		must(t, lab.Client().roll(policyFor("wk1"))(t.Context()))
		requireInSync(t, lab)
		lab.RequireIntact()
	})
}
