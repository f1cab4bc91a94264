package talosapi

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/recast-sh/recast/internal/sim/world"
)

// machine is a VM that is switched on.
type machine struct {
	fw     *Firmware
	hw     *world.Hardware
	cancel context.CancelFunc
	power  chan struct{} // the ACPI button; pressed while nobody listens, it does nothing
	done   chan struct{}

	kernel kernelLog // of this boot, as the two below are
	log    textLog   // machined's
	etcd   textLog   // that of etcd's server

	bootLoader atomic.Value // the entry that systemd-boot took when the firmware ran last, as string

	net       atomic.Pointer[attachment] // of the boot in progress
	unplugged bool                       // whether it began without a network

	runs  atomic.Value // the reference of the kubelet's image, as string
	disks sync.Mutex   // held while a disk's bytes are read, changed and written back
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

// outcome is how a boot, or a part of it, came to its end.
type outcome int

const (
	carryOn    outcome = iota // it has not ended
	killed                    // the power is gone
	kexec                     // straight into the installed system's kernel
	powerCycle                // through the firmware
	powerOff                  // switch the machine off
	upgrading                 // install a new system first, then reboot
	resetting                 // wipe first, then reboot or switch off
)

// run is the machine's life; true means that it wants to be switched off.
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

// dark is a machine that does nothing until it is switched off: nothing to
// boot, halted, or crashed.
func (m *machine) dark(ctx context.Context) outcome {
	<-ctx.Done()
	return killed
}

// firmwareBoot takes the first bootable medium of the boot order.
func (m *machine) firmwareBoot(ctx context.Context) (medium, bool) {
	if !m.spend(ctx, "firmware", m.fw.o.Times.Firmware) {
		return medium{}, false
	}
	devs := m.devices()
	for _, key := range m.hw.BootOrder {
		for _, d := range devs {
			if d.Key != key {
				continue
			}
			med, ok := m.readMedium(d)
			switch {
			case !ok || med.image.Arch != m.hw.Arch: // the firmware looks for a loader of its own architecture
			case m.hw.SecureBoot: // no image of the lab is signed
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

// installed is the system disk's default entry, as kexec loads it. The system
// then reports the entry as the variable has it: what sd-boot says, which writes
// names in lower case, is of the last time that the firmware ran
// (controllers/runtime/booted_entry.go).
func (m *machine) installed() (medium, bool) {
	d, ok := systemDisk(m.devices())
	if !ok {
		return medium{}, false
	}
	med, ok := m.readMedium(d)
	if m.uefi() {
		if name := readVariables(m.hw.NVRAM.Bytes()).LoaderEntryDefault; strings.EqualFold(name, med.entry) {
			med.entry = name
		}
	}
	return med, ok
}
