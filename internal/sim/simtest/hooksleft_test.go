package simtest

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
)

// Ctrl-C interrupts a hook before a node, and lets one after it finish.
func TestCtrlCInAHook(t *testing.T) {
	for at, c := range map[string]struct {
		stale []string
		ran   []string
	}{
		"beforeRun":           {[]string{"wk1", "wk2"}, []string{"beforeRun", "afterRun"}},
		"beforeBatch workers": {[]string{"wk1", "wk2"}, []string{"beforeRun", "beforeBatch workers", "afterRun"}},
		"beforeNode wk1":      {[]string{"wk1", "wk2"}, []string{"beforeRun", "beforeBatch workers", "beforeNode wk1", "afterRun"}},
		"afterNode wk1":       {[]string{"wk2"}, []string{"beforeRun", "beforeBatch workers", "beforeNode wk1", "afterNode wk1", "afterRun"}},
	} {
		t.Run(at, func(t *testing.T) {
			long(t)
			inLab(t, sim.Options{Workers: 2}, func(t *testing.T, lab *Lab) {
				lab.setRoll("canary: false")
				var client *Client
				client, h := withHooks(lab, func(ctx context.Context, now string) (int, error) {
					if now != at {
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
				_, err := client.Roll(t.Context(), planning.Policy{})
				if fault.KindOf(err) != fault.Interrupted {
					t.Errorf("kind %d: %v", fault.KindOf(err), err)
				}
				if env := strings.Join(h.envs["afterRun"], " "); !strings.Contains(env, "RECAST_OUTCOME=interrupted") {
					t.Errorf("the environment of the hook after the run: %s", env)
				}
				h.require(t, c.ran...)
				requireDrift(t, lab, c.stale...)
				requireNoClaim(t, lab)
			})
		})
	}
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
	for strategy, at := range map[string]string{"recreate": "wk1/bring-up", "in-place": "wk1/finish"} {
		t.Run(strategy, func(t *testing.T) {
			long(t)
			inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
				lab.setRoll("strategy: " + strategy)
				c, h := withHooks(lab, nil)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				c.Emit = whenStarted(at, func() { c.Kill(); cancel() })
				if _, err := c.Roll(ctx, planning.Policy{}); err == nil {
					t.Fatal("it was not killed")
				}
				h.ran = nil
				again := lab.second()
				again.Commands = h
				rep, err := again.Roll(t.Context(), planning.Policy{})
				must(t, err)
				h.require(t, "beforeRun", "beforeBatch unfinished", "beforeNode wk1", "afterNode wk1", "afterBatch unfinished", "afterRun")
				if env := strings.Join(h.envs["afterNode wk1"], " "); !strings.Contains(env, "RECAST_RESUMED=true") {
					t.Errorf("its environment: %s; %q", env, rep.Resumed)
				}
				requireInSync(t, lab)
			})
		})
	}
}

// A failed hook leaves unfinished work as it is.
func TestAHookBeforeUnfinishedWork(t *testing.T) {
	long(t)
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		c, h := withHooks(lab, nil)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		c.Emit = whenStarted("wk1/bring-up", func() { c.Kill(); cancel() })
		if _, err := c.Roll(ctx, planning.Policy{}); err == nil {
			t.Fatal("it was not killed")
		}
		h.do = failAt("beforeNode wk1")
		again := lab.second()
		again.Commands = h
		_, err := again.Roll(t.Context(), planning.Policy{})
		if fault.KindOf(err) != fault.Refused || !strings.Contains(strings.Join(fault.Hints(err), "\n"), "wk1 is as the earlier run had left it") {
			t.Errorf("kind %d: %v; %q", fault.KindOf(err), err, fault.Hints(err))
		}
		// recast recover runs no hook first.
		h.ran = nil
		must(t, errOf(lab.second().recoverWith(h, "wk1")))
		h.require(t)
		requireInSync(t, lab, "wk1")
	})
}

func (c *Client) recoverWith(h *hooker, node string) (any, error) {
	c.Commands = h
	return c.Recover(c.lab.t.Context(), node)
}
