package world

import (
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Rescan is qm disk rescan for one VM: every volume with its number that its configuration
// does not name becomes unusedN, and sizes are read again. It returns the command's
// output. A dry run only prints (QemuServer.pm, rescan and update_disk_config).
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

// updateDisks updates a configuration to match its volumes.
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
