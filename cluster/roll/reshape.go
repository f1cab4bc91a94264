package roll

import (
	"context"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/shape"
	"github.com/recast-sh/recast/internal/fault"
)

func (n *node) stopsForShape() bool { return len(n.Plan.VM.At(shape.Off)) > 0 }

// stopsVM says whether the VM that the node has is stopped.
func (n *node) stopsVM() bool {
	switch s := n.Plan.Strategy; {
	case s.Reshapes():
		return n.Plan.Resume || n.stopsForShape()
	case s.KeepsVM():
		return n.stopsForShape()
	case s.VM() == cluster.VMGone:
		return n.Plan.Found.Absent == nil
	default:
		return s.VM() == cluster.VMAgain || s.VM() == cluster.VMOff
	}
}

// asStopped is the node as its VM is stopped. A node that keeps its VM has got its image or configuration then, is
// still drained, and gets its VM another shape in the same outage.
func (n *node) asStopped() *node {
	if !n.Plan.Strategy.KeepsVM() {
		return n
	}
	as := *n.Node
	as.Plan.Strategy, as.Plan.EtcdKept = cluster.Reshape, true
	of := n.roller.node(as)
	of.record.drawn = n.record.drawn
	return of
}

// withUndoHint adds the way back to the error of a node that does not come up with its new VM.
func (n *node) withUndoHint(err error) error {
	if !n.Plan.Strategy.Reshapes() {
		return err
	}
	return fault.WithHint(err, "recast undo %s gives VM %d its old settings back; or correct recast.yaml, and recast roll goes on with that", n.Plan.Node, n.Plan.VMID)
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
