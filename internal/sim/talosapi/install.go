package talosapi

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/cel"
	"github.com/siderolabs/talos/pkg/machinery/cel/celenv"
	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"go.yaml.in/yaml/v4"

	"github.com/recast-sh/recast/internal/sim/artefact"
)

// install writes the system to the configured disk and reboots into it. If the installation fails, the sequence and
// machined fail too (main.go): machined reboots, from its boot medium again.
func (b *boot) install(ctx context.Context) (outcome, error) {
	if b.config().UnattendedInstallConfig() != nil {
		b.sequence("", "install", nil)
		b.seq.end()
		b.bootSequence()
		return b.installUnattended(ctx)
	}
	b.sequence("", "install", b.release().phases(installPhases))
	b.seq.to("install")
	if err := b.stage(ctx, runtime.MachineStageInstalling, true); err != nil {
		return carryOn, err
	}
	end, err := b.writeSystem(ctx)
	switch {
	case ctx.Err() != nil:
		return killed, nil
	case err != nil:
		return b.fatal(ctx, b.seq.fail(err).Error()), nil
	}
	return end, nil
}

// writeSystem pulls the installer, wipes and partitions the disk, and writes boot image and state. After a power loss
// during the write the disk counts as installed but can't boot. The boot continues if the configuration wants no reboot
// (shouldReboot in unattended_install.go).
func (b *boot) writeSystem(ctx context.Context) (outcome, error) {
	ref, target, err := b.installTarget()
	if err != nil {
		return carryOn, err
	}
	if end := b.wait(ctx, "pull", b.m.fw.o.Times.Pull); end != carryOn {
		return end, nil
	}
	pulled, err := b.fetchPatiently(ctx, ref, ref, legacyRetries)
	if err != nil {
		return carryOn, err
	}
	img := pulled.image
	b.m.console("installing Talos %s to %s", img.TalosVersion, target.path())
	blank := artefact.Disk{Partitions: []artefact.Partition{newPartition(labelEFI, "vfat", nil), newPartition(labelMeta, "talosmeta", nil)}}
	if err := b.m.rewrite(target.Key, func(artefact.Disk) artefact.Disk { return blank }); err != nil {
		return carryOn, err
	}
	if end := b.wait(ctx, "install", b.m.fw.o.Times.Copy); end != carryOn {
		return end, nil
	}
	if b.m.fw.hub.defectOf(img, ref) == InstallerFails {
		return carryOn, installerTask{1}
	}
	st, err := b.stateNow()
	if err != nil {
		return carryOn, err
	}
	system := systemPartitions(img.TalosVersion, pulled.uki, b.grubCmdline(img), st)
	if err := b.m.rewrite(target.Key, func(artefact.Disk) artefact.Disk { return system }); err != nil {
		return carryOn, err
	}
	if err := b.m.setDefault(target.Key, loader{}.nextName(img.TalosVersion)); err != nil {
		return carryOn, err
	}
	b.ending = b.seq.name == "install" // it reboots by itself
	if u := b.config().UnattendedInstallConfig(); u != nil && u.RebootAfterInstall() != nil && !*u.RebootAfterInstall() {
		return carryOn, b.provision(ctx)
	}
	return kexec, b.provision(ctx)
}

// systemPartitions returns the partitions of an installed system, without EPHEMERAL; uki is the digest of its boot
// image.
func systemPartitions(talos, uki, cmdline string, st stateData) artefact.Disk {
	return artefact.Disk{Partitions: []artefact.Partition{
		efiPartition(talos, uki, cmdline),
		newPartition(labelMeta, "talosmeta", nil),
		newPartition(labelState, "xfs", encoded(st)),
	}}
}

// installTarget returns the installer to pull and the disk to install on: the first disk that matches.
func (b *boot) installTarget() (string, device, error) {
	ref, matches, err := installWish(b.config())
	if err != nil {
		return "", device{}, err
	}
	for _, d := range b.m.devices() {
		if d.CDROM {
			continue
		}
		ok, err := matches(d)
		if err != nil {
			return "", device{}, fmt.Errorf("evaluate disk selector: %w", err)
		}
		if ok {
			return ref, d, nil
		}
	}
	return "", device{}, errNoMatch
}

// installWish reads the installer and the disk selector from the part of the configuration that has them.
func installWish(cfg config.Provider) (string, func(device) (bool, error), error) {
	if u := cfg.UnattendedInstallConfig(); u != nil {
		selector := u.VolumeSelector()
		return u.InstallerImage(), selected(&selector), nil
	}
	in := cfg.Machine().Install()
	expr, err := in.DiskMatchExpression()
	switch {
	case err != nil:
		return "", nil, fmt.Errorf("read install disk selector: %w", err)
	case in.Image() == "":
		return "", nil, errors.New("no installer image is configured")
	case expr != nil:
		return in.Image(), selected(expr), nil
	case in.Disk() != "":
		return in.Image(), func(d device) (bool, error) { return d.called(in.Disk()), nil }, nil
	}
	return "", nil, errors.New("no install disk is configured")
}

func selected(expr *cel.Expression) func(device) (bool, error) {
	return func(d device) (bool, error) { return matchDisk(expr, d, false) }
}

// matchDisk evaluates a disk selector.
func matchDisk(expr *cel.Expression, d device, system bool) (bool, error) {
	return expr.EvalBool(celenv.DiskLocator(), map[string]any{"disk": d.selectable(), "system_disk": system})
}

// rewrite changes the partitions of the disk at that key.
func (m *machine) rewrite(key string, change func(artefact.Disk) artefact.Disk) error {
	m.disks.Lock()
	defer m.disks.Unlock()
	d, there := first(m.devices(), func(d device) bool { return d.Key == key })
	if !there || d.Media == nil {
		return fmt.Errorf("disk %s is gone", key)
	}
	d.Media.Write(artefact.WriteDisk(change(d.disk)))
	return nil
}

// maxInstallPause is the maximum backoff between two attempts (controller runtime's).
const maxInstallPause = time.Minute

// errNoMatch says that no disk matches a selector.
var errNoMatch = errors.New("no disk matched the selector")

// installUnattended makes the installation by a configuration document, since 1.14 (unattended_install.go in
// machined): it retries until a disk counts as installed. If the installer failed after that, the machine is a node
// that runs from its boot medium, and is not rebooted.
func (b *boot) installUnattended(ctx context.Context) (outcome, error) {
	if err := b.stage(ctx, runtime.MachineStageRunning, false, "services: kubelet not running"); err != nil {
		return carryOn, err
	}
	for pause := time.Second; ; pause = min(2*pause, maxInstallPause) {
		if err := b.unattended(ctx, runtime.UnattendedInstallPhaseInstalling, nil); err != nil {
			return carryOn, err
		}
		end, failed := b.writeSystem(ctx)
		if ctx.Err() != nil {
			return killed, nil
		}
		switch {
		case failed == nil && end == carryOn:
			return carryOn, b.unattended(ctx, runtime.UnattendedInstallPhaseInstalled, nil)
		case failed == nil:
			return end, nil
		}
		b.m.console("failed to run installer: %v", failed)
		phase := runtime.UnattendedInstallPhaseFailed
		if errors.Is(failed, errNoMatch) {
			phase = runtime.UnattendedInstallPhasePending
		}
		if err := b.unattended(ctx, phase, failed); err != nil {
			return carryOn, err
		}
		if end := b.wait(ctx, "pause", pause); end != carryOn {
			return end, nil
		}
		if d, installed := systemDisk(b.m.devices()); installed {
			return carryOn, errors.Join(b.unattended(ctx, runtime.UnattendedInstallPhaseInstalled, nil), b.provisionState(d))
		}
	}
}

// unattended publishes the installation's progress, if the configuration asks for an unattended installation.
func (b *boot) unattended(ctx context.Context, phase runtime.UnattendedInstallPhase, failed error) error {
	u := b.config().UnattendedInstallConfig()
	if u == nil {
		return nil
	}
	r := runtime.NewUnattendedInstallStatus()
	r.TypedSpec().Image, r.TypedSpec().Phase = u.InstallerImage(), phase
	if failed != nil {
		r.TypedSpec().Error = failed.Error()
	}
	return b.store.set(ctx, r)
}

// provisionState makes the STATE volume on a system disk that has none.
func (b *boot) provisionState(d device) error {
	if _, there := partition(d.disk, labelState); there {
		return nil
	}
	st, err := b.stateNow()
	if err != nil {
		return err
	}
	return b.m.rewrite(d.Key, func(disk artefact.Disk) artefact.Disk {
		disk.Partitions = append(disk.Partitions, newPartition(labelState, "xfs", encoded(st)))
		return disk
	})
}

// stateNow returns the content of STATE for the running machine.
func (b *boot) stateNow() (stateData, error) {
	b.mu.Lock()
	st := stateData{NodeID: b.nodeID}
	b.mu.Unlock()
	if b.tried {
		return st, nil
	}
	var err error
	if st.Config, err = b.config().Bytes(); err != nil {
		return st, fmt.Errorf("write machine configuration: %w", err)
	}
	return st, nil
}

// grubCmdline returns the kernel command line that an installer with the machine configuration writes for GRUB, on a
// machine without UEFI: Talos' own arguments and machine.install.extraKernelArgs, without the schematic's arguments.
// With grubUseUKICmdline grubCmdline returns "": the boot image's own command line (grub/install.go,
// generateGrubImage).
func (b *boot) grubCmdline(img artefact.Image) string {
	cfg := b.config()
	if b.m.uefi() || cfg == nil || cfg.Machine() == nil || cfg.UnattendedInstallConfig() != nil || cfg.Machine().Install().GrubUseUKICmdline() {
		return ""
	}
	var schematic struct {
		Customization struct {
			ExtraKernelArgs []string `yaml:"extraKernelArgs"`
		}
	}
	_ = yaml.Unmarshal([]byte(img.SchematicYAML), &schematic) // no arguments without a schematic
	args := slices.DeleteFunc(strings.Fields(img.Cmdline), func(arg string) bool { return slices.Contains(schematic.Customization.ExtraKernelArgs, arg) })
	return strings.Join(append(args, cfg.Machine().Install().ExtraKernelArgs()...), " ")
}
