package talosapi

import (
	"context"
	"sync"
	"time"

	"github.com/recast-sh/recast/internal/sim/artefact"
)

// Defect is what is wrong with an image. Whatever it is, the image's own ISO
// still comes up in maintenance mode: a defect shows in the installed system.
type Defect string

// The defects.
const (
	Sound Defect = "" // none

	Unpullable     Defect = "cannot be pulled"
	Unauthorized   Defect = "needs credentials" // that the machines do not have
	Endless        Defect = "never arrives"     // a pull of it does not end
	InstallerFails Defect = "installer fails"   // with an exit code, before it changes an installed system

	// Unready is a system that comes up, API and all, and whose kubelet never starts;
	// of a container's image, one that starts and never answers.
	Unready Defect = "never ready"
	// Unserving is, of an API server's image, one that answers and is never ready to serve.
	Unserving Defect = "never serves"
	// RollsBack is a system whose machined ends with a fatal error: it puts the
	// entry of before the upgrade back, if META names one, and reboots.
	RollsBack Defect = "rolls back"
	// Hangs is a system that starts and never gets as far as its API. Nothing
	// reverts the upgrade.
	Hangs Defect = "hangs"
	// Loops is a system that reboots itself, into the same entry for ever; of a
	// static pod's image, one whose container ends as soon as it has started.
	Loops Defect = "loops"
)

// How long a defective system takes to fail, and machined's pause before the
// reboot that follows a fatal error.
const (
	failTime  = 20 * time.Second
	panicTime = 10 * time.Second
)

// defects knows the images that are not as they should be.
type defects struct {
	mu   sync.Mutex
	what map[string]Defect // by schematic ID, installer reference, or build
}

// BreakImage gives an image a defect: every image of a schematic by its ID, or
// one by the installer reference that it is pulled by. Sound mends it. What is
// installed somewhere already is affected from its next boot on.
func (fw *Firmware) BreakImage(image string, d Defect) {
	fw.defects.mu.Lock()
	defer fw.defects.mu.Unlock()
	fw.defects.what[image] = d
}

// ofRef is that of an image by the reference that it is pulled by: on one machine
// alone, or anywhere.
func (d *defects) ofRef(ref string, t Trouble) Defect {
	if what, ok := t.Images[ref]; ok {
		return what
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.what[ref]
}

// of is the defect of an image, by whatever of its names is known here.
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

// pulled remembers what an image that is broken by its reference holds, since
// a boot image does not know the reference that it came by.
func (d *defects) pulled(ref string, img artefact.Image) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if what, ok := d.what[ref]; ok {
		d.what[build(img)] = what
	}
}

// build is one schematic's image of one version.
func build(img artefact.Image) string { return img.SchematicID + " " + img.TalosVersion }

// stumble is the end of an installed system that is defective.
func (b *boot) stumble(ctx context.Context) outcome {
	if b.med.entry == "" {
		return carryOn
	}
	switch b.m.fw.defects.of(b.med.image) {
	case Hangs:
		return b.m.dark(ctx)
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

// fatal is how machined ends with an error: it reverts an upgrade that has not
// proven itself and reboots through the firmware (main.go, revert.go in Talos' machined).
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
