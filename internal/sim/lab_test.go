package sim_test

import (
	"maps"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/network"
)

func TestLabComesUpAndGoesDown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		lab := start(t, sim.Options{Hosts: 2}, true)
		files, err := lab.Files()
		if err != nil {
			t.Fatal(err)
		}
		names := slices.Sorted(maps.Keys(files))
		if want := []string{"kubeconfig", "recast.yaml", "schematics/default.yaml", "schematics/storage.yaml", "talosconfig"}; !slices.Equal(names, want) {
			t.Errorf("files %q", names)
		}
		if v := lab.World.Violations(); len(v) > 0 {
			t.Errorf("promises broken before anything was done: %q", v)
		}
		if disks := lab.Disks(); len(disks) != 2 {
			t.Errorf("persistent disks %v", disks)
		}
	})
}

func TestLabRefusesWhatItCannotHold(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]sim.Options{
		"hosts":  {Prefix: "127.42.7", Hosts: 10},
		"prefix": {Prefix: "lab"},
		"many":   {Prefix: "127.42.7", Workers: 1001},
		"end":    {Prefix: "127.42.254", Workers: 500},
	} {
		o.Network = network.Memory()
		if lab, err := sim.New(t.Context(), o); err == nil {
			t.Errorf("%s: %v", name, lab.Close())
		}
	}
}
