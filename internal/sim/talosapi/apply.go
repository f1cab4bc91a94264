package talosapi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
	"github.com/siderolabs/talos/pkg/machinery/config/encoder"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/recast-sh/recast/internal/sim/artefact"
)

// errNoState says that there is no STATE partition to keep a configuration in.
var errNoState = errors.New("the STATE partition is missing")

// ApplyConfiguration implements the API.
func (s *machineService) ApplyConfiguration(ctx context.Context, req *machineapi.ApplyConfigurationRequest) (*machineapi.ApplyConfigurationResponse, error) {
	cfg, err := parseConfig(req.GetData())
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	//lint:ignore SA1019 this is the side that Validate is for
	warnings, err := cfg.Validate(metalMode{})
	if err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "configuration validation failed: %s", err)
	}
	apply := s.applyRunning
	if s.maintenance {
		apply = s.applyMaintenance
	}
	answer, err := apply(ctx, req, cfg)
	if err != nil {
		return nil, err
	}
	answer.Warnings = warnings
	return &machineapi.ApplyConfigurationResponse{Messages: []*machineapi.ApplyConfiguration{answer}}, nil
}

// applyMaintenance hands a machine its first configuration.
func (s *machineService) applyMaintenance(_ context.Context, req *machineapi.ApplyConfigurationRequest, cfg config.Provider) (*machineapi.ApplyConfiguration, error) {
	switch mode := req.GetMode(); mode {
	//lint:ignore SA1019 REBOOT is the zero value, and means NO_REBOOT here
	case machineapi.ApplyConfigurationRequest_REBOOT, machineapi.ApplyConfigurationRequest_AUTO, machineapi.ApplyConfigurationRequest_NO_REBOOT:
	default:
		return nil, status.Errorf(codes.Unimplemented, "apply configuration --mode='%s' is not supported in maintenance mode", mode)
	}
	answer := &machineapi.ApplyConfiguration{
		Mode: machineapi.ApplyConfigurationRequest_NO_REBOOT, ModeDetails: "Applied configuration without a reboot",
	}
	if req.GetDryRun() {
		return s.boot.dryRun(answer, cfg)
	}
	select {
	case s.boot.configs <- req.GetData():
		return answer, nil
	default:
		return nil, status.Error(codes.FailedPrecondition, "the machine has already been given a configuration")
	}
}

// applyRunning changes the configuration of a configured machine.
func (s *machineService) applyRunning(ctx context.Context, req *machineapi.ApplyConfigurationRequest, cfg config.Provider) (*machineapi.ApplyConfiguration, error) {
	answer := &machineapi.ApplyConfiguration{Mode: machineapi.ApplyConfigurationRequest_NO_REBOOT, ModeDetails: "Applied configuration without a reboot"}
	active := cfg
	//lint:ignore SA1019 REBOOT is the zero value, and what Talos knew before 1.14
	const reboot = machineapi.ApplyConfigurationRequest_REBOOT
	switch mode := req.GetMode(); {
	case mode == machineapi.ApplyConfigurationRequest_AUTO, mode == machineapi.ApplyConfigurationRequest_NO_REBOOT:
	case mode == machineapi.ApplyConfigurationRequest_STAGED:
		answer.Mode, answer.ModeDetails = mode, "Staged configuration to be applied after the next reboot"
		active = s.boot.config()
	case mode == reboot && !after(s.boot.med.image.TalosVersion, config.TalosVersion1_13):
		answer.Mode, answer.ModeDetails = mode, "Applied configuration with a reboot"
		active = s.boot.config()
	default:
		return nil, status.Errorf(codes.Unimplemented, "apply configuration --mode='%s' is not supported", mode)
	}
	if req.GetDryRun() {
		return s.boot.dryRun(answer, cfg)
	}
	if err := s.boot.persist(req.GetData()); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	s.boot.mu.Lock()
	s.boot.cfg = active
	s.boot.mu.Unlock()
	if err := s.boot.publishConfig(ctx, active, cfg); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	if answer.Mode == reboot {
		s.boot.order(kexec)
	}
	return answer, nil
}

// dryRun says what would become of the configuration.
func (b *boot) dryRun(answer *machineapi.ApplyConfiguration, cfg config.Provider) (*machineapi.ApplyConfiguration, error) {
	var now []byte
	var err error
	if active := b.config(); active != nil {
		if now, err = active.EncodeBytes(encoder.WithComments(encoder.CommentsDisabled)); err != nil {
			return nil, fmt.Errorf("failed to generate diff: %w", err)
		}
	}
	then, err := cfg.EncodeBytes(encoder.WithComments(encoder.CommentsDisabled))
	if err != nil {
		return nil, fmt.Errorf("failed to generate diff: %w", err)
	}
	diff := "No changes."
	if !bytes.Equal(now, then) {
		diff = unified(string(now), string(then))
	}
	answer.ModeDetails = fmt.Sprintf("Dry run summary:\n%s (skipped in dry-run).\nConfig diff:\n\n%s", answer.ModeDetails, diff)
	return answer, nil
}

// unified is a diff of one hunk without context. Talos finds the shortest.
func unified(a, b string) string {
	x, y := strings.SplitAfter(a, "\n"), strings.SplitAfter(b, "\n")
	same := 0
	for same < min(len(x), len(y)) && x[same] == y[same] {
		same++
	}
	x, y = x[same:], y[same:]
	for len(x) > 0 && len(y) > 0 && x[len(x)-1] == y[len(y)-1] {
		x, y = x[:len(x)-1], y[:len(y)-1]
	}
	var text strings.Builder
	fmt.Fprintf(&text, "--- a\n+++ b\n@@ -%d,%d +%d,%d @@\n", same+1, len(x), same+1, len(y))
	for _, line := range x {
		text.WriteString("-" + line)
	}
	for _, line := range y {
		text.WriteString("+" + line)
	}
	return text.String()
}

// persist writes the configuration for the next boot to STATE.
func (b *boot) persist(raw []byte) error {
	b.mu.Lock()
	id := b.nodeID
	b.mu.Unlock()
	return b.keep(stateData{Config: raw, NodeID: id})
}

// keep writes STATE.
func (b *boot) keep(st stateData) error {
	d, ok := systemDisk(b.m.devices())
	if !ok {
		return errNoState
	}
	content, err := st.encode()
	if err != nil {
		return err
	}
	if _, ok := partition(d.disk, labelState); !ok {
		return errNoState
	}
	return b.m.rewrite(d.Key, func(disk artefact.Disk) artefact.Disk {
		return edited(disk, labelState, func([]byte) []byte { return content })
	})
}

// parseConfig reads a machine configuration, which must have its main document.
func parseConfig(raw []byte) (config.Provider, error) {
	cfg, err := configloader.NewFromBytes(raw)
	if err != nil {
		return nil, err
	}
	if cfg.RawV1Alpha1() == nil {
		return nil, errors.New("the applied machine configuration doesn't contain v1alpha1 config, did you mean to patch the machine config instead?")
	}
	return cfg, nil
}

// metalMode is what configurations are validated for.
type metalMode struct{}

func (metalMode) String() string        { return "metal" }
func (metalMode) RequiresInstall() bool { return true }
func (metalMode) InContainer() bool     { return false }
