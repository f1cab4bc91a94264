package pipeline

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/roll"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/foreign"
	"github.com/recast-sh/recast/internal/journal"
	"github.com/recast-sh/recast/internal/step"
)

// begin starts a confirmed plan: it runs the hooks before the run, once per command,
// however many plans follow.
func (w *work) begin(ctx context.Context, j *journal.Journal) error {
	w.nodes = w.planned()
	if w.began {
		w.hooks.journal = j.Run()
		return nil
	}
	w.began, w.hooks.journal, w.hooks.of = true, j.Run(), w.rep.Plan.Hooks
	w.tellStart(ctx)
	return w.callHooks(ctx, w.run, roll.HookCall{
		Point: cluster.BeforeRun, Keep: func(run planning.HookRun, i int) error { return w.keepHook(j, run, i) },
	}, "before-run", "run the hooks before the run", func(ctx context.Context, err error) error {
		return roll.BeforeRunFailed(ctx, err)
	})
}

// afterInterrupt is the time for the hooks after a run when Ctrl-C was pressed for the
// second time.
const afterInterrupt = 30 * time.Second

// hooksAfter runs the hooks after the run, with any result. If they fail, the run fails, but
// an earlier failure is never hidden.
func (w *work) hooksAfter(ctx context.Context, err error) error {
	if !w.began || len(w.hooks.of.AfterRun) == 0 {
		return err
	}
	if w.claim.held != nil && w.claim.held.Lost() != nil { // they might undo something that the other run relies on
		return fault.WithHint(err, "the hooks after the run were not run, as another run may be active: do by hand what they had to do, when that has ended")
	}
	within, cancel := graceful(ctx, afterInterrupt)
	defer cancel(nil)
	// A stopped Runner starts no steps.
	run := &step.Runner{Emit: w.run.Tell}
	failed := w.callHooks(within, run, roll.HookCall{
		Point: cluster.AfterRun, Env: w.hookEnv(err), Keep: w.keepLastHook,
	}, "after-run", "run the hooks after the run", func(_ context.Context, err error) error {
		return fault.WithHint(fault.HookFailed.Of(fault.As(fault.Failed, err)), "the next run does not repeat the hooks of this one: do by hand what they had to do")
	})
	if failed == nil {
		return err
	}
	noted := w.noteFailed(failed)
	if err == nil {
		return errors.Join(fmt.Errorf("every node is done: %w", failed), noted)
	}
	return fault.As(fault.KindOf(err), errors.Join(err, failed, noted))
}

// noteFailed records in the last journal that the run failed after its nodes, unless the
// journal has a worse result.
func (w *work) noteFailed(failed error) error {
	j, err := journal.Open(w.Runs().Dir, journal.Options{Run: w.hooks.journal, Sync: w.o.JournalSync})
	if err != nil {
		return err
	}
	defer j.Close()
	info, err := j.Info()
	if err != nil || info.Outcome != outcome(nil) {
		return err
	}
	return j.Finish(outcome(fmt.Errorf("every node is done: %w", failed)))
}

// graceful returns a context that ends that much later than ctx.
func graceful(ctx context.Context, grace time.Duration) (context.Context, context.CancelCauseFunc) {
	within, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		timer := time.AfterFunc(grace, func() { cancel(context.Cause(ctx)) })
		context.AfterFunc(within, func() { timer.Stop() })
	})
	return within, func(cause error) { stop(); cancel(cause) }
}

func (w *work) callHooks(ctx context.Context, run *step.Runner, c roll.HookCall, id, title string, failed func(context.Context, error) error) error {
	c.Commands, c.Say = w.machines.Commands, func(text string) { run.Note(id, text) }
	c.Env = append(c.Env, "RECAST_CLUSTER="+w.Config.Cluster, "RECAST_RUN="+w.claim.id, "RECAST_NODES="+strings.Join(w.planned(), " "))
	for _, s := range c.Step(id, title, w.hooks.of.At(c.Point), failed) {
		s.Yields = c.Point == cluster.BeforeRun
		return run.Run(ctx, s)
	}
	return nil
}

// planned returns the nodes of all started plans and the current one, each once, in the
// order of the plans.
func (w *work) planned() []string {
	names := slices.Clone(w.nodes)
	for _, n := range w.rep.Plan.Work() {
		if !slices.Contains(names, n.Node) {
			names = append(names, n.Node)
		}
	}
	return names
}

// hooked records the result of a hook in the report.
func (w *work) hooked(run planning.HookRun) {
	w.tally.mu.Lock()
	defer w.tally.mu.Unlock()
	w.rep.Hooks = append(w.rep.Hooks, run)
}

func (w *work) keepHook(j *journal.Journal, run planning.HookRun, i int) error {
	w.hooked(run)
	return j.Put("hooks/"+strings.ToLower(string(run.Point))+"/"+strconv.Itoa(i+1), run)
}

// keepLastHook records a hook after the run in the last journal.
func (w *work) keepLastHook(run planning.HookRun, i int) error {
	j, err := journal.Open(w.Runs().Dir, journal.Options{Run: w.hooks.journal, Sync: w.o.JournalSync})
	if err != nil {
		w.hooked(run)
		return err
	}
	defer j.Close()
	return w.keepHook(j, run, i)
}

// hookEnv is the environment of the hooks after the run.
func (w *work) hookEnv(err error) []string {
	f := w.tally.fates(w.planned())
	return []string{
		"RECAST_OUTCOME=" + outcomeWord(err), "RECAST_ERROR=" + oneLine(err), "RECAST_NODES_DONE=" + strings.Join(f.Done, " "),
		"RECAST_NODES_FAILED=" + strings.Join(f.Failed, " "), "RECAST_NODES_LEFT=" + strings.Join(f.Left, " "),
	}
}

// outcomeWord is the result of the run for programs: "done", "failed" or "interrupted".
func outcomeWord(err error) string {
	word, _, _ := strings.Cut(outcome(err), ":")
	return word
}

// errorBytes limits the length of an error in the environment.
const errorBytes = 4 << 10

func oneLine(err error) string {
	if err == nil {
		return ""
	}
	text := strings.Join(strings.Fields(foreign.Line(err.Error())), " ")
	return strings.ToValidUTF8(text[:min(len(text), errorBytes)], "")
}
