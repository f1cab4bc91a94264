package roll

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/exchange"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
)

func (n *node) keepFirewall(ctx context.Context) error {
	r, err := n.record.read(ctx)
	if err != nil {
		return err
	}
	return r.KeepFirewall(ctx)
}

func (n *node) recall(ctx context.Context) (parking.Memory, error) {
	if n.Plan.Rebuild != "" {
		return rememberLost(ctx, n.Node)
	}
	vm, err := n.Proxmox.VM(ctx, n.Plan.VMID)
	if err != nil {
		return parking.Memory{}, fmt.Errorf("look up VM %d: %w", n.Plan.VMID, err)
	}
	m, err := cluster.ReadMachine(ctx, n.Talos, n.Plan.Addr)
	if err != nil {
		return parking.Memory{}, fmt.Errorf("read machine %s: %w", n.Plan.Addr, err)
	}
	if m.UUID != vm.UUID() {
		return parking.Memory{}, fault.UUIDMismatch.Refusedf("%s answers with UUID %s, but %s has %s", n.Plan.Addr, m.UUID, vm, vm.UUID())
	}
	if vm.Host != n.Plan.Host { // the parking VM is on the planned host
		return parking.Memory{}, n.MovedSince(vm)
	}
	if n.Plan.Found.VM != nil {
		vm.Pods = n.Plan.Found.VM.Pods
	}
	if err := vm.KnowPods(ctx, n.Kube.PodVolumes); err != nil {
		return parking.Memory{}, err
	}
	system, err := cluster.ProveSystemDisk(vm, m, n.Want.SystemDisk)
	if err != nil {
		return parking.Memory{}, err
	}
	persistent, err := n.provenDisks(vm, m, system)
	if err != nil {
		return parking.Memory{}, err
	}
	k, err := n.KubeNode(ctx)
	if err != nil {
		return parking.Memory{}, err
	}
	mem, err := exchange.Remember(ctx, n.Proxmox, vm, system, n.record.opening())
	if err != nil {
		return parking.Memory{}, err
	}
	vm = mem.VM
	mem.Persistent, mem.BootID, mem.Metadata, mem.NodeUID = persistent, m.BootID, k.Metadata, k.UID
	mem.ControlPlane, mem.EtcdKept, mem.HostArch = m.ControlPlane, n.Plan.EtcdKept, n.Plan.Found.Ties.HostArch
	mem.Old.Build, mem.Old.Talos, mem.Old.Entry = m.Schematic.LockHash(), m.TalosVersion, k.Corrected(m.RunningSystem, m.BootID).BootEntry
	mem.Old.Kubernetes, mem.Old.EtcdOn = k.KubeletVersion, m.ControlPlane && !n.Plan.EtcdKept
	drives, err := vm.Bootable()
	if err != nil {
		return parking.Memory{}, err
	}
	mem.Pools, mem.Extensions, mem.Stuck = m.Pools(), m.Extensions, notToCome(m)
	if mem.Volumes, err = cluster.PersistentVolumes(vm, drives, m, system); err != nil {
		return parking.Memory{}, err
	}
	if mem.Blank, err = n.reachBlank(vm, m); err != nil {
		return parking.Memory{}, err
	}
	if err := n.etcd.remember(ctx, &mem); err != nil {
		return parking.Memory{}, err
	}
	config, err := n.Talos.MachineConfig(ctx, n.Plan.Addr)
	if err != nil {
		return parking.Memory{}, fmt.Errorf("read machine configuration of %s: %w", n.Plan.Addr, err)
	}
	if mem.Old.Config, err = planning.ConfigHash(n.Maintenance, config); err != nil {
		return parking.Memory{}, err
	}
	mem.Kubernetes, err = n.config.runsKubernetes(ctx)
	return mem, err
}

// notToCome lists the volumes that are stuck, and those that somebody made on the system disk: Talos makes none of
// them again.
func notToCome(m cluster.Machine) []cluster.VolumeStatus {
	out := m.Stuck()
	for _, s := range m.VolumeStatuses {
		if strings.HasPrefix(s.ID, cluster.ExistingVolume) && s.Disk == m.SystemDisk {
			out = append(out, cluster.VolumeStatus{ID: s.ID, Phase: "missing"})
		}
	}
	return out
}

// provenDisks returns the persistent disks. The plan has refused disks that could not be proven in
// a new VM, but what is on them may have changed since.
func (n *node) provenDisks(vm cluster.VM, m cluster.Machine, system cluster.Disk) ([]parking.PersistentDisk, error) {
	if n.Plan.Strategy.VM() == cluster.VMAgain {
		problems, err := parking.Unprovable(vm, m, system.Key)
		if err != nil {
			return nil, err
		}
		if len(problems) > 0 {
			return nil, fault.WithHint(fault.PlanMoved.Refusedf("%s", strings.Join(cluster.Texts(problems), "; ")), "run recast plan and look again")
		}
	}
	known, _, err := parking.PersistentDisks(vm, m, system.Key)
	return known, err
}

// remember writes the journal first, then opens the record. What both contain is enough to finish
// on any machine. The machine configuration is secret, so only the journal has it.
func (n *node) remember(ctx context.Context) error {
	if park, err := n.Parking(ctx); err == nil && park.Record.Open && park.Record.Run == n.Run {
		mem, err := n.Memory(ctx)
		if err != nil {
			return err
		}
		// Only the machine configuration is missing or damaged: the journal was lost.
		sum, err := n.config.remember(ctx, mem.Kubernetes)
		if err == nil && sum != park.Record.Config {
			err = n.UpdateRecord(ctx, func(rec *parking.Record) { rec.Config = sum })
		}
		if err != nil {
			return err
		}
		return n.keepFirewall(ctx)
	}
	mem, err := n.recall(ctx)
	if err != nil {
		return err
	}
	rec, err := n.record.opening().Opened(mem, nil)
	if err != nil {
		return err
	}
	if err := n.record.of(mem, rec, 0).RequirePossible(ctx); err != nil {
		return err
	}
	if n.Plan.Strategy.Installs() {
		if mem.ConfigSum, err = n.config.remember(ctx, mem.Kubernetes); err != nil {
			return err
		}
	}
	if err := n.Journal.Put(n.Key("memory"), mem); err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	if err := n.record.open(ctx, mem); err != nil {
		return err
	}
	return n.keepFirewall(ctx)
}

// opened returns the parking VM; is says whether its record is open, and this run's.
func (n *node) opened(ctx context.Context) (park parking.Parking, is bool, err error) {
	park, err = n.Parking(ctx)
	if errors.Is(err, cluster.ErrNotFound) {
		return park, false, nil
	}
	return park, err == nil && park.Record.Open && park.Record.Run == n.Run, err
}

func (n *node) remembered(ctx context.Context) (string, error) {
	park, is, err := n.opened(ctx)
	if err != nil || !is {
		return "", err
	}
	if _, err := n.Memory(ctx); err != nil {
		return "", err
	}
	if n.Plan.Strategy.Installs() {
		if _, err := n.config.read(ctx); err != nil {
			return "", nil //nolint:nilerr // read from the node while it still answers
		}
	}
	r, err := n.record.read(ctx)
	if err != nil {
		return "", err
	}
	if kept, err := r.FirewallKept(ctx); err != nil || !kept {
		return "", err
	}
	return fmt.Sprintf("remembered by %s", park.VM), nil
}

// takenDown is the goal of take-down. It does not hold until this run's record is open.
func (n *node) takenDown(ctx context.Context) (string, error) {
	park, is, err := n.opened(ctx)
	if err != nil || !is {
		return "", err
	}
	r, err := n.record.with(ctx, park)
	if err != nil {
		return "", err
	}
	return r.TakenDown(ctx)
}

// reachBlank returns the VM setting that gives the blank machine its address, while the present machine still says
// where that address comes from.
func (n *node) reachBlank(vm cluster.VM, m cluster.Machine) (*cluster.BlankSetting, error) {
	if !n.Plan.Strategy.Installs() {
		return nil, nil // the system that comes back has its configuration
	}
	set, against := cluster.BlankAddress(n.Plan.Addr, vm, m, n.Want.Build)
	if against.Text != "" {
		return nil, fault.WithHint(fault.PlanMoved.Refusedf("%s: %s", n.Plan.Node, against.Text), "it was not so when the plan was made: run recast plan and look again")
	}
	return set, nil
}

// rememberStep opens the record.
func (n *node) rememberStep(title string, open func(context.Context) error) step.Step {
	return step.Step{ID: "remember", Title: title, Skip: n.remembered, Do: open}
}
