package simtest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/pipeline"
	"github.com/recast-sh/recast/pipeline/checkup"
)

// TestRehearseBoth: where one node boots a prepared disk and another one the ISO, both are tried out on
// their host, each with what it boots alone.
func TestRehearseBoth(t *testing.T) {
	inLongLab(t, sim.Options{Workers: 2}, func(t *testing.T, lab *Lab) {
		lab.BootsDisks("auto")
		lab.setRoll("rehearse: {addresses: [127.42.7.251/24]}")
		whileOff(remove("bios"), discard("efidisk0"))(lab) // wk1
		lab.Patch(everywhere)
		var made []string
		lab.Recorder.Hooks(nil, func(call record.Call) {
			if call.Params["name"] == planning.ScratchName(scratchVM) && call.Params["ipconfig0"] != "" { // those that boot
				made = append(made, fmt.Sprintf("%s, scsi0 %t, medium %t, %s", call.Params["boot"], strings.Contains(call.Params["scsi0"], ",import-from=local:import/"), strings.Contains(call.Params["ide2"], ".iso"), call.Params["ipconfig0"]))
			}
		})
		rep, err := lab.rehearsing().Roll(t.Context(), planning.Policy{Only: []string{"wk1", "wk2"}})
		lab.Recorder.Hooks(nil, nil)
		must(t, err)
		want := []string{"order=ide2, scsi0 false, medium true, ip=127.42.7.251/24", "order=scsi0, scsi0 true, medium false, ip=127.42.7.251/24"}
		if slices.Sort(made); !cmp.Equal(want, made) {
			t.Errorf("made (-want +got):\n%s", cmp.Diff(want, made))
		}
		var seen []string
		for _, r := range rep.Rehearsed {
			seen = append(seen, fmt.Sprintf("%s %s, disk %t, at %s: %q", r.Nodes, r.Firmware, r.Disk != "", r.Addr, r.Unseen))
		}
		slices.Sort(seen)
		requireSame(t, []string{
			`[wk1] SeaBIOS, q35, CPU host, disk false, at 127.42.7.251: ""`,
			`[wk2] OVMF, q35, CPU host, disk on scsi (virtio-scsi-single), disk true, at 127.42.7.251: ""`,
		}, seen, "rehearsed (-want +got)")
		lab.requireNoScratch()
		lab.RequireIntact()
	})
}

// TestRehearseADiskOn: a prepared disk is tried out on the bus of the node's system disk.
func TestRehearseADiskOn(t *testing.T) {
	o := func(bus string) sim.Options { return sim.Options{Workers: 1, DiskBus: bus} }
	eachLongIn(t, o, storiesOf("virtio", "sata"), func(t *testing.T, lab *Lab, bus string) {
		lab.BootsDisks("disk")
		lab.Patch(everywhere)
		var made record.Call
		lab.Recorder.Hooks(nil, func(call record.Call) {
			if call.Params["name"] == planning.ScratchName(scratchVM) {
				made = call
			}
		})
		rep, err := lab.rehearsing().Roll(t.Context(), planning.Policy{Only: []string{"wk1"}})
		lab.Recorder.Hooks(nil, nil)
		must(t, err)
		if len(rep.Rehearsed) != 1 || rep.Rehearsed[0].Unseen != "" || !strings.Contains(made.Params[bus+"0"], ",import-from=") {
			t.Errorf("rehearsed %+v, made %v", rep.Rehearsed, made.Params)
		}
		lab.requireNoScratch()
		lab.RequireIntact()
	})
}

// TestRehearsalOfADiskLost: Proxmox's answer to every k-th change is lost, that to the import too.
func TestRehearsalOfADiskLost(t *testing.T) {
	eachLong(t, oneWorker(), storiesOf[int64](1, 2, 3), func(t *testing.T, lab *Lab, k int64) {
		lab.BootsDisks("disk")
		lab.Patch(everywhere)
		lost := lab.loseEvery(k)
		rep, err := lab.rehearsing().Roll(t.Context(), planning.Policy{Only: []string{"wk1"}})
		lab.Recorder.Hooks(nil, nil)
		mustBe(t, err == nil && len(rep.Rehearsed) == 1 && lost.Load() >= 3,
			"report %+v, %d answers lost, error %v", rep, lost.Load(), err)
		lab.requireNoScratch()
		lab.RequireIntact()
	})
}

// TestRehearsalOfADiskLate: the scratch VM that a killed run had asked for is made, with its disk, while
// the next run makes its own one, or starts it. Whoever comes after that deletes what is left.
func TestRehearsalOfADiskLate(t *testing.T) {
	makes := withParam("/qemu", "import-from=")
	type story struct {
		then func(record.Call) bool
		left int
	}
	eachLong(t, oneWorker(), map[string]story{
		"at once":      {makes, 1},
		"then a start": {toVM("POST", "/qemu/9099/status/start"), 0},
	}, func(t *testing.T, lab *Lab, s story) {
		lab.BootsDisks("disk")
		lab.setRoll("rehearse: {enabled: true}")
		lab.Patch(everywhere)
		only := planning.Policy{Only: []string{"wk1"}}
		x := lab.rollKilledBy(makes, only)
		x.deliverBefore(s.then, 0)
		must(t, lab.second().roll(only)(t.Context()))
		x.deliver()
		lab.Recorder.Hooks(nil, nil)
		left := lab.scratches()
		require(t, x.said != "" && len(left) == s.left, "left %q, late %q", left, x.said)
		must(t, errOf(lab.second().pruneDisks(t.Context(), -1, nil)))
		lab.requireNoScratch()
		lab.RequireIntact()
	})
}

// leaveScratch kills a roll whose scratch VM was just started.
func (l *Lab) leaveScratch(t *testing.T) {
	l.Patch(sim.PatchedExtension)
	c := l.rehearsing()
	c.killedAt(t, onServer("/9099/status/start POST"), c.roll(planning.Policy{Only: []string{"wk1"}}))
	left := l.scratches()
	mustBe(t, len(left) == 1, "left: %q", left)
}

// TestPruneScratchVMs: a killed run's scratch VMs are removed even if there is nothing to
// roll; until then doctor and plan report them.
func TestPruneScratchVMs(t *testing.T) {
	inLongLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.leaveScratch(t)
		second := lab.second()
		warned := slices.ContainsFunc(diagnosis(t, second).Checks, func(c checkup.Check) bool {
			return c.What == "VM 9099" && c.State == checkup.Warning && strings.Contains(strings.Join(c.Remedy, ""), "recast prune deletes it")
		})
		require(t, warned, "doctor says nothing of it")
		inSync := planning.Policy{Only: []string{"cp1"}}
		plan := valueOf(second.Plan(t.Context(), inSync))(t)
		require(t, len(plan.Scratch) == 0 && strings.Contains(strings.Join(plan.Warn, ""), `VM 9099 "recast-rehearse-9099" on pve1, which run`),
			"planned to clear %v, warned %q", plan.Scratch, plan.Warn)
		must(t, second.roll(inSync)(t.Context()))
		left := lab.scratches()
		mustBe(t, len(left) == 1, "left: %q", left)
		asked := 0
		rep, err := second.pruneDisks(t.Context(), -1, func(rep pipeline.PruneReport) { asked = len(rep.GoingScratch()) })
		require(t, err == nil && asked == 1 && len(rep.Scratch) == 1 && rep.Scratch[0].Removed,
			"asked for %d, report %+v, %v", asked, rep.Scratch, err)
		lab.requireNoScratch()
		lab.RequireIntact()
	})
}

// TestAChangedScratchVMIsKept: a killed run's scratch VM is deleted neither by a roll nor by
// prune once it has something that recast did not make, and both say why.
func TestAChangedScratchVMIsKept(t *testing.T) {
	inLongLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.leaveScratch(t)
		lab.EditVM(scratchVM, "scsi5", "fast:3,serial=someone")
		const why = "is not a drive that it was created with"
		requireRefused(t, lab.second().roll(planning.Policy{Only: []string{"wk1"}})(t.Context()), why)
		rep, err := lab.second().pruneDisks(t.Context(), -1, func(pipeline.PruneReport) { t.Error("it asks, though nothing goes") })
		require(t, err == nil && len(rep.Scratch) == 1 && strings.Contains(strings.Join(rep.Scratch[0].Keep, ""), why),
			"report %+v, %v", rep.Scratch, err)
		left := lab.scratches()
		require(t, len(left) == 1, "left: %q", left)
		lab.RequireIntact()
	})
}

// TestPlanOfARehearsal: a plan lists the VMs to remove and to make, and a saved one is
// rolled with the rehearsals that it lists, whatever has happened to those VMs.
func TestPlanOfARehearsal(t *testing.T) {
	inLongLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.leaveScratch(t)
		must(t, lab.Client().Publish(t.Context()))
		planner, only := lab.second(), planning.Policy{Only: []string{"wk1"}}
		without := valueOf(planner.Plan(t.Context(), only))(t)
		require(t, len(without.Trials) == 0 && len(without.Scratch) == 1,
			"planned %v, to clear %v", without.Trials, without.Scratch)
		planner.Rehearse = new(true)
		plan := valueOf(planner.Plan(t.Context(), only))(t)
		var seen []string
		for _, s := range plan.Scratch {
			seen = append(seen, fmt.Sprintf("%d %s", s.VMID, s.Host))
		}
		for _, r := range plan.Trials {
			seen = append(seen, fmt.Sprintf("%s %s %s %v %t", r.Host, r.Firmware, r.Schematic, r.Nodes, strings.HasSuffix(r.ISO, ".iso")))
		}
		requireSame(t, []string{"9099 pve1", "pve1 OVMF, q35, CPU host storage [wk1] true"}, seen, "planned (-want +got)")
		roller := lab.second()
		roller.Saved = lab.reread(plan)
		must(t, errOf(lab.second().pruneDisks(t.Context(), -1, nil)))
		rep := valueOf(roller.Roll(t.Context(), planning.Policy{}))(t)
		require(t, len(rep.Rehearsed) == 1 && rep.Plan.ID == plan.ID,
			"rehearsed %+v by plan %s of %s", rep.Rehearsed, rep.Plan.ID, plan.ID)
		lab.requireNoScratch()
		lab.RequireIntact()
	})
}
