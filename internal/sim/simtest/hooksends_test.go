package simtest

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/step"
)

// A command that first finishes an earlier run makes two plans: the hooks before it get
// the first one, those after it both.
func TestHooksAroundTwoPlans(t *testing.T) {
	inLongLab(t, sim.Options{Workers: 2}, func(t *testing.T, lab *Lab) {
		lab.setRoll("canary: false")
		h := killHooked(t, lab, "wk1/bring-up")
		must(t, h.next(lab).roll(planning.Policy{})(t.Context()))
		h.require(t, "beforeRun", "beforeBatch unfinished", "beforeNode wk1", "afterNode wk1", "afterBatch unfinished",
			"beforeBatch workers", "beforeNode wk2", "afterNode wk2", "afterBatch workers", "afterRun")
		for point, want := range map[string]string{"beforeRun": "wk1", "beforeBatch workers": "wk2", "afterRun": "wk1 wk2"} {
			requireSame(t, want, variable(h.envs[point], "RECAST_NODES"), "%s got (-want +got)", point)
		}
		requireDrift(t, lab)
	})
}

// However a run ends during the last node of a batch, the hooks after the batch run once
// that node is done.
func TestHooksAfterTheLastNodeOfABatch(t *testing.T) {
	long(t)
	t.Run("Ctrl-C", func(t *testing.T) {
		inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
			c, h := withHooks(lab, nil)
			c.Emit = whenStarted("wk1/bring-up", func() { c.Runner.Stop() })
			must(t, c.roll(planning.Policy{})(t.Context()))
			h.require(t, "beforeRun", "beforeBatch workers", "beforeNode wk1", "afterNode wk1", "afterBatch workers", "afterRun")
			requireDrift(t, lab)
		})
	})
	t.Run("a failure in the batch beside it", func(t *testing.T) {
		inLab(t, sim.Options{ControlPlanes: 3, Workers: 1}, func(t *testing.T, lab *Lab) {
			lab.setRoll("strategy: in-place", "reboot: kexec", "canary: false", "workersBeside: true", "maxUnavailable: {workers: 1, perHost: 2}")
			working := make(chan struct{})
			c, h := withHooks(lab, func(_ context.Context, at string) (int, error) {
				if at == "beforeNode cp1" {
					<-working
					return 3, nil
				}
				return 0, nil
			})
			lab.Patch(everywhere)
			c.Emit = whenStarted("workers/wk1/upgrade", func() { close(working) })
			requireRefused(t, c.roll(planning.Policy{})(t.Context()), "roll/control-planes/cp1/run-hooks")
			ran := strings.Join(h.ran, ", ")
			if !strings.HasSuffix(ran, "afterNode wk1, afterBatch workers, afterRun") || strings.Contains(ran, "afterBatch control-planes") {
				t.Errorf("hooks: %s", ran)
			}
			requireDrift(t, lab, "cp1", "cp2", "cp3")
		})
	})
}

// notAfter has gates that hold only before a node's roll.
type notAfter struct{ *hooker }

func (notAfter) RunGate(_ context.Context, _ cluster.CommandGate, env []string) (exit int, said string, err error) {
	if slices.Contains(env, "RECAST_WHEN=after") {
		return 1, "not yet", nil
	}
	return 0, "", nil
}

// If the node is done but its branch is not, no run reaches the hooks after the batch: the error says so.
func TestHooksOfABatchLeftOpen(t *testing.T) {
	eachLong(t, oneWorker(), map[string]func(lab *Lab, c *Client){
		"hook after the node": func(_ *Lab, c *Client) { c.Commands.(*hooker).do = failAt("afterNode wk1") },
		"Ctrl-C in a gate": func(lab *Lab, c *Client) {
			lab.setRoll("gates: [{command: [h], timeout: 1h}]")
			c.Commands = notAfter{c.Commands.(*hooker)}
			c.Emit = whenStarted("wk1/ask-gates-again", func() { c.Runner.Stop() })
		},
	}, func(t *testing.T, lab *Lab, end func(lab *Lab, c *Client)) {
		c, h := withHooks(lab, nil)
		end(lab, c)
		_, err := c.Roll(t.Context(), planning.Policy{})
		hints := strings.Join(fault.Hints(err), "\n")
		require(t, strings.Contains(hints, "the hooks after the batch workers were not run, and the next run runs them only if it still has a node to roll in it"),
			"%v; hints %q", err, hints)
		h.require(t, "beforeRun", "beforeBatch workers", "beforeNode wk1", "afterNode wk1", "afterRun")
		requireDrift(t, lab)
	})
}

// No hook runs for a node that was paused after the plan was made.
func TestHooksOfAPausedNode(t *testing.T) {
	inLongLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		c, h := withHooks(lab, func(_ context.Context, at string) (int, error) {
			if at == "beforeBatch workers" {
				lab.pause("wk1", "a disk is being replaced")
			}
			return 0, nil
		})
		_, err := c.Roll(t.Context(), planning.Policy{})
		requireMessage(t, err, fault.Refused, "roll/workers/wk1/run-hooks: wk1 was paused since the plan was made: a disk is being replaced")
		h.require(t, "beforeRun", "beforeBatch workers", "afterRun")
		requireDrift(t, lab, "wk1")
	})
}

// The notices of start and end together delay the end of a run no more than one of them
// alone.
func TestNoticesDoNotHoldUpTheEnd(t *testing.T) {
	type story struct {
		takes  time.Duration // each
		cancel bool
		want   time.Duration
	}
	eachLong(t, oneWorker(), map[string]story{
		"both hang":                {time.Hour, false, 35 * time.Second},
		"both are slow":            {20 * time.Second, false, 22 * time.Second},
		"the first is soon there":  {time.Second, false, 2 * time.Second},
		"Ctrl-C was pressed twice": {time.Hour, true, 10 * time.Second},
	}, func(t *testing.T, lab *Lab, c story) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		client, _ := withHooks(lab, failAt("beforeRun"))
		lab.Replace("recast.yaml", "afterRun: [{command: [h]}], ", "")
		told := &chat{takes: c.takes}
		client.Notify = told
		var ended time.Time
		client.Emit = func(e step.Event) {
			if e.Path == "before-run" && e.Status == step.Failed {
				ended = time.Now()
				if c.cancel {
					cancel()
				}
			}
		}
		rep, err := client.Roll(ctx, planning.Policy{})
		require(t, err != nil && len(told.got) == 2 && told.got[1].Event == cluster.NoticeFailure,
			"%v; told %+v", err, told.got)
		// The claim is released before.
		took := time.Since(ended)
		require(t, took >= c.want && took <= c.want+2*time.Second,
			"the end took %s, want %s; unsent %q", took, c.want, rep.Unsent)
	})
}

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
		outcome := variable(h.envs["afterRun"], "RECAST_OUTCOME")
		require(t, outcome == "interrupted", "outcome in the environment of the hook after the run: %s", outcome)
		h.require(t, c.ran...)
		requireDrift(t, lab, c.stale...)
		requireNoClaim(t, lab)
	})
}

// After a second Ctrl-C the hooks after the run have at most 30 s.
func TestCtrlCTwiceInTheLastHook(t *testing.T) {
	inLongLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
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
		took := time.Since(pressed)
		require(t, err != nil && took >= 29*time.Second && took <= 2*time.Minute, "after %s: %v", took, err)
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
		requireSame(t, "true", variable(h.envs["afterNode wk1"], "RECAST_RESUMED"), "RECAST_RESUMED is (-want +got)")
		requireInSync(t, lab)
	})
}

// A failed hook leaves unfinished work as it is.
func TestAHookBeforeUnfinishedWork(t *testing.T) {
	inLongLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
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
