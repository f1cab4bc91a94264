package simtest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/hook"
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
	if h.envs == nil {
		h.envs = map[string][]string{}
	}
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

// failAt makes the hook of one point exit with 3.
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
	c, h := lab.Client(), &hooker{do: do}
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

// next is another client with these hooks.
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

// Programs run at their points with the documented environment, and their output is shown
// and kept.
func TestHooks(t *testing.T) {
	inLongLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.Write("hook.sh", []byte("#!/bin/sh\nenv | grep ^RECAST_ | sort | tr '\\n' ' ' >>asked\necho >>asked\necho \"$RECAST_HOOK with ${PROXMOX_VE_API_TOKEN-no token}\"\n"))
		must(t, os.Chmod(filepath.Join(lab.Dir, "hook.sh"), 0o700))
		lab.setRoll(strings.ReplaceAll(everyHook, "[h]", "[./hook.sh]"))
		lab.Patch(sim.PatchedExtension)
		c := lab.Client()
		plan := valueOf(c.Plan(t.Context(), planning.Policy{}))(t)
		for _, p := range hook.Points() {
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
		if diff := cmp.Diff([]string{
			"before-run", "roll/workers/hooks_before", wk1 + "run-hooks", wk1 + "gate", wk1 + "take-down", wk1 + "bring-up", wk1 + "run-hooks-again", "roll/workers/hooks_after", "after-run",
		}, paths); diff != "" {
			t.Errorf("steps (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]string{
			"before-run: beforeRun with no token", "roll/workers/hooks_before: beforeBatch with no token", wk1 + "run-hooks: beforeNode with no token",
			wk1 + "run-hooks-again: afterNode with no token", "roll/workers/hooks_after: afterBatch with no token", "after-run: afterRun with no token",
		}, notes); diff != "" {
			t.Errorf("notes (-want +got):\n%s", diff)
		}
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
	type story struct {
		err string
		ran []string // the last but one is the hook that fails
	}
	eachLong(t, oneWorker(), map[string]story{
		"beforeRun":           {`before-run: hook "h": h ended with 3: at beforeRun`, []string{"beforeRun", "afterRun"}},
		"beforeBatch workers": {`roll/workers/hooks_before: hook "h": h ended with 3: at beforeBatch workers`, []string{"beforeRun", "beforeBatch workers", "afterRun"}},
		"beforeNode wk1":      {`roll/workers/wk1/run-hooks: hook "h": h ended with 3: at beforeNode wk1`, []string{"beforeRun", "beforeBatch workers", "beforeNode wk1", "afterRun"}},
	}, func(t *testing.T, lab *Lab, want story) {
		failed := len(want.ran) - 2
		c, h := withHooks(lab, failAt(want.ran[failed]))
		seen := lab.watchOutage()
		before := len(lab.Recorder.Calls())
		rep, err := c.Roll(t.Context(), planning.Policy{})
		requireMessage(t, err, fault.Refused, want.err)
		if hints := strings.Join(fault.Hints(err), "\n"); !strings.Contains(hints, "was touched") && !strings.Contains(hints, "not touched") {
			t.Errorf("hints %q", hints)
		}
		requireNone(t, seen.order, "was out")
		for _, call := range withoutPulls(changesOfNodes(lab.Recorder.Calls()[before:])) {
			t.Errorf("%s was sent", call)
		}
		env := strings.Join(h.envs["afterRun"], "\n")
		require(t, strings.Contains(env, "RECAST_OUTCOME=failed\nRECAST_ERROR="+want.err+"\nRECAST_NODES_DONE=\n"),
			"the environment of the hook after the run:\n%s", env)
		end := rep.Hooks[failed]
		require(t, end.Error == "h ended with 3: at "+want.ran[failed] && *end.Exit == 3, "the report has %+v", rep.Hooks)
		h.require(t, want.ran...)
		requireNoClaim(t, lab)
		requireDrift(t, lab, "wk1")

		h.do = nil
		must(t, h.next(lab).roll(planning.Policy{})(t.Context()))
		h.require(t, "beforeRun", "beforeBatch workers", "beforeNode wk1", "afterNode wk1", "afterBatch workers", "afterRun")
		requireDrift(t, lab)
	})
}

// A failed hook after a node stops the roll there; the next one continues with the next
// node.
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
		if !regexp.MustCompile(`^beforeRun, beforeBatch canary, beforeNode wk1, afterNode wk1, afterBatch canary, ` +
			`beforeBatch control-planes, beforeNode cp1, afterNode cp1, afterBatch control-planes, beforeBatch workers, (beforeNode wk., ){2}(afterNode wk., ){2}afterBatch workers, afterRun$`).MatchString(got) {
			t.Errorf("hooks: %s", got)
		}
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
		if requireMessage(t, err, c.kind, c.want); rep.Outcome != "failed: "+c.want || len(fault.Hints(err)) != c.hints {
			t.Errorf("outcome %q, hints %q", rep.Outcome, fault.Hints(err))
		}
		if took := time.Since(start); c.takes > 0 && (took < c.takes || took > c.takes+2*time.Minute) {
			t.Errorf("it took %s", took)
		}
		requireNoClaim(t, lab)
		requireDrift(t, lab, c.stale...)
	})
}
