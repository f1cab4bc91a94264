package talosapi

import (
	"context"
	"errors"
	"fmt"
	"slices"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"

	"github.com/recast-sh/recast/internal/sim/artefact"
)

// Reset implements the API: it checks what to wipe and answers; then the machine leaves
// its cluster, wipes, and reboots or powers off.
func (s *machineService) Reset(_ context.Context, req *machineapi.ResetRequest) (*machineapi.ResetResponse, error) {
	b := s.boot
	if err := b.checkReset(req); err != nil {
		return nil, err
	}
	b.mu.Lock()
	b.reset = req
	b.mu.Unlock()
	return &machineapi.ResetResponse{Messages: []*machineapi.Reset{{ActorId: b.order(resetting)}}}, nil
}

func (b *boot) checkReset(req *machineapi.ResetRequest) error {
	devs := b.m.devices()
	if len(req.GetUserDisksToWipe()) > 0 && req.GetMode() == machineapi.ResetRequest_SYSTEM_DISK {
		return errors.New("reset failed: invalid input, wipe mode SYSTEM_DISK doesn't support UserDisksToWipe parameter")
	}
	system, _ := systemDisk(devs)
	for _, name := range req.GetUserDisksToWipe() {
		switch i := slices.IndexFunc(devs, func(d device) bool { return d.path() == name }); {
		case i < 0:
			return fmt.Errorf("reset user disk failed: device %s wasn't found", name)
		case devs[i].CDROM:
			return fmt.Errorf("reset user disk failed: device %s is readonly", name)
		case devs[i].Key == system.Key:
			return fmt.Errorf("reset user disk failed: device %s is the system disk", name)
		}
	}
	if len(req.GetSystemPartitionsToWipe()) > 0 && req.GetMode() == machineapi.ResetRequest_USER_DISKS {
		return errors.New("reset failed: invalid input, wipe mode USER_DISKS doesn't support SystemPartitionsToWipe parameter")
	}
	for _, p := range req.GetSystemPartitionsToWipe() {
		if !slices.ContainsFunc(volumesOf(b.config()), func(v volume) bool { return v.id == p.GetLabel() }) {
			return fmt.Errorf("failed to get volume status with label %q: resource VolumeStatuses.block.talos.dev(runtime/%s@undefined) doesn't exist", p.GetLabel(), p.GetLabel())
		}
	}
	return nil
}

// runReset is the sequence of a reset. If it fails, the machine stays up without its
// services.
func (b *boot) runReset(ctx context.Context) outcome {
	b.mu.Lock()
	req := b.reset
	b.mu.Unlock()
	b.begin("reset", b.release().resetting(req, b.config().Machine().Type().IsControlPlane()))
	if err := b.stage(ctx, runtime.MachineStageResetting, false); err != nil {
		return killed
	}
	if req.GetGraceful() {
		b.seq.to("drain")
		b.empty(ctx)
	}
	b.gone()
	if req.GetGraceful() && b.config().Machine().Type().IsControlPlane() {
		b.seq.to("leave")
		c, err := b.reachEtcd(ctx)
		if err == nil {
			err = b.leaveEtcd(ctx, c)
		}
		if err != nil {
			b.m.console("reset failed: %v", b.seq.fail(fmt.Errorf("failed to leave cluster: %w", err)))
			return b.m.dark(ctx)
		}
	}
	b.seq.to("stopEverything")
	b.etcdService().stop(errOrderly)
	for _, phase := range []string{"forceCleanup", "reset", "resetSpec"} {
		b.seq.to(phase)
	}
	if err := b.wipe(req); err != nil {
		b.m.console("reset failed: %v", b.seq.fail(err))
		return b.m.dark(ctx)
	}
	switch {
	case !req.GetReboot():
		return powerOff
	case len(req.GetSystemPartitionsToWipe()) > 0: // the boot partition remains
		return kexec
	}
	return powerCycle
}

// wipe wipes the requested partitions, or the whole system disk, and user disks.
func (b *boot) wipe(req *machineapi.ResetRequest) error {
	devs := b.m.devices()
	for _, d := range devs {
		if !slices.Contains(req.GetUserDisksToWipe(), d.path()) {
			continue
		}
		if err := b.m.rewrite(d.Key, func(artefact.Disk) artefact.Disk { return artefact.Disk{} }); err != nil {
			return err
		}
	}
	if req.GetMode() == machineapi.ResetRequest_USER_DISKS {
		return nil
	}
	if len(req.GetSystemPartitionsToWipe()) == 0 {
		d, ok := systemDisk(devs)
		if !ok {
			return nil
		}
		return b.m.rewrite(d.Key, func(artefact.Disk) artefact.Disk { return artefact.Disk{} })
	}
	for _, spec := range req.GetSystemPartitionsToWipe() {
		p, ok := locate(devs, spec.GetLabel())
		if !ok || !spec.GetWipe() {
			continue
		}
		if err := b.m.rewrite(p.dev.Key, func(d artefact.Disk) artefact.Disk { return formatted(d, p.index-1) }); err != nil {
			return err
		}
	}
	return nil
}

// formatted is the disk with a new, empty file system in one of its partitions: the next
// boot formats a wiped partition like that.
func formatted(d artefact.Disk, index int) artefact.Disk {
	d.Partitions = slices.Clone(d.Partitions)
	p := &d.Partitions[index]
	fresh := newPartition(p.Label, p.Filesystem, nil)
	fresh.UUID = p.UUID
	*p = fresh
	return d
}
