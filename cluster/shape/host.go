package shape

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
)

// host compares the VM's host. Whether the VM can be migrated shows with what Proxmox says: see Settle.
func (c *comparison) host(wanted string) {
	if wanted != "" && wanted != c.vm.Host {
		c.add(Difference{Key: hostKey, Found: c.vm.Host, Wanted: wanted, When: Never, Why: byHand(c.vm, wanted)})
	}
}

const hostKey = "host"

func byHand(vm cluster.VM, to string) string {
	return fmt.Sprintf("on %s: %s", vm.Host, cluster.MigrateCommand(vm, to))
}

// Moves is the host to which the VM is to be migrated at that time; "" if to none.
func (ds Differences) Moves(w When) string {
	for _, d := range ds.At(w) {
		if d.Key == hostKey {
			return d.Wanted
		}
	}
	return ""
}

// Settle says when the difference of the host is put right, if there is one.
func (ds Differences) Settle(vm cluster.VM, m cluster.Migration, storages []cluster.Storage) {
	for i := range ds {
		d := &ds[i]
		if d.Key != hostKey {
			continue
		}
		off := len(slices.DeleteFunc(ds.At(Off), func(o Difference) bool { return o.Key == hostKey })) > 0
		d.When, d.Why = Migratable(vm, d.Wanted, m, storages)
		if d.When == Off && !off {
			d.When, d.Why = Never, d.Why+", and nothing else needs it off"
			if vm.HA {
				d.Why += fmt.Sprintf(": ha-manager migrate vm:%d %s", vm.ID, d.Wanted)
			} else {
				d.Why += ": with the VM off, " + byHand(cluster.VM{ID: vm.ID, Host: vm.Host}, d.Wanted)
			}
		}
	}
}

// Migratable says when a VM can be migrated to another host. Proxmox copies disks that only the old host
// has and deletes them there. recast leaves that to a person: a copy of a disk is not the disk that it
// protects.
func Migratable(vm cluster.VM, to string, m cluster.Migration, storages []cluster.Storage) (w When, why string) {
	var against []string
	if local := localVolumes(vm, m, storages); len(local) > 0 {
		against = append(against, fmt.Sprintf("%s is on a storage of %s only, and a migration would replace it by a copy", strings.Join(local, ", "), vm.Host))
	}
	switch {
	case m.Allowed:
	case len(m.Lacks) == 0:
		against = append(against, "Proxmox does not know "+to+" as a host for it")
	default:
		against = append(against, fmt.Sprintf("Proxmox does not let it go to %s: %s", to, strings.Join(m.Lacks, ", ")))
	}
	if len(m.WhileOff) > 0 {
		against = append(against, fmt.Sprintf("%s is a device of %s", strings.Join(m.WhileOff, ", "), vm.Host))
	}
	if len(m.Along) > 0 {
		against = append(against, "Proxmox HA would move "+strings.Join(m.Along, ", ")+" with it")
	}
	switch {
	case len(against) > 0:
		return Never, strings.Join(against, "; ") + ": " + byHand(vm, to)
	case vm.HA: // its request has no task that ends with the migration, and may be carried out any time later
		return Off, "Proxmox HA manages it, and would migrate it when it sees fit"
	case len(m.Resources) > 0:
		return Off, strings.Join(m.Resources, ", ") + " keeps it from being migrated while it runs"
	case !vm.Running:
		return Off, "it does not run"
	}
	return Live, ""
}

// mover reads what is against a migration.
type mover interface {
	cluster.TieReader
	cluster.StorageReader
}

// RequireMigratable refuses a migration that is not possible at that time, or not any more.
func RequireMigratable(ctx context.Context, px mover, vm cluster.VM, to string, w When) error {
	said, err := px.Migration(ctx, vm, to)
	if err != nil {
		return fmt.Errorf("ask Proxmox whether %s can be migrated to %s: %w", vm, to, err)
	}
	storages, err := px.Storages(ctx)
	if err != nil {
		return fmt.Errorf("list the storages: %w", err)
	}
	if now, why := Migratable(vm, to, said, storages); now != w {
		return fault.WithHint(fault.PlanMoved.Refusedf("%s can no longer be migrated to %s as planned: %s", vm, to, why), "run recast plan and look again")
	}
	return nil
}

// localVolumes lists the volumes that only the VM's host has, for all that Proxmox or its storages say.
// An unused disk and the medium of a drive count, too.
func localVolumes(vm cluster.VM, m cluster.Migration, storages []cluster.Storage) []string {
	local := slices.Clone(m.LocalDisks)
	for _, key := range slices.SortedFunc(maps.Keys(vm.Config), cluster.CompareKeys) {
		if !cluster.IsDiskKey(key) {
			continue
		}
		volid, _, _ := strings.Cut(vm.Config[key], ",")
		volid = strings.TrimPrefix(volid, "file=")
		storage, _, named := strings.Cut(volid, ":")
		shared := named && slices.ContainsFunc(storages, func(s cluster.Storage) bool { return s.Name == storage && s.Shared })
		if volid != "none" && !shared && !slices.Contains(local, volid) {
			local = append(local, volid)
		}
	}
	return local
}
