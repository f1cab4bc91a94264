package roll

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/etcd"
	"github.com/recast-sh/recast/cluster/exchange"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/rolling"
	"github.com/recast-sh/recast/cluster/shape"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/wait"
	"github.com/recast-sh/recast/internal/words"
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

func (n *node) otherMachine(uuid string) error {
	return fault.WithHint(fault.UUIDMismatch.Refusedf("%s answers with UUID %s, not %s", n.Plan.Addr, uuid, n.Plan.UUID),
		"another machine has the address of %s: see who has that lease, or whether it is a virtual address; nothing was done to it", n.Plan.Node)
}

func (n *node) applyToBlank(ctx context.Context, who cluster.Proof, disk cluster.MachineDisk, kubernetes cluster.KubernetesImages) error {
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
	err = fault.Prefix("apply the configuration to "+n.Plan.Addr.String(), n.Maintenance.ApplyConfig(ctx, n.Plan.Addr, who, patched))
	if err != nil && !errors.Is(err, cluster.ErrLostAnswer) {
		return fault.WithHint(err,
			"%s waits in maintenance mode for another one; %s: change the configuration there", n.Plan.Node, n.wayBack())
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
	var park parking.Parking
	var who cluster.Proof
	err = wait.All(
		wait.Into(&park, func() (parking.Parking, error) { return n.Parking(ctx) }),
		wait.Into(&who, func() (cluster.Proof, error) { return n.proof(ctx) }),
	)
	if err != nil {
		return err
	}
	if err := n.checkBlank(blank.Machine, mem, park.Record); err != nil {
		return n.stopMismatch(ctx, err)
	}
	if err := who.Check(blank.UUID, blank.SKU, blank.Fingerprint); err != nil {
		return err
	}
	n.Tell("bring-up/configure", BlankAnswers+", its certificate's fingerprint "+blank.Fingerprint)
	if err := n.RequireNameFree(ctx); err != nil {
		return err
	}
	if err := n.record.noteStage(ctx, parking.StageConfigured); err != nil {
		return err
	}
	// A machine that accepts its configuration proceeds at once, and may never send its answer.
	lost := n.applyToBlank(ctx, who, mem.BlankDisks(blank.Machine)[0], mem.Kubernetes)
	return cluster.Awaited(lost, func() error { return n.inVain(ctx, n.awaitConfigured(ctx, "bring-up/configure")) })
}

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

// newSystem gives the VM its system disk. The VM of a new node is created as if an older VM had just been deleted
// to be recreated.
func (n *node) newSystem() step.Step {
	made := n.record.source().NewSystem()
	if n.Plan.Strategy.From() != cluster.Nowhere {
		return made
	}
	do := made.Do
	made.Do = func(ctx context.Context) error {
		err := do(ctx)
		if !errors.Is(err, cluster.ErrExists) {
			return err
		}
		if ours, err := made.Skip(ctx); err != nil || ours != "" {
			return err // an earlier request for the VM was carried out late
		}
		r, errRead := n.record.read(ctx)
		if errRead == nil {
			errRead = r.CloseRecord(ctx)
		}
		return fault.WithHint(errors.Join(fault.PlanMoved.Of(fault.As(fault.Refused, err)), errRead), "someone took the number meanwhile: run the same command again, which takes another one")
	}
	return made
}

func (n *node) openNew(ctx context.Context) error {
	uuid := shape.UUID(n.Run, n.Plan.Node)
	mem := parking.Memory{
		VM: shape.New(n.Want, n.Plan.VMID, uuid), SystemKey: n.Want.SystemDisk, DiskSerial: exchange.DiskSerial(n.Run, n.Plan.Node),
		ControlPlane: n.Plan.Role == cluster.ControlPlane,
	}
	switch {
	case n.Plan.Bootstraps:
		mem.Bootstraps, mem.EtcdMembers = true, 1
	case mem.ControlPlane:
		v, err := etcd.Look(ctx, n.Talos, n.OtherControlPlanes())
		if err != nil {
			return err
		}
		mem.EtcdMembers = len(v.Members) + 1
	}
	var err error
	if mem.Kubernetes, err = n.clusterKubernetes(ctx); err != nil {
		return err
	}
	if mem.ConfigSum, err = n.config.remember(ctx, mem.Kubernetes); err != nil {
		return err
	}
	if err := n.Journal.Put(n.Key("memory"), mem); err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	n.Plan.UUID = uuid
	return n.record.open(ctx, mem)
}

// clusterKubernetes returns the Kubernetes images that a new node is to run: those of the cluster, whatever the
// node's file names.
func (n *node) clusterKubernetes(ctx context.Context) (images cluster.KubernetesImages, err error) {
	for _, e := range n.OtherControlPlanes() { // a new cluster has none
		var m cluster.MachineKubernetes
		if m, err = n.Talos.KubernetesImages(ctx, e.Addr); err != nil {
			continue
		}
		if n.Plan.Role == cluster.Worker {
			return cluster.KubernetesImages{Kubelet: m.Images.Kubelet}, nil
		}
		return m.Images, nil
	}
	return images, fault.Prefix("read which Kubernetes the cluster runs", err)
}

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
	who, err := n.proof(ctx)
	if err != nil {
		return err
	}
	lost := fault.Prefix("apply the configuration to "+n.Plan.Addr.String(), n.Maintenance.ApplyConfig(ctx, n.Plan.Addr, who, patched))
	return cluster.Awaited(lost, func() error { return n.awaitConfigured(ctx, "configure") })
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

// leaveAsReplacement makes a replacement that has joined etcd leave it again. If the replacement does not answer,
// the old system replaces its member by name when it joins.
func (n *node) leaveAsReplacement(ctx context.Context, r *exchange.Replace) error {
	if out, err := n.replacementOut(ctx, r); err != nil || out != "" {
		return err
	}
	if _, err := cluster.ReadIdentity(ctx, n.Talos, n.Plan.Addr); err != nil {
		n.Tell("put-back/leave-etcd", "the replacement does not answer; its member goes when the old system joins")
		return nil
	}
	return rolling.Repeatable(errors.Join(
		fault.Prefix("make the replacement hand etcd's leadership over", n.Talos.EtcdForfeit(ctx, n.Plan.Addr, n.Plan.UUID)),
		fault.Prefix("make the replacement leave etcd", n.Talos.EtcdLeave(ctx, n.Plan.Addr, n.Plan.UUID)),
	))
}

// replacementOut is the goal of leaveAsReplacement: the replacement is no member, or it is off and
// etcd is healthy without it. The old system then replaces that member by name when it joins. With
// the old disk in the VM, a member with another ID is the old system itself, which has rejoined.
func (n *node) replacementOut(ctx context.Context, r *exchange.Replace) (string, error) {
	mem, err := n.Memory(ctx)
	if err != nil {
		return "", err
	}
	if !mem.ControlPlane || mem.EtcdKept || mem.EtcdMembers < 2 {
		return "etcd continues with what the disks hold", nil
	}
	vm, found, err := r.Powered(ctx)
	if err != nil {
		return "", err
	}
	if !found || !r.IsBlank(vm) {
		return fmt.Sprintf("VM %d does not have the new system disk", r.VM.ID), nil
	}
	v, err := etcd.Look(ctx, n.Talos, n.AskEtcd(), n.Plan.Node)
	if err != nil && !vm.Running {
		err = fault.WithHint(err, "if it was a member, etcd waits for its vote: start %s in Proxmox and wait until etcd is healthy, then run the same command again", vm)
	}
	if err != nil {
		return "", err
	}
	m, found, err := v.Member(n.Plan.Node)
	switch {
	case err != nil:
		return "", err
	case !found || m.ID == mem.EtcdID:
		return "the replacement is not a member of etcd", nil
	case !vm.Running && len(v.Unhealthy(n.Plan.Node)) == 0:
		return "the replacement is off, and etcd continues without it", nil
	}
	return "", nil
}

// standsStill says whether the VM may be left as it is. A VM that still runs its old system but has left etcd must be
// restarted: machined does not start etcd again within the same boot (Talos' EtcdLeaveCluster stops the service).
func (n *node) standsStill(ctx context.Context, r *exchange.Replace) (string, error) {
	reason, err := r.StandsStill(ctx)
	if err != nil || reason == "" {
		return "", err
	}
	if out, err := n.replacementOut(ctx, r); err != nil || out == "" {
		return "", err
	}
	park, err := n.Parking(ctx)
	if err != nil || !park.Record.Left {
		return reason, err
	}
	if m, err := cluster.ReadBooted(ctx, n.Talos, n.Plan.Addr); err == nil && n.IsOldBoot(ctx, m) {
		return "", nil
	}
	return reason, nil // off, or in a later boot
}

func (n *node) stopReplacement(ctx context.Context, r *exchange.Replace) error {
	vm, found, err := r.Powered(ctx)
	if err != nil || !found {
		return err
	}
	if vm.HA {
		if err := r.Sending(ctx, cluster.SentRemoveHA, exchange.LateQueue, func(ctx context.Context) error { return n.Proxmox.RemoveHA(ctx, vm.ID) }); err != nil {
			return fmt.Errorf("take %s out of Proxmox HA: %w", vm, err)
		}
		if vm, found, err = r.Powered(ctx); err != nil || !found { // without HA, another task carries out a shutdown
			return err
		}
	}
	const id = "put-back/stop" // it may have been reset after it left etcd, and have rejoined
	if vm.Running {
		if err := n.switchOff(ctx, r, id, vm, func(ctx context.Context) error { return n.leaveAsReplacement(ctx, r) }); err != nil {
			return err
		}
	}
	return n.etcd.staysOut(ctx, vm, id, func(ctx context.Context) (string, error) { return n.replacementOut(ctx, r) })
}

func (n *node) kept(ctx context.Context) (string, error) {
	park, err := n.Parking(ctx)
	if err != nil || park.Record.Open {
		return "", err
	}
	return park.KeptBy(n.Plan.Strategy), nil
}

func (n *node) frees() []step.Step {
	steps := n.FreeSteps("bring-up/finish")
	if n.Want.Surge { // what an earlier removal of the node has left
		steps = append(steps, n.FreeRemoved())
	}
	return steps
}

func (n *node) uncordon(ctx context.Context) error {
	if err := errors.Join(n.RequireOwnName(ctx), n.record.noteStage(ctx, parking.StageServes)); err != nil {
		return err
	}
	return fault.Prefix("uncordon "+n.Plan.Node, n.Kube.Uncordon(ctx, n.Plan.Node))
}

// uncordoned is the goal of uncordon: our mark is removed. A cordon by someone else stays.
func (n *node) uncordoned(ctx context.Context) (string, error) {
	k, err := n.KubeNode(ctx)
	switch {
	case err != nil:
		return "", err
	case k.Mark != nil:
		return "", nil
	case k.Unschedulable:
		return "it was cordoned before recast came", nil
	}
	return "it takes pods", nil
}

// restoreMetadata restores the metadata that users had set, if the Node is a new object: a person
// or a cloud controller deleted the old one, and the kubelet registered again. On the same object,
// every later change was intentional and stays.
func (n *node) restoreMetadata(ctx context.Context) error {
	mem, err := n.Memory(ctx)
	if err != nil {
		return err
	}
	k, err := n.KubeNode(ctx)
	if err != nil || !mem.LostMetadata(k) {
		return err
	}
	return fault.Prefix("restore metadata of node "+n.Plan.Node, n.Kube.RestoreMetadata(ctx, n.Plan.Node, mem.Metadata))
}

func (n *node) removed(ctx context.Context) (string, error) {
	if n.Plan.Found.Absent != nil { // only its disk was left
		return n.RemovedFreed(ctx)
	}
	if !n.Out.Has(n.Plan.Node) { // its steps check that
		return "", nil
	}
	if reason, err := n.kept(ctx); err != nil || reason == "" {
		return "", err
	}
	n.Out.Remove(n.Plan.Node)
	return "it is removed", nil
}

func (n *node) uncordonStep(uncordon func(context.Context) error) step.Step {
	return step.Step{ID: "uncordon", Title: "uncordon " + n.Plan.Node, Skip: n.uncordoned, Do: uncordon}
}

func (n *node) deleteNodeStep() step.Step {
	own := func(ctx context.Context, _ cluster.KubeNode) error { return n.RequireOwnName(ctx) }
	return rolling.DeleteNode(n.Node, "delete Node "+n.Plan.Node, own, nil)
}

func (n *node) keepDisks(ctx context.Context) error {
	r, err := n.record.read(ctx)
	if err != nil {
		return err
	}
	return r.KeepAll(ctx, n.Want.Surge)
}
