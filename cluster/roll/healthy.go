package roll

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/rolling"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/wait"
	"github.com/recast-sh/recast/internal/words"
)

// healthy is the goal of waitHealthy: the machine runs the wanted build from its own disk with
// every volume back, and Kubernetes has seen this boot.
func (n *node) healthy(ctx context.Context) (string, error) {
	mem, err := n.Memory(ctx)
	if err != nil {
		return "", err
	}
	return n.settled(ctx, func(ctx context.Context) (string, error) { return n.lacksAfterExchange(ctx, mem) })
}

// inVain adds a hint to the error of a wait that timed out.
func (n *node) inVain(ctx context.Context, err error) error {
	if !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil || !n.Plan.Strategy.Installs() {
		return n.withUndoHint(err)
	}
	again := "recast roll waits for it again"
	if m, errNow := cluster.ReadMachine(ctx, n.Talos, n.Plan.Addr); errNow == nil && m.FromISO && m.SystemDisk != "" {
		again = "it can't boot from its new disk, on which an installation broke off"
	}
	if n.Plan.KubeSpan {
		err = fault.WithHint(err, "talosctl get affiliates, and kubespanpeerspecs on another node, show whether KubeSpan still has its old peer")
	}
	return fault.WithHint(fault.NoJoin.Of(err), "the console of VM %d and talosctl -n %s dmesg say more; %s; %s",
		n.Plan.VMID, n.Plan.Addr, again, n.wayBack())
}

// wayBack says how to cancel the replacement, or the creation, of a node on which Talos is installed.
func (n *node) wayBack() string {
	if n.Plan.Strategy.From() == cluster.Nowhere {
		return "recast undo " + n.Plan.Node + " says how to give it up"
	}
	return "recast undo " + n.Plan.Node + " cancels the replacement and boots the old system disk"
}

func (n *node) isHealthy() string {
	return fmt.Sprintf("runs %s build %s and is Ready", n.Want.Build.TalosVersion, words.Short(n.Want.Build.ID))
}

// lacksAfterExchange names the first thing that the node still lacks; "" when it is healthy.
func (n *node) lacksAfterExchange(ctx context.Context, mem parking.Memory) (string, error) {
	m, err := cluster.ReadArrivedWhole(ctx, n.Talos, n.Plan.Addr)
	if err != nil {
		return "", err
	}
	if lacks := n.LacksMachine(m.MachineStanding); lacks != "" {
		return lacks, nil
	}
	if m.BootID == mem.BootID && n.Plan.Strategy.From() != cluster.Halfway {
		return "still the boot from before the replacement", nil
	}
	if lacks := n.lacksSystem(m, mem); lacks != "" {
		return lacks, nil
	}
	if lacks := mem.LacksVolume(m, n.Want.AcceptLoss); lacks != "" {
		return lacks, nil
	}
	if stuck := stuck(m, mem.Stuck); stuck != "" {
		return stuck, nil
	}
	if lacks := mem.LacksPlace(m, n.vmToBe(mem)); lacks != "" {
		return lacks, nil
	}
	if lacks, err := n.etcd.lacks(ctx, mem); err != nil || lacks != "" {
		return lacks, err
	}
	return cluster.LacksNode(ctx, n.Kube, n.Plan.Node, m.UUID, m.BootID)
}

// stuck names the volumes that Talos can't make or find and that were not stuck before: with one of them, the
// configuration has not arrived.
func stuck(m cluster.Machine, before []cluster.VolumeStatus) string {
	return strings.Join(m.StuckVolumes(before), "; ")
}

// lacksSystem compares the system that the machine booted, and its disk, with the expected ones.
func (n *node) lacksSystem(m cluster.Machine, mem parking.Memory) string {
	if !n.Plan.Strategy.Installs() {
		if n.Plan.Strategy.System() == cluster.SystemKept && m.Schematic.LockHash() != n.Plan.Restore.Build {
			return "runs the image of lock " + words.OrNone(words.Short(m.Schematic.LockHash()))
		}
		if !n.runsFromIts(m, mem) {
			return fmt.Sprintf("it runs from %s, not from its old system disk", words.OrNone(m.SystemDisk))
		}
		return ""
	}
	if reasons := cluster.DiffImage(n.Want.Build, m.RunningSystem, n.roller.History); len(reasons) > 0 {
		return "runs the wrong image: " + reasons[0].Text
	}
	if m.FromISO { // even if healthy: a disk on which the installer failed is reported as the system disk too
		return "it runs from its boot ISO still, not from its new disk"
	}
	if !n.runsFromIts(m, mem) {
		return fmt.Sprintf("it runs from %s, not from the new system disk", words.OrNone(m.SystemDisk))
	}
	return ""
}

// runsFromIts says whether the machine runs from the system disk that it should have.
func (n *node) runsFromIts(m cluster.Machine, mem parking.Memory) bool {
	vm := n.vmToBe(mem)
	drives, err := vm.Bootable()
	if err != nil {
		return false
	}
	disks := m.MachineDisks(vm, drives, mem.SystemKey)
	return len(disks) == 1 && disks[0].Device == m.SystemDisk
}

// sentBack ends the wait for a machine that is in maintenance mode again. If an installation fails, machined exits, and
// the machine boots its ISO again without a configuration (main.go in machined).
func (n *node) sentBack(ctx context.Context, silent error) error {
	if silent == nil || !n.Plan.Strategy.Installs() || ctx.Err() != nil {
		return silent
	}
	m, err := n.Maintenance.MaintenanceMachine(ctx, n.Plan.Addr)
	if err != nil || m.Stage != "maintenance" || m.UUID != n.Plan.UUID {
		return silent
	}
	return wait.Stop(fault.WithHint(fault.NoJoin.Of(
		fmt.Errorf("%s is in maintenance mode again: it could not install Talos from %s, and nothing is on its new disk", n.Plan.Node, n.Want.Build.Installer)),
		"see that it can fetch the installer, and what the console of VM %d says; run the same command again to apply the configuration again; %s",
		n.Plan.VMID, n.wayBack()))
}

// settle waits until the node has lacked nothing for the settling time. A node that came back as
// its old system ends the wait.
func (n *node) settle(ctx context.Context, id string, within time.Duration, lacks func(context.Context) (string, error)) error {
	var since time.Time // zero while it is not healthy
	watched := true     // a watch reports when what it lacks changes
	w := wait.For{
		Name: fmt.Sprintf("%s healthy for %s", n.Plan.Node, n.Timing.Settle), Timeout: within + n.Timing.Settle,
		Watches: []wait.Watch{n.WatchMachine, n.WatchNode},
		Due: func() time.Duration {
			switch {
			case since.IsZero() && watched:
				return 0
			case since.IsZero():
				return n.Timing.Poll
			}
			return max(time.Nanosecond, n.Timing.Settle-time.Since(since))
		},
	}
	err := n.Watch(ctx, id, w, func(ctx context.Context) (bool, string, error) {
		what, err := lacks(ctx)
		watched = err != nil || cluster.IsWatched(what)
		switch {
		case errors.Is(err, errRolledBack):
			return false, "", wait.Stop(err)
		case err != nil || what != "":
			since = time.Time{}
			if n.Plan.KubeSpan && what != "" && !strings.HasPrefix(what, cluster.StandsIn) {
				what += "; " + planning.OldPeer
			}
			return false, what, n.stillOn(ctx, n.sentBack(ctx, err))
		case since.IsZero():
			since = time.Now()
		}
		return time.Since(since) >= n.Timing.Settle, cluster.Settling, nil
	})
	n.settledAt = time.Time{}
	if err == nil {
		n.settledAt = time.Now()
	}
	return n.etcd.blame(ctx, err)
}

// settled is the goal of settle: this process has seen the node settle, and has seen nothing missing since. That the
// node looks healthy now is not enough. A failed read does not revoke the result.
func (n *node) settled(ctx context.Context, lacks func(context.Context) (string, error)) (string, error) {
	switch {
	case n.settledAt.IsZero():
		return "", nil // not yet: settle waits and says why
	case wait.Elapsed(n.settledAt) < rolling.JustNow:
		return n.isHealthy(), nil
	}
	if what, err := lacks(ctx); what != "" || errors.Is(err, errRolledBack) || errors.Is(err, errOtherSystem) {
		return "", nil //nolint:nilerr // settle reports what is missing
	}
	return n.isHealthy(), nil
}

// vmToBe is the VM as it will be once it is up.
func (n *node) vmToBe(mem parking.Memory) cluster.VM {
	switch n.Plan.Strategy.System() {
	case cluster.SystemNew:
		return mem.BlankVM()
	case cluster.SystemKept:
		return mem.VMWith(cluster.SplitOptions(n.Plan.Restore.Options))
	}
	return mem.VM
}

func (n *node) waitHealthy(ctx context.Context) error {
	mem, err := n.Memory(ctx)
	if err != nil {
		return err
	}
	within := n.Timing.Join
	if n.Plan.KubeSpan {
		within += planning.PeerLasts
	}
	err = n.inVain(ctx, n.settle(ctx, "bring-up/wait-healthy", within, func(ctx context.Context) (string, error) { return n.lacksAfterExchange(ctx, mem) }))
	if err == nil {
		n.served.Tell(ctx, "bring-up/wait-healthy")
	}
	return err
}

func (n *node) waitStep(code fault.Code, healthy goal, wait func(context.Context) error) step.Step {
	title := "wait until " + n.Plan.Node + " is healthy"
	return step.Step{ID: "wait-healthy", Code: code, Title: title, Skip: healthy, Do: wait}
}

// withUndoHint adds recast undo as a hint to the error of a node that does not come up with its new shape.
func (n *node) withUndoHint(err error) error {
	if !n.Plan.Strategy.Reshapes() {
		return err
	}
	return fault.WithHint(err, "recast undo %s gives VM %d its old settings back; or correct recast.yaml, and recast roll goes on with that", n.Plan.Node, n.Plan.VMID)
}
