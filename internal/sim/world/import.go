package world

import (
	"slices"
	"strings"
)

// checkSource checks the permission to copy a volume, and that it can be copied
// ($check_storage_access in Qemu.pm).
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

// importVolume makes a copy of a volume, regardless of its owner (create_disks in
// Qemu.pm).
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

// readSource is what qemu-img reads of a volume, or of an uploaded image.
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
