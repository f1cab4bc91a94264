package world

import (
	"crypto/rand"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

const taskTime = time.Second // duration of a short task

// CreateRequest asks for a new VM.
type CreateRequest struct {
	ID     int
	Config map[string]string
	Pool   string
	Start  bool
}

// CreateVM makes a VM: it checks the request at once and does the rest in a task, whose
// UPID it returns. During the task the VM's configuration contains only its lock.
func (w *World) CreateVM(user, host string, r CreateRequest) (string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	config := maps.Clone(r.Config)
	if config == nil {
		config = map[string]string{}
	}
	if err := checkOptions(config); err != nil {
		return "", err
	}
	resolveCDROM(config)
	if r.ID < 100 || r.ID > 999999999 {
		return "", BadParam("vmid", "invalid format - value does not look like a valid VM ID\n")
	}
	if err := w.checkCreate(user, r, config); err != nil {
		return "", err
	}
	if err := w.unused(r.ID); err != nil {
		return "", failf("unable to create VM %d - %v", r.ID, err)
	}
	v := newVM(r.ID, host, map[string]string{"lock": "create"})
	v.pool = r.Pool
	v.markNew()
	w.vms[r.ID] = v
	return w.startTask(host, "qmcreate", strconv.Itoa(r.ID), user, func(t *task) error {
		if err := w.create(t, v, config); err != nil {
			return fmt.Errorf("unable to create VM %d - %w", r.ID, err)
		}
		if r.Start {
			_, _ = w.Start(user, host, r.ID) // a task of its own, whose failure does not matter here
		}
		return nil
	}), nil
}

// checkCreate checks privileges in Proxmox's order. VM.Config.Disk is not required: whoever may create a VM and
// allocate space may give the VM disks (create_vm in Qemu.pm).
func (w *World) checkCreate(user string, r CreateRequest, config map[string]string) error {
	if err := w.checkQuorum(); err != nil {
		return err
	}
	if r.Pool != "" && !w.pools[r.Pool] {
		return &Error{Status: 403, Message: fmt.Sprintf("Permission check failed (pool '%s' does not exist)", r.Pool)}
	}
	if w.checkVM(user, r.ID, r.Pool, "VM.Allocate") != nil {
		return &Error{Status: 403, Message: "Permission check failed"}
	}
	keys := slices.Sorted(maps.Keys(config))
	if err := firstError(w.checkVolumes(user, r.ID, config), w.checkKeys(user, r.ID, r.Pool, keys)); err != nil {
		return err
	}
	for _, key := range keys {
		if isDriveKey(key) || key == "tags" {
			continue
		}
		if err := w.checkDevice(user, r.ID, r.Pool, key, config[key], "set"); err != nil {
			return err
		}
	}
	return firstError(w.checkBridges(user, config), checkDrives(config))
}

// create does the worker's part. When create fails, it frees the volumes that it allocated and removes the VM;
// existing volumes stay.
func (w *World) create(t *task, v *vm, config map[string]string) error {
	err := t.begin(taskTime)
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		if !t.killed { // otherwise only the lock stays
			delete(w.vms, v.id)
		}
		return err
	}
	allocated, err := w.fill(v, config, nil)
	if tags, tagged := config["tags"]; err == nil && tagged {
		err = w.checkTags(t.User, v.id, v.pool, noTags, tags)
	}
	if err != nil {
		for _, volid := range allocated {
			if err := w.freeVolume(volid, v.host); err != nil {
				t.warnf("%v", err)
			}
		}
		delete(w.vms, v.id)
		return err
	}
	for _, key := range driveKeys(v.config) {
		if slices.Contains(allocated, driveVolid(key, v.config[key])) {
			t.logf("%s: successfully created disk '%s'", key, v.config[key])
		}
	}
	delete(v.config, "lock")
	return nil
}

// fill writes a VM's first configuration and returns the volumes allocated for it, even on an error.
func (w *World) fill(v *vm, config map[string]string, content map[string]*Media) (allocated []string, err error) {
	stored := map[string]string{}
	maps.Copy(stored, config)
	for _, key := range slices.Sorted(maps.Keys(config)) { // scsi10 is numbered before scsi2
		if !isDriveKey(key) {
			continue
		}
		value, volid, err := w.resolveDrive(v, key, config[key], content[key])
		if err != nil {
			return allocated, err
		}
		if volid != "" {
			allocated = append(allocated, volid)
		}
		stored[key] = value
	}
	for key, value := range stored {
		if optionName(key) == "net" {
			stored[key] = withMAC(value)
		}
	}
	addGenerated(stored)
	if stored["description"] == "" {
		delete(stored, "description")
	}
	maps.Copy(v.config, stored)
	return allocated, nil
}

// addGenerated adds the values that Proxmox generates for a new VM.
func addGenerated(config map[string]string) {
	if config["vmgenid"] == "" || config["vmgenid"] == "1" {
		config["vmgenid"] = newUUID()
	}
	if config["smbios1"] == "" {
		config["smbios1"] = "uuid=" + newUUID()
	}
	if _, ok := config["boot"]; !ok {
		config["boot"] = defaultBoot(config)
	}
	config["meta"] = fmt.Sprintf("creation-qemu=10.1.2,ctime=%d", time.Now().Unix())
}

// resolveDrive turns a requested drive into a stored drive: it allocates space and reads the size (create_disks in
// Qemu.pm). media is the content of a new volume; nil: blank.
func (w *World) resolveDrive(v *vm, key, value string, media *Media) (stored, allocated string, err error) {
	d, err := parseDrive(key, value)
	if err != nil {
		return "", "", err
	}
	if d.empty() {
		delete(d.options, "size")
		return d.String(), "", nil
	}
	if storageID, size, ok := d.request(); ok {
		if d.volid, err = w.allocateDrive(v, key, storageID, size, d, media); err != nil {
			return "", "", err
		}
		allocated = d.volid
		delete(d.options, "format")
		delete(d.options, "import-from")
	} else if err := w.checkUsable(key, d); err != nil {
		return "", "", err
	}
	_, vol, err := w.volume(d.volid, v.host)
	if err != nil {
		return "", "", err
	}
	if strings.HasPrefix(key, "unused") {
		return d.volid, allocated, nil
	}
	d.options["size"] = formatSize(vol.size)
	return d.String(), allocated, nil
}

// allocateDrive makes the volume of a new drive.
func (w *World) allocateDrive(v *vm, key, storageID string, size int64, d drive, media *Media) (volid string, err error) {
	s, err := w.storageOn(storageID, v.host)
	if err != nil {
		return "", err
	}
	if media == nil {
		media = NewMedia(nil)
	}
	switch source := d.options["import-from"]; {
	case isCloudInit(d.volid):
		d.options["media"] = "cdrom"
		return w.allocateNamed(s, v.host, s.cloudInitName(v.id, d.options["format"]), 4<<20, media)
	case source != "":
		return w.importVolume(s, v, key, d.options["format"], source)
	}
	if key == "efidisk0" && d.options["efitype"] == "4m" && d.options["pre-enrolled-keys"] == "1" {
		d.options["ms-cert"] = "2023" // the default of pve-edk2-firmware (create_efidisk in OVMF.pm)
	}
	if volid, err = w.allocate(s, v.host, v.id, d.options["format"], fixedSize(key, size), media); err != nil {
		return "", err
	}
	if _, vol, err := w.volume(volid, v.host); err == nil && key == "efidisk0" {
		vol.written = fixedSize(key, size) // the empty variables are fully written
	}
	return volid, nil
}

// checkUsable checks that an existing volume can be that drive.
func (w *World) checkUsable(key string, d drive) error {
	if !strings.Contains(d.volid, ":") {
		return nil // a device of the host
	}
	_, kind, format, err := w.kindOf(d.volid)
	switch {
	case err != nil:
		return err
	case !attachable(kind):
		return failf("cannot use volume %s - content type needs to be 'images' or 'iso'", d.volid)
	case d.options["format"] != "" && d.options["format"] != format:
		return failf("drive '%s' - volume '%s' - 'format=%s' option different from storage format '%s'", key, d.volid, d.options["format"], format)
	case key == "tpmstate0" && format != "raw":
		return failf("tpmstate0: volume format is '%s', only 'raw' is supported!", format)
	}
	return nil
}

func withMAC(value string) string {
	first, rest, more := strings.Cut(value, ",")
	if strings.Contains(first, "=") {
		return value
	}
	first += "=" + newMAC()
	if more {
		first += "," + rest
	}
	return first
}

// newMAC returns a random address with Proxmox's prefix.
func newMAC() string {
	var b [3]byte
	rand.Read(b[:])
	return fmt.Sprintf("BC:24:11:%02X:%02X:%02X", b[0], b[1], b[2])
}

func newUUID() string {
	var b [16]byte
	rand.Read(b[:])
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// DefineVM adds a VM without a request. config is as in the API ("scsi0":
// "fast:10,serial=s"); content is the content of newly allocated disks, by key.
func (w *World) DefineVM(host string, id int, config map[string]string, content map[string]*Media) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.vms[id] != nil {
		return fmt.Errorf("define VM %d: it exists already", id)
	}
	v := newVM(id, host, map[string]string{})
	config = maps.Clone(config)
	if v.pool = config["pool"]; v.pool != "" {
		w.pools[v.pool] = true
		delete(config, "pool")
	}
	if err := checkOptions(config); err != nil {
		return fmt.Errorf("define VM %d: %w", id, err)
	}
	if _, err := w.fill(v, config, content); err != nil {
		return fmt.Errorf("define VM %d: %w", id, err)
	}
	w.vms[id] = v
	return nil
}

// WriteByHand adds a line to a VM's configuration file, as an editor would: unchecked and unnormalized.
func (w *World) WriteByHand(id int, key, value string) {
	w.set(func() { w.vms[id].config[key] = value })
}

// AddISO puts an ISO file on a storage; host matters if the storage is not shared.
func (w *World) AddISO(storageID, host, name string, content []byte) error {
	return w.addFile(isoKind, storageID, host, name, content)
}

// AddSnippet puts a file on a storage that configurations can name.
func (w *World) AddSnippet(storageID, host, name string, content []byte) error {
	return w.addFile(snippetKind, storageID, host, name, content)
}

// AddImage puts a disk image on a storage; drives can be made from it.
func (w *World) AddImage(storageID, host, name string, content []byte) error {
	return w.addFile(importKind, storageID, host, name, content)
}

func (w *World) addFile(kind, storageID, host, name string, content []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	s, err := w.storageOn(storageID, host)
	if err != nil {
		return fmt.Errorf("add %s/%s: %w", kind, name, err)
	}
	v := s.put(host, kind+"/"+name)
	v.media.Write(content)
	v.size, v.created = int64(len(content)), time.Now()
	return nil
}

func (w *World) AddPool(name string) { w.set(func() { w.pools[name] = true }) }

// Pools maps each pool to the VMIDs in it, in order.
func (w *World) Pools() map[string][]int { return look(w, w.poolMembers) }

func (w *World) poolMembers() map[string][]int {
	pools := map[string][]int{}
	for name := range w.pools {
		pools[name] = nil
	}
	for _, id := range w.vmids() {
		if p := w.vms[id].pool; p != "" {
			pools[p] = append(pools[p], id)
		}
	}
	return pools
}

// SetLock sets or, with "", clears the lock of a VM's configuration: "backup", "migrate", ….
func (w *World) SetLock(vmid int, lock string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if v := w.vms[vmid]; v != nil {
		if v.config["lock"] = lock; lock == "" {
			delete(v.config, "lock")
		}
	}
}

// SetQMP makes a running VM report another QMP status: "io-error", "internal-error", "paused".
func (w *World) SetQMP(vmid int, status string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if v := w.vms[vmid]; v != nil {
		v.qmp = status
	}
}

// DestroyRequest asks for a VM's deletion.
type DestroyRequest struct {
	ID           int
	Purge        bool // remove it from HA, backup and replication jobs too
	Unreferenced bool // also free every volume named for it, even if used elsewhere
}

// DestroyVM deletes a VM and its own volumes: checks at once, the rest in a task.
func (w *World) DestroyVM(user, host string, r DestroyRequest) (string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if r.Purge {
		w.violate("DELETE of VM %d with purge", r.ID)
	}
	if r.Unreferenced {
		w.violate("DELETE of VM %d with destroy-unreferenced-disks", r.ID)
	}
	if err := firstError(w.check(user, vmPath(r.ID), "VM.Allocate"), w.checkDestroy(host, r)); err != nil {
		return "", err
	}
	return w.lockedTask("qmdestroy", user, host, r.ID, func(t *task) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		if err := w.checkDestroy(host, r); err != nil {
			return err
		}
		return w.destroy(t, w.vms[r.ID], r)
	}), nil
}

func (w *World) checkDestroy(host string, r DestroyRequest) error {
	v, err := w.vmOn(host, r.ID)
	if err != nil {
		return err
	}
	if v.config["protection"] == "1" {
		return failf("can't remove VM %d - protection mode enabled", r.ID)
	}
	if w.haStatus(r.ID).Configured && !r.Purge {
		return failf("unable to remove VM %d - used in HA resources and purge parameter not set.", r.ID)
	}
	if job := w.replicates(r.ID); job != "" && !r.Purge {
		return failf("There is a replication job '%s' for guest '%d' - Please remove that first.", job, r.ID)
	}
	if v.proc != nil {
		return failf("VM %d is running - destroy failed", r.ID)
	}
	return nil
}

// destroy frees first and then writes: without quorum the disks are gone and the configuration stays.
func (w *World) destroy(t *task, v *vm, r DestroyRequest) error {
	if err := firstError(v.checkLock(), w.checkClones(v)); err != nil {
		return err
	}
	for _, volid := range v.destroyedVolids() {
		if volumeOwner(volid) != v.id {
			continue
		}
		if err := w.freeVolume(volid, v.host); err != nil {
			t.warnf("Could not remove disk '%s', check manually: %v", volid, err)
		}
	}
	if r.Unreferenced {
		w.freeUnreferenced(v)
	}
	if err := w.writeConfig(v); err != nil {
		return err
	}
	if r.Purge {
		if w.ha[haSID(v.id)] != nil {
			w.removeHA(haSID(v.id))
			t.logf("NOTE: removed VM %d from HA resource configuration.", v.id)
		}
		w.purgeJobs(v.id)
	}
	delete(w.firewalls, v.id)
	w.acls = slices.DeleteFunc(w.acls, func(a ACL) bool { return a.Path == vmPath(v.id) })
	w.privilegeCache = nil
	delete(w.vms, v.id)
	return nil
}

// checkClones refuses to delete a template that has linked clones.
func (w *World) checkClones(v *vm) error {
	if v.config["template"] != "1" {
		return nil
	}
	for _, d := range drivesIn(v.config) {
		if s, vol, err := w.volume(d.volid, v.host); !d.cdrom() && err == nil && s != nil && s.cloned(v.host, vol) {
			return failf("base volume '%s' is still in use by linked cloned", d.volid)
		}
	}
	return nil
}

func (w *World) freeUnreferenced(v *vm) {
	for _, s := range w.storages {
		if s.on(v.host) {
			for name := range s.at(v.host) {
				if volumeOwner(name) == v.id {
					_ = w.freeVolume(s.ID+":"+name, v.host) // Proxmox only warns
				}
			}
		}
	}
}

// destroyedVolids lists the volumes to free if they are the VM's own: those in the
// configuration, pending changes included, and the memory of snapshots. Volumes that only
// a snapshot's disks name are left behind (destroy_vm in QemuServer.pm).
func (v *vm) destroyedVolids() []string {
	seen := map[string]bool{}
	add := func(config map[string]string) {
		for _, d := range drivesIn(config) {
			seen[d.volid] = true
		}
	}
	add(v.config)
	add(v.pending)
	for _, s := range v.snapshots {
		if state := s.Config["vmstate"]; state != "" {
			seen[state] = true
		}
	}
	return slices.Sorted(maps.Keys(seen))
}

// DeleteVolume deletes a volume of a storage, in use or not, in a task.
func (w *World) DeleteVolume(user, host, volid string) (string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	storageID, _, _ := strings.Cut(volid, ":")
	if err := w.check(user, "/storage/"+storageID, "Datastore.Allocate"); err != nil {
		return "", err
	}
	if _, err := w.storageOn(storageID, host); err != nil {
		return "", err
	}
	id := storageID // not the volume's name: API2/Storage/Content.pm
	if owner := volumeOwner(volid); owner != 0 {
		id = strconv.Itoa(owner) + "@" + storageID
	}
	return w.startTask(host, "imgdel", id, user, func(t *task) error {
		if err := t.begin(taskTime / 2); err != nil {
			return err
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if _, _, err := w.volume(volid, host); err != nil {
			t.logf("%v", err)
			return nil
		}
		if err := w.freeVolume(volid, host); err != nil {
			return err
		}
		t.logf("Removed volume '%s'", volid)
		return nil
	}), nil
}
