package simtest

import (
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster/claim"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/pve"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/pipeline"
)

// spaceLeave shrinks the storage of the disks so that bytes are free.
func spaceLeave(lab *Lab, bytes int64) {
	lab.t.Helper()
	for _, s := range lab.World.Storages("pve1") {
		if s.ID == sim.DiskStorage {
			lab.World.SetCapacity(s.ID, s.Used+bytes)
			return
		}
	}
	lab.t.Fatal("there is no storage for disks")
}

// spacePrune frees every old system disk.
func spacePrune(t *testing.T, c *Client) {
	t.Helper()
	s, err := c.connect(t.Context())
	must(t, err)
	defer s.end()
	px := s.machines.Proxmox.(*pve.Client)
	_, err = pipeline.Prune(t.Context(), s.project, px, px, &step.Runner{Emit: c.Emit}, pipeline.PruneOptions{
		Only: pipeline.PruneDisks, KeepDisks: new(0), Confirm: func(pipeline.PruneReport) (bool, error) { return true, nil },
		Holder: claim.Holder{Host: "test", Boot: "b", PID: c.pid, Start: "s"}, Dead: c.lab.isKilled,
	})
	must(t, err)
}

// TestARollNeedsRoomForTheNewDisks: the old system disks stay parked, so a roll without
// space for the new ones does not begin; once prune has freed the older ones it does.
func TestARollNeedsRoomForTheNewDisks(t *testing.T) {
	long(t)
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.World.Preallocate(sim.DiskStorage)
		only := planning.Policy{Only: []string{"wk1"}}
		lab.Patch(sim.PatchedExtension)
		must(t, lab.Client().roll(only)(t.Context()))
		lab.Patch(sim.PatchedExtension)
		spaceLeave(lab, 9<<30)
		before := len(lab.Recorder.Calls())
		_, err := lab.Client().Roll(t.Context(), only)
		const want = "wk1: storage fast on pve1 has 9216 MiB free, but a new system disk takes 10 GiB there while the old one stays parked"
		if err == nil || !strings.Contains(err.Error(), want) || fault.KindOf(err) != fault.Refused {
			t.Errorf("a roll without room ends with: %v", err)
		}
		for _, call := range lab.Recorder.Calls()[before:] {
			if call.Mutation && !ofClaim(call) {
				t.Errorf("the refused roll sent %s %s %s all the same", call.Proto, call.Method, call.Path)
			}
		}
		if got := problems(diagnosis(t, lab.Client())); len(got) == 0 || !strings.Contains(strings.Join(got, "\n"), "room for system disks on fast of pve1: "+want[len("wk1: "):]) {
			t.Errorf("doctor says %q", got)
		}
		spacePrune(t, lab.Client())
		c := lab.as("20000102-0000-feed")
		if _, err := c.Roll(t.Context(), only); err != nil {
			t.Fatalf("with the old disks pruned: %v", err)
		}
		lab.RequireIntact()
	})
}

// TestNoSpaceAtTheGate: another user takes the space after the plan was made; the
// node is not taken down.
func TestNoSpaceAtTheGate(t *testing.T) {
	long(t)
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.World.Preallocate(sim.DiskStorage)
		lab.Patch(sim.PatchedExtension)
		c := lab.Client()
		c.Confirm = func(planning.Plan) (bool, error) { spaceLeave(lab, 1<<30); return true, nil }
		before := lab.vm(wk1)
		_, err := c.Roll(t.Context(), planning.Policy{Only: []string{"wk1"}})
		const want = "no room for the new system disk of wk1: storage fast on pve1 has 1024 MiB free"
		if err == nil || !strings.Contains(err.Error(), want) || fault.KindOf(err) != fault.Refused {
			t.Errorf("a roll whose room was taken ends with: %v", err)
		}
		if after := lab.vm(wk1); after.Digest != before.Digest || !after.Running {
			t.Errorf("the VM was touched: %+v", after)
		}
		lab.RequireIntact()
	})
}
