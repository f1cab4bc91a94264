package simtest

import (
	"slices"
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/world"
)

// TestParkingVMWithOtherNotes: a parking VM whose Notes a person has edited is known by its name. Its node
// gets no second one; the line that the plan prints lets it have one, and once the Notes are back, both are
// recast's.
func TestParkingVMWithOtherNotes(t *testing.T) {
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		strategy(cluster.Recreate)(lab)
		roll := func() error {
			lab.Patch(everywhere)
			return lab.Client().roll(onlyWorker)(t.Context())
		}
		must(t, roll())
		first := lab.parkingOf("wk1")
		notes := lab.vmConfig(first)["description"]
		lab.configure(world.ChangeRequest{ID: first, Set: map[string]string{"description": "do not touch"}})

		lab.Patch(everywhere)
		n := planOf(t, lab, "wk1")
		if !slices.ContainsFunc(n.Refused, func(r string) bool { return strings.Contains(r, "was its parking VM, and its Notes") }) {
			t.Fatalf("refused %q", n.Refused)
		}
		command := "qm set 9002 --name kept-wk1"
		if !strings.Contains(n.Refused[0], command) {
			t.Errorf("%q lacks %q", n.Refused[0], command)
		}
		must(t, errOf(lab.Shell("pve1").Run(strings.Fields(command))))
		must(t, lab.Client().roll(onlyWorker)(t.Context()))
		lab.RequireIntact()

		lab.configure(world.ChangeRequest{ID: first, Set: map[string]string{"description": notes, "name": "recast-parking-wk1"}})
		requireDrift(t, lab, "cp1")
		must(t, roll())
		requireDrift(t, lab, "cp1")
		lab.RequireIntact()
	})
}

// TestParkingVMWithADamagedRecord: what a person writes behind the record does no harm; a record that can't be read keeps
// its own node from being changed, and no other.
func TestParkingVMWithADamagedRecord(t *testing.T) {
	inLab(t, sim.Options{ControlPlanes: 1, Workers: 2}, func(t *testing.T, lab *Lab) {
		strategy(cluster.Recreate)(lab)
		lab.Patch(everywhere)
		must(t, lab.Client().roll(onlyWorker)(t.Context()))
		park := lab.parkingOf("wk1")
		notes := lab.vmConfig(park)["description"]
		write := func(text string) {
			lab.configure(world.ChangeRequest{ID: park, Set: map[string]string{"description": text}})
		}
		write(notes + " (do not touch, Bob)")
		requireDrift(t, lab, "cp1", "wk2")
		lab.Patch(sim.PatchedExtension)
		write(strings.Replace(notes, `"node":"wk1"`, `"node":wk1`, 1))
		for node, refused := range map[string]bool{"wk1": true, "wk2": false} {
			n := planOf(t, lab, node)
			got := strings.Contains(strings.Join(n.Refused, "\n"), "was its parking VM, and its Notes")
			require(t, got == refused, "%s: refused %q", node, n.Refused)
		}
		must(t, lab.Client().roll(planning.Policy{Only: []string{"wk2"}})(t.Context()))
		write(notes)
		must(t, lab.Client().roll(onlyWorker)(t.Context()))
		lab.RequireIntact()
	})
}

// TestUndoWithTwinParkingVMs: the second parking VM counts the node's disks anew; the last one is still the last.
func TestUndoWithTwinParkingVMs(t *testing.T) {
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		strategy(cluster.Recreate)(lab)
		roll := func() {
			lab.Patch(everywhere)
			must(t, lab.Client().roll(onlyWorker)(t.Context()))
		}
		roll()
		roll()
		first := lab.parkingOf("wk1")
		notes := lab.vmConfig(first)["description"]
		lab.configure(world.ChangeRequest{ID: first, Set: map[string]string{"description": "do not touch", "name": "kept-wk1"}})
		roll()
		twin := lab.parkingOf("wk1")
		lab.configure(world.ChangeRequest{ID: first, Set: map[string]string{"description": notes, "name": "recast-parking-wk1"}})
		rep := valueOf(lab.Client().Undo(t.Context(), onlyWorker, planning.Undone{}))(t)
		if n := rep.Plan.Work()[0]; twin == first || n.Restore == nil || int(n.Found.Parking.VM.ID) != twin {
			t.Errorf("it boots %+v of VM %d, not of VM %d: %s", n.Restore, n.Found.Parking.VM.ID, twin, n.Why)
		}
	})
}

// TestParkingVMThatAPersonEdits: no other setting of a parking VM keeps its node from being rolled.
func TestParkingVMThatAPersonEdits(t *testing.T) {
	inLongLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		strategy(cluster.Recreate)(lab)
		lab.Patch(everywhere)
		must(t, lab.Client().roll(onlyWorker)(t.Context()))
		park := lab.parkingOf("wk1")
		for key, value := range map[string]string{
			"name": "mine", "tags": "keep", "protection": "0", "memory": "512", "onboot": "1", "net0": "virtio,bridge=vmbr0", "ide2": "none,media=cdrom",
		} {
			lab.configure(world.ChangeRequest{ID: park, Set: map[string]string{key: value}})
			lab.Patch(everywhere)
			if err := lab.Client().roll(onlyWorker)(t.Context()); err != nil {
				t.Fatalf("%s=%s: %v", key, value, err)
			}
			lab.RequireIntact()
		}
		requireDrift(t, lab, "cp1")
	})
}
