package rolling

import (
	"context"
	"fmt"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/wait"
)

// JustNow is the maximum age of a positive result that the next step may reuse.
const JustNow = time.Second

// Wait waits until look succeeds, and shows under the step's ID what it sees. An error about our
// own credentials ends it at once.
func (n *Node) Wait(ctx context.Context, id, name string, timeout time.Duration, look wait.Look) error {
	return n.Watch(ctx, id, wait.For{Name: name, Timeout: timeout}, look)
}

// Watch is Wait with control over when to look.
func (n *Node) Watch(ctx context.Context, id string, w wait.For, look wait.Look) error {
	w.Seen = func(seen string) { n.Tell(id, w.Name+": "+seen) }
	return n.Timing.Await(ctx, w, look)
}

// WatchMachine reports changes of the node's machine; see wait.Watch.
func (n *Node) WatchMachine(ctx context.Context, tell func(look bool)) error {
	return n.Talos.WatchMachine(ctx, n.Plan.Addr, tell)
}

// WatchNode reports changes of the node's Node object; see wait.Watch.
func (n *Node) WatchNode(ctx context.Context, tell func(look bool)) error {
	return n.Kube.WatchNode(ctx, n.Plan.Node, tell)
}

// WatchDetached reports volumes that are detached from the node; see wait.Watch.
func (n *Node) WatchDetached(ctx context.Context, tell func(look bool)) error {
	return n.Kube.WatchDetached(ctx, n.Plan.Node, tell)
}

// Arrived reads a machine that is running and ready. For a machine that is not, it asks little, and
// lacks says how far the machine is.
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

// OfMachine is a wait for something that the machine itself reports.
func (n *Node) OfMachine(name string, timeout time.Duration) wait.For {
	return wait.For{Name: name, Timeout: timeout, Watches: []wait.Watch{n.WatchMachine}}
}
