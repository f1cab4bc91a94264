// Package healing waits for the volumes that storage systems keep on several nodes: before a node
// goes, until none depends on it, and after it is back, until they are whole again.
package healing

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/replica"
	"github.com/recast-sh/recast/cluster/rolling"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/wait"
)

// Leaving are the nodes of a roll that were let go, until their volumes are whole again. Nodes are let
// go one after the other, so that no two go that each has the other copy of a volume.
type Leaving struct {
	mu    sync.Mutex
	names []string
}

// Points waits for the volumes of one node in a roll.
type Points struct {
	*rolling.Node
	Leaving  *Leaving
	LeftOpen func(error) error // adds to the error of a node that is done what else was not done
}

const (
	beforeID = "await-storage"
	afterID  = "await-storage-again"
	journal  = "ailing" // key of the volumes that were not whole before the node went
)

// applies says whether the node leaves with copies of volumes, now or in an earlier run.
func (n Points) applies() bool {
	return n.Plan.Strategy.From() == cluster.Serving && len(n.Plan.Stored) > 0 && n.Plan.Rebuild == "" && !n.StaysIn()
}

// Before returns the step before anything is done to the node; none if it is already out.
func (n Points) Before() []step.Step {
	if !n.applies() || n.Plan.Resume {
		return nil
	}
	return []step.Step{{ID: beforeID, Code: fault.GateClosed, Title: "see that no volume depends on " + n.Plan.Node, Yields: true, Do: n.awaitBefore}}
}

// After returns the step that ends the node's roll. The node itself is done, whatever the volumes do.
func (n Points) After() []step.Step {
	if !n.applies() || n.Plan.Strategy.VM() == cluster.VMGone {
		return nil
	}
	return []step.Step{{ID: afterID, Code: fault.GateClosed, Title: "wait until the volumes are whole with " + n.Plan.Node + " back", Yields: true, Do: n.awaitAfter}}
}

func (n Points) awaitBefore(ctx context.Context) error {
	err := n.Watch(ctx, beforeID, n.await("no volume depends on "+n.Plan.Node), func(ctx context.Context) (bool, string, error) {
		n.Leaving.mu.Lock()
		defer n.Leaving.mu.Unlock()
		systems, err := n.Kube.Replicas(ctx)
		if err != nil {
			return false, "", stopped(err)
		}
		if against := n.against(systems); against != "" {
			return false, against, nil
		}
		if err := n.Journal.Put(n.Key(journal), replica.Ailing(systems)); err != nil {
			return false, "", wait.Stop(fmt.Errorf("journal: %w", err))
		}
		if err := n.hold(ctx, systems); err != nil {
			return false, "", wait.Stop(err)
		}
		n.Leaving.names = append(n.Leaving.names, n.Plan.Node)
		return true, "", nil
	})
	if err != nil && ctx.Err() == nil && fault.KindOf(err) != fault.Config {
		err = fault.WithHint(fault.As(fault.Refused, err), "%s was not touched; once its volumes have healthy copies on other nodes, run the same command again; roll.storage says at which storage systems a roll looks", n.Plan.Node)
	}
	return err
}

// against says which volumes depend on the node; "" if none does. A copy on a node that this roll has
// out, or has let go, does not count.
func (n Points) against(systems []replica.System) string {
	exposed := replica.Exposed(systems, n.Plan.Node, func(node string) bool { return n.Out.Has(node) || slices.Contains(n.Leaving.names, node) })
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

func (n Points) awaitAfter(ctx context.Context) error {
	var ailing []string
	if _, err := n.Journal.Get(n.Key(journal), &ailing); err != nil {
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
	n.Leaving.mu.Lock()
	defer n.Leaving.mu.Unlock()
	n.Leaving.names = slices.DeleteFunc(n.Leaving.names, func(name string) bool { return name == n.Plan.Node })
	return nil
}

func (n Points) await(name string) wait.For {
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
