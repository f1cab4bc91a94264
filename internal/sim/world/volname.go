package world

import (
	"cmp"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// freeName is the name of a VM's next disk on a storage. It has the lowest free number, so
// numbers are reused; on network file systems every format is numbered separately
// (get_next_vm_diskname in Storage/Plugin.pm).
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

// basePath is the prefix of a linked clone's name: its base volume and a slash; "" for
// other volumes.
func basePath(name string) string {
	m := basePattern.FindStringSubmatch(name)
	if m == nil {
		return ""
	}
	return m[1]
}

// cloned says whether a volume has linked clones, as far as names show it: on LVM thin
// they don't.
func (s *storage) cloned(host string, vol *volume) bool {
	for name := range s.at(host) {
		if strings.HasPrefix(name, vol.name+"/") {
			return true
		}
	}
	return false
}

// cloudInitName is the name of a VM's cloud-init drive: qcow2 unless requested otherwise,
// whatever the storage's default (create_disks in API2/Qemu.pm).
func (s *storage) cloudInitName(owner int, format string) string {
	if s.block() {
		return fmt.Sprintf("vm-%d-cloudinit", owner)
	}
	return fmt.Sprintf("%d/vm-%d-cloudinit.%s", owner, owner, cmp.Or(format, "qcow2"))
}

// isCloudInit says whether a volid is a cloud-init drive, or a request for one.
func isCloudInit(volid string) bool {
	name := path.Base(volid[strings.Index(volid, ":")+1:])
	return name == "cloudinit" || volumeOwner(volid) != 0 && strings.Contains(name, "-cloudinit")
}

// volumeOwner is the VMID in a volume's name or volid, 0 for an ISO: the directory's on a
// file system, else the one in "vm-100-disk-0" (parse_volname of the storage plugins). It
// alone determines the owner of a volume, never the configuration that refers to it.
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
	id, err := strconv.Atoi(parts[1])
	if err != nil {
		return 0
	}
	return id
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
