package world

import (
	"strconv"
	"strings"
)

// ResizeRequest asks to grow a disk.
type ResizeRequest struct {
	ID     int
	Disk   string
	Size   string // "20G", or "+5G" to add
	Digest string
}

// Resize grows a disk, in a task that also makes all checks but that of the VM's own permission
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
	return w.startTask(host, "resize", strconv.Itoa(r.ID), user, func(t *task) error {
		return w.withVM(t, host, r.ID, func(v *vm) error {
			if r.Digest != "" && r.Digest != v.digest() {
				return failf("checksum mismatch (file change by other user?)")
			}
			return w.resize(user, v, r.Disk, size, strings.HasPrefix(r.Size, "+"))
		})
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
