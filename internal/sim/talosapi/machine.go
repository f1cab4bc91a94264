package talosapi

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/recast-sh/recast/internal/sim/world"
)

// machine is a VM that is powered on.
type machine struct {
	fw     *Firmware
	hw     *world.Hardware
	cancel context.CancelFunc
	power  chan struct{} // the ACPI button; without a receiver a press has no effect
	done   chan struct{}

	kernel kernelLog // of this boot, like the two below
	log    textLog   // machined's
	etcd   textLog   // that of etcd's server

	bootLoader atomic.Value // entry that systemd-boot took at the latest firmware boot, as string

	net       atomic.Pointer[attachment] // of the present boot
	unplugged bool                       // it began without a network
	astray    atomic.Bool                // its configuration has given it an address where no client looks for it

	etcdApart atomic.Pointer[bool] // etcd's directory is on a partition of its own; nil before the first boot

	runs  atomic.Value // reference of the kubelet's image, as string
	disks sync.Mutex   // held for read-modify-write of a disk's content
}

var _ world.Guest = (*machine)(nil)

// Shutdown implements world.Guest.
func (m *machine) Shutdown() {
	select {
	case m.power <- struct{}{}:
	default:
	}
}

// Kill implements world.Guest.
func (m *machine) Kill() {
	m.cancel()
	<-m.done
}

// outcome is how a boot, or a part of it, ended.
type outcome int

const (
	carryOn    outcome = iota // it has not ended
	killed                    // power loss
	kexec                     // directly into the installed system's kernel
	powerCycle                // through the firmware
	powerOff                  // power the machine off
	upgrading                 // install a new system first, then reboot
	resetting                 // wipe first, then reboot or power off
)

// run is the machine's life; true means that it wants to be powered off.
func (m *machine) run(ctx context.Context) bool {
	defer m.cancel()
	med, ok := m.firmwareBoot(ctx)
	for ok {
		switch m.boot(ctx, med) {
		case kexec:
			if med, ok = m.installed(); ok {
				continue
			}
			med, ok = m.firmwareBoot(ctx)
		case powerCycle:
			med, ok = m.firmwareBoot(ctx)
		case powerOff:
			return true
		default:
			return false
		}
	}
	m.dark(ctx)
	return false
}

// dark is a machine that does nothing until it is powered off: nothing to boot, halted, or
// crashed.
func (m *machine) dark(ctx context.Context) outcome {
	<-ctx.Done()
	return killed
}

// firmwareBoot boots the first bootable medium of the boot order.
func (m *machine) firmwareBoot(ctx context.Context) (medium, bool) {
	if !m.spend(ctx, "firmware", m.fw.o.Times.Firmware) {
		return medium{}, false
	}
	m.adoptImages()
	devs := m.devices()
	for _, key := range m.hw.BootOrder {
		for _, d := range devs {
			if d.Key != key {
				continue
			}
			med, ok := m.readMedium(d)
			switch {
			case !ok || med.image.Arch != m.hw.Arch: // the firmware needs a loader of its own architecture
			case m.hw.SecureBoot: // the lab's images are not signed
				m.console("BdsDxe: failed to load %s: Access Denied", key)
			default:
				m.bootLoader.Store(m.loadedEntry(med))
				return med, true
			}
		}
	}
	m.console("no bootable device")
	return medium{}, false
}

// installed is the system disk's default entry, as kexec loads it. The system then reports
// the name in the variable, even if the disk has no such entry: sd-boot's own report, in lower
// case, is from the latest firmware boot (controllers/runtime/booted_entry.go).
func (m *machine) installed() (medium, bool) {
	d, ok := systemDisk(m.devices())
	if !ok {
		return medium{}, false
	}
	med, ok := m.readMedium(d)
	med.kexec = true
	if m.uefi() {
		med.reported = readVariables(m.hw.NVRAM.Bytes()).LoaderEntryDefault
	}
	return med, ok
}
