package rolling

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/strategy"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/wait"
)

// RequireNoLoss checks again which data would be lost with a system disk that is about to leave the node: there may
// be new data since the plan was made.
func (n *Node) RequireNoLoss(ctx context.Context) error {
	c, leaves, err := n.leavingNow(ctx)
	if err != nil {
		return fmt.Errorf("look again at what is on the system disk of %s: %w", n.Plan.Node, err)
	}
	if !leaves {
		return nil
	}
	against := cluster.Texts(c.Irreplaceable())
	if len(against) == 0 {
		return nil
	}
	return fault.WithHint(fault.PlanMoved.Refusedf("%s became impossible for %s since the plan was made: %s", n.Plan.Strategy, n.Plan.Node, strings.Join(against, "; ")),
		"once that no longer holds, run the same command again")
}

// RequireNoLossOff is RequireNoLoss for a node that is already down, right before its system disk is handed over.
// It waits for a Kubernetes that is slow to answer, but not for one that is down together with a control plane:
// nothing can have been bound to the node since that control plane was stopped.
func (n *Node) RequireNoLossOff(ctx context.Context) error {
	if n.Plan.Rebuild != "" {
		return nil // its disk stays parked, and Kubernetes does not answer
	}
	err := n.RequireNoLoss(ctx)
	if err == nil || fault.KindOf(err) != fault.Failed || ctx.Err() != nil {
		return err
	}
	if n.Plan.Role == cluster.ControlPlane && len(n.Plan.ControlPlanes) < 3 {
		return nil
	}
	return n.Wait(ctx, "losses", "Kubernetes to tell what is bound to "+n.Plan.Node, n.Timing.Join, func(ctx context.Context) (bool, string, error) {
		err := n.RequireNoLoss(ctx)
		if err != nil && fault.KindOf(err) != fault.Failed {
			err = wait.Stop(err)
		}
		return err == nil, "", err
	})
}

// leavingNow is strategy.Leaving on a new observation of the node.
func (n *Node) leavingNow(ctx context.Context) (c strategy.Candidate, leaves bool, err error) {
	f := observe.Found{Name: n.Plan.Node}
	var park parking.Parking
	var vm cluster.VM
	var errVM error
	err = wait.All(
		func() (err error) {
			park, err = n.Parking(ctx)
			return err
		},
		func() error {
			vm, errVM = n.Proxmox.VM(ctx, n.Plan.VMID)
			return nil
		},
	)
	if err == nil && park.Record.Open && park.Record.Run == n.Run {
		f.Parking = &park
	} else if err != nil && !errors.Is(err, cluster.ErrNotFound) {
		return c, false, err
	}
	switch {
	case errors.Is(errVM, cluster.ErrNotFound):
		return c, false, nil
	case errVM != nil:
		return c, false, fmt.Errorf("look up VM %d: %w", n.Plan.VMID, errVM)
	}
	f.VM = &vm
	if f.Open() {
		mem, err := park.Record.ReadMemory(park.VM)
		if err != nil {
			return c, false, err
		}
		if there, isNew := park.Record.SystemOn(vm, mem); !there || isNew != (n.Plan.Strategy.From() == cluster.Halfway) {
			return c, false, nil
		}
	}
	var silent error
	if vm.Running {
		m, err := cluster.ReadMachine(ctx, n.Talos, n.Plan.Addr)
		if err == nil && m.UUID == vm.UUID() {
			f.Machine = &m
		}
		silent = fault.Prefix(fmt.Sprintf("read machine %s", n.Plan.Addr), err)
	}
	if f.Machine == nil && !f.Open() { // the node did not come back from an upgrade in place
		mem, err := n.Memory(ctx)
		if err != nil {
			return c, false, cmp.Or(silent, err)
		}
		f.Machine = new(mem.Machine())
	}
	if err := n.bindings(ctx, &f); err != nil {
		return c, false, err
	}
	c, leaves = strategy.Leaving(n.Plan.Strategy, n.Plan.Wanted, f)
	return c, leaves, nil
}

// bindings reads what Kubernetes says about the node. A deleted Node is no error, and neither is an
// API that is down with its control planes.
func (n *Node) bindings(ctx context.Context, f *observe.Found) error {
	k, err := n.Kube.Node(ctx, n.Plan.Node)
	switch {
	case errors.Is(err, cluster.ErrNotFound):
		return nil
	case err == nil:
		f.Node = &k
		f.Local, err = n.localData(ctx, k)
	}
	if err != nil && n.Plan.Found.Node == nil && n.Plan.Resume {
		f.Node = nil // it was already unavailable when the plan was made
		return nil
	}
	return err
}

func (n *Node) localData(ctx context.Context, k cluster.KubeNode) ([]cluster.LocalData, error) {
	local, err := n.Kube.LocalData(ctx, k)
	return local[n.Plan.Node], err
}
