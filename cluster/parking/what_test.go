package parking

import (
	"fmt"
	"testing"

	"github.com/recast-sh/recast/internal/sim/must"
)

// TestWhatADiskWas: only what is known to be a system disk is called one. Of a node that was removed, every disk is kept.
func TestWhatADiskWas(t *testing.T) {
	t.Parallel()
	for want, k := range map[string]KeptDisk{
		"previous system disk":                     {Run: "r1", Talos: "v1.13.9"},
		"system disk that was given up":            {Run: "r1", GivenUp: true},
		"disk of the node that was removed":        {Run: "r1", Slot: "scsi1", Options: "serial=data-wk1", Removed: true},
		"system disk of the node that was removed": {Run: "r1", Slot: "scsi0", Talos: "v1.13.9", Removed: true},
	} {
		must.Equal(t, fmt.Sprintf("%+v", k), want, k.What())
	}
}
