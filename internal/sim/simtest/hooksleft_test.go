package simtest

import (
	"context"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
)

// Ctrl-C interrupts a hook before a node, and lets one after it finish.
func TestCtrlCInAHook(t *testing.T) {
	type story struct {
		stale []string
		ran   []string // Ctrl-C is pressed in the last but one
	}
	eachLong(t, sim.Options{Workers: 2}, map[string]story{
		"beforeRun":           {[]string{"wk1", "wk2"}, []string{"beforeRun", "afterRun"}},
		"beforeBatch workers": {[]string{"wk1", "wk2"}, []string{"beforeRun", "beforeBatch workers", "afterRun"}},
		"beforeNode wk1":      {[]string{"wk1", "wk2"}, []string{"beforeRun", "beforeBatch workers", "beforeNode wk1", "afterRun"}},
		"afterNode wk1":       {[]string{"wk2"}, []string{"beforeRun", "beforeBatch workers", "beforeNode wk1", "afterNode wk1", "afterRun"}},
	}, func(t *testing.T, lab *Lab, c story) {
		lab.setRoll("canary: false")
		var client *Client
		client, h := withHooks(lab, func(ctx context.Context, at string) (int, error) {
			if at != c.ran[len(c.ran)-2] {
				return 0, nil
			}
			client.Runner.Stop()
			select {
			case <-ctx.Done():
				return 0, context.Cause(ctx)
			case <-time.After(30 * time.Second):
				return 0, nil
			}
		})
		requireFault(t, client.roll(planning.Policy{})(t.Context()), fault.Interrupted)
		if outcome := variable(h.envs["afterRun"], "RECAST_OUTCOME"); outcome != "interrupted" {
			t.Errorf("outcome in the environment of the hook after the run: %s", outcome)
		}
		h.require(t, c.ran...)
		requireDrift(t, lab, c.stale...)
		requireNoClaim(t, lab)
	})
}

// After a second Ctrl-C the hooks after the run have at most 30 s.
func TestCtrlCTwiceInTheLastHook(t *testing.T) {
	long(t)
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var pressed time.Time
		c, _ := withHooks(lab, func(within context.Context, at string) (int, error) {
			if at != "afterRun" {
				return 0, nil
			}
			cancel()
			pressed = time.Now()
			<-within.Done()
			return 0, context.Cause(within)
		})
		_, err := c.Roll(ctx, planning.Policy{})
		if took := time.Since(pressed); err == nil || took < 29*time.Second || took > 2*time.Minute {
			t.Errorf("after %s: %v", took, err)
		}
		requireDrift(t, lab)
	})
}

// A node of a killed run gets its hooks too, because nobody knows whether they ran.
func TestHooksOfAKilledRun(t *testing.T) {
	type story struct{ strategy, at string }
	eachLong(t, oneWorker(), storiesOf(story{"recreate", "wk1/bring-up"}, story{"in-place", "wk1/finish"}), func(t *testing.T, lab *Lab, c story) {
		lab.setRoll("strategy: " + c.strategy)
		h := killHooked(t, lab, c.at)
		must(t, h.next(lab).roll(planning.Policy{})(t.Context()))
		h.require(t, "beforeRun", "beforeBatch unfinished", "beforeNode wk1", "afterNode wk1", "afterBatch unfinished", "afterRun")
		if resumed := variable(h.envs["afterNode wk1"], "RECAST_RESUMED"); resumed != "true" {
			t.Errorf("RECAST_RESUMED is %s", resumed)
		}
		requireInSync(t, lab)
	})
}

// A failed hook leaves unfinished work as it is.
func TestAHookBeforeUnfinishedWork(t *testing.T) {
	long(t)
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		h := killHooked(t, lab, "wk1/bring-up")
		h.do = failAt("beforeNode wk1")
		requireFault(t, h.next(lab).roll(planning.Policy{})(t.Context()), fault.Refused, "wk1 is as the earlier run had left it")
		// recast undo runs no hook first.
		h.ran = nil
		must(t, errOf(h.next(lab).Recover(t.Context(), "wk1")))
		h.require(t)
		requireInSync(t, lab, "wk1")
	})
}
