package simtest

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/record"
)

// newForeignRoll is a lab whose worker a whole roll replaces.
func newForeignRoll(t *testing.T, way foreignWay) (s *foreignScene, lab *Lab) {
	t.Helper()
	lab = New(t, sim.Options{ControlPlanes: 1, Workers: 1, Holder: way.holder})
	s = &foreignScene{
		world: lab.World, recorder: lab.Recorder, way: way, host: "pve1", vm: wk1, holder: 9201, park: claimVM + 2,
		disk: "data-wk1", storage: sim.DiskStorage,
	}
	if way.strategy == cluster.Recreate || way.strategy == cluster.Reimage {
		lab.setRoll("strategy: " + string(way.strategy))
	}
	if way.prepared {
		lab.BootsDisks(cluster.BootFromDisk)
	}
	lab.Patch(sim.PatchedExtension)
	c := lab.as(secondRun)
	c.Emit = s.listen
	s.act = c.roll(planning.Policy{})
	s.again = func(context.Context) error {
		time.Sleep(time.Minute)
		err := lab.rollInTime(t, thirdRun)
		if err == nil {
			requireDrift(t, lab)
		}
		return err
	}
	s.cancel = lab.as(secondRun).giveUp("wk1")
	s.ended = func() error { return nil }
	switch way.strategy {
	case cluster.Rollback:
		must(t, lab.rollInTime(t, firstRun))
		s.act = c.goBack("wk1")
	case cluster.PutBack:
		first := lab.as(firstRun)
		first.killedAt(t, after("bring-up/start"), first.roll(planning.Policy{}))
		s.act = func(ctx context.Context) error {
			_, err := c.Recover(ctx, "wk1")
			return err
		}
	default:
		must(t, c.Publish(t.Context()))
	}
	return s, lab
}

// TestForeignHandsInARoll is TestForeignHands for a whole roll of a worker, with a machine
// in the VM.
func TestForeignHandsInARoll(t *testing.T) {
	long(t)
	for _, way := range foreignWays() {
		t.Run(way.String(), func(t *testing.T) {
			foreignHands(t, way, 6, func(t *testing.T, way foreignWay) *foreignScene {
				s, _ := newForeignRoll(t, way)
				return s
			})
		})
	}
}

// TestBackupIsWaitedOut runs a backup of the VM, or its parking VM, during a roll: the
// roll waits, says so, and completes.
func TestBackupIsWaitedOut(t *testing.T) {
	for _, c := range []struct {
		strategy cluster.Strategy
		act      string
		vm       int
		change   string // requested from Proxmox at that moment
	}{
		{cluster.Recreate, "backs the VM up", wk1, "/qemu/9031/status/shutdown"},
		{cluster.Recreate, "backs the VM up", wk1, "/qemu/9031/move_disk"},
		{cluster.Recreate, "backs the VM up", wk1, "/qemu/9031"},
		{cluster.Reimage, "backs the VM up", wk1, "/qemu/9031/status/start"},
		{cluster.Recreate, "backs the parking VM up", claimVM + 2, "/qemu/9031/move_disk"},
		{cluster.Reimage, "backs the parking VM up", claimVM + 2, "/qemu/9002/config"},
	} {
		t.Run(fmt.Sprintf("%s/%s before %s", c.strategy, c.act, strings.ReplaceAll(c.change, "/", " ")), func(t *testing.T) {
			long(t)
			inBubble(t, func(t *testing.T) {
				s, lab := newForeignRoll(t, foreignWay{c.strategy, false, false})
				at := foreignMoment{is: func(call record.Call) bool { return strings.HasSuffix(call.Path, c.change) }}
				came, err := s.disturbed(t.Context(), t, at, func() { must(t, errOf(s.play(foreignActNamed(c.act)))) })
				if !came || err != nil {
					t.Fatalf("came %t: %v", came, err)
				}
				if want := fmt.Sprintf("waiting for VM %d: it is locked (backup)", c.vm); !s.heard(want) {
					t.Errorf("it did not say %q", want)
				}
				requireDrift(t, lab)
				lab.requireKept(1)
				lab.RequireIntact()
			})
		})
	}
}
