package pipeline

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/foreign"
)

// notices are the webhook notices of a command that are sent in the background.
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

// endStart waits shortly for the start notice, which matters little now.
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
	for _, hint := range fault.Hints(err) {
		hints = append(hints, foreign.Lines(hint))
	}
	return hints
}

// noticeText is the text of a notice for a chat.
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
