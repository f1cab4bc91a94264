package healing

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/replica"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/wait"
)

// hold has the storage systems wait for the node that goes, where they would wait less than it is expected
// to be away. A node that is removed does not come back.
func (n Points) hold(ctx context.Context, systems []replica.System) error {
	if n.Plan.Strategy.VM() == cluster.VMGone {
		return nil
	}
	for _, s := range systems {
		need := s.Holding(n.Plan.Node, planning.Outage(n.Plan))
		if need == 0 {
			continue
		}
		said, err := n.Kube.HoldRebuild(ctx, s.Name, n.Plan.Node, n.Run, need)
		if err != nil {
			return err
		}
		if said != "" {
			n.Tell(beforeID, said)
		}
	}
	return nil
}

// giveBack ends what is held for the node.
func (n Points) giveBack(ctx context.Context) error {
	holds, err := holdsOf(ctx, n.Kube)
	errs := []error{notGivenBack(err)}
	for _, h := range holds {
		if !slices.Contains(h.For(), n.Plan.Node) {
			continue
		}
		said, err := n.Kube.GiveBack(ctx, h.System, n.Plan.Node)
		if err != nil {
			errs = append(errs, notGivenBack(err))
			continue
		}
		n.Tell(afterID, said)
	}
	return errors.Join(errs...)
}

// Leftover gives back, at the end of a run, what it or an earlier one holds for nodes that are no longer
// out: a run that is killed leaves it.
type Leftover struct{ sought bool }

// Found says whether anything is held. It is not an error if that can't be read now: then GiveBack tries
// again.
func (l *Leftover) Found(ctx context.Context, kube replica.HoldReader) bool {
	holds, err := kube.Holds(ctx)
	l.sought = len(holds) > 0 || err != nil && fault.KindOf(err) != fault.Refused
	return len(holds) > 0
}

// GiveBack does so if Found may have found something, or there are storage systems in the plan. What is
// held for a node with our mark stays: it is out, and whichever run finishes it gives that back.
func (l *Leftover) GiveBack(ctx context.Context, kube cluster.Kube, systems bool, say func(path, text string)) error {
	if !l.sought && !systems {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, giveBackTimeout)
	defer cancel()
	holds, err := holdsOf(ctx, kube)
	errs := []error{notGivenBack(err)}
	if len(holds) == 0 {
		return errors.Join(errs...)
	}
	nodes, err := kube.Nodes(ctx)
	if err != nil {
		return notGivenBack(err)
	}
	out := func(name string) bool {
		return slices.ContainsFunc(nodes, func(k cluster.KubeNode) bool { return k.Name == name && k.Mark != nil })
	}
	for _, h := range holds {
		back := slices.DeleteFunc(h.For(), out)
		if len(back) == 0 {
			continue
		}
		said, err := kube.GiveBack(ctx, h.System, back...)
		if err != nil {
			errs = append(errs, fault.WithHint(notGivenBack(err), "by hand: %s", h.Undo))
			continue
		}
		say("roll", said)
	}
	return errors.Join(errs...)
}

// holdsOf reads what is held, of the systems that answer. The controller of one may be starting on another node.
func holdsOf(ctx context.Context, kube replica.HoldReader) (holds []replica.Hold, err error) {
	w := wait.For{Name: "read what storage systems were told", Every: 2 * time.Second, Timeout: readTimeout}
	err = wait.Until(ctx, w, func(ctx context.Context) (bool, string, error) {
		now, err := kube.Holds(ctx)
		if err == nil || len(now) > 0 { // the last try may have been cut off
			holds = now
		}
		return err == nil, "", stopped(err)
	})
	return holds, err
}

// readTimeout leaves time to give something back within giveBackTimeout.
const readTimeout = 20 * time.Second

// giveBackTimeout limits giving back at the end of a run: a user who pressed Ctrl-C is waiting. It is longer
// than a request waits for its answer.
const giveBackTimeout = 40 * time.Second

func notGivenBack(err error) error {
	if err == nil {
		return nil
	}
	return fault.WithHint(fmt.Errorf("give back what storage systems were told: %w", err), "the next recast roll or recast undo does; recast doctor says what is left")
}
