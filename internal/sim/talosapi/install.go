package talosapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/cel"
	"github.com/siderolabs/talos/pkg/machinery/cel/celenv"
	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/configdiff"
	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
	"github.com/siderolabs/talos/pkg/machinery/config/container"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"go.yaml.in/yaml/v4"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

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
	b.stage(ctx, runtime.MachineStageInstalling, true)
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

func matchDisk(expr *cel.Expression, d device, system bool) (bool, error) {
	return expr.EvalBool(celenv.DiskLocator(), map[string]any{"disk": d.selectable(), "system_disk": system})
}

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

var errNoMatch = errors.New("no disk matched the selector")

// installUnattended makes the installation by a configuration document, since 1.14 (unattended_install.go in
// machined): it retries until a disk counts as installed. If the installer failed after that, the machine is a node
// that runs from its boot medium, and is not rebooted.
func (b *boot) installUnattended(ctx context.Context) (outcome, error) {
	b.stage(ctx, runtime.MachineStageRunning, false, "services: kubelet not running")
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

func (b *boot) stateNow() (stateData, error) {
	st := stateData{NodeID: guarded(&b.mu, &b.nodeID)}
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

// The results of applying a configuration.
const (
	appliedNow    = "Applied configuration without a reboot"
	stagedForBoot = "Staged configuration to be applied after the next reboot"
)

// errNoState says that there is no STATE partition to keep a configuration in.
var errNoState = errors.New("the STATE partition is missing")

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

// applyMaintenance applies a machine's first configuration, at once or, staged, at its next boot. Without a STATE
// partition, a staged configuration is lost by then.
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
		_, said := tryFor(req.GetTryModeTimeout())
		answer.ModeDetails += said
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
		s.boot.endTrial() // a dry run ends the trial too
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
		d, said := tryFor(req.GetTryModeTimeout())
		answer.ModeDetails += said
		return answer, s.boot.try(ctx, cfg, d)
	}
	s.boot.endTrial()
	if err := s.boot.persist(req.GetData()); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	holding(&s.boot.mu, func() { s.boot.stored = cfg })
	if err := s.boot.activate(ctx, active); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	if answer.Mode == reboot {
		s.boot.order(kexec)
	}
	return answer, nil
}

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

func (b *boot) persist(raw []byte) error {
	return b.keep(stateData{Config: raw, NodeID: guarded(&b.mu, &b.nodeID)})
}

func (b *boot) keep(st stateData) error {
	d, ok := systemDisk(b.m.devices())
	if !ok {
		return errNoState
	}
	content := encoded(st)
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

// tryFor returns the duration of a trial, and what the machine says about it.
func tryFor(asked *durationpb.Duration) (d time.Duration, said string) {
	if d = constants.ConfigTryTimeout; asked != nil {
		d = asked.AsDuration()
	}
	return d, fmt.Sprintf("\nThe config is applied in 'try' mode and will be automatically reverted back in %s", d)
}

// firstConfig is a machine's first configuration, from maintenance mode. A configuration on trial is not stored on
// disk, not even after the system was installed with it.
type firstConfig struct {
	raw   []byte
	tried bool
}

// try makes a configuration active until d has passed or another configuration is applied. The configuration is not
// stored (RollbackToConfigAfter).
func (b *boot) try(ctx context.Context, cfg config.Provider, d time.Duration) error {
	before := b.config()
	b.endTrial()
	b.mu.Lock()
	b.trial = time.AfterFunc(d, func() { // the client's own time, not the machine's speed
		ctx, cancel := b.life()
		defer cancel()
		if ctx.Err() != nil {
			return
		}
		b.m.console("rolling back the configuration")
		if err := b.activate(ctx, before); err != nil && ctx.Err() == nil {
			b.m.console("config rollback failed %v", err)
		}
	})
	b.mu.Unlock()
	return b.activate(ctx, cfg)
}

func (b *boot) endTrial() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.trial != nil {
		b.trial.Stop()
	}
}

// activate makes a configuration the active one of a configured machine; the stored configuration stays. A new
// address applies at once: until another configuration or the next boot, the machine does not answer at the old
// address, where the API's clients and Kubernetes look for it.
func (b *boot) activate(ctx context.Context, cfg config.Provider) error {
	holding(&b.mu, func() { b.cfg = cfg })
	astray := b.m.attach(b.med.image, cfg).prefix.Addr() != b.m.addr()
	was := b.m.astray.Swap(astray)
	err := b.publishConfig(ctx, cfg)
	if image, up := b.m.runs.Load().(string); was != astray && up {
		if astray {
			b.withdraw()
		} else {
			b.announce(image)
		}
	}
	return err
}

// immediate are the fields of machine, and of machine.features, that Talos before 1.14 changes without a reboot,
// beside debug and cluster (CanApplyImmediate in internal/app/machined/pkg/runtime/v1alpha1/v1alpha1_runtime.go of
// 1.12 and 1.13).
var (
	immediate = []string{
		"MachineCA", "MachineAcceptedCAs", "MachineTime", "MachineCertSANs", "MachineInstall", "MachineNetwork", "MachineSysfs", "MachineSysctls",
		"MachineLogging", "MachineControlPlane", "MachineKubelet", "MachineKernel", "MachineRegistries", "MachinePods", "MachineSeccompProfiles",
		"MachineNodeAnnotations", "MachineNodeLabels", "MachineNodeTaints",
	}
	immediateFeatures = []string{
		"KubernetesTalosAPIAccessConfig", "KubePrismSupport", "HostDNSSupport", "ImageCacheSupport", "FeatureNodeAddressSortAlgorithm",
	}
)

// canApplyImmediate returns the error of a Talos before 1.14 for a configuration that needs a reboot. Documents other
// than the main one never need a reboot.
func canApplyImmediate(active, wanted config.Provider) error {
	if active == nil || active.RawV1Alpha1() == nil || wanted.RawV1Alpha1() == nil {
		return errors.New("no current config")
	}
	now, then := active.RawV1Alpha1(), wanted.RawV1Alpha1().DeepCopy()
	then.ConfigDebug, then.ClusterConfig = now.ConfigDebug, now.ClusterConfig
	if now.MachineConfig != nil && then.MachineConfig != nil {
		setFields(then.MachineConfig, now.MachineConfig, immediate)
		if now.MachineConfig.MachineFeatures != nil && then.MachineConfig.MachineFeatures != nil {
			setFields(then.MachineConfig.MachineFeatures, now.MachineConfig.MachineFeatures, immediateFeatures)
		}
	}
	if reflect.DeepEqual(now, then) {
		return nil
	}
	diff, err := configdiff.DiffConfigs(container.NewV1Alpha1(now), container.NewV1Alpha1(then))
	if err != nil {
		return fmt.Errorf("error calculating diff: %w", err)
	}
	return fmt.Errorf("this config change can't be applied in immediate mode\ndiff:\n%s", diff)
}

func setFields[T any](to, from *T, names []string) {
	for _, name := range names {
		reflect.ValueOf(to).Elem().FieldByName(name).Set(reflect.ValueOf(from).Elem().FieldByName(name))
	}
}
