package talos

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
)

// ApplyConfig hands the machine its first configuration, over the very
// connection on which it has shown its UUID. The error wraps
// cluster.ErrLostAnswer where the configuration was sent and no answer came.
func (c *Client) ApplyConfig(ctx context.Context, addr netip.Addr, uuid string, config cluster.Secret) error {
	return c.callBlank(ctx, addr, func(ctx context.Context, s session) error {
		found, err := readUUID(ctx, s)
		switch {
		case err != nil:
			return err
		case uuid == "" || found != strings.ToLower(uuid):
			return fault.Refusedf("the machine has UUID %q, not %q: nothing was applied", found, uuid)
		}
		// REBOOT, the zero value, is not taken everywhere; every Talos takes AUTO in maintenance mode.
		_, err = s.ApplyConfiguration(ctx, &machineapi.ApplyConfigurationRequest{
			Data: config, Mode: machineapi.ApplyConfigurationRequest_AUTO,
		})
		return applied(err, config)
	})
}

// applied makes the answer to a configuration fit to be shown: Talos quotes what it refuses.
func applied(err error, config cluster.Secret) error {
	err = answer(err)
	e, ok := errors.AsType[*answerError](err)
	switch {
	case !ok:
		return err
	case e.lost():
		return fmt.Errorf("apply: %w: %s", cluster.ErrLostAnswer, redact(e.text, config))
	}
	return fault.Refusedf("the machine does not take the configuration: %s", redact(e.text, config))
}
