package config

import (
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/recast-sh/recast/internal/words"
)

func (k checker) vms() {
	taken := map[string]string{} // address, or MAC address → node
	for _, name := range slices.Sorted(maps.Keys(k.c.VMClasses)) {
		k.vm(spot{path: "vmClasses"}.entry(name), k.c.VMClasses[name])
	}
	for i, n := range k.c.Nodes {
		k.vm(spot{path: nodePath(i, "vm")}, n.VM)
		if path := nodePath(i, "class"); k.given(path) {
			if _, ok := k.c.VMClasses[n.Class]; !ok && !k.bad["vmClasses"] {
				k.add(path, "%s is not in vmClasses (line %d)%s", quote(n.Class), k.line("vmClasses"), words.DidYouMean(n.Class, slices.Sorted(maps.Keys(k.c.VMClasses))))
			}
		}
		k.pattern(nodePath(i, "host"), n.Host, hostName, "name of a Proxmox node")
		k.together(i, k.c.ShapeOf(n))
		if _, err := netip.ParseAddr(n.Address); n.Address != "" && err != nil {
			k.add(nodePath(i, "address"), "%s is not an address such as 192.0.2.31", quote(n.Address))
		}
		k.unshared(i, taken)
	}
}

// unshared refuses an address of a node's machine, or a MAC address, that another node has: a class must
// not give one to all of its nodes.
func (k checker) unshared(i int, taken map[string]string) {
	n := k.c.Nodes[i]
	v := k.c.ShapeOf(n)
	have := []string{n.Address}
	for _, config := range v.IPConfig {
		for part := range strings.SplitSeq(config, ",") {
			if prefix, err := netip.ParsePrefix(part[strings.Index(part, "=")+1:]); err == nil {
				have = append(have, prefix.Addr().String())
			}
		}
	}
	for _, nic := range v.NICs {
		if nic.MAC != nil {
			have = append(have, strings.ToUpper(*nic.MAC))
		}
	}
	for _, address := range have {
		path := k.ownPath(i)
		if address == n.Address {
			path = nodePath(i, "address")
		}
		if other, ok := taken[address]; ok && other != n.Name {
			k.add(path, "%s is the address of node %s already", address, quote(other))
		}
		if address != "" {
			taken[address] = n.Name
		}
	}
}

// ownPath is where a node says what its VM is.
func (k checker) ownPath(i int) string {
	if path := nodePath(i, "vm"); k.given(path) {
		return path
	}
	return nodePath(i, "class")
}

// The names that Proxmox allows (pve-common, PVE/JSONSchema.pm: pve-node, pve-configid, pve-bridge-id,
// pve-tag, pve-startup-order; pve-access-control, PVE/AccessControl.pm: pve-poolid).
const (
	hostName  = `[A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?`
	configID  = `[A-Za-z][-A-Za-z0-9_]+`
	storageID = `[A-Za-z][-A-Za-z0-9_.]*[A-Za-z0-9]`
	diskSlot  = `scsi([0-9]|[12][0-9]|30)|virtio([0-9]|1[0-5])|sata[0-5]|ide[0-3]`
)

func (k checker) vm(at spot, v VM) {
	path := func(key string) string { return at.key(key).path }
	k.ranges(at, reflect.ValueOf(v))
	k.optional(path("cpu"), v.CPU, `[-A-Za-z0-9_.+]+(,[^\s,]+)*`, "type of a processor, such as host")
	k.optional(path("machine"), v.Machine, `(pc|q35|virt)(-[-A-Za-z0-9.+]+)?(,[^\s,]+)*`, "machine type, such as q35")
	k.optional(path("startup"), v.Startup, `(order=)?\d+(,(up|down)=\d+)*|(up|down)=\d+(,(up|down)=\d+)*`, "start order: write it like order=2,up=30")
	k.optional(path("pool"), v.Pool, `[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+){0,2}`, "name of a pool")
	if v.Description != nil && len([]rune(*v.Description)) > 4096 {
		k.add(path("description"), "is too long: Proxmox allows 8192 characters, and recast needs half of them for what it notes there")
	}
	for i, tag := range v.Tags {
		k.pattern(at.key("tags").item(i).path, tag, `[A-Za-z0-9_][-A-Za-z0-9_.+]*`, "tag: letters, digits, '_', '-', '.' and '+'")
	}
	k.names(path("tags"), "of a tag", v.Tags)
	if v.HA != nil {
		k.ranges(at.key("ha"), reflect.ValueOf(*v.HA))
		k.optional(path("ha")+".group", v.HA.Group, configID, "name of an HA group")
	}
	for i, nic := range v.NICs {
		here := at.key("nics").item(i)
		k.ranges(here, reflect.ValueOf(nic))
		k.optional(here.key("mac").path, nic.MAC, `([0-9A-Fa-f][02468ACEace](:[0-9A-Fa-f]{2}){5})`, "MAC address of a card")
		k.optional(here.key("bridge").path, nic.Bridge, `[-A-Za-z0-9_.:]{1,15}`, "name of a bridge")
	}
	k.optional(path("cloudinit"), v.CloudInit, storageID, "name of a storage")
	for i, config := range v.IPConfig {
		k.pattern(at.key("ipconfig").item(i).path, config, `(ip|ip6|gw|gw6)=[^\s,=]+(,(ip|ip6|gw|gw6)=[^\s,=]+)*`, "address: write it like ip=192.0.2.31/24,gw=192.0.2.1")
	}
	if len(v.NICs) > 32 {
		k.add(path("nics"), "has %d network cards: Proxmox allows 32", len(v.NICs))
	}
	for i, mapping := range v.HostPCI {
		k.pattern(at.key("hostpci").item(i).path, mapping, configID, "name of a resource mapping")
	}
	if len(v.HostPCI) > 16 {
		k.add(path("hostpci"), "has %d devices: Proxmox allows 16", len(v.HostPCI))
	}
	k.disks(at.key("disks"), v.Disks)
}

func (k checker) disks(at spot, disks []VMDisk) {
	slots, system := map[string]int{}, -1
	for i, d := range disks {
		here := at.item(i)
		k.pattern(here.key("slot").path, d.Slot, diskSlot, "slot of a disk: write it like scsi1, virtio1 or sata1")
		k.optional(here.key("storage").path, d.Storage, storageID, "name of a storage")
		k.optional(here.key("serial").path, d.Serial, `[-A-Za-z0-9_.]{1,20}`, "serial number: at most 20 letters, digits, '-', '_' and '.'")
		if first, ok := slots[d.Slot]; ok {
			k.add(here.key("slot").path, "%s is there already (line %d)", quote(d.Slot), k.line(at.item(first).key("slot").path))
		}
		slots[d.Slot] = i
		if !d.IsSystem() {
			continue
		}
		if system >= 0 {
			k.add(here.key("system").path, "there is a system disk already (line %d)", k.line(at.item(system).key("system").path))
		}
		system = i
	}
}

// together checks what a class and a node's own settings say together, once neither is wrong by itself.
func (k checker) together(i int, v VM) {
	path := k.ownPath(i)
	number := func(n *int, otherwise int) int {
		if n == nil {
			return otherwise
		}
		return *n
	}
	if v.Balloon != nil && v.Memory != nil && *v.Balloon > *v.Memory {
		k.add(path, "balloon is %d MiB, more than memory, which is %d MiB", *v.Balloon, *v.Memory)
	}
	if all := number(v.Cores, 1) * number(v.Sockets, 1); v.VCPUs != nil && (v.Cores != nil || v.Sockets != nil) && *v.VCPUs > all {
		k.add(path, "vcpus is %d, and cores times sockets is %d", *v.VCPUs, all)
	}
	n, system := k.c.Nodes[i], slices.IndexFunc(v.Disks, VMDisk.IsSystem)
	if system < 0 {
		return
	}
	d := v.Disks[system]
	if n.SystemDisk.Slot != "" && n.SystemDisk.Slot != d.Slot {
		k.add(nodePath(i, "systemDisk")+".slot", "%s is not the system disk of its vmClass, which is %s", quote(n.SystemDisk.Slot), d.Slot)
	}
	if n.SystemDisk.SizeGiB != 0 && d.Size != nil && n.SystemDisk.SizeGiB != d.Size.GiB {
		k.add(nodePath(i, "systemDisk")+".sizeGiB", "%d is not the size of its vmClass, which is %s: keep one of them", n.SystemDisk.SizeGiB, d.Size)
	}
	if d.Serial != nil {
		k.add(path, "%s has a serial and is the system disk, which recast names itself: remove the serial", d.Slot)
	}
}

// optional is pattern for a value that may be missing.
func (r *report) optional(path string, value *string, pattern, what string) {
	if value != nil {
		r.pattern(path, *value, pattern, what)
	}
}

// ranges checks the numbers of a section against the minimum and maximum of their keys.
func (r *report) ranges(at spot, section reflect.Value) {
	for _, f := range fieldsOf(section.Type()) {
		value := section.FieldByIndex(f.index)
		if value.Kind() != reflect.Pointer || value.IsNil() || value.Elem().Kind() != reflect.Int {
			continue
		}
		least, most := f.limit("minimum"), f.limit("maximum")
		switch n := value.Elem().Int(); {
		case least != nil && n < *least && most == nil:
			r.add(at.key(f.key).path, "must be at least %d", *least)
		case least != nil && n < *least, most != nil && n > *most:
			r.add(at.key(f.key).path, "%d is out of bounds: Proxmox allows %d-%d", n, *least, *most)
		}
	}
}

// limit is the number of a rule such as minimum=1; nil: there is none.
func (f field) limit(name string) *int64 {
	for _, rule := range f.rules {
		if text, is := strings.CutPrefix(rule, name+"="); is {
			n, err := strconv.ParseInt(text, 10, 64)
			if err != nil {
				panic(fmt.Sprintf("%s: %v", f.key, err)) // a tag of this package
			}
			return &n
		}
	}
	return nil
}
