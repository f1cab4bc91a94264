package simtest

import (
	"testing"

	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/sim"
)

// TestFormatsThatOneReleaseShows: a persistent disk in a format that only one of two Talos
// releases detects survives an upgrade and a downgrade.
func TestFormatsThatOneReleaseShows(t *testing.T) {
	for name, c := range map[string]struct {
		from, to, format string
		short            bool
	}{
		"btrfs, 1.12 to 1.13":      {talos12, sim.TalosVersion, "btrfs", true},
		"btrfs, 1.13 back to 1.12": {sim.TalosVersion, talos12, "btrfs", false},
		"md, 1.13 to 1.14":         {sim.TalosVersion, talos14, "linux_raid_member", false},
	} {
		t.Run(name, func(t *testing.T) {
			if !c.short {
				long(t)
			}
			o := oneWorker()
			o.TalosVersion, o.NextTalos, o.Layouts = c.from, c.to, []sim.Layout{{Data: 1, Filesystem: c.format}}
			if c.to == sim.TalosVersion {
				o.NextTalos = ""
			}
			inLab(t, o, func(t *testing.T, lab *Lab) {
				lab.setRoll("strategy: recreate")
				lab.wantTalos(c.from, c.to)
				must(t, lab.Client().roll(planning.Policy{Only: []string{"wk1"}})(t.Context()))
				requireInSync(t, lab, "cp1")
			})
		})
	}
}
