package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/wait"
	"github.com/recast-sh/recast/internal/words"
)

// readBlank reads the machine of a node that should have been configured but is
// in maintenance mode; nil if it is not, or is not the VM's.
func readBlank(ctx context.Context, src Sources, f *Found) *Machine {
	if src.Maintenance == nil || f.VM == nil || !f.VM.Running || f.Open() {
		return nil
	}
	m, err := src.Maintenance.MaintenanceMachine(ctx, f.Addr)
	if err != nil || m.Stage != "maintenance" || m.UUID != f.VM.UUID() {
		return nil
	}
	return &m
}

// planConfigure gives a machine that was reset its configuration back. Nothing is
// installed and no disk is touched: its system is there, which is why Talos leaves
// the install disk of the configuration alone (v1alpha1_state.go, Installed).
func planConfigure(n *NodePlan) {
	f := n.found
	if f.Blank.installable() || !f.ConfigKnown {
		n.Why = "it could not be read"
		return
	}
	if f.Node != nil && f.Node.ControlPlane {
		n.Role = ControlPlane
	}
	n.Resume, n.Strategy, n.etcdKept = true, Configure, true
	n.Why = "it is in maintenance mode: it gets its configuration back, then everything is looked at anew"
	n.Notes = []string{fmt.Sprintf("the configuration goes to who answers at %s with the VM's UUID: its certificate's fingerprint is %s", f.Addr, f.Blank.Fingerprint)}
}

// installable says whether the configuration would choose a disk to install on.
func (m Machine) installable() bool { return m.FromISO || m.SystemDisk == "" }

func (f *Found) applyByHand() string {
	return fmt.Sprintf("talosctl apply-config --insecure -n %s --file %s.yaml", f.Addr, f.Name)
}

const bySerial = "installs it on the disk that the file names, which is wiped: have it select that by its serial. Then run the same command again"

// withoutConfig is what to do about a machine in maintenance mode that recast can't give its configuration.
func (f *Found) withoutConfig() string {
	if f.Blank.installable() {
		return "Talos is on none of its disks: " + f.applyByHand() + " " + bySerial
	}
	return fmt.Sprintf("its machine configuration is nowhere to be had: put it as %s.yaml into the directory that talos.machineConfigs names, and run the same command again, or %s", f.Name, f.applyByHand())
}

// silent is what to do about a machine that is on and does not answer at all.
func (f *Found) silent(w Wanted) string {
	look := fmt.Sprintf("look at the console of VM %d", f.VM.ID)
	disks, err := f.VM.Disks()
	if err != nil || len(w.ISOStorages) == 0 {
		return look
	}
	cd := cdKey(f.VM.Config, disks)
	boot := fmt.Sprintf("qm set %d --%s %s:iso/%s,media=cdrom", f.VM.ID, cd, w.ISOStorages[0], w.Build.ISOName)
	if order := bootDevices(f.VM.Config["boot"]); order != nil && !slices.Contains(order, cd) {
		boot += fmt.Sprintf(" --boot 'order=%s'", strings.Join(append(order, cd), ";"))
	}
	return fmt.Sprintf("%s. Where it boots nothing, because its system disk was wiped (talosctl reset): recast publish, then on %s %s && qm stop %d && qm start %d; "+
		"in maintenance mode %s %s", look, f.VM.Host, boot, f.VM.ID, f.VM.ID, f.applyByHand(), bySerial)
}

// configureSteps bring a machine back that was reset.
func (n *nodeRoll) configureSteps() []step.Step {
	return []step.Step{
		{ID: "configure", Code: fault.NoBoot, Title: "give " + n.plan.Node + " its machine configuration", Risk: step.Disruptive, Skip: n.configured, Do: n.configureAgain},
		{ID: "wait-healthy", Code: fault.NoJoin, Title: "wait until " + n.plan.Node + " is healthy", Skip: n.serves, Do: func(ctx context.Context) error {
			return fault.WithHint(n.settle(ctx, "wait-healthy", n.Timing.Boot+n.Timing.Join, n.lacksConfigured),
				"the console of VM %d and talosctl -n %s dmesg say more; with data of etcd that is lost and no other control plane, recast restore goes on", n.plan.VMID, n.plan.Addr)
		}},
	}
}

func (n *nodeRoll) configureAgain(ctx context.Context) error {
	m, err := n.Maintenance.MaintenanceMachine(ctx, n.plan.Addr)
	switch {
	case err != nil:
		return err
	case m.UUID != n.plan.UUID || m.Stage != "maintenance" || m.installable():
		return fault.WithHint(fault.PlanMoved.Refusedf("%s answers with UUID %s, stage %s, system disk %s: it is not as it was when the plan was made", n.plan.Addr, m.UUID, m.Stage, words.OrNone(m.SystemDisk)),
			"run recast plan and look again")
	}
	config, found, err := n.userConfig(ctx)
	if err != nil {
		return err
	}
	if !found {
		return fault.MachineConfig.Refusedf("node %s: its machine configuration is not in talos.machineConfigs", n.plan.Node)
	}
	kubernetes, err := n.kubernetesOfOthers(ctx)
	if err != nil {
		return err
	}
	patched, err := n.Maintenance.PatchConfig(config, ConfigPatch{Hostname: n.plan.Node, Kubernetes: kubernetes, Talos: m.TalosVersion})
	if err != nil {
		return fmt.Errorf("machine configuration of %s: %w", n.plan.Node, err)
	}
	if err := n.requireNameFree(ctx); err != nil {
		return err
	}
	lost := fault.Prefix("apply the configuration to "+n.plan.Addr.String(), n.Maintenance.ApplyConfig(ctx, n.plan.Addr, n.plan.UUID, patched))
	if lost != nil && !errors.Is(lost, ErrLostAnswer) {
		return lost
	}
	return Unanswered(lost, n.watch(ctx, "configure", n.ofMachine(n.plan.Node+" takes its configuration", n.Timing.Boot), func(ctx context.Context) (bool, string, error) {
		reason, silent, err := n.answers(ctx)
		if silent != nil {
			return false, "", n.stillOn(ctx, silent)
		}
		return reason != "", "", wait.Stop(err)
	}))
}

// serves is the goal of bringing a machine back: this process has seen it healthy.
func (n *nodeRoll) serves(context.Context) (string, error) {
	if n.settledAt.IsZero() {
		return "", nil
	}
	return n.plan.Node + " is Ready", nil
}

func (n *nodeRoll) lacksConfigured(ctx context.Context) (string, error) {
	m, lacks, err := n.arrived(ctx, false)
	if err != nil || lacks != "" {
		return lacks, err
	}
	if lacks, err := n.lacksEtcd(ctx, n.inPlaceMemory()); err != nil || lacks != "" {
		return lacks, err
	}
	return LacksNode(ctx, n.Kube, n.plan.Node, m)
}
