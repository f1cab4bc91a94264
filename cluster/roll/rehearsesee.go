package roll

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/wait"
	"github.com/recast-sh/recast/internal/words"
)

// agentExtension reports the machine's addresses to its host. It does so in maintenance mode too:
// none of its dependencies needs a configuration.
const agentExtension = "qemu-guest-agent"

func (t *trial) hasAgent() bool {
	return slices.ContainsFunc(t.Model.Wanted.Build.Extensions, func(e cluster.LockedExtension) bool { return e.Name == agentExtension })
}

// scratchMargin is the memory in bytes that must stay free on the host beside the scratch VM.
const scratchMargin = 512 << 20

// scratchBytes is more than EFI variables or a cloud-init drive need (528 KiB and 4 MiB).
const scratchBytes = 16 << 20

// requireScratchRoom refuses if a scratch VM would take memory from the running nodes: a host
// without free memory kills one of its VMs.
func (t *trial) requireScratchRoom(ctx context.Context) error {
	host := t.Host
	need := int64(t.memoryMiB())<<20 + scratchMargin
	free, err := t.Proxmox.FreeMemory(ctx, host)
	switch {
	case err != nil:
		return fmt.Errorf("look at the memory of %s: %w", host, err)
	case free < need:
		return fault.WithHint(fault.Refusedf("%s has %s of memory free, and a scratch VM is to leave %s beside its %s", host, cluster.Size(free), cluster.Size(scratchMargin), cluster.Size(need-scratchMargin)),
			"move a VM to another host, or roll without --rehearse: no node was touched")
	}
	room := cluster.RoomOn(ctx, t.Proxmox, host)
	if room.Err != nil {
		return fmt.Errorf("look at the storages of %s: %w", host, room.Err)
	}
	takes := t.takes()
	for _, name := range slices.Sorted(maps.Keys(takes)) {
		i := slices.IndexFunc(room.Storages, func(s cluster.StorageRoom) bool { return s.Name == name })
		if i < 0 || !room.Storages[i].Active || room.Storages[i].Free < takes[name] {
			return fault.WithHint(fault.StorageFull.Refusedf("storage %s on %s has no room for the drives of a scratch VM, which take %s", name, host, cluster.Size(takes[name])),
				"pvesm status there says how it stands; recast prune frees old system disks")
		}
	}
	return nil
}

// takes is how many bytes the scratch VM takes on each storage that gets volumes of it.
func (t *trial) takes() map[string]int64 {
	bytes := map[string]int64{}
	if d, err := cluster.ParseDisk("efidisk0", t.Model.Found.VM.Config["efidisk0"]); err == nil {
		bytes[d.Storage()] += scratchBytes
	}
	if t.Addr.IsValid() {
		bytes[t.cloudInitStorage()] += scratchBytes
	}
	if t.Disk != "" {
		if d, err := t.systemDisk(); err == nil { // config refuses what can't be read
			bytes[d.Storage()] += t.Model.Wanted.Build.DiskBytes
		}
	}
	return bytes
}

// requireWhole refuses a disk that is smaller than the one in its image, as grow of a prepared disk
// does: more of it is seen once the scratch VM has booted it.
func (t *trial) requireWhole(vm cluster.VM) error {
	if t.Disk == "" {
		return nil
	}
	key, want := t.Model.System.Key, t.Model.Wanted.Build.DiskBytes
	d, err := cluster.ParseDisk(key, vm.Config[key])
	if err == nil && d.SizeBytes() < uint64(max(want, 0)) {
		err = fault.DiskMismatch.Refusedf("it has %d bytes, and the disk in %s has %d: it was not imported whole", d.SizeBytes(), t.Disk, want)
	}
	return fault.WithHint(fault.Prefix(fmt.Sprintf("%s of %s", key, vm), err), "no node was touched")
}

// requireFreeAddress refuses a fixed address that a node has, or at which anything answers, even
// with a refusal. If that can't be checked, nothing is tried out.
func (t *trial) requireFreeAddress(ctx context.Context) error {
	if !t.Addr.IsValid() {
		return nil
	}
	addr := t.Addr.Addr()
	taken := func(by string) error {
		return fault.WithHint(fault.Refusedf("%s is to be the address of a scratch VM, and %s has it", addr, by),
			"roll.rehearse.addresses must be unused, and DHCP must not give them out; a firewall on the way that refuses connections looks like a machine: no node was touched")
	}
	nodes, err := t.Kube.Nodes(ctx)
	if err != nil {
		return fmt.Errorf("see whether a node has %s: %w", addr, err)
	}
	for _, n := range nodes {
		if slices.Contains(n.Addresses, addr) {
			return taken("node " + n.Name)
		}
	}
	by, err := t.Maintenance.Taken(ctx, addr)
	switch {
	case err != nil:
		return fault.WithHint(err, "without that address in roll.rehearse.addresses DHCP gives one; roll --rehearse=false does without a rehearsal: no node was touched")
	case by != "":
		return taken(by)
	}
	return nil
}

// see waits until the scratch VM is in maintenance mode, and checks what it has booted. If its
// address can't be found, see only checks that it stays on.
func (t *trial) see(ctx context.Context, vm cluster.VM, was *Rehearsed) error {
	var blind error
	where := func(context.Context) ([]netip.Addr, error) { return []netip.Addr{t.Addr.Addr()}, nil }
	switch {
	case t.Addr.IsValid():
	case t.hasAgent():
		where = func(ctx context.Context) ([]netip.Addr, error) {
			addrs, err := t.Proxmox.GuestAddrs(ctx, vm)
			if fault.KindOf(err) == fault.Refused {
				blind = err
			}
			return addrs, err
		}
	default:
		was.Unseen = "the image has no " + agentExtension + " to tell its address, and roll.rehearse.addresses has none for it"
		return t.staysOn(ctx, vm)
	}
	m, err := t.inMaintenance(ctx, vm, where, &blind)
	if blind != nil && ctx.Err() == nil {
		was.Unseen = fmt.Sprintf("the token may not ask its guest agent (%v)", blind)
		return t.staysOn(ctx, vm)
	}
	if err != nil {
		return t.hint(err)
	}
	was.Addr = m.at
	return t.judge(vm, m.Machine)
}

// judge compares what the scratch VM runs with the build, and the disk that it was made with, as a roll
// does with a node.
func (t *trial) judge(vm cluster.VM, m cluster.Machine) error {
	b := t.Model.Wanted.Build
	problems := b.CheckBooted(m.RunningSystem)
	for _, e := range b.Extensions {
		if !slices.Contains(m.Extensions, cluster.ExtensionEntry{Name: e.Name, Version: e.Version}) {
			problems = append(problems, fault.Refusedf("what it booted has no extension %s %s", e.Name, e.Version))
		}
	}
	if t.Disk != "" {
		mem := parking.Memory{VM: vm, SystemKey: t.Model.System.Key, DiskSerial: planning.ScratchSerial(t.uuid)}
		problems = append(problems, mem.WrongBlank(m, false, true)...)
	}
	if len(problems) == 0 {
		return nil
	}
	return fault.WithHint(fault.Refusedf("%s on %s: %w", t.image(), t.Host, errors.Join(problems...)), "no node was touched")
}

func (t *trial) image() string {
	if t.Disk != "" {
		return "the disk image " + t.Disk
	}
	return "the boot ISO " + t.ISO
}

// foundMachine is a machine and the address at which it answers.
type foundMachine struct {
	cluster.BlankMachine
	at netip.Addr
}

func (t *trial) inMaintenance(ctx context.Context, vm cluster.VM, where func(context.Context) ([]netip.Addr, error), blind *error) (found foundMachine, err error) {
	err = t.wait(ctx, fmt.Sprintf("scratch VM %d in maintenance mode", vm.ID), func(ctx context.Context) (bool, string, error) {
		if _, err := t.on(ctx, vm.ID); err != nil {
			return false, "", err
		}
		addrs, err := where(ctx)
		if *blind != nil {
			err = wait.Stop(err)
		}
		if err != nil {
			return false, "", err
		}
		seen := "it runs, and has no address yet"
		for _, addr := range addrs {
			m, err := t.Maintenance.MaintenanceMachine(ctx, addr)
			switch {
			case err != nil:
				seen = err.Error()
			case m.UUID != t.uuid:
				return false, "", wait.Stop(fault.WithHint(fault.UUIDMismatch.Refusedf("%s answers with UUID %s, not with %s of scratch VM %d", addr, words.OrNone(m.UUID), t.uuid, vm.ID),
					"another machine has that address: see who has it; nothing was done to it"))
			case m.Stage == "maintenance" && m.Ready:
				found = foundMachine{m, addr}
				return true, "", nil
			default:
				seen = "stage " + m.Stage
			}
		}
		return false, seen, nil
	})
	return found, err
}

// unseenFor is how long a scratch VM whose address can't be found has to stay on.
const unseenFor = time.Minute

// staysOn only proves that Proxmox can start such a VM and that its emulator does not end: Proxmox
// does not know what a guest does.
func (t *trial) staysOn(ctx context.Context, vm cluster.VM) error {
	since := time.Now()
	return t.hint(t.wait(ctx, fmt.Sprintf("scratch VM %d stays on", vm.ID), func(ctx context.Context) (bool, string, error) {
		qmp, err := t.on(ctx, vm.ID)
		return err == nil && qmp == "running" && time.Since(since) >= min(unseenFor, t.Timing.Boot/2), "it runs", err
	}))
}

// on returns the status of the scratch VM's emulator. If the VM is off, the error ends the wait.
func (t *trial) on(ctx context.Context, id cluster.VMID) (qmp string, err error) {
	vm, err := t.Proxmox.VM(ctx, id)
	switch {
	case errors.Is(err, cluster.ErrNotFound) || err == nil && vm.UUID() != t.uuid:
		return "", wait.Stop(fmt.Errorf("scratch VM %d was deleted by someone", id))
	case err != nil:
		return "", fmt.Errorf("look up VM %d: %w", id, err)
	case !vm.Running:
		return "", wait.Stop(fmt.Errorf("%s is off: its guest has switched it off, or someone has", vm))
	case vm.QMP != "running":
		return vm.QMP, fmt.Errorf("%s is on, but its emulator says %q", vm, vm.QMP)
	}
	return vm.QMP, nil
}

func (t *trial) hint(err error) error {
	if err == nil {
		return nil
	}
	return fault.WithHint(fmt.Errorf("%s with %s on %s: %w", t.image(), t.Firmware, t.Host, err),
		"no node was touched. A VM made by hand with these settings and that image shows on its console why it does not come up; a way to it is needed as well: DHCP for its network, or roll.rehearse.addresses. "+
			"Without --rehearse a roll would have found out with %s down", strings.Join(t.Nodes, ", "))
}
