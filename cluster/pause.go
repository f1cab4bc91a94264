package cluster

import (
	"context"
	"strings"

	"github.com/recast-sh/recast/internal/fault"
)

// PauseMark is the annotation by which a person keeps a node from being taken
// out. Its value says why.
const PauseMark = "recast.dev/pause"

// Pause reads the mark among a Node's annotations; "" without one.
func Pause(annotations map[string]string) string {
	text, paused := annotations[PauseMark]
	why := strings.Join(strings.Fields(text), " ")
	if paused && why == "" {
		return "no reason given"
	}
	return why
}

// pause is why the node is not to be taken out; "" where it may be.
func (f *Found) pause() string {
	if f.Node == nil {
		return ""
	}
	return f.Node.Pause
}

// requireUnpaused looks at the mark again: it may have come since the plan was
// made. What was begun is finished all the same.
func (n *nodeRoll) requireUnpaused(ctx context.Context) error {
	if n.plan.Resume || n.plan.Strategy == Configure {
		return nil
	}
	k, err := n.kubeNode(ctx)
	if err != nil || k.Pause == "" {
		return err
	}
	return fault.WithHint(fault.PlanMoved.Refusedf("%s was paused since the plan was made: %s", n.plan.Node, k.Pause), "recast roll leaves it out from now on; %s", unpause(n.plan.Node))
}

func unpause(node string) string {
	return "kubectl annotate node " + node + " " + PauseMark + "- lifts that"
}
