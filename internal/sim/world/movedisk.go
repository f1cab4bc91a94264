package world

import (
	"cmp"
	"fmt"
	"strings"
)

// MoveRequest asks for a disk to be given to another VM.
type MoveRequest struct {
	ID           int
	Disk         string // key on the VM that has it
	Target       int
	TargetDisk   string // key on the other VM; "": the same
	Digest       string
	TargetDigest string
}

// MoveDisk gives a disk to another VM on the same host: everything is checked
// at once and again in the task that does it.
func (w *World) MoveDisk(user, host string, r MoveRequest) (string, error) {
	r.TargetDisk = cmp.Or(r.TargetDisk, r.Disk)
	unlock, err := w.lockBoth(r.ID, r.Target)
	if err != nil {
		return "", err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	defer unlock()
	if err := w.checkMoveRights(user, r); err != nil {
		return "", err
	}
	if err := w.checkMove(user, host, r); err != nil {
		return "", err
	}
	id := fmt.Sprintf("%d-%s>%d-%s", r.ID, r.Disk, r.Target, r.TargetDisk)
	return w.startTask(host, "qmmove", id, user, func(t *task) error {
		if err := t.begin(taskTime / 2); err != nil {
			return err
		}
		unlock, err := w.lockBoth(r.ID, r.Target)
		if err != nil {
			return err
		}
		defer unlock()
		w.mu.Lock()
		defer w.mu.Unlock()
		if err := w.checkMove(user, host, r); err != nil {
			return err
		}
		return w.reassign(t, w.vms[r.ID], w.vms[r.Target], r)
	}), nil
}

// lockBoth locks two configurations in the order of their VMIDs.
func (w *World) lockBoth(a, b int) (unlock func(), err error) {
	first, err := w.lockConfig(min(a, b))
	if err != nil || a == b {
		return first, err
	}
	second, err := w.lockConfig(max(a, b))
	if err != nil {
		first()
		return nil, err
	}
	return func() { second(); first() }, nil
}

func (w *World) checkMoveRights(user string, r MoveRequest) error {
	for _, id := range []int{r.ID, r.Target} {
		if err := w.check(user, vmPath(id), "VM.Config.Disk"); err != nil {
			return err
		}
	}
	return nil
}

func (w *World) checkMove(user, host string, r MoveRequest) error {
	if r.ID == r.Target {
		return BadParam("target-vmid", "must be different than source VMID to reassign disk")
	}
	source, err := w.vmOn(host, r.ID)
	if err != nil {
		return err
	}
	target, ok := w.vms[r.Target]
	if !ok {
		return noConfigFile(host, r.Target)
	}
	if target.host != host {
		return failf("Both VMs need to be on the same node (%s != %s)", host, target.host)
	}
	for _, side := range []struct {
		vm     *vm
		digest string
	}{{source, r.Digest}, {target, r.TargetDigest}} {
		if err := side.vm.checkMovable(side.digest); err != nil {
			return err
		}
	}
	if err := w.checkMoveDisk(user, source, r); err != nil {
		return err
	}
	if _, taken := target.config[r.TargetDisk]; taken {
		return failf("Target disk key '%s' is already in use for VM '%d'", r.TargetDisk, r.Target)
	}
	return nil
}

func (v *vm) checkMovable(digest string) error {
	if err := v.checkLock(); err != nil {
		return err
	}
	if v.config["template"] == "1" {
		return failf("Templates can't be used as source or target for disk reassignment")
	}
	if digest != "" && digest != v.digest() {
		return failf("VM %d: detected modified configuration - file changed by other user? Try again.", v.id)
	}
	return nil
}

func (w *World) checkMoveDisk(user string, source *vm, r MoveRequest) error {
	value, ok := source.config[r.Disk]
	if !ok {
		return failf("Disk '%s' for VM '%d' does not exist", r.Disk, r.ID)
	}
	d, err := parseDrive(r.Disk, value)
	switch {
	case err != nil:
		return err
	case d.cdrom():
		return failf("CD drive contents can't be moved to another VM")
	case source.inSnapshot(d.volid):
		return failf("Can't move disk used by a snapshot to another VM")
	case source.proc != nil && !strings.HasPrefix(r.Disk, "unused"):
		return failf("Cannot move disk to another VM while the source VM is running - detach first")
	case !isDriveKey(r.TargetDisk):
		return BadParam("target-disk", "value '%s' does not have a value in the enumeration", r.TargetDisk)
	}
	s, _, err := w.volume(d.volid, source.host)
	if err != nil {
		return err
	}
	if s.NoRename {
		return failf("Storage does not support moving this disk to another VM")
	}
	return w.check(user, "/storage/"+s.ID, "Datastore.AllocateSpace")
}

// reassign renames the volume, then writes the source's configuration, then
// the target's, in Proxmox's order: whatever breaks in between leaves a volume
// without a name in any configuration. It does not ask whose the volume is.
func (w *World) reassign(t *task, source, target *vm, r MoveRequest) error {
	d, err := parseDrive(r.Disk, source.config[r.Disk])
	if err != nil {
		return err
	}
	s, vol, err := w.volume(d.volid, source.host)
	if err != nil {
		return err
	}
	t.logf("moving disk '%s' from VM '%d' to '%d'", r.Disk, r.ID, r.Target)
	delete(s.at(source.host), vol.name)
	vol.name = s.freeName(source.host, target.id, vol.format)
	s.at(source.host)[vol.name] = vol
	d.volid = s.ID + ":" + vol.name
	if err := w.writeConfig(source); err != nil {
		return err
	}
	delete(source.config, r.Disk)
	delete(source.pending, r.Disk)
	delete(source.pendingDelete, r.Disk)
	source.dropFromBoot(r.Disk)
	t.logf("removing disk '%s' from VM '%d' config", r.Disk, r.ID)
	value, _, err := w.resolveDrive(target, r.TargetDisk, d.String(), nil)
	if err != nil {
		return err
	}
	target.pending[r.TargetDisk] = value
	if target.proc == nil {
		w.applyPending(target)
	} else if err := w.hotplug(target); err != nil {
		return err
	}
	t.logf("update VM %d: -%s %s", r.Target, r.TargetDisk, value)
	return nil
}
