package roll

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/rolling"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/wait"
	"github.com/recast-sh/recast/internal/words"
)

func (n resetMachine) again(ctx context.Context) error {
	m, err := n.Maintenance.MaintenanceMachine(ctx, n.Plan.Addr)
	switch {
	case err != nil:
		return err
	case m.UUID != n.Plan.UUID || m.Stage != "maintenance" || m.Installable():
		return fault.WithHint(fault.PlanMoved.Refusedf("%s answers with UUID %s, stage %s, system disk %s: it is not as it was when the plan was made", n.Plan.Addr, m.UUID, m.Stage, words.OrNone(m.SystemDisk)),
			"run recast plan and look again")
	}
	config, found, err := n.savedConfig.userConfig(ctx)
	if err != nil {
		return err
	}
	if !found {
		return fault.MachineConfig.Refusedf("node %s: its machine configuration is not in talos.machineConfigs", n.Plan.Node)
	}
	patched, err := n.Maintenance.PatchConfig(config, cluster.ConfigPatch{Hostname: n.Plan.Node, Kubernetes: n.savedConfig.kubernetesOfOthers(ctx), Talos: m.TalosVersion})
	if err != nil {
		return fmt.Errorf("machine configuration of %s: %w", n.Plan.Node, err)
	}
	if err := n.gate.RequireNameFree(ctx); err != nil {
		return err
	}
	lost := fault.Prefix("apply the configuration to "+n.Plan.Addr.String(), n.Maintenance.ApplyConfig(ctx, n.Plan.Addr, n.Plan.UUID, patched))
	if lost != nil && !errors.Is(lost, cluster.ErrLostAnswer) {
		return lost
	}
	return rolling.Unanswered(lost, n.Watch(ctx, "configure", n.OfMachine(n.Plan.Node+" takes its configuration", n.Timing.Boot), func(ctx context.Context) (bool, string, error) {
		reason, silent, err := n.bringUp.answers(ctx)
		if silent != nil {
			return false, "", n.renewal.stillOn(ctx, silent)
		}
		return reason != "", "", wait.Stop(err)
	}))
}

// steps bring back a machine that was reset.
func (n resetMachine) steps() []step.Step {
	return []step.Step{
		{ID: "configure", Code: fault.NoBoot, Title: "give " + n.Plan.Node + " its machine configuration", Risk: step.Disruptive, Skip: n.bringUp.configured, Do: n.again},
		{ID: "wait-healthy", Code: fault.NoJoin, Title: "wait until " + n.Plan.Node + " is healthy", Skip: n.serves, Do: func(ctx context.Context) error {
			return fault.WithHint(n.health.settle(ctx, "wait-healthy", n.Timing.Boot+n.Timing.Join, func(ctx context.Context) (string, error) { return n.lacks(ctx, nil) }),
				"the console of VM %d and talosctl -n %s dmesg say more; if etcd's data is lost and there is no other control plane, continue with recast restore", n.Plan.VMID, n.Plan.Addr)
		}},
	}
}

// lacks names the first thing that the machine lacks; before are the volumes that need not come up.
func (n resetMachine) lacks(ctx context.Context, before []cluster.VolumeStatus) (string, error) {
	m, err := n.Talos.ArrivedWhole(ctx, n.Plan.Addr)
	if err != nil {
		return "", err
	}
	if lacks := cmp.Or(n.LacksMachine(m.MachineStanding), stuck(m, before)); lacks != "" {
		return lacks, nil
	}
	if lacks, err := n.etcd.lacks(ctx, n.newBoot.inPlaceMemory()); err != nil || lacks != "" {
		return lacks, err
	}
	return rolling.LacksNode(ctx, n.Kube, n.Plan.Node, m.UUID, m.BootID)
}

// serves is the goal of steps: this process has seen the machine healthy.
func (n resetMachine) serves(context.Context) (string, error) {
	if n.health.settledAt.IsZero() {
		return "", nil
	}
	return n.Plan.Node + " is Ready", nil
}
