package talosapi

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"

	"github.com/recast-sh/recast/internal/sim/artefact"
)

// maxInstallPause is the maximum backoff between two attempts (controller runtime's).
const maxInstallPause = time.Minute

// errNoMatch says that no disk matches a selector.
var errNoMatch = errors.New("no disk matched the selector")

// installUnattended is the installation by a configuration document, since 1.14
// (unattended_install.go in machined): it is retried until a disk counts as installed. If
// the installer failed after that, the machine is a node that runs from its boot medium,
// and is not rebooted.
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

// unattended publishes the installation's progress, if the configuration asks for one.
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

// provisionState makes the STATE volume on a system disk without one.
func (b *boot) provisionState(d device) error {
	if _, there := partition(d.disk, labelState); there {
		return nil
	}
	st, err := b.stateNow()
	if err != nil {
		return err
	}
	state, err := st.encode()
	if err != nil {
		return err
	}
	return b.m.rewrite(d.Key, func(disk artefact.Disk) artefact.Disk {
		disk.Partitions = append(disk.Partitions, newPartition(labelState, "xfs", state))
		return disk
	})
}

// stateNow is the content of STATE for the running machine.
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
