package world

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strings"
)

// checkSource checks the permission to copy a volume, and that it can be copied
// ($check_storage_access in Qemu.pm).
func (w *World) checkSource(user string, id int, key, source string) error {
	if !strings.Contains(source, ":") {
		return w.checkVolume(user, id, source)
	}
	s, kind, format, err := w.kindOf(source)
	switch {
	case err != nil:
		return err
	case kind != imageKind && kind != importKind:
		return BadParam(key, "%s has wrong type '%s' - needs to be 'images' or 'import'", source, kind)
	case strings.HasPrefix(format, "ova+"): // it would have to be extracted first
		if !s.holds(imageKind) || s.Path() == "" {
			return BadParam(key, "import working storage '%s' does not support 'images' content type or is not file based.", s.ID)
		}
		if err := w.check(user, "/storage/"+s.ID, "Datastore.AllocateSpace"); err != nil {
			return err
		}
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
	if !slices.Contains([]string{"raw", "qcow2", "vmdk"}, sourceFormat) {
		return "", wrap(failf("cannot import from '%s' - full clone feature is not supported", source))
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

// readSource is what qemu-img reads of an image. An uploaded image is untrusted, and its
// format must match its name (file_size_info in Storage/Plugin.pm).
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
	content = slices.Clone(vol.media.Bytes())
	switch format {
	case "raw":
		return roundUp(vol.size, 512), content, nil // in sectors
	case "qcow2":
		return readQcow2(content)
	case "vmdk":
		if !bytes.HasPrefix(content, []byte("KDMV")) && !bytes.HasPrefix(content, []byte("# Disk DescriptorFile")) {
			return 0, nil, errNoImage()
		}
		return 0, nil, failf("reading a vmdk is not something this simulator can do")
	}
	return vol.size, content, nil
}

func errNoImage() error { return failf("failed to query file information with qemu-img") }

// readQcow2 accepts an image without data: only a header.
func readQcow2(image []byte) (size int64, content []byte, err error) {
	if len(image) < 72 || !bytes.HasPrefix(image, []byte("QFI\xfb")) {
		return 0, nil, errNoImage()
	}
	if backing := binary.BigEndian.Uint64(image[8:]); backing != 0 {
		return 0, nil, failf("backing file not allowed for untrusted image")
	}
	return int64(binary.BigEndian.Uint64(image[24:])), nil, nil
}

func roundUp(n, unit int64) int64 { return (n + unit - 1) / unit * unit }
