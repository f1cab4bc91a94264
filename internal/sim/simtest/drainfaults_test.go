package simtest

import (
	"fmt"
	"maps"
	"testing"
	"testing/synctest"

	"github.com/recast-sh/recast/cluster"
)

// atDrain is the moment of faults during a drain.
const atDrain = "drain"

// drainFaults are the faults for each strategy.
func drainFaults(s cluster.Strategy) map[string]*talosFault {
	all := map[string]*talosFault{}
	for _, rows := range []map[string]*talosFault{faultsOfBudgets(), faultsOfAdmission(s), faultsOfPods(), faultsOfTheAPI(s), faultsOfVolumes(s)} {
		maps.Copy(all, rows)
	}
	drain := map[cluster.Strategy]string{cluster.Recreate: "take-down/drain", cluster.InPlace: "upgrade/drain"}
	for _, f := range all {
		f.strategy = s
		if len(f.roll) == 0 {
			f.roll = []string{"drain: {timeout: 1m}"}
		}
		if f.at == atDrain {
			f.at = drain[s]
		}
		f.spares = true
	}
	return all
}

type machineState struct {
	Config map[string]string
	Boot   string
}

// machineState is the machine's state that a failed drain must not change.
func (s *talosScene) machineState() machineState {
	s.t.Helper()
	n := s.rolled()
	vm, err := s.World.LookupVM(n.Host, n.VMID)
	must(s.t, err)
	c, err := s.Client().connect(s.t.Context())
	must(s.t, err)
	defer c.end()
	m, err := c.machines.Talos.Machine(s.t.Context(), n.Addr)
	must(s.t, err)
	return machineState{Config: maps.Clone(vm.Config), Boot: m.BootID}
}

// TestDrainFaults plays each fault in its own world, for a node that is recreated and for
// one that is upgraded in place: the roll says which pod or volume blocks it and why, the
// VM is not touched before all are gone, and after the fault the same command ends in
// sync.
func TestDrainFaults(t *testing.T) {
	faults := 0
	for _, strategy := range []cluster.Strategy{cluster.Recreate, cluster.InPlace} {
		for name, f := range drainFaults(strategy) {
			if testing.Short() && !(f.short && strategy == cluster.Recreate) {
				continue
			}
			faults++
			t.Run(string(strategy)+"/"+name, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, f.run)
			})
		}
	}
	t.Attr("drain-faults", fmt.Sprint(faults))
}
