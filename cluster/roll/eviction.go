package roll

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/exchange"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/rolling"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/wait"
)

// awaitDetached waits until Kubernetes counts no volume as attached to the node, except those of
// pods that a drain leaves in place: these are never detached.
func (n *node) awaitDetached(ctx context.Context, id string, within time.Duration) error {
	err := n.Watch(ctx, id, wait.For{Name: "volumes of " + n.Plan.Node + " detached", Timeout: within, Watches: []wait.Watch{n.WatchDetached}}, func(ctx context.Context) (bool, string, error) {
		volumes, err := n.Kube.AttachedVolumes(ctx, n.Plan.Node)
		var names []string
		for _, v := range volumes {
			if v.User == "" {
				names = append(names, v.String())
			}
		}
		return err == nil && len(names) == 0, "still attached: " + strings.Join(names, "; "), err
	})
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return fault.WithHint(fault.DrainBlocked.Of(err), "a volume's driver detaches it once no pod of the node uses it: see its controller's logs and kubectl describe volumeattachments; "+
			"nothing of VM %d was touched; run the same command again to continue", n.Plan.VMID)
	}
	return err
}

// awaitDisksGone waits until the VM has only the disks that were remembered. If the VM were stopped now, it would
// be recreated without the others, or it would keep a disk that a pod already writes to on another node.
func (n *node) awaitDisksGone(ctx context.Context, id string, mem parking.Memory, within time.Duration) error {
	var foreign []cluster.Disk
	err := n.Wait(ctx, id, fmt.Sprintf("disks of pods to leave VM %d", n.Plan.VMID), within, func(ctx context.Context) (bool, string, error) {
		vm, err := n.Proxmox.VMConfig(ctx, n.Plan.VMID)
		if err != nil {
			return false, "", fmt.Errorf("look up VM %d: %w", n.Plan.VMID, err)
		}
		foreign, err = exchange.ForeignDisks(vm, mem)
		return err == nil && len(foreign) == 0, "still there: " + exchange.DiskNames(foreign), err
	})
	if len(foreign) > 0 && errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return n.disksStay(ctx, foreign, fault.As(fault.Refused, err))
	}
	return err
}

// disksStay adds hints about pods' disks that the VM still has. Either a pod that a drain leaves in
// place uses such a disk, or no pod does.
func (n *node) disksStay(ctx context.Context, foreign []cluster.Disk, err error) error {
	volumes, lost := n.Kube.AttachedVolumes(ctx, n.Plan.Node)
	if lost != nil {
		return errors.Join(err, lost)
	}
	for _, v := range volumes {
		i := slices.IndexFunc(foreign, v.IsOf)
		if v.User == "" || i < 0 {
			continue
		}
		err = fault.WithHint(fault.DrainBlocked.Of(err), "%s is %s, which %s uses: a drain leaves such pods where they are. Keep that one off %s (a DaemonSet's by its nodeSelector or affinity), then run the same command again; nothing of VM %d was touched",
			foreign[i].Key, v, v.User, n.Plan.Node, n.Plan.VMID)
		foreign = slices.Delete(foreign, i, i+1)
	}
	if len(foreign) == 0 {
		return err
	}
	return fault.WithHint(fault.DrainBlocked.Of(err),
		"Kubernetes counts no volume of %s as attached to %s any more, so its driver lost track: kubectl get pv,volumeattachments shows which VM has each by right, and talosctl -n %s mounts whether %s still uses it. "+
			"What it does not use, qm set %d --delete KEY takes out, which keeps the volume of another owner; then run the same command again; "+
			"nothing of the VM was touched", exchange.DiskNames(foreign), n.Plan.Node, n.Plan.Addr, n.Plan.Node, n.Plan.VMID)
}

func (n *node) drain(ctx context.Context) error {
	if off, err := isOff(ctx, n.Node); err != nil || off {
		return err // nothing runs there, and no kubelet would report that a pod ended
	}
	if parked, err := n.systemParked(ctx); err != nil || parked {
		return err // the VM was started without that disk; without it a single control plane has no API
	}
	mem, err := n.Memory(ctx)
	if err != nil {
		return err
	}
	why := cluster.Mark{Run: n.Run, Strategy: n.Plan.Strategy, Build: n.Plan.Build(), BootID: mem.BootID}
	const id = "take-down/drain"
	empty := func(ctx context.Context, by time.Time) error {
		if err := n.awaitDisksGone(ctx, id, mem, max(n.Timing.Poll, time.Until(by))); err != nil {
			return err
		}
		return n.RequireNoLoss(ctx) // no pod or volume can be bound to the node any more
	}
	return n.evict(ctx, id, why, empty, func() error { return n.backOut(ctx) })
}

// evict cordons and drains the node, then waits until its volumes are detached; empty may wait for
// more. If that fails, backOut puts the node back into service, unless the run was cancelled, has
// lost its claim, or ends because its own pod was evicted.
func (n *node) evict(ctx context.Context, id string, why cluster.Mark, empty func(ctx context.Context, by time.Time) error, backOut func() error) error {
	err := n.Repeat(ctx, id, rolling.RepeatBefore, n.RequireOneMachine)
	if err == nil { // a failed cordon may still have taken effect
		err = fault.Prefix("cordon "+n.Plan.Node, n.Repeat(ctx, id, rolling.RepeatBefore, func(ctx context.Context) error { return n.Kube.Cordon(ctx, n.Plan.Node, why) }))
	}
	if err == nil {
		err = n.Repeat(ctx, id, rolling.RepeatBefore, func(ctx context.Context) error {
			err := n.Kube.Drain(ctx, n.Plan.Node, cluster.DrainOptions{Timeout: n.Timing.Drain, Force: n.roller.DrainForce, Delete: n.roller.DrainDeletes}, func(line string) { n.Tell(id, line) })
			if _, notBegun := errors.AsType[*cluster.UnprovenError](err); notBegun {
				return err
			}
			return rolling.Final(err) // it has waited as long as a drain may take
		})
	}
	by := time.Now().Add(n.Timing.Drain)
	if err == nil {
		err = n.awaitDetached(ctx, id, n.Timing.Drain)
	}
	if err == nil {
		err = empty(ctx, by)
	}
	if kind := fault.KindOf(err); err != nil && ctx.Err() == nil && kind != fault.Claimed && kind != fault.Interrupted {
		if vm, errVM := n.Proxmox.VMState(ctx, n.Plan.VMID); errVM == nil && !vm.Running {
			err = cluster.SwitchedOff(vm, err)
		}
		err = rolling.Final(errors.Join(err, n.Repeat(ctx, id, rolling.RepeatBefore, func(context.Context) error { return backOut() })))
	}
	return fault.Prefix("drain "+n.Plan.Node, err)
}

// backOut undoes the preparations on a node that could not be drained. The node still runs with all its disks, so
// neither our cordon nor an open record may remain. A record that is needed to return a parked disk stays open.
func (n *node) backOut(ctx context.Context) error {
	park, err := n.Parking(ctx)
	if err != nil {
		return err
	}
	if keys := park.Parked(); len(keys) > 0 {
		return fault.WithHint(fault.Refusedf("%s has disks of %s already (%s)", park.VM, n.Plan.Node, strings.Join(keys, ", ")),
			"they are safe there, and the record that tells whose they are stays open: run the same command again to continue; recast undo %s cancels the replacement", n.Plan.Node)
	}
	if err := n.takesPods(ctx); err != nil {
		return err
	}
	if err := n.UpdateRecord(ctx, (*parking.Record).Close); err != nil {
		return err
	}
	return n.config.forget()
}

// takesPods removes our cordon. A deleted Node has none.
func (n *node) takesPods(ctx context.Context) error {
	err := n.Kube.Uncordon(ctx, n.Plan.Node)
	if err == nil || errors.Is(err, cluster.ErrNotFound) {
		return nil
	}
	return fault.WithHint(fmt.Errorf("uncordon %s: %w", n.Plan.Node, err), "%s still runs and is left cordoned: run the same command again to continue from there", n.Plan.Node)
}

// systemParked says whether the node's system disk is parked. A disk is never taken from a running VM, so whatever
// runs in that VM is not the node.
func (n *node) systemParked(ctx context.Context) (bool, error) {
	park, err := n.Parking(ctx)
	if err != nil {
		return false, err
	}
	for _, d := range park.Record.Disks {
		if d.System {
			reason, err := exchange.IsParked(park.VM, d)
			return reason != "", err
		}
	}
	return false, nil
}

// mark returns the mark on the Node; nil: it has none.
func (n *node) mark(ctx context.Context) (*cluster.Mark, error) {
	k, err := n.KubeNode(ctx)
	if err != nil {
		return nil, err
	}
	return k.Mark, nil
}

func (n *node) drainStep(drain func(context.Context) error) step.Step {
	title := "drain " + n.Plan.Node
	return step.Step{ID: "drain", Code: fault.DrainBlocked, Title: title, Risk: step.Disruptive, Do: drain}
}
