package world

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

const (
	// hotplugTime is how long plugging or unplugging a device of a running VM takes.
	hotplugTime = 1200 * time.Millisecond
	// busyTime is how long Proxmox waits for a device that the guest does not release.
	busyTime = 6200 * time.Millisecond
	// controllerTime is how long Proxmox waits for a SCSI disk with its own controller that the guest does not release.
	controllerTime = 12 * time.Second
)

// plugTime returns how long it takes to plug the devices of a change; mu must be held.
func (w *World) plugTime(v *vm, r ChangeRequest) (takes time.Duration) {
	if v.proc == nil {
		return 0
	}
	for _, key := range slices.Concat(slices.Sorted(maps.Keys(r.Set)), r.Delete) {
		_, set := r.Set[key]
		switch {
		case !isDevice(key) || v.isBootDisk(key):
		case set:
			takes += hotplugTime
		case !v.has(key) || strings.HasPrefix(key, "unused"):
		case w.busyInGuest(key):
			takes += busyTime
		case optionName(key) == "scsi" && v.config["scsihw"] == "virtio-scsi-single" && !w.guestCooperates():
			takes += controllerTime
		default:
			takes += hotplugTime
		}
	}
	return takes
}

// isDevice reports whether a key is a device that can be plugged while the VM runs.
func isDevice(key string) bool {
	return slices.Contains([]string{"scsi", "virtio", "net"}, optionName(key))
}

// guestCooperates reports whether guests release a PCI device on request. Without firmware no guest runs that could.
func (w *World) guestCooperates() bool { return w.firmware != nil }

// busyInGuest reports whether a device can't be unplugged: the guest must release network cards and virtio disks,
// which are PCI devices, but not SCSI disks.
func (w *World) busyInGuest(key string) bool {
	return !w.guestCooperates() && slices.Contains([]string{"net", "virtio"}, optionName(key))
}

// isBootDisk reports whether a drive is in the boot order (get_bootdisks in Drive.pm).
func (v *vm) isBootDisk(key string) bool {
	return isDriveKey(key) && slices.Contains(bootOrder(v.config["boot"]), key)
}

// hotplug applies pending changes to a running VM: keys that were just modified, and keys that don't affect the
// process. Changes that fail are returned and stay pending: a deletion is then done when the VM stops
// (vmconfig_hotplug_pending in QemuServer.pm).
func (w *World) hotplug(user string, v *vm, modified map[string]bool) (wrong map[string]string) {
	wrong = map[string]string{}
	problem := func(key string, err error) { wrong[key] = fmt.Sprintf("hotplug problem - %v\n", err) }
	for _, key := range slices.SortedFunc(maps.Keys(v.pending), compareKeys) {
		if fastPlugged(key) {
			w.applySet(v, key)
		}
	}
	for _, key := range slices.SortedFunc(maps.Keys(v.pendingDelete), compareKeys) {
		if !modified[key] || !isDevice(key) && !fastPlugged(key) {
			continue
		}
		if err := w.unplug(v, key); err != nil {
			problem(key, err)
		} else if err := w.applyDelete(user, v, key); err != nil {
			problem(key, err)
		}
	}
	for _, key := range slices.SortedFunc(maps.Keys(v.pending), compareKeys) {
		if !modified[key] {
			continue
		}
		if now, err := w.plug(v, key, v.pending[key]); err != nil {
			problem(key, err)
		} else if now {
			w.applySet(v, key)
		}
	}
	return wrong
}

// unplug removes a device from the running process.
func (w *World) unplug(v *vm, key string) error {
	if v.isBootDisk(key) {
		return fmt.Errorf("can't unplug bootdisk '%s'", key)
	}
	if w.busyInGuest(key) {
		return fmt.Errorf("error on hot-unplugging device '%s' - still busy in guest?", key)
	}
	return nil
}

// fastPlugged lists the options that don't affect a running process.
func fastPlugged(key string) bool {
	return isCloudInitOption(key) || slices.Contains([]string{
		"description", "hookscript", "lock", "migrate_downtime", "migrate_speed", "name", "onboot", "protection", "shares",
		"startup", "tags", "vmstatestorage",
	}, key)
}

// plug reports whether a value can be applied while the VM runs.
func (w *World) plug(v *vm, key, value string) (now bool, err error) {
	old, had := v.config[key]
	switch {
	case key == "cpuunits" || key == "cpulimit":
		return true, nil
	case key == "balloon":
		return had && (old == "0") == (value == "0") || !had && value != "0", nil
	case optionName(key) == "net":
		return w.plugNet(v, key, old, value)
	case !isDriveKey(key) || key == "efidisk0" || key == "tpmstate0":
		return false, nil
	case had && isCDROM(key, old) != isCDROM(key, value):
		return false, fmt.Errorf("unable to change media type")
	case had && isCDROM(key, old):
		return true, nil // Proxmox changes the medium
	case had && driveVolid(key, old) == driveVolid(key, value):
		return !changesDevice(key, old, value), nil
	case had:
		if err := w.unplug(v, key); err != nil {
			return false, err
		}
	}
	return isDevice(key), nil
}

// plugNet applies a change of a network card: a bridge can be changed on the host; another card model requires an
// unplug first.
func (w *World) plugNet(v *vm, key, old, value string) (now bool, err error) {
	model := func(card string) string { first, _, _ := strings.Cut(card, ","); return first }
	if old != "" && model(old) != model(value) {
		if err := w.unplug(v, key); err != nil {
			return false, err
		}
	}
	if bridge := property(value, "bridge"); bridge != "" && !w.hasBridge(bridge) {
		return false, fmt.Errorf("bridge '%s' does not exist", bridge)
	}
	return true, nil
}

// hasBridge reports whether the hosts have a bridge: the default bridge, or the bridge of a VNet.
func (w *World) hasBridge(name string) bool {
	return name == LocalBridge || w.zoneOf(name) != localZone
}

// checkNetworks checks that the bridges exist; only a start makes this check.
func (w *World) checkNetworks(v *vm) error {
	for _, key := range slices.SortedFunc(maps.Keys(v.config), compareKeys) {
		if bridge := property(v.config[key], "bridge"); optionName(key) == "net" && bridge != "" && !w.hasBridge(bridge) {
			return failf("bridge '%s' does not exist", bridge)
		}
	}
	return nil
}

// changesDevice reports whether two values differ in options that vmconfig_update_disk in QemuServer.pm leaves to the
// next start. A serial is not among them: Proxmox stores a new serial at once, while the guest keeps the old one.
func changesDevice(key, old, value string) bool {
	a, errA := parseDrive(key, old)
	b, errB := parseDrive(key, value)
	if errA != nil || errB != nil {
		return true
	}
	fixed := []string{"aio", "cache", "discard", "iothread", "product", "queues", "ro", "ssd", "vendor"}
	return slices.ContainsFunc(fixed, func(o string) bool { return a.options[o] != b.options[o] })
}
