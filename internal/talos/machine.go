package talos

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/siderolabs/talos/pkg/machinery/client"
	"github.com/siderolabs/talos/pkg/machinery/config/machine"
	"github.com/siderolabs/talos/pkg/machinery/resources/config"
	"github.com/siderolabs/talos/pkg/machinery/resources/k8s"
	"github.com/siderolabs/talos/pkg/machinery/resources/network"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"google.golang.org/grpc/codes"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/foreign"
)

// ReadParts implements cluster.PartReader.
func (c *Client) ReadParts(ctx context.Context, addr netip.Addr, parts cluster.MachineParts) (cluster.Machine, error) {
	return ask(ctx, c, addr, func(ctx context.Context, s session) (cluster.Machine, error) { return readParts(ctx, s, parts) })
}

// readParts asks for the parts in two rounds, each at once over one connection.
func readParts(ctx context.Context, s session, parts cluster.MachineParts) (m cluster.Machine, err error) {
	first := parts & beforeOthers
	if parts&cluster.IfReady != 0 {
		first &^= cluster.VersionPart
	}
	err = readRound(ctx, s, &m, first)
	if err == nil && (parts&cluster.IfReady == 0 || m.Stage == runtime.MachineStageRunning.String() && m.Ready) {
		err = readRound(ctx, s, &m, parts&^first)
	}
	if err != nil {
		return cluster.Machine{}, err
	}
	return m, nil
}

// beforeOthers is read before the rest, so that the machine's readiness is never newer than what it is compared with.
const beforeOthers = cluster.StandingPart | cluster.VersionPart | cluster.UUIDPart | cluster.NodenamePart

// readings read the parts of a machine. Each fills in its own fields, or adds to those of readStatus.
var readings = []struct {
	part cluster.MachineParts
	read func(context.Context, session, *cluster.Machine) error
}{
	{cluster.UUIDPart, readHardware},
	{cluster.StandingPart, readStatus},
	{cluster.VersionPart, readVersion},
	{cluster.NodenamePart, readNodename},
	{cluster.HostnamePart, readHostname},
	{cluster.TypePart, readType},
	{cluster.BootIDPart, readBootID},
	{cluster.SystemPart, readSecurity},
	{cluster.SystemPart, readBootedEntry},
	{cluster.SystemPart, readNextBoot},
	{cluster.SystemPart, readExtensions},
	{cluster.DisksPart, readDisks},
	{cluster.VolumesPart, readBlock},
	{cluster.ConfigPart, readFromConfig},
	{cluster.VisibleConfigPart, readAllowedConfig},
	{cluster.AddressesPart, readAddresses},
}

func readRound(ctx context.Context, s session, m *cluster.Machine, parts cluster.MachineParts) error {
	var all []func() error
	for _, r := range readings {
		if parts&r.part != 0 {
			all = append(all, func() error { return r.read(ctx, s, m) })
		}
	}
	return inParallel(all...)
}

func readVersion(ctx context.Context, s session, m *cluster.Machine) error {
	v, err := s.Version(ctx)
	if s.blank && client.StatusCode(err) == codes.Unimplemented {
		return readBareVersion(ctx, s, m)
	}
	if err != nil {
		return fmt.Errorf("read Talos version: %w", answer(err))
	}
	one, err := single(v.GetMessages())
	if err != nil {
		return fmt.Errorf("read Talos version: %w", err)
	}
	m.TalosVersion, m.Arch, m.Platform = one.GetVersion().GetTag(), one.GetVersion().GetArch(), one.GetPlatform().GetName()
	return nil
}

// readBareVersion is readVersion for the maintenance mode of Talos before 1.13,
// whose service has the method for SideroLink only
// (internal/app/maintenance/server.go). It does not report the image's architecture:
// a wrong one would not have booted.
func readBareVersion(ctx context.Context, s session, m *cluster.Machine) error {
	version, found, err := get[*runtime.Version](ctx, s, runtime.NewVersion().Metadata())
	if err != nil || !found {
		return err
	}
	m.TalosVersion = version.TypedSpec().Version
	platform, found, err := get[*runtime.PlatformMetadata](ctx, s, runtime.NewPlatformMetadataSpec(runtime.NamespaceName, runtime.PlatformMetadataID).Metadata())
	if found {
		m.Platform = platform.TypedSpec().Platform
	}
	return err
}

func readHardware(ctx context.Context, s session, m *cluster.Machine) (err error) {
	m.UUID, err = readUUID(ctx, s)
	return err
}

func readNodename(ctx context.Context, s session, m *cluster.Machine) error {
	node, found, err := get[*k8s.Nodename](ctx, s, k8s.NewNodename(k8s.NamespaceName, k8s.NodenameID).Metadata())
	if found {
		m.Nodename = node.TypedSpec().Nodename
	}
	return err
}

func readHostname(ctx context.Context, s session, m *cluster.Machine) error {
	return getting(ctx, s, network.NewHostnameStatus(network.NamespaceName, network.HostnameID).Metadata(), func(host *network.HostnameStatus) {
		m.Hostname = host.TypedSpec().Hostname
	})()
}

func readType(ctx context.Context, s session, m *cluster.Machine) error {
	return getting(ctx, s, config.NewMachineType().Metadata(), func(kind *config.MachineType) {
		m.ControlPlane = kind.MachineType().IsControlPlane()
		m.TypeInit = kind.MachineType() == machine.TypeInit
	})()
}

func readSecurity(ctx context.Context, s session, m *cluster.Machine) error {
	security, err := securityState(ctx, s)
	if security != nil {
		m.SecureBoot = new(security.SecureBoot)
	}
	return err
}

// securityState is nil if the machine has none.
func securityState(ctx context.Context, s session) (*runtime.SecurityStateSpec, error) {
	security, found, err := get[*runtime.SecurityState](ctx, s, runtime.NewSecurityStateSpec(runtime.NamespaceName).Metadata())
	if err != nil || !found {
		return nil, err
	}
	return security.TypedSpec(), nil
}

const bootIDFile = "/proc/sys/kernel/random/boot_id"

func readBootedEntry(ctx context.Context, s session, m *cluster.Machine) error {
	var booted string
	err := inParallel(
		getting(ctx, s, runtime.NewBootedEntrySpec().Metadata(), func(entry *runtime.BootedEntry) {
			booted = strings.ToLower(entry.TypedSpec().BootedEntry) // after a kexec it is in the installer's spelling
		}),
		func() error { return readCmdline(ctx, s, m) },
	)
	// systemd-boot also loads an entry from an ISO, which has the name of the first
	// entry installed on a disk.
	if m.BootEntry = booted; m.FromISO {
		m.BootEntry = ""
	}
	return err
}

func readBootID(ctx context.Context, s session, m *cluster.Machine) error {
	boot, found, err := get[*runtime.BootID](ctx, s, runtime.NewBootID().Metadata())
	switch {
	case err != nil:
		return err
	case found:
		m.BootID = boot.TypedSpec().BootID
	case !s.blank: // reading files requires credentials
		b, err := file(ctx, s, bootIDFile)
		if err != nil {
			return err
		}
		m.BootID = strings.TrimSpace(string(b))
	}
	return nil
}

// Entries in a machine's list of extensions that are not extensions.
const (
	schematicEntry = "schematic"   // the Image Factory's own: version is the schematic ID, extraInfo its YAML
	modulesEntry   = "modules.dep" // added to every image with kernel modules
)

func readExtensions(ctx context.Context, s session, m *cluster.Machine) error {
	all, err := list[*runtime.ExtensionStatus](ctx, s, runtime.NewExtensionStatus(runtime.NamespaceName, "").Metadata())
	if err != nil {
		return err
	}
	schematics := 0
	for _, e := range all {
		switch about := e.TypedSpec().Metadata; about.Name {
		case schematicEntry:
			schematics++
			m.Schematic = cluster.SchematicEntry{ID: about.Version, YAML: about.ExtraInfo}
		case modulesEntry:
		default:
			m.Extensions = append(m.Extensions, cluster.ExtensionEntry{Name: about.Name, Version: about.Version})
		}
	}
	if schematics > 1 {
		return errors.New("its image carries more than one schematic")
	}
	slices.SortFunc(m.Extensions, func(a, b cluster.ExtensionEntry) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Version, b.Version))
	})
	return nil
}

// readAllowedConfig is readFromConfig for callers that compare and shut nothing
// down: if the talosconfig may not read configurations, the rest is still compared.
func readAllowedConfig(ctx context.Context, s session, m *cluster.Machine) error {
	err := readFromConfig(ctx, s, m)
	if e, ok := errors.AsType[*answerError](err); ok && e.code == codes.PermissionDenied {
		m.ConfigHidden = true
		return nil
	}
	return err
}

// readFromConfig leaves its fields empty if there is no configuration. One that our
// talosconfig may not read is an error: volumes that would not survive a recreate
// must not look as if they did.
func readFromConfig(ctx context.Context, s session, m *cluster.Machine) error {
	if s.blank {
		return nil
	}
	configs, err := readConfigs(ctx, s)
	if errors.Is(err, errNoConfig) {
		return nil
	}
	if err != nil {
		return err
	}
	m.Configs = configs
	docs, err := parseDocuments(configs.Stored)
	if err == nil {
		m.Encryption, err = encryption(docs)
	}
	if err != nil {
		return fmt.Errorf("its configuration: %w", err)
	}
	m.InstallImage = installImage(docs)
	return nil
}

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
