package simtest

import (
	"testing"

	"github.com/recast-sh/recast/internal/sim"
)

// A VM in a pool is in it again after it was recreated, and so is its parking VM: pools
// decide on permissions.
func TestRecreatedInItsPool(t *testing.T) {
	long(t)
	inLab(t, sim.Options{ControlPlanes: 1, Workers: 1}, func(t *testing.T, lab *Lab) {
		lab.World.AddPool("talos")
		must(t, lab.World.JoinPool("", worker1, "talos", false))
		lab.Patch(sim.CommonExtension)
		must(t, lab.Client().roll(onlyWorker)(t.Context()))
		in := map[string]string{}
		for _, vm := range lab.World.VMs() {
			in[vm.Config["name"]] = vm.Pool
		}
		for name, want := range map[string]string{"wk1": "talos", "recast-parking-wk1": "talos", "cp1": ""} {
			if got, there := in[name]; !there || got != want {
				t.Errorf("%s is in pool %q, want %q (there: %v)", name, got, want, there)
			}
		}
	})
}
