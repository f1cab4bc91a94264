package roll

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/replica"
	"github.com/recast-sh/recast/cluster/rolling"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/wait"
)

// leaving are the nodes of a roll that were let go, until their volumes are whole again. Nodes are let
// go one after the other, so that no two go that each has the other copy of a volume.
type leaving struct {
	mu    sync.Mutex
	names []string
}

// healing waits for the volumes of one node in a roll.
type healing struct {
	*rolling.Node
	leaving  *leaving
	LeftOpen func(error) error // adds to the error of a node that is done what else was not done
}

const (
	beforeID  = "await-storage"
	afterID   = "await-storage-again"
	ailingKey = "ailing" // key of the volumes that were not whole before the node went
)

// applies says whether the node leaves with copies of volumes, now or in an earlier run.
func (n healing) applies() bool {
	return n.Plan.Strategy.From() == cluster.Serving && len(n.Plan.Stored) > 0 && n.Plan.Rebuild == "" && !n.StaysIn()
}

// Before returns the step before anything is done to the node; none if it is already out.
func (n healing) Before() []step.Step {
	if !n.applies() || n.Plan.Resume {
		return nil
	}
	return []step.Step{{ID: beforeID, Code: fault.GateClosed, Title: "see that no volume depends on " + n.Plan.Node, Yields: true, Do: n.awaitBefore}}
}

// After returns the step that ends the node's roll. The node itself is done, whatever the volumes do.
func (n healing) After() []step.Step {
	if !n.applies() || n.Plan.Strategy.VM() == cluster.VMGone {
		return nil
	}
	return []step.Step{{ID: afterID, Code: fault.GateClosed, Title: "wait until the volumes are whole with " + n.Plan.Node + " back", Yields: true, Do: n.awaitAfter}}
}

func (n healing) awaitBefore(ctx context.Context) error {
	err := n.Watch(ctx, beforeID, n.await("no volume depends on "+n.Plan.Node), func(ctx context.Context) (bool, string, error) {
		n.leaving.mu.Lock()
		defer n.leaving.mu.Unlock()
		systems, err := n.Kube.Replicas(ctx)
		if err != nil {
			return false, "", stopped(err)
		}
		if against := n.against(systems); against != "" {
			return false, against, nil
		}
		if err := n.Journal.Put(n.Key(ailingKey), replica.Ailing(systems)); err != nil {
			return false, "", wait.Stop(fmt.Errorf("journal: %w", err))
		}
		if err := n.hold(ctx, systems); err != nil {
			return false, "", wait.Stop(err)
		}
		n.leaving.names = append(n.leaving.names, n.Plan.Node)
		return true, "", nil
	})
	if err != nil && ctx.Err() == nil && fault.KindOf(err) != fault.Config {
		err = fault.WithHint(fault.As(fault.Refused, err), "%s was not touched; once its volumes have healthy copies on other nodes, run the same command again; roll.storage says at which storage systems a roll looks", n.Plan.Node)
	}
	return err
}

// against says which volumes depend on the node; "" if none does. A copy on a node that this roll has
// out, or has let go, does not count.
func (n healing) against(systems []replica.System) string {
	exposed := replica.Exposed(systems, n.Plan.Node, func(node string) bool { return n.Out.Has(node) || slices.Contains(n.leaving.names, node) })
	var texts []string
	for _, e := range exposed {
		if e.Refuses(n.Plan.Strategy.VM() == cluster.VMGone) {
			texts = append(texts, e.String())
		}
	}
	if len(texts) == 0 {
		return ""
	}
	text := strings.Join(texts[:min(len(texts), shown)], "; ")
	if more := len(texts) - shown; more > 0 {
		text += fmt.Sprintf("; and %d more", more)
	}
	return text
}

// shown is how many volumes fit on a line.
const shown = 3

func (n healing) awaitAfter(ctx context.Context) error {
	var ailing []string
	if _, err := n.Journal.Get(n.Key(ailingKey), &ailing); err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	checked := map[string]string{}
	err := n.Watch(ctx, afterID, n.await("volumes whole with "+n.Plan.Node), func(ctx context.Context) (bool, string, error) {
		systems, err := n.Kube.Replicas(ctx)
		if err != nil {
			return false, "", stopped(err)
		}
		lacks := replica.Unhealed(systems, n.Plan.Node, ailing)
		if lacks == "" {
			lacks = replica.Unchecked(systems, n.Plan.Node, checked)
		}
		return lacks == "", lacks, nil
	})
	if err != nil {
		err = fault.WithHint(fmt.Errorf("%s is done and takes pods, but no other node is to follow: %w", n.Plan.Node, err),
			"once the volumes are whole, recast roll continues with the next node; where that takes longer, raise roll.timeouts.storage")
	}
	if ctx.Err() == nil {
		err = errors.Join(err, n.giveBack(ctx)) // volumes that are not whole by now need other replicas
	}
	if err != nil {
		return n.LeftOpen(err)
	}
	n.leaving.mu.Lock()
	defer n.leaving.mu.Unlock()
	n.leaving.names = slices.DeleteFunc(n.leaving.names, func(name string) bool { return name == n.Plan.Node })
	return nil
}

func (n healing) await(name string) wait.For {
	w := wait.For{Name: name, Timeout: n.Timing.Heal}
	for _, system := range n.Plan.Stored {
		w.Watches = append(w.Watches, func(ctx context.Context, tell func(bool)) error { return n.Kube.WatchReplicas(ctx, system, tell) })
	}
	return w
}

// stopped ends the wait at once if only more rights help.
func stopped(err error) error {
	if fault.KindOf(err) == fault.Refused || errors.Is(err, context.Canceled) {
		return wait.Stop(err)
	}
	return err
}

// hold has the storage systems wait for the node that goes, where they would wait less than it is expected
// to be away. A node that is removed does not come back.
func (n healing) hold(ctx context.Context, systems []replica.System) error {
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
func (n healing) giveBack(ctx context.Context) error {
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

// Found says whether anything is held. It is not an error if that can't be read now: then GiveBack tries again.
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
