package roll

import (
	"context"
	"errors"
	"fmt"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/etcd"
	"github.com/recast-sh/recast/cluster/exchange"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/wait"
)

// BlankAnswers starts the message about a machine that has booted into maintenance mode.
const BlankAnswers = "it is the blank machine that was made"

var errNoAnswer = errors.New("no answer with the cluster's certificates yet")

// answers does the work of configured; silent says why the machine does not answer yet.
func (n *node) answers(ctx context.Context) (reason string, silent, err error) {
	reason = "it answers with the cluster's certificates"
	if n.answered {
		return reason, nil, nil
	}
	m, err := cluster.ReadStanding(ctx, n.Talos, n.Plan.Addr)
	switch {
	case err != nil:
		return "", fmt.Errorf("%w: %w", errNoAnswer, err), nil
	case m.UUID == "": // it does not report its UUID yet
		return "", errNoAnswer, nil
	case m.UUID != n.Plan.UUID:
		return "", nil, n.otherMachine(m.UUID)
	}
	n.answered = true
	return reason, nil, nil
}

// otherMachine is the error of a machine with another UUID at the node's address.
func (n *node) otherMachine(uuid string) error {
	return fault.WithHint(fault.UUIDMismatch.Refusedf("%s answers with UUID %s, not %s", n.Plan.Addr, uuid, n.Plan.UUID),
		"another machine has the address of %s: see who has that lease, or whether it is a virtual address; nothing was done to it", n.Plan.Node)
}

func (n *node) applyToBlank(ctx context.Context, disk cluster.MachineDisk, kubernetes cluster.KubernetesImages) error {
	config, err := n.config.read(ctx)
	if err != nil {
		return err
	}
	if err := n.requireJoins(ctx, config); err != nil {
		return err
	}
	patched, err := n.Maintenance.PatchConfig(config, n.config.patch(disk, kubernetes))
	if err != nil {
		return fmt.Errorf("machine configuration of %s: %w", n.Plan.Node, err)
	}
	err = fault.Prefix("apply the configuration to "+n.Plan.Addr.String(), n.Maintenance.ApplyConfig(ctx, n.Plan.Addr, n.Plan.UUID, patched))
	if err != nil && !errors.Is(err, cluster.ErrLostAnswer) {
		return fault.WithHint(err,
			"%s waits for one in maintenance mode; %s, and what it had is changed there", n.Plan.Node, n.wayBack())
	}
	return err
}

// requireJoins refuses a configuration with which a machine without etcd's data would begin an etcd of its own.
func (n *node) requireJoins(ctx context.Context, config cluster.Secret) error {
	if !cluster.OfTypeInit(config) {
		return nil
	}
	mem, err := n.Memory(ctx)
	if err != nil || mem.EtcdKept && n.Plan.Strategy.From() != cluster.Nowhere {
		return err
	}
	return n.RequireJoins(config)
}

// awaitBlank waits until the machine is in maintenance mode. It returns nil if the machine already
// has its configuration.
func (n *node) awaitBlank(ctx context.Context) (blank *cluster.BlankMachine, err error) {
	err = n.Watch(ctx, "bring-up/configure", n.OfMachine(n.Plan.Node+" in maintenance mode", n.Timing.Boot), func(ctx context.Context) (bool, string, error) {
		if reason, err := n.configured(ctx); err != nil || reason != "" {
			return err == nil, "", wait.Stop(err) // an earlier attempt has applied it
		}
		m, err := n.Maintenance.MaintenanceMachine(ctx, n.Plan.Addr)
		if err == nil && m.Stage == "maintenance" && m.Ready {
			blank = &m
			return true, "", nil
		}
		return false, "stage " + m.Stage, n.stillOn(ctx, err)
	})
	return blank, err
}

// awaitRenewed repeats awaitBlank with another blank disk, for a machine that may hang because its
// installation was interrupted.
func (n *node) awaitRenewed(ctx context.Context, mem parking.Memory, silent error) (*cluster.BlankMachine, error) {
	r, err := n.record.read(ctx)
	if err != nil {
		return nil, err
	}
	if !n.cutOff(ctx, r, mem) {
		return nil, fault.WithHint(silent, "look at the console of VM %d: if Talos says there that it is installed already, its installation was cut off, or one of the other disks has a META partition; "+
			"if it is in maintenance mode, something is between us and %s, or another machine has that address; %s", n.Plan.VMID, n.Plan.Addr, n.wayBack())
	}
	if err := n.renew(ctx, r, silent); err != nil {
		return nil, err
	}
	return n.awaitBlank(ctx)
}

// checkBlank compares the machine in maintenance mode with the memory, the record and the wanted build.
func (n *node) checkBlank(m cluster.Machine, mem parking.Memory, rec parking.Record) error {
	if m.UUID != n.Plan.UUID { // another machine: the rest does not matter
		return n.otherMachine(m.UUID)
	}
	wrong := mem.WrongBlank(m, rec.Stage == parking.StageConfigured, rec.Prepared != "")
	return errors.Join(append(n.Want.Build.CheckBooted(m.RunningSystem), wrong...)...)
}

// configureBlank waits for the blank machine, checks its identity, its build and its disks, and only
// then applies the configuration. If one of them is wrong, it stops the VM and applies nothing.
func (n *node) configureBlank(ctx context.Context) error {
	mem, err := n.Memory(ctx)
	if err != nil {
		return err
	}
	blank, err := n.awaitBlank(ctx)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		blank, err = n.awaitRenewed(ctx, mem, err)
	}
	if err != nil || blank == nil {
		return err
	}
	park, err := n.Parking(ctx)
	if err != nil {
		return err
	}
	if err := n.checkBlank(blank.Machine, mem, park.Record); err != nil {
		return n.stopMismatch(ctx, err)
	}
	n.Tell("bring-up/configure", BlankAnswers+", its certificate's fingerprint "+blank.Fingerprint)
	if err := n.RequireNameFree(ctx); err != nil {
		return err
	}
	if err := n.record.noteStage(ctx, parking.StageConfigured); err != nil {
		return err
	}
	// A machine that accepts its configuration proceeds at once, and may never send its answer.
	lost := n.applyToBlank(ctx, mem.BlankDisks(blank.Machine)[0], mem.Kubernetes)
	if lost != nil && !errors.Is(lost, cluster.ErrLostAnswer) {
		return lost
	}
	return cluster.Unanswered(lost, n.inVain(ctx, n.awaitConfigured(ctx, "bring-up/configure")))
}

// awaitConfigured waits until the machine answers with the cluster's credentials.
func (n *node) awaitConfigured(ctx context.Context, id string) error {
	return n.Watch(ctx, id, n.OfMachine(n.Plan.Node+" takes its configuration", n.Timing.Boot), func(ctx context.Context) (bool, string, error) {
		reason, silent, err := n.answers(ctx)
		if silent != nil {
			return false, "", n.stillOn(ctx, silent)
		}
		return reason != "", "", wait.Stop(err)
	})
}

// configured returns a reason once the machine has answered with the cluster's credentials, that is, once it has its
// configuration. Soon after that, when Talos is installed, the machine reboots and does not answer for a while.
func (n *node) configured(ctx context.Context) (string, error) {
	reason, _, err := n.answers(ctx)
	return reason, err
}

func (n savedConfig) patch(disk cluster.MachineDisk, kubernetes cluster.KubernetesImages) cluster.ConfigPatch {
	return cluster.ConfigPatch{Installer: n.Want.Build.Installer, Disk: disk, Hostname: n.Plan.Node, Kubernetes: kubernetes, Talos: n.Want.Build.TalosVersion}
}

// stopMismatch stops the VM of a machine that failed its check. The disks are untouched.
func (n *node) stopMismatch(ctx context.Context, mismatch error) error {
	vm, err := n.Proxmox.VM(ctx, n.Plan.VMID)
	if err == nil {
		err = n.record.sending(ctx, cluster.SentStop, exchange.LateQueue, func(ctx context.Context) error { return n.Proxmox.Stop(ctx, vm) })
	}
	if err != nil {
		return errors.Join(mismatch, fmt.Errorf("and VM %d could not be stopped: %w", n.Plan.VMID, err))
	}
	return fmt.Errorf("VM %d was stopped before anything was applied to it: %w", n.Plan.VMID, mismatch)
}

// stillOn adds what Proxmox says about the VM to the error of a machine that does not answer. A VM that is off stays
// off: onboot is unset, so its host does not start it when it boots, and neither does Proxmox HA.
func (n *node) stillOn(ctx context.Context, err error) error {
	if err == nil || n.Plan.Strategy.KeepsVM() || ctx.Err() != nil {
		return err
	}
	vm, errVM := n.Proxmox.VMState(ctx, n.Plan.VMID)
	switch {
	case errVM != nil:
		return errors.Join(err, errVM)
	case !vm.Running:
		return wait.Stop(fault.WithHint(fmt.Errorf("%s is off: %s went down meanwhile, or someone stopped it", vm, vm.Host),
			"run the same command again: it starts the VM and continues"))
	}
	return err
}

// cutOff says whether the machine may hang because an earlier process of this run was interrupted
// during the installation, for example by a power failure of the host: a boot ISO that finds Talos
// on a disk halts (talos.halt_if_installed). It also requires that the disk holds nothing else: the
// node still has our mark, or has never joined if it is new, and etcd has no member of it.
func (n *node) cutOff(ctx context.Context, r *exchange.Replace, mem parking.Memory) bool {
	isNew := n.Plan.Strategy.From() == cluster.Nowhere
	if !n.Plan.Resume || n.renewed || n.Plan.Prepared != "" || !n.Plan.Strategy.Installs() || isNew && (n.Plan.Bootstraps || n.Plan.Rebuild != "") {
		return false
	}
	vm, found, err := r.Powered(ctx)
	if err != nil || !found || !vm.Running || vm.UUID() != n.Plan.UUID || vm.MadeBy() != n.Run || !r.IsBlank(vm) {
		return false
	}
	switch k, err := n.Kube.Node(ctx, n.Plan.Node); {
	case isNew && !errors.Is(err, cluster.ErrNotFound):
		return false // it has joined
	case !isNew && (err != nil || k.Ready || !k.HeldBy(n.Run) || k.BootID != mem.BootID):
		return false // its Node is Ready, is no longer ours, or its kubelet has reported a new boot: it was installed
	}
	if !mem.ControlPlane || mem.EtcdKept && !isNew {
		return true
	}
	v, err := etcd.Look(ctx, n.Talos, n.AskEtcd(), n.Plan.Node)
	if err != nil {
		return false
	}
	_, member, err := v.Member(n.Plan.Node)
	return err == nil && !member
}

// renew replaces the blank system disk of this replacement with another, and starts the VM again.
func (n *node) renew(ctx context.Context, r *exchange.Replace, silent error) error {
	n.renewed = true
	n.Tell("bring-up/configure", fmt.Sprintf("%v; if its installation was cut off it halts, so it gets another blank system disk", silent))
	vm, _, err := r.Powered(ctx)
	if err != nil {
		return err
	}
	if err := r.Sending(ctx, cluster.SentStop, exchange.LateQueue, func(ctx context.Context) error { return n.Proxmox.Stop(ctx, vm) }); err != nil {
		return fmt.Errorf("stop %s: %w", vm, err)
	}
	if err := r.ParkNew(ctx); err != nil {
		return err
	}
	if err := r.GiveSystem(ctx); err != nil {
		return err
	}
	return n.start(ctx)
}
