package talosapi

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/compatibility"

	"github.com/recast-sh/recast/internal/sim/artefact"
)

// installerTask is the error of a failed installer container.
type installerTask struct{ code int32 }

func (e installerTask) Error() string { return fmt.Sprintf("task failed with exit code %d", e.code) }

// settleTime is the last part of an upgrade on disk; the rest of Times.Copy passes before.
const settleTime = time.Second

// upgradeDisk runs an installer image on an installed machine: it adds a boot entry and
// makes it the default; the running system continues. After an installerTask error nothing
// has changed.
//
// The steps are the installer's, and power may fail between any two of them:
//  1. drop every entry but the one to keep
//  2. write the new entry
//  3. make it the default one
//  4. put the kept one's name into META, from where a failing new system takes it
func (b *boot) upgradeDisk(ctx context.Context, c cachedImage, cmdline string, say func(string)) error {
	img := c.image
	d, ok := systemDisk(b.m.devices())
	if !ok {
		return errors.New("system disk not found")
	}
	say(fmt.Sprintf("running Talos installer %s", img.TalosVersion))
	if err := b.preflight(img); err != nil {
		say(fmt.Sprintf("Error: %v", err))
		return installerTask{1}
	}
	if b.m.fw.defects.of(img, c.refs...) == InstallerFails {
		say("Error: failed to copy boot assets: input/output error")
		return installerTask{1}
	}
	entry, fallback := bootEntry{UKI: c.uki, Cmdline: cmdline}, ""
	if err := b.m.editLoader(d.Key, func(l *loader) {
		entry.Name = l.nextName(img.TalosVersion)
		fallback = b.keepOne(l, img.TalosVersion, say)
	}); err != nil {
		return err
	}
	steps := []struct {
		after time.Duration
		do    func() error
	}{
		{b.m.fw.o.Times.Copy - 2*settleTime, func() error {
			say("copying boot assets to " + entry.Name)
			return b.m.editLoader(d.Key, func(l *loader) { l.Entries = append(l.Entries, entry) })
		}},
		{settleTime, func() error {
			say("updating EFI variables")
			return b.m.setDefault(d.Key, entry.Name)
		}},
		{settleTime, func() error {
			return b.m.editMeta(d.Key, func(meta *metaData) { meta.Upgrade = fallback })
		}},
	}
	for _, s := range steps {
		if !b.m.spend(ctx, "install", s.after) {
			return context.Cause(ctx)
		}
		if err := s.do(); err != nil {
			return err
		}
	}
	say(fmt.Sprintf("installation of %s complete", img.TalosVersion))
	return nil
}

// keepOne removes old entries. Installers of Talos 1.14 keep the running one; older ones
// keep the default, so that a second upgrade without a reboot in between removes the
// running system from the disk (Upgrade in sdboot.go).
func (b *boot) keepOne(l *loader, installer string, say func(string)) string {
	kept, ok := l.entry(b.m.defaultEntry(*l))
	if running, found := l.entry(b.med.entry); found && (!ok || !releaseOf(installer).keepsDefault) {
		kept = running
	}
	l.Entries = slices.DeleteFunc(l.Entries, func(e bootEntry) bool {
		old := !strings.EqualFold(e.Name, kept.Name)
		if old {
			say("removing old UKI: " + e.Name)
		}
		return old
	})
	return kept.Name
}

// preflight is the installer's check of the running version.
func (b *boot) preflight(img artefact.Image) error {
	version := func(tag string) (*compatibility.TalosVersion, error) {
		return compatibility.ParseTalosVersion(&machineapi.VersionInfo{Tag: tag})
	}
	host, err := version(b.med.image.TalosVersion)
	if err != nil {
		return err
	}
	target, err := version(img.TalosVersion)
	if err != nil {
		return err
	}
	if err := target.UpgradeableFrom(host); err != nil {
		return fmt.Errorf("pre-flight checks failed: %w", err)
	}
	return nil
}
