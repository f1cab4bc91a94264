package talosapi

import (
	"context"
	"sync"
	"time"

	"github.com/recast-sh/recast/internal/sim/artefact"
)

// Defect is a fault of an image. The image's ISO still reaches maintenance mode: a defect
// shows in the installed system.
type Defect string

// The defects.
const (
	Sound Defect = "" // none

	Unpullable     Defect = "cannot be pulled"
	Unauthorized   Defect = "needs credentials" // which the machines lack
	Endless        Defect = "never arrives"     // a pull never ends
	InstallerFails Defect = "installer fails"   // with an exit code, before it changes an installed system

	// Unready is a system whose API works but whose kubelet never starts; for a container's
	// image, one that starts and never answers.
	Unready Defect = "never ready"
	// Unserving is an API server's image that answers but is never ready to serve.
	Unserving Defect = "never serves"
	// RollsBack is a system whose machined ends with a fatal error: it restores the boot entry
	// from before the upgrade, if META names one, and reboots.
	RollsBack Defect = "rolls back"
	// Hangs is a system that starts but never reaches its API. Nothing reverts the upgrade.
	Hangs Defect = "hangs"
	// KexecOnly is a system that a running kernel can start, and the firmware can't: it hangs before it reaches
	// its API (talos#14146).
	KexecOnly Defect = "boots by kexec only"
	// Loops is a system that reboots into the same entry for ever; for the image of etcd or of a
	// static pod, one whose container ends as soon as it has started.
	Loops Defect = "loops"
)

// How long a defective system takes to fail, and machined's pause before the reboot after
// a fatal error.
const (
	failTime  = 20 * time.Second
	panicTime = 10 * time.Second
)

// defects are the images with defects.
type defects struct {
	mu   sync.Mutex
	what map[string]Defect // by schematic ID, installer reference, or build
}

// BreakImage gives an image a defect: every image of a schematic by its ID, or one by its
// installer reference. Sound repairs it. Installed systems are affected from their next
// boot on.
func (fw *Firmware) BreakImage(image string, d Defect) {
	fw.defects.mu.Lock()
	defer fw.defects.mu.Unlock()
	fw.defects.what[image] = d
}

// ofRef is the defect of an image by its reference, on one machine or everywhere.
// alone, or anywhere.
func (d *defects) ofRef(ref string, t Trouble) Defect {
	if what, ok := t.Images[ref]; ok {
		return what
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.what[ref]
}

// of is the defect of an image by any of its names.
func (d *defects) of(img artefact.Image, refs ...string) Defect {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, name := range append(refs, build(img), img.SchematicID) {
		if what, ok := d.what[name]; ok {
			return what
		}
	}
	return Sound
}

// pulled remembers the content of an image that is broken by reference, since the boot
// image does not contain the reference.
func (d *defects) pulled(ref string, img artefact.Image) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if what, ok := d.what[ref]; ok {
		d.what[build(img)] = what
	}
}

// build identifies one schematic's image of one version.
func build(img artefact.Image) string { return img.SchematicID + " " + img.TalosVersion }

// stumble is how a defective installed system ends.
func (b *boot) stumble(ctx context.Context) outcome {
	if b.med.entry == "" {
		return carryOn
	}
	switch b.m.fw.defects.of(b.med.image) {
	case Hangs:
		return b.m.dark(ctx)
	case KexecOnly:
		if !b.med.kexec {
			return b.m.dark(ctx)
		}
	case Loops:
		if !b.m.fw.sleep(ctx, failTime) {
			return killed
		}
		b.m.console("rebooting: no init found")
		return powerCycle
	case RollsBack:
		if !b.m.fw.sleep(ctx, failTime) {
			return killed
		}
		return b.fatal(ctx, "fatal sequencer error in \"boot\" sequence: task 1/1: failed")
	}
	return carryOn
}

// fatal is machined's fatal error: it reverts an upgrade on probation and reboots through
// the firmware (main.go, revert.go in Talos' machined).
func (b *boot) fatal(ctx context.Context, why string) outcome {
	b.ending = true // without a sequence
	b.m.console("%s", why)
	if err := b.m.revertUpgrade(); err != nil {
		b.m.console("failed to revert bootloader: %v", err)
	}
	if !b.m.fw.sleep(ctx, panicTime) {
		return killed
	}
	return powerCycle
}
