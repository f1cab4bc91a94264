package claim

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/recast-sh/recast/cluster"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/wait"
)

// lockWait bounds the wait for another task on a VM. recast takes no node out when a backup is due, so a person
// started that task.
const lockWait = 15 * time.Minute

// WithPatience returns a Proxmox that waits, and says so, while another task, such as a backup, locks a VM that is
// to be changed. Afterwards it makes the change only if the VM is otherwise unchanged.
func WithPatience(px cluster.Proxmox, poll time.Duration, say func(text string)) cluster.Proxmox {
	p := &patient{poll: poll, say: say}
	p.hooked = hookedTo(px, p.change)
	return p
}

type patient struct {
	hooked
	poll time.Duration
	say  func(text string)
}

// VM waits for the end of a backup that started the VM: while a stopped VM is backed up, it runs
// without a guest (pve-manager's vzdump, in qemu-server, PVE/VZDump/QemuServer.pm,
// enforce_vm_running_for_backup).
func (p *patient) VM(ctx context.Context, id cluster.VMID) (cluster.VM, error) {
	vm, err := p.px.VM(ctx, id)
	if err != nil || !forBackup(vm) {
		return vm, err
	}
	if _, err := p.free(ctx, vm.ID, forBackup); err != nil {
		return vm, err
	}
	return p.px.VM(ctx, id)
}

// VMState waits like VM if the VM may run only for a backup.
func (p *patient) VMState(ctx context.Context, id cluster.VMID) (cluster.VMState, error) {
	s, err := p.px.VMState(ctx, id)
	if err != nil || s.QMP != "prelaunch" {
		return s, err
	}
	vm, err := p.VM(ctx, id)
	return vm.State(), err
}

func forBackup(vm cluster.VM) bool { return vm.Running && vm.Lock == "backup" && vm.QMP == "prelaunch" }

// free waits while held is true for a VM; waited is false if it never was.
func (p *patient) free(ctx context.Context, id cluster.VMID, held func(cluster.VM) bool) (waited bool, err error) {
	w := wait.For{Name: fmt.Sprintf("VM %d free", id), Every: p.poll, Timeout: lockWait, Seen: func(seen string) { p.say(fmt.Sprintf("waiting for VM %d: %s", id, seen)) }}
	last := cluster.VM{ID: id}
	err = wait.Until(ctx, w, func(ctx context.Context) (bool, string, error) {
		vm, err := p.px.VM(ctx, id)
		if errors.Is(err, cluster.ErrNotFound) {
			return true, "", nil
		}
		if err != nil || !held(vm) {
			return err == nil, "", err
		}
		waited, last = true, vm
		return false, "it is locked (" + vm.Lock + ")", nil
	})
	if !waited {
		return false, err
	}
	return true, fault.WithHint(fault.VMLocked.Of(err), "%s. Then run the same command again", last.Unlock())
}

// change is the hook: it makes a change of vm that also involves others. If Proxmox refuses the change because of a
// lock, change tries again after the lock ends. A lock is part of the configuration and so changes its digest. The
// digest does not cover the others, so change checks that they are unchanged.
func (p *patient) change(ctx context.Context, vm cluster.VM, send func(context.Context, cluster.VM) error, others ...cluster.VMID) error {
	if vm.ID == 0 { // no lock delays the change
		return send(ctx, vm)
	}
	ids := append([]cluster.VMID{vm.ID}, others...)
	for start := time.Now(); ; {
		err := send(ctx, vm)
		if !errors.Is(err, cluster.ErrLocked) && !errors.Is(err, cluster.ErrChanged) || time.Since(start) >= lockWait {
			return err
		}
		before, errLook := p.look(ctx, others)
		if errLook != nil {
			return errors.Join(err, errLook)
		}
		waited := false
		for _, id := range ids {
			w, errLock := p.free(ctx, id, cluster.Locked)
			if errLock != nil {
				return errors.Join(err, errLock)
			}
			waited = waited || w
		}
		if err := p.lasting(ctx, ids, err); err != nil {
			return err
		}
		now, errLook := p.look(ctx, ids)
		if errLook != nil {
			return errors.Join(err, errLook)
		}
		for i, was := range append([]cluster.VM{vm}, before...) {
			switch {
			case sameButLock(was, now[i]) && (i == 0 || !now[i].Running): // a running target would get the disk by hot-plug
			case i == 0 && errors.Is(err, cluster.ErrChanged):
				return err
			default:
				return fmt.Errorf("%w; then %s was %w", err, now[i], cluster.ErrChanged)
			}
		}
		if !waited { // the lock had already ended
			select {
			case <-ctx.Done():
				return err
			case <-time.After(p.poll):
			}
		}
		vm = now[0]
		if err := cluster.RequireQuorum(ctx, p.px); err != nil {
			return err
		}
	}
}

func (p *patient) look(ctx context.Context, ids []cluster.VMID) ([]cluster.VM, error) {
	var vms []cluster.VM
	for _, id := range ids {
		vm, err := p.px.VM(ctx, id)
		if err != nil {
			return nil, fmt.Errorf("look up VM %d: %w", id, err)
		}
		vms = append(vms, vm)
	}
	return vms, nil
}

// sameButLock reports whether a VM is unchanged since the change was decided, apart from its lock.
func sameButLock(a, b cluster.VM) bool {
	without := func(vm cluster.VM) map[string]string {
		config := maps.Clone(vm.Config)
		delete(config, "lock")
		return config
	}
	return a.Host == b.Host && maps.Equal(without(a), without(b)) && slices.Equal(a.Pending, b.Pending)
}

// lasting returns the refusal with the lock that caused it, if no task will release that lock, else nil.
func (p *patient) lasting(ctx context.Context, ids []cluster.VMID, refused error) error {
	for _, id := range ids {
		vm, err := p.px.VM(ctx, id)
		if err != nil || vm.Lock == "" || cluster.Locked(vm) {
			continue
		}
		return fault.WithHint(fault.VMLocked.Errorf("%s is locked (%s): %w", vm, vm.Lock, refused),
			"%s", vm.Unlock())
	}
	return nil
}

// Start also waits if the VM already runs, but only to be backed up.
func (p *patient) Start(ctx context.Context, vm cluster.VM) error {
	return p.change(ctx, vm, func(ctx context.Context, vm cluster.VM) error {
		err := p.px.Start(ctx, vm)
		if err == nil {
			return nil
		}
		if now, errLook := p.px.VM(ctx, vm.ID); errLook == nil && forBackup(now) {
			return fmt.Errorf("%w (backup): %w", cluster.ErrLocked, err)
		}
		return err
	})
}
