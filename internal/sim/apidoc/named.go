package apidoc

import (
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// named are the named formats other than property strings, as registered in proxmox/pve-common (JSONSchema.pm),
// qemu-server (QemuServer.pm, Drive.pm), pve-storage (Storage.pm, Plugin.pm), pve-access-control (AccessControl.pm),
// pve-ha-manager (Tools.pm) and pve-guest-common.
var named = map[string]func(string) bool{
	"string":         func(string) bool { return true },
	"urlencoded":     like(`[-%a-zA-Z0-9_.!~*'()]*`),
	"pve-configid":   like(`(?i:[a-z][a-z0-9_-]+)`),
	"pve-storage-id": like(`(?i:[a-z][a-z0-9\-_.]*[a-z0-9])`),
	"pve-bridge-id":  like(`[-_.\w]+`),
	"pve-vmid":       like(`[1-9][0-9]{2,8}`),
	"pve-node":       like(host),
	"dns-name":       like(`(` + host + `\.)*` + host),
	"pve-iface":      like(`(?i:[a-z][a-z0-9_]{1,20}([:.]\d+)?)`),
	"mac-addr":       like(`(?i:[a-f0-9][02468ace](:[a-f0-9]{2}){5})`), // unicast: multicast addresses are refused
	"disk-size":      like(`\d+(\.\d+)?[KMGT]?`),
	"pve-tag":        like(`(?i:[a-z0-9_][a-z0-9_\-+.]*)`),

	"pve-volume-id":                  isVolume,
	"pve-volume-id-or-absolute-path": func(s string) bool { return strings.HasPrefix(s, "/") || isVolume(s) },
	"pve-volume-id-or-qm-path": func(s string) bool {
		return s == "none" || s == "cdrom" || strings.HasPrefix(s, "/") || isVolume(s)
	},
	"pve-storage-content": like(`images|rootdir|vztmpl|iso|backup|snippets|import|none`),
	"pve-storage-format":  like(`raw|qcow2|vmdk|subvol`),

	"pve-poolid":               like(name + `(/` + name + `){0,2}`),
	"pve-groupid":              like(name),
	"pve-roleid":               like(name),
	"pve-userid":               like(`[^\s:/]+@[A-Za-z][A-Za-z0-9.\-_]+`),
	"pve-tokenid":              like(`[^\s:/]+@[A-Za-z][A-Za-z0-9.\-_]+![A-Za-z][A-Za-z0-9.\-_]+`),
	"pve-task-status-type":     like(`(?i:ok|error|warning|unknown)`),
	"pve-ha-resource-id":       like(`[a-z]+:\S+`),
	"pve-ha-resource-or-vm-id": like(`[a-z]+:\S+|\d+`),
	"pve-replication-job-id":   like(`[1-9][0-9]{2,8}-\d{1,9}`),

	"pve-startup-order":    isStartupOrder,
	"pve-hotplug-features": isHotplug,
	"pve-qm-bootdev":       func(s string) bool { return isDisk(s) || isDevice(s) },
	"pve-qm-bootdisk":      isDisk,
	"pve-cpuset":           like(`\s*\d+(-\d+)?\s*(,\s*\d+(-\d+)?\s*)*`),
	"pve-phys-bits":        isPhysBits,

	"pve-ipv4-config": func(s string) bool { return s == "dhcp" || s == "manual" || isPrefix(s, netip.Addr.Is4) },
	"pve-ipv6-config": func(s string) bool {
		return s == "auto" || s == "dhcp" || s == "manual" || isPrefix(s, netip.Addr.Is6)
	},

	"ipv4":    func(s string) bool { a, err := netip.ParseAddr(s); return err == nil && a.Is4() },
	"ipv6":    func(s string) bool { a, err := netip.ParseAddr(s); return err == nil && a.Is6() && a.Zone() == "" },
	"address": func(s string) bool { _, err := netip.ParseAddr(s); return err == nil || like(`(`+host+`\.)*`+host)(s) },
	"CIDR":    func(s string) bool { return isPrefix(s, netip.Addr.IsValid) },
}

const (
	host = `[a-zA-Z0-9]([a-zA-Z0-9\-]*[a-zA-Z0-9])?`
	name = `[A-Za-z0-9.\-_]+`
)

func like(pattern string) func(string) bool {
	return regexp.MustCompile(`^(?:` + pattern + `)$`).MatchString
}

var isVolume = like(`(?i:[a-z][a-z0-9\-_.]*[a-z0-9]):.+`)

// isPrefix says whether s is a network, or an address with its network's length, of that
// family. Proxmox accepts none shorter than 8 bits.
func isPrefix(s string, family func(netip.Addr) bool) bool {
	p, err := netip.ParsePrefix(s)
	return err == nil && family(p.Addr()) && p.Bits() > 7
}

var startupPart = regexp.MustCompile(`^((order=)?\d+|up=\d+|down=\d+)$`)

func isStartupOrder(s string) bool {
	wrong := func(part string) bool { return strings.TrimSpace(part) != "" && !startupPart.MatchString(part) }
	return s != "" && s != "0" && !slices.ContainsFunc(strings.Split(s, ","), wrong) // "" and "0" are Perl's false
}

var hotplugFeature = like(`network|disk|cpu|memory|usb|cloudinit`)

func isHotplug(s string) bool {
	unknown := func(feature string) bool { return !hotplugFeature(feature) }
	return s == "0" || s == "1" || !slices.ContainsFunc(splitList(s), unknown)
}

func isPhysBits(s string) bool {
	n, err := strconv.Atoi(s)
	return s == "host" || err == nil && n >= 8 && n <= 64
}

// isDisk says whether a key is that of a bootable disk.
func isDisk(key string) bool {
	return numbered(key, map[string]int{"ide": 3, "sata": 5, "scsi": 30, "virtio": 15})
}

// isDevice is isDisk for other bootable devices.
func isDevice(key string) bool {
	return numbered(key, map[string]int{"hostpci": unsaid["hostpci"], "net": unsaid["net"], "usb": unsaid["usb"]})
}

func numbered(key string, last map[string]int) bool {
	base := strings.TrimRight(key, "0123456789")
	n, err := strconv.Atoi(key[len(base):])
	highest, known := last[base]
	return known && err == nil && n <= highest && strconv.Itoa(n) == key[len(base):]
}
