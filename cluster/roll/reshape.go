package roll

import (
	"context"
	"slices"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/shape"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
)

func (n *node) stopsForShape() bool { return len(n.Plan.VM.At(shape.Off)) > 0 }

// withUndoHint adds the way back to the error of a node that does not come up with its new VM.
func (n *node) withUndoHint(err error) error {
	if !n.Plan.Strategy.Reshapes() {
		return err
	}
	return fault.WithHint(err, "recast undo %s gives VM %d its old settings back; or correct recast.yaml, and recast roll goes on with that", n.Plan.Node, n.Plan.VMID)
}

// reshapeAfter gives a node that has got its image or configuration, and is still drained, its VM in the same
// outage.
func (n *node) reshapeAfter() []step.Step {
	if !n.stopsForShape() {
		return nil
	}
	as := *n.Node
	as.Plan.Strategy, as.Plan.EtcdKept = cluster.Reshape, true
	of := n.roller.node(as)
	of.record.drawn = n.record.drawn
	return of.recreate()
}

// stillDrained leaves out of a node's last steps the one that ends its outage, if its VM is still to be
// stopped.
func (n *node) stillDrained(steps []step.Step) []step.Step {
	return slices.DeleteFunc(steps, func(s step.Step) bool { return n.stopsForShape() && s.ID == "uncordon" })
}

// reshaped is the goal of a node that only gets another VM. What a newer recast.yaml wants of it is
// planned again after it was resumed.
func (n *node) reshaped(ctx context.Context) (string, error) {
	ended := n.Out.Has(n.Plan.Node) // false before its steps
	done, err := n.serving.Finished(ctx)
	reason := ""
	if err == nil && (n.Plan.Resume || done) {
		reason, err = n.uncordoned(ctx)
	}
	switch {
	case err != nil && !ended:
		return "", nil //nolint:nilerr // its steps say what is wrong
	case err != nil || reason == "":
		return "", err
	}
	n.Out.Remove(n.Plan.Node)
	return "its VM is as wanted", nil
}
