package talos

import (
	"context"
	"net/netip"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"

	"github.com/recast-sh/recast/cluster"
)

// MaintenanceMachine reads a machine in maintenance mode. It is not ready before
// every disk has been probed.
func (c *Client) MaintenanceMachine(ctx context.Context, addr netip.Addr) (m cluster.BlankMachine, err error) {
	err = c.callBlank(ctx, addr, func(ctx context.Context, s session) error {
		if m.Machine, err = inRounds(firstRound, append(wholeMachine, readHardware))(ctx, s); err == nil {
			m.Fingerprint = *s.fingerprint.Load()
		}
		return err
	})
	return m, err
}

// ApplyConfig hands the machine its first configuration, over the same connection on
// which it reported its UUID. The error wraps cluster.ErrLostAnswer if the
// configuration was sent and no answer came.
func (c *Client) ApplyConfig(ctx context.Context, addr netip.Addr, uuid string, config cluster.Secret) error {
	return c.callBlank(ctx, addr, func(ctx context.Context, s session) error {
		if err := checkUUID(ctx, s, uuid, "nothing was applied"); err != nil {
			return err
		}
		// Not every Talos accepts REBOOT, the zero value; all accept AUTO in maintenance mode.
		_, err := apply(ctx, s, &machineapi.ApplyConfigurationRequest{Data: config, Mode: machineapi.ApplyConfigurationRequest_AUTO})
		return err
	})
}
