package world

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
)

// MakeTemplate turns a VM into a template, in a task: its disks become base volumes of
// linked clones.
func (w *World) MakeTemplate(user, host string, id int) (string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.check(user, vmPath(id), "VM.Allocate"); err != nil {
		return "", err
	}
	v, err := w.vmOn(host, id)
	if err != nil {
		return "", err
	}
	if err := v.checkTemplate(); err != nil {
		return "", err
	}
	return w.startTask(host, "qmtemplate", strconv.Itoa(id), user, func(t *task) error {
		return w.withVM(t, host, id, func(v *vm) error {
			if err := v.checkTemplate(); err != nil {
				return err
			}
			return w.makeTemplate(v)
		})
	}), nil
}

func (v *vm) checkTemplate() error {
	switch {
	case v.checkLock() != nil:
		return v.checkLock()
	case len(v.snapshots) > 0:
		return failf("unable to create template, because VM contains snapshots")
	case v.config["template"] == "1":
		return failf("you can't convert a template to a template")
	case v.proc != nil:
		return failf("you can't convert a VM to template if VM is running")
	}
	return nil
}

// makeTemplate renames every disk of the VM: vm-400-disk-0 becomes base-400-disk-0.
func (w *World) makeTemplate(v *vm) error {
	if err := w.edit(v, func() error { v.config["template"] = "1"; return nil }); err != nil {
		return err
	}
	for _, key := range v.diskKeys() {
		d, err := parseDrive(key, v.config[key])
		if err != nil {
			return err
		}
		s, vol, err := w.volume(d.volid, v.host)
		if err != nil {
			return err
		}
		if s == nil || s.fixed() {
			return failf("volume '%s' does not support template/clone", d.volid)
		}
		delete(s.at(v.host), vol.name)
		dir, name := path.Split(vol.name)
		vol.name = dir + "base-" + strings.TrimPrefix(name, "vm-")
		s.at(v.host)[vol.name] = vol
		d.volid = s.ID + ":" + vol.name
		if err := w.edit(v, func() error { v.config[key] = d.String(); return nil }); err != nil {
			return err
		}
	}
	return nil
}

// diskKeys lists the keys of disks with a volume, in bus order.
func (v *vm) diskKeys() []string {
	return slices.DeleteFunc(driveKeys(v.config), func(key string) bool {
		d, err := parseDrive(key, v.config[key])
		return err != nil || d.empty() || d.cdrom() || strings.HasPrefix(key, "unused")
	})
}

// CloneRequest asks for a copy of a VM.
type CloneRequest struct {
	ID, NewID         int
	Name, Description string
	Pool              string
	Full              *bool // nil: linked where the VM is a template
}

// Clone makes a copy of a VM, in a task: with copies of its disks, or with disks based on
// the template's.
func (w *World) Clone(user, host string, r CloneRequest) (string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.check(user, vmPath(r.ID), "VM.Clone"); err != nil {
		return "", err
	}
	if err := w.checkVM(user, r.NewID, r.Pool, "VM.Allocate"); err != nil {
		return "", err
	}
	if err := w.checkClone(user, host, r); err != nil {
		return "", err
	}
	return w.startTask(host, "qmclone", strconv.Itoa(r.ID), user, func(t *task) error {
		return w.withVM(t, host, r.ID, func(v *vm) error {
			if err := w.checkClone(user, host, r); err != nil {
				return err
			}
			if err := w.clone(v, r); err != nil {
				return fmt.Errorf("clone failed: %w", err)
			}
			return nil
		})
	}), nil
}

func (r CloneRequest) full(v *vm) bool {
	if r.Full == nil {
		return v.config["template"] != "1"
	}
	return *r.Full
}

func (w *World) checkClone(user, host string, r CloneRequest) error {
	if r.Pool != "" && !w.pools[r.Pool] {
		return &Error{Status: 403, Message: fmt.Sprintf("Permission check failed (pool '%s' does not exist)", r.Pool)}
	}
	if err := w.checkQuorum(); err != nil {
		return err
	}
	v, err := w.vmOn(host, r.ID)
	if err != nil {
		return err
	}
	if err := v.checkLock(); err != nil {
		return err
	}
	for _, key := range v.diskKeys() {
		storageID, _, _ := strings.Cut(driveVolid(key, v.config[key]), ":")
		if err := w.check(user, "/storage/"+storageID, "Datastore.AllocateSpace"); err != nil {
			return err
		}
	}
	if err := w.checkBridges(user, v.config); err != nil {
		return err
	}
	if w.vms[r.NewID] != nil {
		return failf("unable to create VM %d: config file already exists", r.NewID)
	}
	for _, key := range v.diskKeys() {
		volid := driveVolid(key, v.config[key])
		if !r.full(v) && key != "tpmstate0" && !strings.HasPrefix(path.Base(volid), "base-") {
			return failf("Linked clone feature is not supported for '%s' (%s)", volid, key)
		}
	}
	return nil
}

// clone makes the copy; if it fails, it frees the new volumes.
func (w *World) clone(v *vm, r CloneRequest) error {
	config := maps.Clone(v.config)
	maps.DeleteFunc(config, func(key, _ string) bool {
		return strings.HasPrefix(key, "unused") || slices.Contains([]string{"parent", "template", "lock"}, key)
	})
	copied := newVM(r.NewID, v.host, config)
	copied.pool = r.Pool
	var made []string
	for _, key := range v.diskKeys() {
		volid, err := w.cloneDisk(copied, key, !r.full(v) && key != "tpmstate0")
		if err != nil {
			for _, volid := range made {
				_ = w.freeVolume(volid, v.host) // Proxmox warns at most
			}
			return err
		}
		made = append(made, volid)
	}
	for key, value := range config {
		if optionName(key) == "net" {
			model, rest, _ := strings.Cut(value, ",")
			model, _, _ = strings.Cut(model, "=")
			config[key] = withMAC(strings.TrimSuffix(model+","+rest, ","))
		}
	}
	config["smbios1"] = "uuid=" + newUUID()
	if config["vmgenid"] != "" {
		config["vmgenid"] = newUUID()
	}
	config["name"] = cmp.Or(r.Name, "Copy-of-VM-"+cmp.Or(v.config["name"], strconv.Itoa(v.id)))
	if r.Description != "" {
		config["description"] = r.Description
	}
	copied.markNew()
	w.vms[r.NewID] = copied
	return nil
}

// cloneDisk replaces the volume of a copied VM's key by a new one. A linked clone has its
// base in its name, and on a file system is always a qcow2.
func (w *World) cloneDisk(copied *vm, key string, linked bool) (volid string, err error) {
	d, err := parseDrive(key, copied.config[key])
	if err != nil {
		return "", err
	}
	s, vol, err := w.volume(d.volid, copied.host)
	if err != nil {
		return "", err
	}
	if s == nil {
		return "", failf("Full clone feature is not supported for '%s' (%s)", d.volid, key)
	}
	media := NewMedia(slices.Clone(vol.media.Bytes()))
	switch {
	case !linked:
		d.volid, err = w.allocate(s, copied.host, copied.id, vol.format, vol.size, media)
	case s.Type == "lvmthin":
		d.volid, err = w.allocate(s, copied.host, copied.id, "", vol.size, media)
	default:
		name := vol.name + "/" + s.freeName(copied.host, copied.id, "qcow2")
		d.volid, err = w.allocateNamed(s, copied.host, name, vol.size, media)
	}
	if err != nil {
		return "", err
	}
	copied.config[key] = d.String()
	return d.volid, nil
}
