package world

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
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

// MoveDisk reassigns a disk to another VM on the same host. It checks everything at once and again in the task.
func (w *World) MoveDisk(user, host string, r MoveRequest) (string, error) {
	r.TargetDisk = cmp.Or(r.TargetDisk, r.Disk)
	w.mu.Lock()
	defer w.mu.Unlock()
	const right = "VM.Config.Disk"
	if err := firstError(w.check(user, vmPath(r.ID), right), w.check(user, vmPath(r.Target), right), w.checkMove(user, host, r)); err != nil {
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
	if err := firstError(source.checkLock(), target.checkLock()); err != nil {
		return err
	}
	if source.config["template"] == "1" || target.config["template"] == "1" {
		return failf("Can't move disks from or to template VMs")
	}
	if err := firstError(source.checkMoveDigest(r.Digest), target.checkMoveDigest(r.TargetDigest)); err != nil {
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
	case misfit(r.TargetDisk, source.config[r.Disk]) != "":
		return failf("failed to parse source disk for target disk format - %s", misfit(r.TargetDisk, source.config[r.Disk]))
	case w.replicates(r.Target) != "" && !s.replicates():
		return failf("Cannot move disk to a replicated VM. Storage does not support replication!")
	}
	return w.check(user, "/storage/"+s.ID, "Datastore.AllocateSpace")
}

// misfit says why a drive's value is not valid for another key, "" if it is valid: every bus has its own options.
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

// reassign renames the volume, then writes the source's configuration, then the target's, in Proxmox's order: after
// an error in between, no configuration names the volume. The volume's owner is not checked.
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
		if boot, ok := source.config["boot"]; ok {
			source.config["boot"] = withoutBoot(boot, r.Disk)
		}
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

// MoveStage is a point inside the worker of move_disk, between two of its three actions.
type MoveStage int

const (
	// AfterRename is after the rename, when no configuration has the new name yet.
	AfterRename MoveStage = iota + 1
	// AfterSource is after the source's configuration was written, before the target's.
	AfterSource
)

type moveStop struct {
	after MoveStage
	crash bool
}

// StopNextMove kills the worker of the next move_disk at that point, like kill -9; with crash, the whole host crashes.
func (w *World) StopNextMove(after MoveStage, crash bool) {
	w.set(func() { w.moveStops = append(w.moveStops, moveStop{after: after, crash: crash}) })
}

// stopsMove reports whether a worker ends here; mu must be held.
func (w *World) stopsMove(t *task, at MoveStage) bool {
	if len(w.moveStops) == 0 || w.moveStops[0].after != at {
		return false
	}
	crash := w.moveStops[0].crash
	w.moveStops = w.moveStops[1:]
	t.kill()
	if crash {
		for _, p := range w.cutPower(t.Host) {
			w.spawn(p.kill)
		}
	}
	return true
}

// ResizeRequest asks to grow a disk.
type ResizeRequest struct {
	ID     int
	Disk   string
	Size   string // "20G", or "+5G" to add
	Digest string
}

// Resize grows a disk in a task. The task also makes all checks, except the check of the VM's own permission
// (API2/Qemu.pm, resize_vm).
func (w *World) Resize(user, host string, r ResizeRequest) (string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.check(user, vmPath(r.ID), "VM.Config.Disk"); err != nil {
		return "", err
	}
	if _, err := w.vmOn(host, r.ID); err != nil {
		return "", err
	}
	size, ok := parseSize(strings.TrimPrefix(r.Size, "+"))
	if !ok {
		return "", BadParam("size", "value does not match the regex pattern")
	}
	return w.vmTask("resize", user, host, r.ID, func(_ *task, v *vm) error {
		if r.Digest != "" && r.Digest != v.digest() {
			return failf("checksum mismatch (file change by other user?)")
		}
		return w.resize(user, v, r.Disk, size, strings.HasPrefix(r.Size, "+"))
	}), nil
}

func (w *World) resize(user string, v *vm, key string, size int64, more bool) error {
	value, ok := v.config[key]
	if !ok {
		return failf("disk '%s' does not exist", key)
	}
	d, err := parseDrive(key, value)
	if err != nil {
		return err
	}
	if d.cdrom() {
		return failf("you can't resize a cdrom")
	}
	s, vol, err := w.volume(d.volid, v.host)
	if err != nil {
		return err
	}
	if s == nil {
		return failf("unable to parse volume ID '%s'", d.volid)
	}
	if err := w.check(user, "/storage/"+s.ID, "Datastore.AllocateSpace"); err != nil {
		return err
	}
	if more {
		size += vol.size
	}
	if size < vol.size {
		return failf("shrinking disks is not supported")
	}
	if size == vol.size {
		return nil
	}
	if !s.room(v.host, size-vol.size) {
		return failf("unable to resize image: qemu-img: Failed to resize: No space left on device")
	}
	vol.size = size
	d.options["size"] = formatSize(size)
	if err := w.writeConfig(v); err != nil {
		return err
	}
	v.config[key] = d.String()
	return nil
}

// Rescan runs qm disk rescan for one VM: every volume with the VM's number that its configuration does not name
// becomes unusedN, and sizes are read again. It returns the command's output. A dry run only prints (QemuServer.pm,
// rescan and update_disk_config).
func (w *World) Rescan(host string, id int, dryRun bool) (lines []string, err error) {
	unlock, err := w.lockConfig(id)
	if err != nil {
		return nil, err
	}
	defer unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	v, err := w.vmOn(host, id)
	if err != nil {
		return nil, err
	}
	if err := v.checkLock(); err != nil {
		return nil, err
	}
	now := maps.Clone(v.config)
	scanned := &vm{id: v.id, host: v.host, config: now}
	lines = w.updateDisks(scanned)
	if dryRun || len(lines) == 0 {
		return lines, nil
	}
	return lines, w.edit(v, func() error { v.config = now; return nil })
}

// updateDisks updates a configuration to match the VM's volumes.
func (w *World) updateDisks(v *vm) (lines []string) {
	prefix := "VM " + strconv.Itoa(v.id)
	volumes, referenced := w.imagesOf(v), map[string]bool{}
	for _, key := range driveKeys(v.config) {
		d, err := parseDrive(key, v.config[key])
		if err != nil || strings.HasPrefix(key, "unused") {
			continue
		}
		referenced[d.volid] = true
		vol := volumes[d.volid]
		if vol == nil || d.cdrom() {
			continue
		}
		if size := formatSize(vol.size); d.options["size"] != size {
			lines = append(lines, prefix+" ("+key+"): size of disk '"+d.volid+"' updated from "+d.options["size"]+" to "+size)
			d.options["size"] = size
			v.config[key] = d.String()
		}
	}
	for _, key := range driveKeys(v.config) {
		volid := v.config[key]
		if !strings.HasPrefix(key, "unused") {
			continue
		}
		if referenced[volid] {
			lines = append(lines, prefix+" remove entry '"+key+"', its volume '"+volid+"' is in use")
			delete(v.config, key)
		}
		referenced[volid] = true
	}
	for _, volid := range slices.Sorted(maps.Keys(volumes)) {
		if referenced[volid] || strings.Contains(volid, "vm-"+strconv.Itoa(v.id)+"-state-") {
			continue
		}
		lines = append(lines, prefix+" add unreferenced volume '"+volid+"' as '"+v.addUnused(volid)+"' to config")
	}
	return lines
}

// imagesOf lists the disk images with a VM's number, by volid.
func (w *World) imagesOf(v *vm) map[string]*volume {
	found := map[string]*volume{}
	for id, s := range w.storages {
		if !s.on(v.host) || !s.holds("images") || s.offline[v.host] {
			continue
		}
		for name, vol := range s.at(v.host) {
			if vol.content == "images" && volumeOwner(name) == v.id {
				found[id+":"+name] = vol
			}
		}
	}
	return found
}
