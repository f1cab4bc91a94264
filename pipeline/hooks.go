package pipeline

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/roll"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/foreign"
	"github.com/recast-sh/recast/internal/journal"
	"github.com/recast-sh/recast/internal/step"
)

// begin starts a confirmed plan: it runs the hooks before the run, once per command, however many plans follow.
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
	}, "before-run", "run the hooks before the run", roll.BeforeRunFailed)
}

// afterInterrupt is the time for the hooks after a run when Ctrl-C was pressed for the second time.
const afterInterrupt = 30 * time.Second

// hooksAfter runs the hooks after the run, with any result. If they fail, the run fails, but
// an earlier failure is never hidden.
func (w *work) hooksAfter(ctx context.Context, err error) error {
	if !w.began || len(w.hooks.of.AfterRun) == 0 {
		return err
	}
	if w.claim.held != nil && w.claim.held.Lost() != nil { // the hooks might undo something that another run relies on
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

// noteFailed records in the last journal that the run failed after its nodes, unless the journal has a worse result.
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

// graceful returns a context that ends when ctx has ended and grace has passed.
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

// planned returns the nodes of all started plans and the current one, each once, in the order of the plans.
func (w *work) planned() []string {
	names := slices.Clone(w.nodes)
	for _, n := range w.rep.Plan.Work() {
		if !slices.Contains(names, n.Node) {
			names = append(names, n.Node)
		}
	}
	return names
}

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

type notices struct {
	under  sync.WaitGroup          // notices in flight
	giveUp context.CancelCauseFunc // cancels the start notice; nil: none was sent
	mu     sync.Mutex
	lost   []error
}

// How long both notices together may delay the end of a run.
const (
	tellWithin         = 35 * time.Second // more than three attempts of 10 s with pauses of 1 s and 3 s
	tellAfterInterrupt = 10 * time.Second // after a second Ctrl-C
	tellStartWithin    = 2 * time.Second  // for the start notice, if it is still in flight
)

var errEndedMeanwhile = errors.New("the run ended meanwhile")

// tellStart sends the start notice, and does not wait for it.
func (w *work) tellStart(ctx context.Context) {
	within, cancel := graceful(ctx, tellAfterInterrupt)
	w.told.giveUp = cancel
	w.sendNotice(within, w.notice(cluster.NoticeStart, nil))
}

// tellEnd sends the end notice after the start notice, and waits for it. A run that ended
// before it started sends only failures, and none if the user did not confirm.
func (w *work) tellEnd(ctx context.Context, err error) {
	within, cancel := graceful(ctx, tellAfterInterrupt)
	defer cancel(nil)
	defer time.AfterFunc(tellWithin, func() { cancel(fmt.Errorf("the run waits for it no longer than %s", tellWithin)) }).Stop()
	w.told.endStart()
	switch {
	case err != nil && (w.began || fault.KindOf(err) != fault.Interrupted && !errors.Is(err, context.Canceled)):
		w.sendNotice(within, w.notice(cluster.NoticeFailure, err))
	case w.began:
		w.sendNotice(within, w.notice(cluster.NoticeEnd, nil))
	}
	w.told.under.Wait()
	for _, lost := range w.told.lost {
		w.rep.Unsent = append(w.rep.Unsent, strings.Split(lost.Error(), "\n")...)
	}
}

// endStart waits shortly for the start notice, which matters little by then.
func (n *notices) endStart() {
	if n.giveUp == nil {
		return
	}
	hurry := time.AfterFunc(tellStartWithin, func() { n.giveUp(errEndedMeanwhile) })
	n.under.Wait()
	hurry.Stop()
	n.giveUp(nil)
}

func (w *work) sendNotice(within context.Context, n cluster.Notice) {
	if w.o.Notify == nil || w.command == "" {
		return
	}
	w.told.under.Go(func() {
		if err := w.o.Notify.Notify(within, n); err != nil {
			w.told.mu.Lock()
			defer w.told.mu.Unlock()
			w.told.lost = append(w.told.lost, err)
		}
	})
}

func (w *work) notice(event cluster.NoticeEvent, err error) cluster.Notice {
	n := cluster.Notice{
		Event: event, Command: w.command, Cluster: w.Config.Cluster, Run: w.rep.Run,
		Nodes: w.tally.fates(w.planned()), Hints: hintLines(err), Started: w.rep.Started, Host: w.o.Holder.Host,
	}
	if event != cluster.NoticeStart {
		n.Ended, n.Outcome = w.rep.Ended, outcomeWord(err)
	}
	if err != nil {
		n.Error = foreign.Lines(err.Error())
	}
	n.Text = noticeText(n)
	return n
}

// hintLines returns the hints of an error, never nil: templates range over them.
func hintLines(err error) []string {
	hints := []string{}
	hints = append(hints, cluster.Each(fault.Hints(err), func(hint string) string { return foreign.Lines(hint) })...)
	return hints
}

func noticeText(n cluster.Notice) string {
	text := fmt.Sprintf("recast %s of %s", n.Command, n.Cluster)
	if n.Event == cluster.NoticeStart {
		return text + " has started" + named(", to do: ", n.Nodes.Left)
	}
	text += fmt.Sprintf(": %s after %s", n.Outcome, n.Ended.Sub(n.Started).Round(time.Second))
	text += named("; done: ", n.Nodes.Done) + named("; failed: ", n.Nodes.Failed) + named("; left: ", n.Nodes.Left)
	if n.Error != "" {
		text += "; " + oneLine(errors.New(n.Error))
	}
	return text
}

// named lists nodes, or only their number if there are many.
func named(label string, nodes []string) string {
	const few = 5
	switch {
	case len(nodes) == 0:
		return ""
	case len(nodes) > few:
		return fmt.Sprintf("%s%d nodes", label, len(nodes))
	}
	return label + strings.Join(nodes, ", ")
}
