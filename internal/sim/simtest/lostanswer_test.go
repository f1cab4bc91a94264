package simtest

import (
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/record"
)

// loseEvery breaks the connection in place of the answer to every k-th change by Proxmox,
// and returns the number of lost answers.
func (l *Lab) loseEvery(k int64) *atomic.Int64 {
	var changes, lost atomic.Int64
	l.Recorder.Hooks(nil, func(c record.Call) {
		if c.Proto == "proxmox" && c.Mutation && changes.Add(1)%k == 0 {
			lost.Add(1)
			panic(http.ErrAbortHandler)
		}
	})
	return &lost
}

// TestRollWithLostAnswers rolls two workers while Proxmox's answer to every k-th change is lost:
// it ends in sync without a second run.
func TestRollWithLostAnswers(t *testing.T) {
	eachLong(t, twoWorkers, storiesOf[int64](1, 2, 3, 7), func(t *testing.T, lab *Lab, k int64) {
		before := lab.Disks()
		lab.Patch(sim.PatchedExtension)
		lost := lab.loseEvery(k)
		rep, err := lab.Client().Roll(t.Context(), planning.Policy{})
		lab.Recorder.Hooks(nil, nil)
		if err != nil || rep.Outcome != "done" || lost.Load() < 3 {
			t.Fatalf("report %+v, %d answers lost, error %v", rep, lost.Load(), err)
		}
		lab.requireRolled(t)
		for serial, sum := range lab.Disks() {
			if was, persistent := before[serial]; persistent && was != sum {
				t.Errorf("disk %s: %s before, %s after", serial, was, sum)
			}
		}
	})
}

// TestRollWithLostChanges rolls a worker while every k-th change does not reach Proxmox:
// idempotent ones are retried, any other ends the run, and the next one continues.
func TestRollWithLostChanges(t *testing.T) {
	long(t)
	eachInLab(t, oneWorker(), storiesOf[int64](3, 5, 7), func(t *testing.T, lab *Lab, k int64) {
		lab.Patch(sim.PatchedExtension)
		var changes, lost atomic.Int64
		lab.Recorder.Hooks(func(c record.Call) error {
			if c.Proto == "proxmox" && c.Mutation && changes.Add(1)%k == 0 {
				lost.Add(1)
				return errKilled
			}
			return nil
		}, nil)
		var err error
		for run := range 20 {
			_, err = lab.as(fmt.Sprintf("20000101-0000-%04d", run)).Roll(t.Context(), planning.Policy{})
			if !errors.Is(err, cluster.ErrLostAnswer) {
				break
			}
		}
		if err != nil || lost.Load() == 0 {
			t.Fatalf("%d changes lost: %v", lost.Load(), err)
		}
		lab.Recorder.Hooks(nil, nil)
		requireInSync(t, lab)
	})
}
