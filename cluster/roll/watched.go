package roll

import (
	"context"
	"fmt"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/wait"
)

// justNow is how old a look may be that has found all as it should be, for the next
// step not to repeat it.
const justNow = time.Second

// wait looks until it is so, telling the display what it sees under the step's ID.
// What is wrong with our own credentials no waiting mends.
func (n *handle) wait(ctx context.Context, id, name string, timeout time.Duration, look wait.Look) error {
	return n.watch(ctx, id, wait.For{Name: name, Timeout: timeout}, look)
}

// watch is wait with hints when to look.
func (n *handle) watch(ctx context.Context, id string, w wait.For, look wait.Look) error {
	w.Seen = func(seen string) { n.say(id, w.Name+": "+seen) }
	return n.Timing.Await(ctx, w, look)
}

func (n *handle) watchMachine(ctx context.Context, tell func(look bool)) error {
	return n.Talos.WatchMachine(ctx, n.plan.Addr, tell)
}

func (n *handle) watchNode(ctx context.Context, tell func(look bool)) error {
	return n.Kube.WatchNode(ctx, n.plan.Node, tell)
}

func (n *handle) watchDetached(ctx context.Context, tell func(look bool)) error {
	return n.Kube.WatchDetached(ctx, n.plan.Node, tell)
}

// arrived reads a machine that is running and ready, all of it where whole is
// wanted; lacks says how far one is that is not, of which little is asked.
func (n *handle) arrived(ctx context.Context, whole bool) (m cluster.Machine, lacks string, err error) {
	m, err = n.Talos.Arrived(ctx, n.plan.Addr, whole)
	switch {
	case err != nil:
	case m.UUID != n.plan.UUID:
		lacks = fmt.Sprintf("%s answers with UUID %s", n.plan.Addr, m.UUID)
	case m.Stage != "running" || !m.Ready:
		lacks = m.Standing()
	}
	return m, lacks, err
}

// ofMachine names a wait for what the machine itself shows.
func (n *handle) ofMachine(name string, timeout time.Duration) wait.For {
	return wait.For{Name: name, Timeout: timeout, Watches: []wait.Watch{n.watchMachine}}
}
