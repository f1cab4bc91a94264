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

// checkCreate checks privileges in Proxmox's order. VM.Config.Disk is not among them:
// whoever may create a VM and allocate space may give it disks (create_vm in Qemu.pm).
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
	if err := w.checkVolumes(user, r.ID, config); err != nil {
		return err
	}
	keys := slices.Sorted(maps.Keys(config))
	if err := w.checkKeys(user, r.ID, r.Pool, keys); err != nil {
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
	if err := w.checkBridges(user, config); err != nil {
		return err
	}
	return checkDrives(config)
}

// create is the worker. When it fails, it frees the volumes that it allocated and removes
// the VM; existing volumes stay.
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

// fill writes a VM's first configuration and returns the volumes allocated for it, even on
// an error.
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

// resolveDrive turns a requested drive into a stored one: it allocates space and reads the
// size (create_disks in Qemu.pm). media is the content of a new volume; nil: blank.
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

// checkUsable says whether an existing volume can be that drive.
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

// newMAC is a random address with Proxmox's prefix.
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
