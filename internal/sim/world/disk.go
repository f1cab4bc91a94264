package world

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/recast-sh/recast/internal/qcow2"
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
	defer w.mu.changing()()
	const right = "VM.Config.Disk"
	if err := firstError(w.check(user, vmPath(r.ID), right), w.check(user, vmPath(r.Target), right), w.checkMove(user, host, r)); err != nil {
		return "", err
	}
	id := fmt.Sprintf("%d-%s>%d-%s", r.ID, r.Disk, r.Target, r.TargetDisk)
	return w.startTask(host, "qmmove", id, user, func(t *task) error {
		if err := t.begin(taskTime / 2); err != nil {
			return err
		}
		first, err := w.lockConfig(r.ID)
		if err != nil {
			return err
		}
		defer first()
		second, err := w.lockConfig(r.Target)
		if err != nil {
			return err
		}
		defer second()
		defer w.mu.changing()()
		if err := w.checkMove(user, host, r); err != nil {
			return err
		}
		return w.reassign(t, w.vms[r.ID], w.vms[r.Target], r)
	}), nil
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
	for v, digest := range map[*vm]string{source: r.Digest, target: r.TargetDigest} {
		if digest != "" && digest != v.digest() {
			return failf("VM %d: detected modified configuration - file changed by other user? Try again.", v.id)
		}
	}
	if _, ok := source.config[r.Disk]; !ok {
		return failf("Disk '%s' for VM '%d' does not exist", r.Disk, r.ID)
	}
	if _, taken := target.config[r.TargetDisk]; taken {
		return failf("Target disk key '%s' is already in use for VM '%d'", r.TargetDisk, r.Target)
	}
	return w.checkMoveDisk(user, source, r)
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
	w.violateOf(vol, true, "disk %s: its holder's volume %s was renamed", d.volid)
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
	defer w.mu.changing()()
	if _, err := w.vmFor(user, "VM.Config.Disk", host, r.ID); err != nil {
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
	switch {
	case err != nil:
		return err
	case s == nil:
		return failf("unable to parse volume ID '%s'", d.volid)
	}
	if err := w.check(user, "/storage/"+s.ID, "Datastore.AllocateSpace"); err != nil {
		return err
	}
	if more {
		size += vol.size
	}
	switch {
	case size < vol.size:
		return failf("shrinking disks is not supported")
	case size == vol.size:
		return nil
	case !s.room(v.host, size-vol.size):
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
	defer w.mu.changing()()
	v, err := w.unlocked(host, id)
	if err != nil {
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

// freeName returns the name of a VM's next disk on a storage. The name has the lowest free number, so numbers are
// reused; on network file systems every format is numbered separately (get_next_vm_diskname in Storage/Plugin.pm).
func (s *storage) freeName(host string, owner int, format string) string {
	taken := map[int]bool{}
	for name := range s.at(host) {
		var kind string
		var id, n int
		if _, err := fmt.Sscanf(strings.ReplaceAll(path.Base(name), "-", " "), "%s %d disk %d", &kind, &id, &n); err != nil || id != owner {
			continue
		}
		if !slices.Contains([]string{"nfs", "cifs"}, s.Type) || strings.HasSuffix(name, "."+format) {
			taken[n] = true
		}
	}
	n := 0
	for taken[n] {
		n++
	}
	if s.block() {
		return fmt.Sprintf("vm-%d-disk-%d", owner, n)
	}
	return fmt.Sprintf("%d/vm-%d-disk-%d.%s", owner, owner, n, format)
}

var basePattern = regexp.MustCompile(`^((?:\d+/)?base-\d+-disk-\d+(?:\.[a-z0-9]+)?/).`)

// basePath returns the prefix of a linked clone's name: its base volume and a slash; "" for other volumes.
func basePath(name string) string {
	m := basePattern.FindStringSubmatch(name)
	if m == nil {
		return ""
	}
	return m[1]
}

// cloned reports whether a volume has linked clones, as far as names show clones: on LVM thin names don't show them.
func (s *storage) cloned(host string, vol *volume) bool {
	for name := range s.at(host) {
		if strings.HasPrefix(name, vol.name+"/") {
			return true
		}
	}
	return false
}

// cloudInitName returns the name of a VM's cloud-init drive: qcow2 unless requested otherwise, whatever the storage's
// default (create_disks in API2/Qemu.pm).
func (s *storage) cloudInitName(owner int, format string) string {
	if s.block() {
		return fmt.Sprintf("vm-%d-cloudinit", owner)
	}
	return fmt.Sprintf("%d/vm-%d-cloudinit.%s", owner, owner, cmp.Or(format, "qcow2"))
}

// isCloudInit reports whether a volid is a cloud-init drive, or a request for one.
func isCloudInit(volid string) bool {
	name := path.Base(volid[strings.Index(volid, ":")+1:])
	return name == "cloudinit" || volumeOwner(volid) != 0 && strings.Contains(name, "-cloudinit")
}

// volumeOwner returns the VMID in a volume's name or volid, 0 for an ISO: on a file system the number of the
// directory, else the number in "vm-100-disk-0" (parse_volname of the storage plugins). The name alone determines the
// owner of a volume, never the configuration that refers to the volume.
func volumeOwner(volid string) int {
	_, name, ok := strings.Cut(volid, ":")
	if !ok {
		name = volid
	}
	if isFileName(name) || strings.HasPrefix(volid, "/") { // a path has no owner (qemu-server, vm_is_volid_owner)
		return 0
	}
	if id, err := strconv.Atoi(path.Base(path.Dir(name))); err == nil {
		return id
	}
	parts := strings.SplitN(path.Base(name), "-", 3)
	if len(parts) < 3 || parts[0] != "vm" && parts[0] != "base" {
		return 0
	}
	return NumberOr(parts[1], 0)
}

// formatSize writes a size as Proxmox does: in the largest unit that divides it.
func formatSize(bytes int64) string {
	units := []string{"", "K", "M", "G", "T"}
	i := 0
	for i < len(units)-1 && bytes != 0 && bytes%1024 == 0 {
		bytes /= 1024
		i++
	}
	return strconv.FormatInt(bytes, 10) + units[i]
}

// parseSize reads a size such as "10G", "+512M" without its sign, or plain bytes.
func parseSize(s string) (int64, bool) {
	m := regexp.MustCompile(`^(\d+(?:\.\d+)?)([KMGT]?)$`).FindStringSubmatch(s)
	if m == nil {
		return 0, false
	}
	f, err := strconv.ParseFloat(m[1], 64)
	if err != nil {
		return 0, false
	}
	for range strings.Index(" KMGT", m[2]) {
		f *= 1024
	}
	return int64(f), true
}

// The kinds of volumes that parse_volname of pve-storage knows.
const (
	imageKind    = "images"
	isoKind      = "iso"
	templateKind = "vztmpl"
	importKind   = "import"
	snippetKind  = "snippets"
)

var (
	imageName = regexp.MustCompile(`^(?:\d+/\S+/)?\d+/(?:vm-|base-|subvol-)\d+-[^/\s]+\.(raw|qcow2|vmdk|subvol)$`)
	imageDir  = regexp.MustCompile(`^\d+/(\S+)$`)
	fileNames = map[string]*regexp.Regexp{
		isoKind:      regexp.MustCompile(`^iso/[^/]+\.(?i:iso|img)$`),
		templateKind: regexp.MustCompile(`^vztmpl/[^/]+\.(?i:tar\.(?:gz|xz|zst|bz2))$`),
		snippetKind:  regexp.MustCompile(`^snippets/[^/]+$`),
	}
	importName = regexp.MustCompile(`^import/[ a-zA-Z0-9\-.+=_]+\.(ova|ovf|qcow2|raw|vmdk)$`)
)

// parseName returns the kind and format of the volume with that name (parse_volname of the plugins).
func (s *storage) parseName(name string) (kind, format string, err error) {
	if s.block() {
		return s.parseBlockName(name)
	}
	if m := imageName.FindStringSubmatch(name); m != nil {
		return imageKind, m[1], nil
	}
	if m := imageDir.FindStringSubmatch(name); m != nil {
		return "", "", failf("unable to parse volume filename '%s'", m[1])
	}
	for kind, pattern := range fileNames {
		if pattern.MatchString(name) {
			return kind, "raw", nil
		}
	}
	if m := importName.FindStringSubmatch(name); m != nil {
		return importKind, m[1], nil
	}
	return "", "", failf("unable to parse directory volume name '%s'", name)
}

func (s *storage) parseBlockName(name string) (kind, format string, err error) {
	plugin, pattern := s.Type, `^(?:(?:base|basevol)-\d+-\S+/)?(?:base|vm)-\d+-\S+$`
	switch s.Type {
	case "lvm", "lvmthin":
		plugin, pattern = "lvm", `^(?:vm|base)-\d+-\S+$`
	case "zfs", "zfspool":
		plugin = "zfs"
	case "iscsi", "iscsidirect":
		return imageKind, "raw", nil // a LUN's name is up to its target
	}
	if !regexp.MustCompile(pattern).MatchString(name) {
		return "", "", failf("unable to parse %s volume name '%s'", plugin, name)
	}
	return imageKind, "raw", nil
}

func (w *World) kindOf(volid string) (s *storage, kind, format string, err error) {
	id, name, ok := strings.Cut(volid, ":")
	if !ok {
		return nil, "", "", failf("unable to parse volume ID '%s'", volid)
	}
	s, known := w.storages[id]
	if !known {
		return nil, "", "", failf("storage '%s' does not exist", id)
	}
	kind, format, err = s.parseName(name)
	return s, kind, format, err
}

func attachable(kind string) bool { return kind == imageKind || kind == isoKind }

// isFileName reports whether a volume is an ISO, a template or the like, which have no owner.
func isFileName(name string) bool {
	kind, _, _ := strings.Cut(name, "/")
	return slices.Contains([]string{isoKind, templateKind, importKind, snippetKind}, kind)
}

// allocated returns the space that a volume takes, as volume_size_info of the plugins reports it: LVM reports
// nothing, files and zvols are sparse.
func (s *storage) allocated(v *volume) int64 {
	switch {
	case s.Type == "lvm", s.Type == "lvmthin":
		return 0
	case v.content != imageKind:
		return v.size
	}
	return v.filled()
}

const firstBlock = 4 << 10 // allocated by qemu-img even for an empty image

func (v *volume) filled() int64 {
	return min(v.size, max(roundUp(v.media.Size(), firstBlock), v.written, firstBlock))
}

// parentOf returns a linked clone's base as list_images reports it.
func (s *storage) parentOf(name string) string {
	base := strings.TrimSuffix(basePath(name), "/")
	switch {
	case base == "":
		return ""
	case s.block():
		return base + "@__base__"
	}
	return "../" + path.Dir(base) + "/" + path.Base(base)
}

// ListsUsed reports whether the content listing of a storage includes allocated sizes, as for directories
// (list_images in Storage/Plugin.pm).
func (w *World) ListsUsed(id string) bool {
	defer w.mu.changing()()
	s, ok := w.storages[id]
	return ok && s.Path() != ""
}

// thick reports whether a new image takes its whole size at once: LVM always, ZFS unless the storage is sparse, files
// if preallocated (LVMPlugin.pm, ZFSPoolPlugin.pm, preallocation_cmd_opt of Storage/Plugin.pm).
func (s *storage) thick() bool {
	switch s.Type {
	case "lvmthin", "rbd":
		return false
	case "lvm":
		return true
	case "zfspool", "zfs":
		return !s.Sparse
	}
	return slices.Contains([]string{"falloc", "full"}, s.Preallocation)
}

func (s *storage) taken(v *volume) int64 {
	if v.content != imageKind || s.thick() {
		return v.size
	}
	return v.filled()
}

func (s *storage) firstTaken(size int64) int64 {
	if s.thick() {
		return size
	}
	return min(size, firstBlock)
}

// used returns the used space, as the plugins' status reports it.
func (s *storage) used(host string) int64 {
	if s.full {
		return s.Capacity
	}
	if pool, ok := s.pools[host]; ok {
		return pool.Used
	}
	var sum int64
	for _, v := range s.at(host) {
		sum += s.taken(v)
	}
	return sum
}

func (s *storage) room(host string, size int64) bool { return s.used(host)+size <= s.Capacity }

// SetCapacity sets a storage's size, per host if it is not shared.
func (w *World) SetCapacity(id string, bytes int64) {
	w.ofStorage(id, func(s *storage) { s.Capacity = bytes })
}

// Preallocate makes a storage of files allocate new images fully, like its option preallocation.
func (w *World) Preallocate(id string) {
	w.ofStorage(id, func(s *storage) { s.Preallocation = "falloc" })
}

// errNoInfo is Proxmox's error when qemu-img fails to open a file.
var errNoInfo = failf("failed to query file information with qemu-img")

// image is the disk in a file, as QEMU reads it.
type image struct {
	io.ReaderAt
	size int64
}

// bytes returns the disk without the zeros at its end. Zeros before that need no memory, since nothing writes them.
func (i image) bytes() ([]byte, error) {
	var end int64
	err := i.written(func(at int64, part []byte) { end = at + int64(len(part)) })
	if err != nil || end == 0 {
		return nil, err
	}
	b := make([]byte, end)
	return b, i.written(func(at int64, part []byte) { copy(b[at:], part) })
}

func (i image) written(visit func(at int64, part []byte)) error {
	const step = 64 << 10
	chunk, zeros := make([]byte, step), make([]byte, step)
	for at := int64(0); at < i.size; at += step {
		part := chunk[:min(step, i.size-at)]
		if n, err := i.ReadAt(part, at); n < len(part) {
			return err
		}
		if !bytes.Equal(part, zeros[:len(part)]) {
			visit(at, part)
		}
	}
	return nil
}

// openImage opens a file that may come from anyone, as file_size_info of Storage/Plugin.pm does. name is the file's
// path.
func openImage(name, format string, m *Media) (image, error) {
	content := endless{m.content()}
	switch format {
	case "raw":
		return image{content, roundUp(m.Size(), 512)}, nil // in sectors
	case "qcow2":
	default:
		return image{}, errNoInfo // the simulator has no other file that QEMU would open
	}
	disk, err := qcow2.Open(content, math.MaxInt64)
	switch {
	case errors.Is(err, qcow2.ErrBackingFile):
		return image{}, failf("backing file not allowed for untrusted image '%s'!", name)
	case errors.Is(err, qcow2.ErrDataFile):
		return image{}, failf("%s: 'data-file' references are not allowed!", name)
	case err != nil:
		return image{}, errNoInfo
	}
	return image{disk, disk.Size()}, nil
}

// endless continues a file with zeros, as QEMU does: qemu-img info and qemu-img convert end without an error for an
// image that was cut short, and the missing part reads as zeros.
type endless struct{ io.ReaderAt }

func (e endless) ReadAt(p []byte, off int64) (int, error) {
	n, err := e.ReaderAt.ReadAt(p, off)
	if errors.Is(err, io.EOF) {
		clear(p[n:])
		return len(p), nil
	}
	return n, err
}

// checkImage makes the check of a file that becomes content "import" (upload and download_url in
// API2/Storage/Status.pm). ISOs are checked too, but any bytes pass.
func checkImage(content, filename, tmp string, m *Media) error {
	if content != importKind {
		return nil
	}
	_, err := openImage(tmp, strings.TrimPrefix(path.Ext(filename), "."), m)
	return err
}

// checkSource checks the permission to copy a volume, and that the volume can be copied ($check_storage_access in
// Qemu.pm).
func (w *World) checkSource(user string, id int, key, source string) error {
	if !strings.Contains(source, ":") {
		return w.checkVolume(user, id, source)
	}
	_, kind, _, err := w.kindOf(source)
	switch {
	case err != nil:
		return err
	case kind != imageKind && kind != importKind:
		return BadParam(key, "%s has wrong type '%s' - needs to be 'images' or 'import'", source, kind)
	}
	if owner := volumeOwner(source); owner != 0 {
		return w.check(user, vmPath(owner), "VM.Clone")
	}
	return w.checkVolume(user, id, source)
}

// checkImportForm checks the other parameters of an import ($check_drive_param in Qemu.pm).
func checkImportForm(key string, d drive) error {
	if _, size, ok := d.request(); !ok || size != 0 || isCloudInit(d.volid) {
		return BadParam(key, "'import-from' requires special syntax - use <storage ID>:0,import-from=<source>")
	}
	required := map[string][]string{"efidisk0": {"efitype", "pre-enrolled-keys"}, "tpmstate0": {"version"}}
	for _, option := range required[key] {
		if d.options[option] == "" {
			return BadParam(key, "need to specify '%s' when using 'import-from'", option)
		}
	}
	return nil
}

// importVolume makes a copy of a volume, regardless of its owner (create_disks in Qemu.pm).
func (w *World) importVolume(s *storage, v *vm, key, format, source string) (volid string, err error) {
	_, kind, sourceFormat, err := w.kindOf(source)
	if err != nil {
		return "", err
	}
	size, content, err := w.readSource(source, kind, sourceFormat, v.host)
	if err != nil {
		return "", err
	}
	wrap := func(err error) error { return failf("cannot import from '%s' - %v", source, err) }
	if isCloudInit(source) {
		return "", wrap(failf("cannot import from cloudinit disk"))
	}
	if owner := w.vms[volumeOwner(source)]; owner != nil && owner.host != v.host {
		return "", wrap(failf("owner VM %d not on local node", owner.id))
	}
	if format == "" && !s.block() {
		format = sourceFormat // resolve_dst_disk_format in QemuServer.pm
	}
	volid, err = w.allocate(s, v.host, v.id, format, fixedSize(key, size), NewMedia(content))
	if err != nil {
		return "", wrap(err)
	}
	return volid, nil
}

// readSource returns what qemu-img reads of a volume, or of an uploaded image.
func (w *World) readSource(source, kind, format, host string) (size int64, content []byte, err error) {
	s, vol, err := w.volume(source, host)
	switch {
	case err != nil && kind == importKind && s != nil:
		_, name, _ := strings.Cut(source, ":")
		return 0, nil, failf("failed to stat '%s'", s.filePath(name))
	case err != nil:
		return 0, nil, failf("cannot import from '%s' - could not get size of %s", source, source)
	case kind == imageKind:
		return vol.size, slices.Clone(vol.media.Bytes()), nil
	}
	disk, err := openImage(s.filePath(vol.name), format, vol.media)
	if err != nil || format == "raw" {
		return disk.size, slices.Clone(vol.media.Bytes()), err
	}
	content, err = disk.bytes()
	return disk.size, content, err
}

func roundUp(n, unit int64) int64 { return (n + unit - 1) / unit * unit }

// AllocRequest asks for a disk outside of any VM's configuration.
type AllocRequest struct {
	Storage string
	VMID    int
	Name    string // "vm-100-disk-9.raw", on block storages without the extension
	Bytes   int64
	Format  string
}

// AllocDisk makes a disk and returns its volid. The VM need not exist.
func (w *World) AllocDisk(user, host string, r AllocRequest) (volid string, err error) {
	defer w.mu.changing()()
	if err := w.check(user, "/storage/"+r.Storage, "Datastore.AllocateSpace"); err != nil {
		return "", err
	}
	s, err := w.storageOn(r.Storage, host)
	if err != nil {
		return "", err
	}
	name := r.Name
	if !s.block() {
		if path.Ext(name) == "" {
			return "", failf("unable to parse volume filename '%s'", name)
		}
		if r.Format != "" && !strings.HasSuffix(name, "."+r.Format) {
			return "", failf("illegal name '%s' - wrong extension for format ('%s != '%s')", name, path.Ext(name)[1:], r.Format)
		}
		name = strconv.Itoa(r.VMID) + "/" + name
	} else if volumeOwner(name) != r.VMID {
		return "", failf("illegal name '%s' - should be 'vm-%d-*'", name, r.VMID)
	}
	if s.at(host)[name] != nil {
		return "", failf("disk image '%s' already exists", name)
	}
	return w.allocateNamed(s, host, name, r.Bytes, NewMedia(nil))
}
