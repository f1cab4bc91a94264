package world

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// MoveRequest asks to reassign a disk to another VM.
type MoveRequest struct {
	ID           int
	Disk         string // key on the source VM
	Target       int
	TargetDisk   string // key on the target VM; "": the same
	Digest       string
	TargetDigest string
}

// MoveDisk reassigns a disk to another VM on the same host. It checks everything at once
// and again in the task.
func (w *World) MoveDisk(user, host string, r MoveRequest) (string, error) {
	r.TargetDisk = cmp.Or(r.TargetDisk, r.Disk)
	w.mu.Lock()
	defer w.mu.Unlock()
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

// lockBoth locks two configurations, the source's first.
func (w *World) lockBoth(source, target int) (unlock func(), err error) {
	first, err := w.lockConfig(source)
	if err != nil {
		return nil, err
	}
	second, err := w.lockConfig(target)
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
	source, target := w.vms[r.ID], w.vms[r.Target]
	switch {
	case source == nil:
		return failf("could not find VM %d", r.ID)
	case target == nil:
		return failf("could not find target VM %d", r.Target)
	case source.host != target.host:
		return failf("Both VMs need to be on the same node (%s != %s)", source.host, target.host)
	case source.host != host:
		return noConfigFile(host, r.ID)
	}
	for _, v := range []*vm{source, target} {
		if err := v.checkLock(); err != nil {
			return err
		}
	}
	if source.config["template"] == "1" || target.config["template"] == "1" {
		return failf("Can't move disks from or to template VMs")
	}
	if err := source.checkMoveDigest(r.Digest); err != nil {
		return err
	}
	if err := target.checkMoveDigest(r.TargetDigest); err != nil {
		return err
	}
	if _, ok := source.config[r.Disk]; !ok {
		return failf("Disk '%s' for VM '%d' does not exist", r.Disk, r.ID)
	}
	if _, taken := target.config[r.TargetDisk]; taken {
		return failf("Target disk key '%s' is already in use for VM '%d'", r.TargetDisk, r.Target)
	}
	return w.checkMoveDisk(user, source, r)
}

func (v *vm) checkMoveDigest(digest string) error {
	if digest != "" && digest != v.digest() {
		return failf("VM %d: detected modified configuration - file changed by other user? Try again.", v.id)
	}
	return nil
}

// dropFromBoot removes a deleted key from the boot order.
func (v *vm) dropFromBoot(key string) {
	if boot, ok := v.config["boot"]; ok {
		v.config["boot"] = withoutBoot(boot, key)
	}
}

func (w *World) checkMoveDisk(user string, source *vm, r MoveRequest) error {
	d, err := parseDrive(r.Disk, source.config[r.Disk])
	if err != nil {
		return err
	}
	storageID, _, managed := strings.Cut(d.volid, ":")
	s, known := w.storages[storageID]
	switch {
	case !isDriveKey(r.TargetDisk):
		return BadParam("target-disk", "value '%s' does not have a value in the enumeration", r.TargetDisk)
	case d.cdrom():
		return failf("CD drive contents can't be moved to another VM")
	case !managed:
		return failf("Volume '%s' not managed by PVE", d.volid)
	case !known:
		return failf("storage '%s' does not exist", storageID)
	case source.inUse(d.volid, r.Disk):
		return failf("Can't move disk used by a snapshot to another VM")
	case !s.renames():
		return failf("Storage does not support moving of this disk to another VM")
	case source.proc != nil && !strings.HasPrefix(r.Disk, "unused"):
		return failf("Cannot move disk to another VM while the source VM is running - detach first")
	case !fitsKey(r.TargetDisk, source.config[r.Disk]):
		return failf("failed to parse source disk for target disk format - %s", misfit(r.TargetDisk, source.config[r.Disk]))
	case w.replicates(r.Target) != "" && !s.replicates():
		return failf("Cannot move disk to a replicated VM. Storage does not support replication!")
	}
	return w.check(user, "/storage/"+s.ID, "Datastore.AllocateSpace")
}

// fitsKey says whether a drive's value is valid for another key: every bus has its own
// options.
func fitsKey(target, value string) bool { return misfit(target, value) == "" }

func misfit(target, value string) string {
	if strings.HasPrefix(target, "unused") {
		return "" // it keeps only the volume
	}
	_, err := parseDrive(target, value)
	if e, ok := errors.AsType[*Error](err); ok {
		return strings.TrimSuffix(strings.TrimPrefix(e.Params[target], "invalid format - "), "\n")
	}
	return ""
}

// reassign renames the volume, then writes the source's configuration, then the target's,
// in Proxmox's order: after an error in between, no configuration names the volume. It
// does not check the volume's owner.
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
	if err := s.activate(source.host); err != nil { // rename_volume of Storage.pm
		return err
	}
	w.violateRename(d.volid, vol)
	if err := s.rename(source.host, vol, basePath(vol.name)+s.freeName(source.host, target.id, vol.format)); err != nil {
		return err
	}
	d.volid, vol.synced = s.ID+":"+vol.name, nil // it removes the snapshots of replications
	if w.stopsMove(t, AfterRename) {
		return errInterrupted
	}
	if slices.Contains(bootOrder(source.config["boot"]), r.Disk) {
		t.logf("removing disk '%s' from boot order config", r.Disk)
	}
	t.logf("removing disk '%s' from VM '%d' config", r.Disk, r.ID)
	err = w.edit(source, func() error {
		delete(source.config, r.Disk)
		source.dropFromBoot(r.Disk)
		return nil
	})
	if err != nil {
		return err
	}
	if w.stopsMove(t, AfterSource) {
		return errInterrupted
	}
	if strings.HasPrefix(r.TargetDisk, "unused") {
		return w.edit(target, func() error { target.config[r.TargetDisk] = d.volid; return nil })
	}
	t.logf("update VM %d: -%s %s", r.Target, r.TargetDisk, d)
	return w.change("", target, ChangeRequest{ID: target.id, Set: map[string]string{r.TargetDisk: d.String()}})
}
