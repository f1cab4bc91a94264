package roll

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/words"
)

func (n *node) configureReset(ctx context.Context) error {
	m, err := n.Maintenance.MaintenanceMachine(ctx, n.Plan.Addr)
	switch {
	case err != nil:
		return err
	case m.UUID != n.Plan.UUID || m.Stage != "maintenance" || m.Installable():
		return fault.WithHint(fault.PlanMoved.Refusedf("%s answers with UUID %s, stage %s, system disk %s: it is not as it was when the plan was made", n.Plan.Addr, m.UUID, m.Stage, words.OrNone(m.SystemDisk)),
			"run recast plan and look again")
	}
	config, found, err := n.config.userConfig(ctx)
	if err != nil {
		return err
	}
	if !found {
		return fault.MachineConfig.Refusedf("node %s: its machine configuration is not in talos.machineConfigs", n.Plan.Node)
	}
	patched, err := n.Maintenance.PatchConfig(config, cluster.ConfigPatch{Hostname: n.Plan.Node, Kubernetes: n.config.kubernetesOfOthers(ctx), Talos: m.TalosVersion})
	if err != nil {
		return fmt.Errorf("machine configuration of %s: %w", n.Plan.Node, err)
	}
	if err := n.RequireNameFree(ctx); err != nil {
		return err
	}
	lost := fault.Prefix("apply the configuration to "+n.Plan.Addr.String(), n.Maintenance.ApplyConfig(ctx, n.Plan.Addr, n.Plan.UUID, patched))
	if lost != nil && !errors.Is(lost, cluster.ErrLostAnswer) {
		return lost
	}
	return cluster.Unanswered(lost, n.awaitConfigured(ctx, "configure"))
}

// lacksToServe names the first thing that the machine lacks; before are the volumes that need not come up.
func (n *node) lacksToServe(ctx context.Context, before []cluster.VolumeStatus) (string, error) {
	m, err := cluster.ReadArrivedWhole(ctx, n.Talos, n.Plan.Addr)
	if err != nil {
		return "", err
	}
	if lacks := cmp.Or(n.LacksMachine(m.MachineStanding), stuck(m, before)); lacks != "" {
		return lacks, nil
	}
	if lacks, err := n.etcd.lacks(ctx, etcdMemory(n.Node)); err != nil || lacks != "" {
		return lacks, err
	}
	return cluster.LacksNode(ctx, n.Kube, n.Plan.Node, m.UUID, m.BootID)
}

// serves is the goal of steps: this process has seen the machine healthy.
func (n *node) serves(context.Context) (string, error) {
	if n.settledAt.IsZero() {
		return "", nil
	}
	return n.Plan.Node + " is Ready", nil
}

func (n *node) waitReset(ctx context.Context) error {
	lacks := func(ctx context.Context) (string, error) { return n.lacksToServe(ctx, nil) }
	return fault.WithHint(n.settle(ctx, "wait-healthy", n.Timing.Boot+n.Timing.Join, lacks),
		"the console of VM %d and talosctl -n %s dmesg say more; if etcd's data is lost and there is no other control plane, "+
			"continue with recast restore", n.Plan.VMID, n.Plan.Addr)
}
