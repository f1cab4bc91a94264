package talosapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/configdiff"
	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/recast-sh/recast/internal/sim/artefact"
)

// The results of applying a configuration.
const (
	appliedNow    = "Applied configuration without a reboot"
	stagedForBoot = "Staged configuration to be applied after the next reboot"
)

// errNoState says that there is no STATE partition to keep a configuration in.
var errNoState = errors.New("the STATE partition is missing")

// ApplyConfiguration implements the API.
func (s *machineService) ApplyConfiguration(ctx context.Context, req *machineapi.ApplyConfigurationRequest) (*machineapi.ApplyConfigurationResponse, error) {
	badMode := s.boot.release().badMode(req.GetMode(), s.maintenance)
	bare := s.maintenance && s.boot.release().bareMaintenance
	if bare && badMode != nil {
		return nil, badMode
	}
	cfg, err := parseConfig(req.GetData())
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	if err := s.boot.release().takes(req.GetData()); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	if text := s.boot.m.has().Refuses; text != "" {
		return nil, status.Error(codes.InvalidArgument, text)
	}
	if err := s.boot.publishBlock(ctx); err != nil { // to find the install disk
		return nil, status.Error(codes.Internal, err.Error())
	}
	_, installed := systemDisk(s.boot.m.devices())
	warnings, err := cfg.ValidateAtRuntime(ctx, s.boot.store.st, metalMode{installed})
	switch {
	case err != nil && bare:
		return nil, status.Errorf(codes.InvalidArgument, "configuration validation failed: %s", err)
	case err != nil:
		return nil, status.Error(codes.InvalidArgument, err.Error())
	case badMode != nil:
		return nil, badMode
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

// applyMaintenance applies a machine's first configuration, at once or, staged, at its
// next boot: without a STATE partition it is lost by then.
func (s *machineService) applyMaintenance(_ context.Context, req *machineapi.ApplyConfigurationRequest, cfg config.Provider) (*machineapi.ApplyConfiguration, error) {
	answer := &machineapi.ApplyConfiguration{Mode: machineapi.ApplyConfigurationRequest_NO_REBOOT, ModeDetails: appliedNow}
	bare, tried := s.boot.release().bareMaintenance, false
	switch mode := req.GetMode(); {
	case bare:
		answer = &machineapi.ApplyConfiguration{}
	case mode == machineapi.ApplyConfigurationRequest_STAGED:
		answer.Mode, answer.ModeDetails = mode, stagedForBoot
	case mode == machineapi.ApplyConfigurationRequest_TRY:
		answer.Mode, tried = mode, true
	}
	switch {
	case req.GetDryRun() && bare:
		answer.ModeDetails = "Dry run summary:\nNode is running in maintenance mode and does not have a config yet."
		return answer, nil
	case req.GetDryRun():
		return s.boot.dryRun(answer, cfg)
	case answer.Mode == machineapi.ApplyConfigurationRequest_STAGED:
		err := s.boot.keep(stateData{Config: req.GetData(), NodeID: s.boot.m.fw.nextNodeID()})
		if err != nil && !errors.Is(err, errNoState) {
			return nil, status.Error(codes.Internal, err.Error())
		}
		return answer, nil
	case tried:
		answer.ModeDetails += triedFor(tryFor(req.GetTryModeTimeout()))
	}
	select {
	case s.boot.configs <- firstConfig{raw: req.GetData(), tried: tried}:
		return answer, nil
	default:
		return nil, status.Error(codes.FailedPrecondition, "the machine has already been given a configuration")
	}
}

// applyRunning changes the configuration of a configured machine.
func (s *machineService) applyRunning(ctx context.Context, req *machineapi.ApplyConfigurationRequest, cfg config.Provider) (*machineapi.ApplyConfiguration, error) {
	const auto, staged, try = machineapi.ApplyConfigurationRequest_AUTO, machineapi.ApplyConfigurationRequest_STAGED, machineapi.ApplyConfigurationRequest_TRY
	//lint:ignore SA1019 REBOOT is the zero value, and what Talos knew before 1.14
	const reboot = machineapi.ApplyConfigurationRequest_REBOOT
	mode, looks := req.GetMode(), s.boot.release().rebootApplies
	if looks && mode != try {
		s.boot.endTrial() // a dry run ends it, too
	}
	answer := &machineapi.ApplyConfiguration{Mode: mode, ModeDetails: appliedNow}
	if mode == auto {
		answer.Mode = machineapi.ApplyConfigurationRequest_NO_REBOOT
	}
	if looks && mode != staged && mode != reboot {
		switch err := canApplyImmediate(s.boot.config(), cfg); {
		case err != nil && mode == auto:
			answer.Mode = reboot
		case err != nil:
			return nil, status.Error(codes.InvalidArgument, err.Error())
		}
	}
	active := cfg
	switch answer.Mode {
	case staged:
		answer.ModeDetails, active = stagedForBoot, s.boot.config()
	case reboot:
		answer.ModeDetails, active = "Applied configuration with a reboot", s.boot.config()
	}
	if req.GetDryRun() {
		return s.boot.dryRun(answer, cfg)
	}
	if mode == try {
		d := tryFor(req.GetTryModeTimeout())
		answer.ModeDetails += triedFor(d)
		return answer, s.boot.try(ctx, cfg, d)
	}
	s.boot.endTrial()
	if err := s.boot.persist(req.GetData()); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	s.boot.mu.Lock()
	s.boot.stored = cfg
	s.boot.mu.Unlock()
	if err := s.boot.activate(ctx, active); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	if answer.Mode == reboot {
		s.boot.order(kexec)
	}
	return answer, nil
}

// dryRun says what applying the configuration would do.
func (b *boot) dryRun(answer *machineapi.ApplyConfiguration, cfg config.Provider) (*machineapi.ApplyConfiguration, error) {
	var now config.Encoder
	if active := b.config(); active != nil {
		now = active
	}
	diff, err := configdiff.DiffConfigs(now, cfg)
	if err != nil {
		return nil, fmt.Errorf("failed to generate diff: %w", err)
	}
	answer.ModeDetails = fmt.Sprintf("Dry run summary:\n%s (skipped in dry-run).\nConfig diff:\n\n%s", answer.ModeDetails, cmp.Or(diff, "No changes."))
	return answer, nil
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
	return b.m.rewrite(d.Key, func(disk artefact.Disk) artefact.Disk {
		if _, ok := partition(disk, labelState); !ok { // of a disk image
			disk.Partitions = append(slices.Clone(disk.Partitions), newPartition(labelState, "xfs", content))
			return disk
		}
		return edited(disk, labelState, func([]byte) []byte { return content })
	})
}

// parseConfig parses a machine configuration, which must have its main document.
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

// metalMode is the validation mode of configurations.
type metalMode struct{ installed bool }

func (metalMode) String() string          { return "metal" }
func (m metalMode) RequiresInstall() bool { return !m.installed }
func (metalMode) InContainer() bool       { return false }
