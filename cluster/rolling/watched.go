package rolling

import (
	"context"
	"fmt"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/wait"
)

// JustNow is how old a look may be that has found all as it should be, for the next
// step not to repeat it.
const JustNow = time.Second

// Wait looks until it is so, telling the display what it sees under the step's ID.
// What is wrong with our own credentials no waiting mends.
func (n *Node) Wait(ctx context.Context, id, name string, timeout time.Duration, look wait.Look) error {
	return n.Watch(ctx, id, wait.For{Name: name, Timeout: timeout}, look)
}

// Watch is wait with hints when to look.
func (n *Node) Watch(ctx context.Context, id string, w wait.For, look wait.Look) error {
	w.Seen = func(seen string) { n.Tell(id, w.Name+": "+seen) }
	return n.Timing.Await(ctx, w, look)
}

func (n *Node) WatchMachine(ctx context.Context, tell func(look bool)) error {
	return n.Talos.WatchMachine(ctx, n.Plan.Addr, tell)
}

func (n *Node) WatchNode(ctx context.Context, tell func(look bool)) error {
	return n.Kube.WatchNode(ctx, n.Plan.Node, tell)
}

func (n *Node) WatchDetached(ctx context.Context, tell func(look bool)) error {
	return n.Kube.WatchDetached(ctx, n.Plan.Node, tell)
}

// Arrived reads a machine that is running and ready; lacks says how far one is that is
// not, of which little is asked.
func (n *Node) Arrived(ctx context.Context) (m cluster.BootedMachine, lacks string, err error) {
	if m, err = n.Talos.Arrived(ctx, n.Plan.Addr); err == nil {
		lacks = n.LacksMachine(m.MachineStanding)
	}
	return m, lacks, err
}

// LacksMachine says why the node's own machine is not running and ready.
func (n *Node) LacksMachine(m cluster.MachineStanding) string {
	switch {
	case m.UUID != n.Plan.UUID:
		return fmt.Sprintf("%s answers with UUID %s", n.Plan.Addr, m.UUID)
	case m.Stage != "running" || !m.Ready:
		return m.Standing()
	}
	return ""
}

// OfMachine names a wait for what the machine itself shows.
func (n *Node) OfMachine(name string, timeout time.Duration) wait.For {
	return wait.For{Name: name, Timeout: timeout, Watches: []wait.Watch{n.WatchMachine}}
}
