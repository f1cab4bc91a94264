package checkup

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/replica"
	"github.com/recast-sh/recast/internal/story"
	"github.com/recast-sh/recast/internal/words"
)

// replication checks the storage systems that keep volumes on several nodes: what was read of them,
// whether they wait as long as nodes are away, and whether recast may have them wait longer, or has left
// that set. What could not be read was reported with its nodes.
func (d *checkup) replication(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, askWorld)
	defer cancel()
	for _, s := range d.survey.Storage {
		if s.Away != "" {
			d.refuse(GroupStorage, s.Name, "bring its controllers back: without them no node with its volumes is taken out", "%s", s.Away)
		}
		d.patience(ctx, s)
		for _, held := range s.Held {
			d.add(Check{
				Group: GroupStorage, What: s.Name, State: Warning, Seen: strings.TrimPrefix(held.String(), s.Name+": "),
				Remedy: []string{"recast roll and recast undo give it back once they are no longer out", "by hand: " + held.Undo},
			})
		}
	}
}

// patience compares how long the system waits with how long its nodes are away.
func (d *checkup) patience(ctx context.Context, s replica.System) {
	node, away := "", time.Duration(0)
	past, _ := story.Durations(d.Runs().Dir) // without them, outages are assumed
	for _, a := range d.res.Nodes {
		n := planning.NodePlan{Node: a.Node, Role: a.Role, Strategy: cmp.Or(a.Strategy, cluster.Recreate)}
		n.Estimate(past)
		if counts := s.On(a.Node) > 0 || s.Evicts; counts && s.PatienceFor(a.Node) < replica.Forever && planning.Outage(n) > away {
			node, away = a.Node, planning.Outage(n)
		}
	}
	seen := words.Counted(len(s.Volumes), "volume")
	if s.Pools {
		seen = words.Counted(len(s.Volumes), "cluster")
	}
	holding := s.Holding(node, away)
	switch known := s.Patience > 0 || s.Holds && !s.Evicts; {
	case known && s.Evicts:
		seen += fmt.Sprintf("; evicts a node that is away for %s (%s)", s.Patience, s.Waits)
	case known:
		seen += fmt.Sprintf("; waits %s for a node that is away (%s)", s.Patience, s.Waits)
	}
	if away <= s.PatienceFor(node) && holding == 0 || s.PatienceFor(node) == 0 && !s.Holds {
		d.ok(GroupStorage, s.Name, "%s", seen)
		return
	}
	seen += fmt.Sprintf(", and %s is expected to be away for %s", node, away)
	if holding == 0 {
		d.warn(GroupStorage, s.Name, strings.ReplaceAll(s.Remedy, "NODE", node), "%s: after that it makes other replicas", seen)
		return
	}
	if err := d.src.Kube.MayHold(ctx, s.Name); err != nil {
		d.fail(GroupStorage, s.Name, err)
		return
	}
	d.ok(GroupStorage, s.Name, "%s: a roll has it wait %s", seen, holding)
}
