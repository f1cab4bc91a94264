package talos

import (
	"context"
	"fmt"

	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/foreign"
)

// readStatus reads the machine's stage, and what keeps it from being ready.
func readStatus(ctx context.Context, s session, m *cluster.Machine) error {
	var install *runtime.UnattendedInstallStatusSpec
	err := inParallel(
		getting(ctx, s, runtime.NewMachineStatus().Metadata(), func(status *runtime.MachineStatus) {
			spec := status.TypedSpec()
			m.Stage, m.Ready = spec.Stage.String(), spec.Status.Ready
			for _, c := range spec.Status.UnmetConditions {
				unmet := c.Name
				if c.Reason != "" {
					unmet += ": " + c.Reason
				}
				m.Unmet = append(m.Unmet, foreign.Line(unmet))
			}
		}),
		getting(ctx, s, runtime.NewUnattendedInstallStatus().Metadata(), func(status *runtime.UnattendedInstallStatus) {
			install = status.TypedSpec()
		}),
	)
	if install == nil {
		return err
	}
	// The stage is "running" meanwhile: unattended_install.go in machined is a
	// controller, not part of a sequence.
	if install.Phase == runtime.UnattendedInstallPhaseInstalling || install.Phase == runtime.UnattendedInstallPhaseWaitingForReboot {
		m.Stage = runtime.MachineStageInstalling.String()
	}
	if install.Error != "" {
		m.Unmet = append(m.Unmet, foreign.Line(fmt.Sprintf("installation %s: %s", install.Phase, install.Error)))
	}
	return err
}
