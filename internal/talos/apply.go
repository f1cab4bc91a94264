package talos

import (
	"context"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
)

// ReplaceConfig implements cluster.Configurer. Errors are those of ApplyConfig.
func (c *Client) ReplaceConfig(ctx context.Context, addr netip.Addr, uuid string, config cluster.Secret) error {
	// Talos up to 1.13 may reboot for AUTO (v1alpha1_server.go, ApplyConfiguration).
	return c.configure(ctx, addr, uuid, &machineapi.ApplyConfigurationRequest{Data: config, Mode: machineapi.ApplyConfigurationRequest_NO_REBOOT})
}

// TryConfig implements cluster.Configurer. Errors are those of ApplyConfig.
func (c *Client) TryConfig(ctx context.Context, addr netip.Addr, uuid string, config cluster.Secret, limit time.Duration) error {
	return c.configure(ctx, addr, uuid, &machineapi.ApplyConfigurationRequest{
		Data: config, Mode: machineapi.ApplyConfigurationRequest_TRY, TryModeTimeout: durationpb.New(limit),
	})
}

// StageConfig implements cluster.Configurer. Errors are those of ApplyConfig.
func (c *Client) StageConfig(ctx context.Context, addr netip.Addr, uuid string, config cluster.Secret) error {
	return c.configure(ctx, addr, uuid, &machineapi.ApplyConfigurationRequest{Data: config, Mode: machineapi.ApplyConfigurationRequest_STAGED})
}

// CheckConfig implements cluster.Configurer. Errors are those of ApplyConfig.
func (c *Client) CheckConfig(ctx context.Context, addr netip.Addr, uuid string, config cluster.Secret) (reboots bool, err error) {
	err = c.call(ctx, addr.String(), func(ctx context.Context, s session) error {
		if err := checkUUID(ctx, s, uuid, "nothing was asked"); err != nil {
			return err
		}
		res, err := apply(ctx, s, &machineapi.ApplyConfigurationRequest{Data: config, Mode: machineapi.ApplyConfigurationRequest_AUTO, DryRun: true})
		for _, m := range res.GetMessages() {
			//lint:ignore SA1019 Talos up to 1.13 answers with it
			reboots = reboots || m.GetMode() == machineapi.ApplyConfigurationRequest_REBOOT
		}
		return err
	})
	return reboots, err
}

func (c *Client) configure(ctx context.Context, addr netip.Addr, uuid string, req *machineapi.ApplyConfigurationRequest) error {
	return c.call(ctx, addr.String(), func(ctx context.Context, s session) error {
		if err := checkUUID(ctx, s, uuid, "nothing was applied"); err != nil {
			return err
		}
		_, err := apply(ctx, s, req)
		return err
	})
}

// apply sends a configuration. It retries while another configuration is being applied, within the call's time: Talos
// accepts one at a time and queues none (v1alpha1_server.go, ApplyConfiguration).
func apply(ctx context.Context, s session, req *machineapi.ApplyConfigurationRequest) (*machineapi.ApplyConfigurationResponse, error) {
	const pause = time.Second
	for {
		res, err := s.ApplyConfiguration(ctx, req)
		busy := client.StatusCode(err) == codes.FailedPrecondition && strings.Contains(err.Error(), "already in progress")
		if end, _ := ctx.Deadline(); !busy || time.Until(end) <= pause {
			return res, applied(err, req.GetData())
		}
		select {
		case <-ctx.Done():
			return res, applied(err, req.GetData())
		case <-time.After(pause):
		}
	}
}

// checkUUID refuses a connection to another machine than the intended one; untouched says what was not done.
func checkUUID(ctx context.Context, s session, uuid, untouched string) error {
	found, err := readUUID(ctx, s)
	switch {
	case err != nil:
		return err
	case uuid == "" || found != strings.ToLower(uuid):
		return fault.UUIDMismatch.Refusedf("the machine has UUID %q, not %q: %s", found, uuid, untouched)
	}
	return nil
}

// change makes one call that changes the machine, if the machine has that UUID.
func (c *Client) change(
	ctx context.Context, addr netip.Addr, uuid string, limit time.Duration, do func(context.Context, session) error,
) error {
	return c.with(ctx, addr.String(), limit, func(ctx context.Context, s session) error {
		if err := checkUUID(ctx, s, uuid, "nothing was done"); err != nil {
			return err
		}
		return changed(do(ctx, s))
	}, c.as)
}

// changed distinguishes the answer to a change from a lost answer.
func changed(err error) error {
	err = answer(err)
	if e, ok := errors.AsType[*answerError](err); ok && e.lost() {
		return fmt.Errorf("%w: %w", cluster.ErrLostAnswer, err)
	}
	return err
}

// applied redacts the answer to a configuration: Talos quotes what it refuses.
func applied(err error, config cluster.Secret) error {
	err = answer(err)
	e, ok := errors.AsType[*answerError](err)
	switch {
	case !ok:
		return err
	case e.lost():
		return fmt.Errorf("apply: %w: %s", cluster.ErrLostAnswer, withoutValues(e.text, config))
	}
	return fault.MachineConfig.Refusedf("the machine rejects the configuration: %s", withoutValues(e.text, config))
}

// MaintenanceMachine reads a machine in maintenance mode. It is not ready before every disk has been probed.
func (c *Client) MaintenanceMachine(ctx context.Context, addr netip.Addr) (m cluster.BlankMachine, err error) {
	err = c.callBlank(ctx, addr, func(ctx context.Context, s session) error {
		if m.Machine, err = readParts(ctx, s, cluster.WholeMachine&^cluster.AddressesPart); err == nil {
			m.Fingerprint = *s.fingerprint.Load()
		}
		return err
	})
	return m, err
}

// ApplyConfig hands the machine its first configuration, over the same connection on which it reported its UUID. The
// error wraps cluster.ErrLostAnswer if the configuration was sent and no answer came.
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

// TrustedCA implements cluster.Maintenance. The configuration of a worker also has the certificate of the CA, without
// its key.
func (c *Client) TrustedCA(config cluster.Secret) (trusted, known bool, err error) {
	own := c.config.Contexts[c.config.Context].CA
	if own == "" {
		return false, false, nil
	}
	text, err := base64.StdEncoding.DecodeString(own)
	if err != nil {
		return false, false, fault.Credentials.Configf("the CA of the talosconfig can't be read")
	}
	cfg, _, err := loadKnown(config)
	if err != nil {
		return false, false, err
	}
	if cfg.Machine() == nil || cfg.Machine().Security().IssuingCA() == nil {
		return false, true, nil
	}
	has := certificates(cfg.Machine().Security().IssuingCA().Crt)
	trusts := func(ca *x509.Certificate) bool { return slices.ContainsFunc(has, ca.Equal) }
	return slices.ContainsFunc(certificates(text), trusts), true, nil
}

// certificates returns the readable certificates in a PEM text.
func certificates(text []byte) (out []*x509.Certificate) {
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if crt, err := x509.ParseCertificate(block.Bytes); err == nil {
			out = append(out, crt)
		}
	}
	return out
}
