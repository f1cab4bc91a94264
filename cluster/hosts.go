package cluster

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/recast-sh/recast/internal/fault"
)

// HostsAway is the error of a read that lacks the VMs on unavailable Proxmox hosts. Only a host itself has the
// configurations of its VMs; the rest of the cluster knows little more than their VMIDs.
type HostsAway struct {
	Hosts []AwayHost // by name
	VMs   []VM       // on these hosts, by VMID, without configuration
}

// AwayHost is a Proxmox host that does not answer.
type AwayHost struct {
	Name string
	Why  string // IsOffline, "does not answer: …"
}

// IsOffline describes a host that the Proxmox cluster has lost: it is outside the quorum, so
// nothing can be written there.
const IsOffline = "is offline"

// Key identifies a host and whether it is offline.
func (h AwayHost) Key() string { return fmt.Sprintf("%s %t", h.Name, h.Why == IsOffline) }

func (e *HostsAway) Error() string {
	return fmt.Sprintf("%s, so %s can't be read", e.Who(), Numbers(e.VMs))
}

// Who names the hosts and what is wrong with each.
func (e *HostsAway) Who() string {
	parts := Each(e.Hosts, func(h AwayHost) string { return fmt.Sprintf("Proxmox host %s %s", h.Name, h.Why) })
	return strings.Join(parts, " and ")
}

// Names lists the hosts.
func (e *HostsAway) Names() string {
	return strings.Join(Each(e.Hosts, func(h AwayHost) string { return h.Name }), " and ")
}

// VM returns the VM with that VMID if it is on one of the hosts.
func (e *HostsAway) VM(id VMID) (VM, bool) {
	if e == nil {
		return VM{}, false
	}
	return Find(e.VMs, func(vm VM) bool { return vm.ID == id })
}

// Without returns e without these VMs, and without hosts that have no others.
func (e *HostsAway) Without(ids []VMID) *HostsAway {
	left := Where(e.VMs, func(vm VM) bool { return !slices.Contains(ids, vm.ID) })
	return &HostsAway{VMs: left, Hosts: Where(e.Hosts, func(h AwayHost) bool {
		return slices.ContainsFunc(left, func(vm VM) bool { return vm.Host == h.Name })
	})}
}

// Hinted returns the error with a hint for each host.
func (e *HostsAway) Hinted() error {
	err := error(e)
	for _, h := range e.Hosts {
		err = fault.WithHint(fault.HostAway.Of(err), "see whether %s is up, and its pveproxy (pvecm status on another Proxmox node tells); then run the same command again", h.Name)
	}
	return err
}

// Numbers is "VM 9011" or "VMs 9011, 9012".
func Numbers(vms []VM) string {
	ids := Each(vms, func(vm VM) string { return fmt.Sprint(vm.ID) })
	if len(ids) == 1 {
		return "VM " + ids[0]
	}
	return "VMs " + strings.Join(ids, ", ")
}

// OnOtherHosts says where the VM and the parking VM of an unfinished replacement are if either was migrated since, and
// how to move it back; "" if both are on the host where the replacement began. vm is nil while the VM is deleted.
// Proxmox moves a disk only between VMs of one host, on shared storages too (qemu-server, API2/Qemu.pm, move_vm_disk).
func OnOtherHosts(vm *VM, park VM, begun string, away *HostsAway, id VMID) string {
	if there, known := away.VM(id); vm == nil && known {
		return fmt.Sprintf("VM %d is on %s, and %s: bring %s back first; nothing was destroyed", id, there.Host, away.Who(), there.Host)
	}
	var moved []VM
	for _, m := range []*VM{vm, &park} {
		if m != nil && m.Host != begun {
			moved = append(moved, *m)
		}
	}
	if len(moved) == 0 {
		return ""
	}
	var is, back []string
	for _, m := range moved {
		is = append(is, m.String())
		back = append(back, fmt.Sprintf("on %s: %s", m.Host, MigrateCommand(m, begun)))
	}
	return fmt.Sprintf("it was begun on %s, and %s was moved since: disks can be handed over on one host only. Bring it back (%s), then run the same command again; nothing was destroyed",
		begun, strings.Join(is, " and "), strings.Join(back, "; "))
}

// MigrateCommand is the command that migrates a VM. A stopped VM takes its local disks along
// without an option (qemu-server, PVE/QemuMigrate.pm).
func MigrateCommand(vm VM, to string) string {
	command := fmt.Sprintf("qm migrate %d %s", vm.ID, to)
	if vm.Running {
		command += " --online --with-local-disks"
	}
	return command
}

// RequireQuorum fails if the Proxmox cluster has no quorum. It is called right before every destructive call: without
// quorum Proxmox deletes a VM's disks first and fails afterwards.
func RequireQuorum(ctx context.Context, px HostReader) error {
	quorate, err := px.Quorate(ctx)
	if err != nil {
		return fmt.Errorf("ask Proxmox for quorum: %w", err)
	}
	if !quorate {
		return fault.WithHint(fault.NoQuorum.Refusedf("the Proxmox cluster has no quorum"), "look at pvecm status on a Proxmox node, then run the same command again")
	}
	return nil
}
