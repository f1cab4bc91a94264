package simtest

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/command"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/step"
)

// everyHook has one hook at each point.
const everyHook = "hooks: {beforeRun: [{command: [h]}], afterRun: [{command: [h]}], beforeBatch: [{command: [h]}], " +
	"afterBatch: [{command: [h]}], beforeNode: [{command: [h]}], afterNode: [{command: [h]}]}"

// hooker simulates the programs of hooks.
type hooker struct {
	command.Gates
	// do is the program's behaviour at a point: "beforeNode wk1"; nil: it exits with 0.
	do func(ctx context.Context, at string) (exit int, err error)

	mu   sync.Mutex
	ran  []string
	envs map[string][]string // by point
}

func (h *hooker) RunHook(ctx context.Context, _ cluster.CommandGate, env []string, line func(string)) (cluster.HookEnd, error) {
	at := strings.TrimSpace(variable(env, "RECAST_HOOK") + " " + variable(env, "RECAST_NODE"))
	if strings.HasSuffix(at, "Batch") {
		at += " " + variable(env, "RECAST_BATCH")
	}
	h.mu.Lock()
	h.ran = append(h.ran, at)
	h.envs[at] = env
	h.mu.Unlock()
	line("at " + at)
	if h.do == nil {
		return cluster.HookEnd{Output: "at " + at + "\n"}, nil
	}
	exit, err := h.do(ctx, at)
	return cluster.HookEnd{Exit: exit, Said: "at " + at, Output: "at " + at + "\n"}, err
}

// variable is the value of an environment variable; "" if it is not set.
func variable(env []string, name string) string {
	for _, entry := range env {
		if value, ok := strings.CutPrefix(entry, name+"="); ok {
			return value
		}
	}
	return ""
}

func failAt(point string) func(context.Context, string) (int, error) {
	return func(_ context.Context, at string) (int, error) {
		if at == point {
			return 3, nil
		}
		return 0, nil
	}
}

// withHooks makes a lab of stale workers with a hook at each point.
func withHooks(lab *Lab, do func(context.Context, string) (int, error)) (*Client, *hooker) {
	lab.setRoll(everyHook)
	lab.Patch(sim.PatchedExtension)
	c, h := lab.Client(), &hooker{do: do, envs: map[string][]string{}}
	c.Commands = h
	return c, h
}

func (h *hooker) require(t *testing.T, want ...string) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	requireSame(t, want, h.ran, "hooks (-want +got)")
	h.ran = nil
}

// hooksUntil are the hooks of a run that ends with one of them.
func hooksUntil(at string) []string {
	points := []string{"beforeRun", "beforeBatch workers", "beforeNode wk1", "afterNode wk1"}
	return append(points[:slices.Index(points, at)+1], "afterRun")
}

func (h *hooker) next(lab *Lab) *Client {
	c := lab.second()
	c.Commands = h
	return c
}

// killHooked rolls with hooks and is killed when a step starts. It forgets which hooks ran.
func killHooked(t *testing.T, lab *Lab, step string) *hooker {
	t.Helper()
	c, h := withHooks(lab, nil)
	c.killedAt(t, before(step), c.roll(planning.Policy{}))
	h.ran = nil
	return h
}

// Programs run at their points with the documented environment, and their output is shown and kept.
func TestHooks(t *testing.T) {
	inLongLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.Write("hook.sh", []byte("#!/bin/sh\nenv | grep ^RECAST_ | sort | tr '\\n' ' ' >>asked\necho >>asked\necho \"$RECAST_HOOK with ${PROXMOX_VE_API_TOKEN-no token}\"\n"))
		must(t, os.Chmod(filepath.Join(lab.Dir, "hook.sh"), 0o700))
		lab.setRoll(strings.ReplaceAll(everyHook, "[h]", "[./hook.sh]"))
		lab.Patch(sim.PatchedExtension)
		c := lab.Client()
		plan := valueOf(c.Plan(t.Context(), planning.Policy{}))(t)
		for _, p := range cluster.HookPoints() {
			want := []cluster.Hook{{TimeoutSeconds: 60, Command: cluster.CommandGate{Args: []string{"./hook.sh"}, Dir: lab.Dir}}}
			requireSame(t, want, plan.Hooks.At(p), "%s in the plan (-want +got)", p)
		}
		var paths, notes []string
		c.Emit = func(e step.Event) {
			switch {
			case e.Status == step.Note && strings.HasSuffix(e.Text, "no token"):
				notes = append(notes, e.Path+": "+e.Text)
			case e.Status == step.Started && regexp.MustCompile(`hooks|gate|take-down|bring-up|-run$`).MatchString(e.Path[strings.LastIndex(e.Path, "/")+1:]):
				paths = append(paths, e.Path)
			}
		}
		rep := c.mustRoll(planning.Policy{})
		const wk1 = "roll/workers/wk1/"
		requireSame(t, []string{
			"before-run", "roll/workers/hooks_before", wk1 + "run-hooks", wk1 + "gate", wk1 + "take-down", wk1 + "bring-up", wk1 + "run-hooks-again", "roll/workers/hooks_after", "after-run",
		}, paths, "steps (-want +got)")
		requireSame(t, []string{
			"before-run: beforeRun with no token", "roll/workers/hooks_before: beforeBatch with no token", wk1 + "run-hooks: beforeNode with no token",
			wk1 + "run-hooks-again: afterNode with no token", "roll/workers/hooks_after: afterBatch with no token", "after-run: afterRun with no token",
		}, notes, "notes (-want +got)")
		asked := regexp.MustCompile(`[0-9a-f]{64}|127\.42\.[0-9.]+`).ReplaceAllString(string(lab.Read("asked")), "X")
		const (
			run   = "RECAST_RUN=20000101-0000-feed "
			batch = "RECAST_BATCH=workers RECAST_CLUSTER=lab "
			node  = "RECAST_NODE=wk1 "
			of    = "RECAST_RESUMED=false RECAST_ROLE=worker " + run + "RECAST_STRATEGY=recreate RECAST_TALOS_VERSION=v1.13.9 RECAST_VMID=9031 \n"
			first = "RECAST_ADDRESS=X RECAST_BATCH=workers RECAST_BUILD_ID=X RECAST_CLUSTER=lab "
		)
		want := "RECAST_CLUSTER=lab RECAST_HOOK=beforeRun RECAST_NODES=wk1 " + run + "\n" +
			batch + "RECAST_HOOK=beforeBatch RECAST_NODES=wk1 " + run + "\n" +
			first + "RECAST_HOOK=beforeNode RECAST_HOST=pve1 " + node + of +
			first + "RECAST_HOOK=afterNode RECAST_HOST=pve1 " + node + "RECAST_OUTCOME=done " + of +
			batch + "RECAST_HOOK=afterBatch RECAST_NODES=wk1 RECAST_OUTCOME=done " + run + "\n" +
			"RECAST_CLUSTER=lab RECAST_ERROR= RECAST_HOOK=afterRun RECAST_NODES=wk1 RECAST_NODES_DONE=wk1 RECAST_NODES_FAILED= RECAST_NODES_LEFT= RECAST_OUTCOME=done " + run + "\n"
		requireSame(t, want, asked, "environments (-want +got)")
		var kept []string
		for _, h := range rep.Hooks {
			kept = append(kept, fmt.Sprintf("%s %s %s %d %s%s", h.Point, h.Batch, h.Node, *h.Exit, h.Error, h.Output))
		}
		require(t, len(kept) == 6 && kept[2] == "beforeNode workers wk1 0 beforeNode with no token\n",
			"the report has %q", kept)
		at := string(lab.Read(".recast/runs/20000101-0000-feed/wk1~hooks~afternode~1.json"))
		require(t, strings.Contains(at, `"output": "afterNode with no token\n"`), "the journal has %s", at)
		requireInSync(t, lab)
	})
}

// A failed hook before an action prevents it, and the hooks after the run get the outcome.
func TestAHookBefore(t *testing.T) {
	steps := map[string]string{
		"beforeRun": "before-run", "beforeBatch workers": "roll/workers/hooks_before", "beforeNode wk1": "roll/workers/wk1/run-hooks",
	}
	eachLong(t, oneWorker(), storiesOf(slices.Collect(maps.Keys(steps))...), func(t *testing.T, lab *Lab, at string) {
		c, h := withHooks(lab, failAt(at))
		seen := lab.watchOutage()
		before := len(lab.Recorder.Calls())
		rep, err := c.Roll(t.Context(), planning.Policy{})
		want := steps[at] + `: hook "h": h ended with 3: at ` + at
		requireMessage(t, err, fault.Refused, want)
		hints := strings.Join(fault.Hints(err), "\n")
		require(t, strings.Contains(hints, "was touched") || strings.Contains(hints, "not touched"), "hints %q", hints)
		requireNone(t, seen.order, "was out")
		requireNone(t, withoutPulls(changesOfNodes(lab.Recorder.Calls()[before:])), "sent")
		env := strings.Join(h.envs["afterRun"], "\n")
		requireSays(t, env, "RECAST_OUTCOME=failed\nRECAST_ERROR="+want+"\nRECAST_NODES_DONE=\n")
		end := rep.Hooks[len(rep.Hooks)-2]
		require(t, end.Error == "h ended with 3: at "+at && *end.Exit == 3, "the report has %+v", rep.Hooks)
		h.require(t, hooksUntil(at)...)
		requireNoClaim(t, lab)
		requireDrift(t, lab, "wk1")

		h.do = nil
		must(t, h.next(lab).roll(planning.Policy{})(t.Context()))
		h.require(t, "beforeRun", "beforeBatch workers", "beforeNode wk1", "afterNode wk1", "afterBatch workers", "afterRun")
		requireDrift(t, lab)
	})
}

// A failed hook after a node stops the roll there; the next one continues with the next node.
func TestAHookAfterANode(t *testing.T) {
	eachLong(t, sim.Options{Workers: 2}, storiesOf(cluster.Recreate, cluster.InPlace), func(t *testing.T, lab *Lab, s cluster.Strategy) {
		lab.setRoll("canary: false", "reboot: kexec", "strategy: "+string(s)) // else the first in-place upgrade is alone
		c, h := withHooks(lab, failAt("afterNode wk1"))
		err := c.roll(planning.Policy{})(t.Context())
		requireMessage(t, err, fault.Failed, `roll/workers/wk1/run-hooks-again: wk1 is done and takes pods, but no other node is to follow: hook "h": h ended with 3: at afterNode wk1`)
		h.require(t, "beforeRun", "beforeBatch workers", "beforeNode wk1", "afterNode wk1", "afterRun")
		lab.requireServing("wk1")
		requireDrift(t, lab, "wk2")
		h.do = nil
		must(t, h.next(lab).roll(planning.Policy{})(t.Context()))
		h.require(t, "beforeRun", "beforeBatch workers", "beforeNode wk2", "afterNode wk2", "afterBatch workers", "afterRun")
		requireDrift(t, lab)
	})
}

// The hooks of a batch run before and after all of its nodes, however many are down at a time.
func TestHooksOfABatch(t *testing.T) {
	inLongLab(t, sim.Options{Workers: 3}, func(t *testing.T, lab *Lab) {
		lab.setRoll("maxUnavailable: {workers: 2, perHost: 2}")
		lab.Patch(everywhere)
		c, h := withHooks(lab, func(_ context.Context, at string) (int, error) {
			if strings.HasPrefix(at, "beforeNode") || strings.HasPrefix(at, "beforeBatch") {
				time.Sleep(time.Second)
			}
			if strings.HasSuffix(at, "wk3") {
				time.Sleep(time.Second)
			}
			return 0, nil
		})
		must(t, c.roll(planning.Policy{})(t.Context()))
		got := strings.Join(h.ran, ", ")
		require(t, regexp.MustCompile(`^beforeRun, beforeBatch canary, beforeNode wk1, afterNode wk1, afterBatch canary, `+
			`beforeBatch control-planes, beforeNode cp1, afterNode cp1, afterBatch control-planes, beforeBatch workers, (beforeNode wk., ){2}(afterNode wk., ){2}afterBatch workers, afterRun$`).MatchString(got),
			"hooks: %s", got)
		nodes := variable(h.envs["beforeBatch workers"], "RECAST_NODES")
		require(t, nodes == "wk2 wk3", "the hook of the batch got the nodes %q", nodes)
	})
}

// A hook that fails after everything is done does not hide that, nor another failure; one
// that hangs is stopped at its timeout.
func TestHooksThatFail(t *testing.T) {
	hangs := func(ctx context.Context, at string) (int, error) {
		if at != "beforeNode wk1" {
			return 0, nil
		}
		<-ctx.Done()
		return 0, fmt.Errorf("h was stopped: %w", context.Cause(ctx))
	}
	type story struct {
		do    func(context.Context, string) (int, error)
		kind  fault.Kind
		want  string
		stale []string
		hints int
		takes time.Duration // at least
	}
	eachLong(t, oneWorker(), map[string]story{
		"after the run": {failAt("afterRun"), fault.Failed, `every node is done: after-run: hook "h": h ended with 3: at afterRun`, nil, 1, 0},
		"two of them": {
			func(context.Context, string) (int, error) { return 3, nil }, fault.Refused,
			"before-run: hook \"h\": h ended with 3: at beforeRun\nafter-run: hook \"h\": h ended with 3: at afterRun",
			[]string{"wk1"},
			2, 0,
		},
		"one hangs": {hangs, fault.Refused, `roll/workers/wk1/run-hooks: hook "h": h was stopped: its timeout of 1m0s is over`, []string{"wk1"}, 1, time.Minute},
	}, func(t *testing.T, lab *Lab, c story) {
		client, _ := withHooks(lab, c.do)
		start := time.Now()
		rep, err := client.Roll(t.Context(), planning.Policy{})
		requireMessage(t, err, c.kind, c.want)
		require(t, rep.Outcome == "failed: "+c.want && len(fault.Hints(err)) == c.hints,
			"outcome %q, hints %q", rep.Outcome, fault.Hints(err))
		took := time.Since(start)
		require(t, c.takes == 0 || took >= c.takes && took <= c.takes+2*time.Minute, "it took %s", took)
		requireNoClaim(t, lab)
		requireDrift(t, lab, c.stale...)
	})
}

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

// However a run ends during the last node of a batch, the hooks after the batch run once that node is done.
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
			require(t, strings.HasSuffix(ran, "afterNode wk1, afterBatch workers, afterRun") && !strings.Contains(ran, "afterBatch control-planes"),
				"hooks: %s", ran)
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
		err := c.roll(planning.Policy{})(t.Context())
		requireMessage(t, err, fault.Refused, "roll/workers/wk1/run-hooks: wk1 was paused since the plan was made: a disk is being replaced")
		h.require(t, "beforeRun", "beforeBatch workers", "afterRun")
		requireDrift(t, lab, "wk1")
	})
}

// The notices of start and end together delay the end of a run no more than one of them alone.
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
	both := []string{"wk1", "wk2"}
	stale := map[string][]string{"beforeRun": both, "beforeBatch workers": both, "beforeNode wk1": both, "afterNode wk1": {"wk2"}}
	points := slices.Collect(maps.Keys(stale))
	eachLong(t, sim.Options{Workers: 2}, storiesOf(points...), func(t *testing.T, lab *Lab, pressed string) {
		lab.setRoll("canary: false")
		var client *Client
		client, h := withHooks(lab, func(ctx context.Context, at string) (int, error) {
			if at != pressed {
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
		h.require(t, hooksUntil(pressed)...)
		requireDrift(t, lab, stale[pressed]...)
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
