package talos

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/state"
	configpb "github.com/siderolabs/talos/pkg/machinery/api/resource/config"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"github.com/siderolabs/talos/pkg/machinery/config/machine"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/siderolabs/talos/pkg/machinery/nethelpers"
	clusterres "github.com/siderolabs/talos/pkg/machinery/resources/cluster"
	"github.com/siderolabs/talos/pkg/machinery/resources/config"
	"github.com/siderolabs/talos/pkg/machinery/resources/k8s"
	"github.com/siderolabs/talos/pkg/machinery/resources/network"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"go.yaml.in/yaml/v4"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/foreign"
)

func (c *Client) ReadParts(ctx context.Context, addr netip.Addr, parts cluster.MachineParts) (cluster.Machine, error) {
	return ask(ctx, c, addr, func(ctx context.Context, s session) (cluster.Machine, error) { return readParts(ctx, s, parts) })
}

// readParts requests the parts in two rounds. All requests of a round go out at once over one connection.
func readParts(ctx context.Context, s session, parts cluster.MachineParts) (m cluster.Machine, err error) {
	first := parts & (cluster.StandingPart | cluster.VersionPart) // readiness is never newer than what it is compared with
	if parts&cluster.IfReady != 0 {
		first = parts & (cluster.StandingPart | cluster.UUIDPart)
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

// readings are the functions that read the parts of a machine. Each function fills in its own fields, or adds to the
// fields of readStatus.
var readings = []struct {
	part cluster.MachineParts
	read func(context.Context, session, *cluster.Machine) error
}{
	{cluster.VersionPart, readVersion},
	{cluster.StandingPart, readStatus},
	{cluster.UUIDPart, readHardware},
	{cluster.NodenamePart, filling(k8s.NewNodename(k8s.NamespaceName, k8s.NodenameID).Metadata(), func(m *cluster.Machine, node *k8s.Nodename) {
		m.Nodename = node.TypedSpec().Nodename
	})},
	{cluster.HostnamePart, filling(network.NewHostnameStatus(network.NamespaceName, network.HostnameID).Metadata(), func(m *cluster.Machine, host *network.HostnameStatus) {
		m.Hostname = host.TypedSpec().Hostname
	})},
	{cluster.TypePart, filling(config.NewMachineType().Metadata(), func(m *cluster.Machine, kind *config.MachineType) {
		m.ControlPlane, m.TypeInit = kind.MachineType().IsControlPlane(), kind.MachineType() == machine.TypeInit
	})},
	{cluster.SystemPart, readSecurity},
	{cluster.SystemPart, readBootedEntry},
	{cluster.SystemPart, readNextBoot},
	{cluster.SystemPart, readExtensions},
	{cluster.BootIDPart, readBootID},
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
	one, err := single("read Talos version", v, err)
	if err != nil {
		return err
	}
	m.TalosVersion, m.Arch, m.Platform = one.GetVersion().GetTag(), one.GetVersion().GetArch(), one.GetPlatform().GetName()
	return nil
}

// readBareVersion is readVersion for the maintenance mode of Talos before 1.13, whose service has the method for
// SideroLink only (internal/app/maintenance/server.go). readBareVersion does not report the image's architecture: an
// image of a wrong architecture would not have booted.
func readBareVersion(ctx context.Context, s session, m *cluster.Machine) error {
	version, found, err := get[*runtime.Version](ctx, s, runtime.NewVersion().Metadata())
	if err != nil || !found {
		return err
	}
	m.TalosVersion = version.TypedSpec().Version
	return getting(ctx, s, runtime.NewPlatformMetadataSpec(runtime.NamespaceName, runtime.PlatformMetadataID).Metadata(), func(on *runtime.PlatformMetadata) {
		m.Platform = on.TypedSpec().Platform
	})()
}

func readHardware(ctx context.Context, s session, m *cluster.Machine) (err error) {
	m.UUID, m.SKU, err = readSMBIOS(ctx, s)
	return err
}

var readSecurity = filling(runtime.NewSecurityStateSpec(runtime.NamespaceName).Metadata(), func(m *cluster.Machine, security *runtime.SecurityState) {
	m.SecureBoot = new(security.TypedSpec().SecureBoot)
})

const bootIDFile = "/proc/sys/kernel/random/boot_id"

func readBootedEntry(ctx context.Context, s session, m *cluster.Machine) error {
	var booted string
	err := inParallel(
		getting(ctx, s, runtime.NewBootedEntrySpec().Metadata(), func(entry *runtime.BootedEntry) {
			booted = strings.ToLower(entry.TypedSpec().BootedEntry) // after a kexec the entry is in the installer's spelling
		}),
		func() error { return readCmdline(ctx, s, m) },
	)
	// systemd-boot also loads an entry from an ISO, which has the name of the first entry installed on a disk.
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

// readAllowedConfig is readFromConfig for callers that compare and shut nothing down: if the talosconfig may not read
// configurations, these callers still compare the rest.
func readAllowedConfig(ctx context.Context, s session, m *cluster.Machine) error {
	err := readFromConfig(ctx, s, m)
	if answeredWith(codes.PermissionDenied, err) {
		m.ConfigHidden = true
		return nil
	}
	return err
}

// readFromConfig reads the fields that come from the configuration. It leaves the fields empty if there is no
// configuration. A configuration that our talosconfig may not read is an error: volumes that would not survive a
// recreate must not look as if they did.
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

// readStatus reads the machine's stage, and the reasons why the machine is not ready.
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
	// The stage is "running" during an unattended install: unattended_install.go in machined is a controller, not
	// part of a sequence.
	if install.Phase == runtime.UnattendedInstallPhaseInstalling || install.Phase == runtime.UnattendedInstallPhaseWaitingForReboot {
		m.Stage = runtime.MachineStageInstalling.String()
	}
	if install.Error != "" {
		m.Unmet = append(m.Unmet, foreign.Line(fmt.Sprintf("installation %s: %s", install.Phase, install.Error)))
	}
	return err
}

// loaderEntryFile is the EFI variable with systemd-boot's default entry. Nothing else shows an installed upgrade that
// has not been booted yet.
const loaderEntryFile = "/sys/firmware/efi/efivars/LoaderEntryDefault-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"

// readNextBoot reads the boot entry of the next boot. It leaves the field empty if the machine has no such variable
// (BIOS, or nothing installed yet), or if our talosconfig may not read files.
func readNextBoot(ctx context.Context, s session, m *cluster.Machine) error {
	if s.blank {
		return nil
	}
	b, err := file(ctx, s, loaderEntryFile)
	if e, ok := errors.AsType[*answerError](err); ok {
		switch e.code {
		case codes.NotFound, codes.PermissionDenied, codes.Unimplemented, codes.Unknown: // Unknown: an older Talos, for a missing file
			return nil
		}
	}
	if err != nil {
		return err
	}
	m.NextBoot = loaderEntry(b)
	return nil
}

// loaderEntry returns the text of an EFI variable, lower-case: four bytes of attributes, then UTF-16 up to a NUL. It
// returns "" for anything else, including a truncated entry.
func loaderEntry(variable []byte) string {
	if len(variable) < 4 {
		return ""
	}
	var units []uint16
	for pair := variable[4:]; len(pair) >= 2; pair = pair[2:] {
		unit := binary.LittleEndian.Uint16(pair)
		if unit == 0 {
			text := string(utf16.Decode(units))
			if strings.ContainsRune(text, utf8.RuneError) {
				return ""
			}
			return strings.ToLower(text)
		}
		units = append(units, unit)
	}
	return ""
}

const cmdlineFile = "/proc/cmdline"

// readCmdline reads the kernel command line: from the resource, or from the file if Talos does not have the resource.
func readCmdline(ctx context.Context, s session, m *cluster.Machine) error {
	text, known, err := cmdline(ctx, s)
	if known {
		m.Cmdline, m.ConfigArgs = cluster.Secret(text), configArgs(text)
		// Only ISOs have this argument (pkg/imager/imager.go).
		m.FromISO = slices.Contains(strings.Fields(text), constants.KernelParamHaltIfInstalled+"=1")
	}
	return err
}

// cmdline returns the kernel command line. known is false on a machine without the resource if the caller may not
// read files: with os:reader, or without credentials.
func cmdline(ctx context.Context, s session) (text string, known bool, err error) {
	line, found, err := get[*runtime.KernelCmdline](ctx, s, runtime.NewKernelCmdline().Metadata())
	switch {
	case found:
		return line.TypedSpec().Cmdline, true, nil
	case err != nil || s.blank:
		return "", false, err
	}
	b, err := file(ctx, s, cmdlineFile)
	if answeredWith(codes.PermissionDenied, err) {
		return "", false, nil
	}
	return string(bytes.TrimSpace(b)), err == nil, err
}

// configKeys are the kernel arguments from which Talos takes a configuration, or the address of a server that
// provides a configuration (controllers/config/acquire.go).
var configKeys = []string{
	constants.KernelParamConfig, constants.KernelParamConfigInline, constants.KernelParamConfigEarly, constants.KernelParamSideroLink,
}

// configArgs keeps only the server's name of each value: the rest of a value may be a token or the configuration.
func configArgs(cmdline string) []string {
	var out []string
	for arg := range strings.FieldsSeq(cmdline) {
		key, value, _ := strings.Cut(strings.Trim(arg, `"`), "=")
		if !slices.Contains(configKeys, key) || value == "" || value == constants.ConfigNone {
			continue
		}
		shown := key + "="
		if u, err := url.Parse(value); err == nil && u.Scheme != "" && u.Host != "" {
			shown += u.Scheme + "://" + u.Host
		}
		if !slices.Contains(out, shown) {
			out = append(out, shown)
		}
	}
	return out
}

var errNoConfig = errors.New("it has no configuration")

// MachineConfig reads the machine's whole configuration, with exactly the bytes that are stored for the next boot.
func (c *Client) MachineConfig(ctx context.Context, addr netip.Addr) (cluster.Secret, error) {
	configs, err := c.MachineConfigs(ctx, addr)
	return configs.Stored, err
}

func (c *Client) MachineConfigs(ctx context.Context, addr netip.Addr) (cluster.Configs, error) {
	return ask(ctx, c, addr, readConfigs)
}

// readConfigs reads the active and the stored configuration with one request. A machine that booted with the
// configuration on its disk shows no stored configuration until another is applied (controllers/config/acquire.go,
// Run).
func readConfigs(ctx context.Context, s session) (c cluster.Configs, err error) {
	all := resource.NewMetadata(config.NamespaceName, config.MachineConfigType, "", resource.VersionUndefined)
	rs, err := s.COSI.List(ctx, all, state.WithListUnmarshalOptions(state.WithSkipProtobufUnmarshal()))
	if err != nil {
		return c, fmt.Errorf("list %s: %w", config.MachineConfigType, answer(err))
	}
	byID := map[resource.ID]cluster.Secret{}
	for _, r := range rs.Items {
		if byID[r.Metadata().ID()], err = configIn(r); err != nil {
			return c, fmt.Errorf("read %s: %w", config.MachineConfigType, err)
		}
	}
	c.Active, c.Stored = byID[config.ActiveID], byID[config.PersistentID]
	if c.Active == nil {
		return c, errNoConfig
	}
	if c.Stored == nil {
		c.Stored, c.Booted = c.Active, true
	}
	return c, nil
}

func (c *Client) InstallImage(ctx context.Context, addr netip.Addr) (string, error) {
	m, err := c.ReadParts(ctx, addr, cluster.ConfigPart)
	return m.InstallImage, err
}

// configIn takes the bytes from the message. The client library's own type would parse the bytes, refuse what a newer
// Talos has added, and quote it.
func configIn(r resource.Resource) (cluster.Secret, error) {
	wire, err := wireSpec(r)
	if err != nil {
		return nil, err
	}
	var spec configpb.MachineConfigSpec
	if err := proto.Unmarshal(wire.GetProtoSpec(), &spec); err != nil {
		return nil, errors.New("the message can't be read")
	}
	if len(spec.GetYamlMarshalled()) == 0 {
		return nil, errors.New("it is empty")
	}
	return spec.GetYamlMarshalled(), nil
}

type networkFacts struct {
	statuses  []*network.AddressStatus
	specs     []*network.AddressSpec
	links     []*network.LinkStatus
	operators []*network.OperatorSpec
	routes    []*network.RouteStatus
}

// readAddresses reads the machine's addresses, each with its source. The layer belongs to the address in force: a
// lower layer may have the same address (controllers/network/address_merge.go).
func readAddresses(ctx context.Context, s session, m *cluster.Machine) error {
	var f networkFacts
	err := inParallel(
		listing(ctx, s, network.NewAddressStatus(network.NamespaceName, "").Metadata(), &f.statuses),
		listing(ctx, s, network.NewAddressSpec(network.NamespaceName, "").Metadata(), &f.specs),
		listing(ctx, s, network.NewLinkStatus(network.NamespaceName, "").Metadata(), &f.links),
		listing(ctx, s, network.NewOperatorSpec(network.NamespaceName, "").Metadata(), &f.operators),
		listing(ctx, s, network.NewRouteStatus(network.NamespaceName, "").Metadata(), &f.routes),
	)
	if err == nil {
		m.Addresses = f.addresses()
	}
	return err
}

func (f networkFacts) addresses() []cluster.MachineAddress {
	var all []cluster.MachineAddress
	for _, status := range f.statuses {
		spec := status.TypedSpec()
		a := cluster.MachineAddress{Prefix: spec.Address, Link: spec.LinkName, Layer: f.layer(spec.Address)}
		f.describeLink(&a)
		if a.Layer == cluster.LayerOperator {
			a.Lease = f.lease(a)
		}
		for _, route := range f.routes {
			r := route.TypedSpec()
			if r.OutLinkName == a.Link && r.Destination.Bits() <= 0 && r.Gateway.IsValid() && r.Gateway.Is6() == a.Prefix.Addr().Is6() && r.Table == nethelpers.TableMain {
				a.Gateway = r.Gateway
			}
		}
		all = append(all, a)
	}
	return all
}

// layer returns the layer of the configuration that requested an address; cluster.LayerKernel if Talos did not
// request the address.
func (f networkFacts) layer(address netip.Prefix) cluster.AddressLayer {
	for _, spec := range f.specs {
		if spec.TypedSpec().Address == address {
			return cluster.AddressLayer(spec.TypedSpec().ConfigLayer.String())
		}
	}
	return cluster.LayerKernel
}

func (f networkFacts) describeLink(a *cluster.MachineAddress) {
	a.Kind = "unknown"
	for _, link := range f.links {
		l := link.TypedSpec()
		if link.Metadata().ID() != a.Link {
			continue
		}
		mac := l.PermanentAddr
		if len(mac) == 0 {
			mac = l.HardwareAddr
		}
		a.MAC, a.Kind = net.HardwareAddr(mac).String(), l.Kind
		if !l.Physical() && l.Kind == "" {
			a.Kind = l.Type.String()
		}
	}
}

// lease returns the operator that obtained an address of a link.
func (f networkFacts) lease(a cluster.MachineAddress) (lease cluster.AddressLease) {
	for _, operator := range f.operators {
		o := operator.TypedSpec()
		switch {
		case o.LinkName != a.Link:
		case o.Operator == network.OperatorVIP && o.VIP.IP == a.Prefix.Addr():
			return cluster.AddressLease{Operator: "vip"}
		case o.Operator == network.OperatorDHCP4 && a.Prefix.Addr().Is4():
			lease = cluster.AddressLease{Operator: "dhcp4", DUID: o.DHCP4.ClientIdentifier.ClientIdentifier == nethelpers.ClientIdentifierDUID}
		case o.Operator == network.OperatorDHCP6 && a.Prefix.Addr().Is6():
			lease = cluster.AddressLease{Operator: "dhcp6"}
		}
	}
	return lease
}

// Members asks the talosconfig's endpoints for the members, one endpoint after the other until one answers.
func (c *Client) Members(ctx context.Context) ([]cluster.Member, error) {
	var problems []error
	for _, endpoint := range c.endpoints {
		var members []cluster.Member
		err := c.call(ctx, endpoint, func(ctx context.Context, s session) (err error) {
			members, err = readMembers(ctx, s)
			return err
		})
		if err == nil {
			return members, nil
		}
		problems = append(problems, err)
		if ctx.Err() != nil {
			break
		}
	}
	return nil, fmt.Errorf("no endpoint of the talosconfig answers: %w", errors.Join(problems...))
}

// readMembers reads the cluster's members. It takes a machine's node name from the resource's ID: the hostname in the
// resource includes a domain if the machine knows a domain, even from DHCP alone (controllers/cluster/member.go,
// local_affiliate.go).
func readMembers(ctx context.Context, s session) ([]cluster.Member, error) {
	all, err := list[*clusterres.Member](ctx, s, clusterres.NewMember(clusterres.NamespaceName, "").Metadata())
	if err != nil {
		return nil, err
	}
	var out []cluster.Member
	for _, m := range all {
		spec := m.TypedSpec()
		out = append(out, cluster.Member{
			Nodename: m.Metadata().ID(), NodeID: spec.NodeID, Addresses: spec.Addresses, ControlPlane: spec.MachineType.IsControlPlane(),
		})
	}
	slices.SortFunc(out, func(a, b cluster.Member) int {
		return cmp.Or(cmp.Compare(a.Nodename, b.Nodename), cmp.Compare(a.NodeID, b.NodeID))
	})
	return out, nil
}

func (c *Client) SilentResolvers(ctx context.Context, addr netip.Addr) ([]string, error) {
	return ask(ctx, c, addr, readSilentResolvers)
}

// readSilentResolvers asks the host DNS cache, whose servers the machine checks with each read (dns_upstream.go in
// machinery). A machine without that cache reports nothing about its servers.
func readSilentResolvers(ctx context.Context, s session) ([]string, error) {
	kind := resource.NewMetadata(network.NamespaceName, network.DNSUpstreamType, "", resource.VersionUndefined)
	// The spec is YAML only: the library's own type is a connection, which can't be read.
	rs, err := s.COSI.List(ctx, kind, state.WithListUnmarshalOptions(state.WithSkipProtobufUnmarshal()))
	switch {
	case unknownKind(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("list %s: %w", kind.Type(), answer(err))
	}
	var silent []string
	for _, r := range rs.Items {
		wire, err := wireSpec(r)
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", kind.Type(), err)
		}
		var server struct {
			Addr    string `yaml:"addr"`
			Healthy string `yaml:"healthy"` // "true" or "false"
		}
		if err := yaml.Unmarshal([]byte(wire.GetYamlSpec()), &server); err != nil {
			return nil, fmt.Errorf("list %s: %w", kind.Type(), err)
		}
		if server.Healthy == "true" {
			return nil, nil
		}
		silent = append(silent, server.Addr)
	}
	return silent, nil
}

// probePorts are the ports that recast tries to see whether an address is in use: those of Talos, Kubernetes,
// Proxmox, SSH and HTTPS. A machine that drops packets to other ports may serve one of these.
var probePorts = []string{"50000", "6443", "8006", "22", "443"}

// probeTimeout is how long an address must stay silent: longer than ARP's 3 s.
const probeTimeout = 5 * time.Second

// Taken implements cluster.Maintenance. An address counts as free only if it stays silent or the network reports it
// unreachable; the report of a proxy does not count.
func (c *Client) Taken(ctx context.Context, addr netip.Addr) (by string, err error) {
	if slices.ContainsFunc(c.endpoints, func(e string) bool { return hostOf(e) == addr.String() }) {
		return "an endpoint of the talosconfig", nil
	}
	answers, errs := make([]string, len(probePorts)), make([]error, len(probePorts))
	var probes sync.WaitGroup
	for i, port := range probePorts {
		probes.Go(func() { answers[i], errs[i] = c.answers(ctx, net.JoinHostPort(addr.String(), port)) })
	}
	probes.Wait()
	if i := slices.IndexFunc(answers, func(s string) bool { return s != "" }); i >= 0 {
		return answers[i], nil
	}
	if err := errors.Join(errs...); err != nil {
		return "", fault.WithHint(fmt.Errorf("check whether %s is in use: %w", addr, err), "recast has to reach that network itself, without a proxy, to see that an address of it is free")
	}
	return "", nil
}

// answers describes what answers at host:port; "" if nothing does.
func (c *Client) answers(ctx context.Context, at string) (string, error) {
	short, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	conn, err := c.dial(short, "tcp", at)
	if err == nil {
		_ = conn.Close() // nothing was sent
		return "a host that answers at " + at, nil
	}
	failed, ok := errors.AsType[*net.OpError](err)
	switch {
	case ctx.Err() != nil:
		return "", context.Cause(ctx)
	case !ok || failed.Op != "dial" || failed.Addr == nil || failed.Addr.String() != at: // perhaps the error of a proxy
		return "", err
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ECONNRESET):
		return "a host that refuses connections to " + at, nil
	case failed.Timeout(), errors.Is(err, syscall.EHOSTUNREACH):
		return "", nil
	}
	return "", err
}

func hostOf(endpoint string) string {
	if host, _, err := net.SplitHostPort(endpoint); err == nil {
		return host
	}
	return strings.Trim(endpoint, "[]")
}

// Claims reads what the machine at addr reports about its running image. A reader's role suffices; what requires an
// admin is omitted.
func (c *Client) Claims(ctx context.Context, addr netip.Addr, uuid string) (observe.Claims, error) {
	return ask(ctx, c, addr, func(ctx context.Context, s session) (claims observe.Claims, err error) {
		if err = checkUUID(ctx, s, uuid, "what it says was not read"); err == nil {
			err = readEach(ctx, s, &claims, claimVersion, claimLayers, claimFactory, claimBoot, claimCmdline)
		}
		return claims, err
	})
}

func claimVersion(ctx context.Context, s session, c *observe.Claims) error {
	var m cluster.Machine
	err := readVersion(ctx, s, &m)
	c.TalosVersion, c.Arch, c.Platform = m.TalosVersion, m.Arch, m.Platform
	return err
}

func claimLayers(ctx context.Context, s session, c *observe.Claims) error {
	all, err := list[*runtime.ExtensionStatus](ctx, s, runtime.NewExtensionStatus(runtime.NamespaceName, "").Metadata())
	if err != nil {
		return err
	}
	// The IDs are the layers' numbers ("10" comes after "9"), except for imager's own last layer, which has a name.
	slices.SortStableFunc(all, func(a, b *runtime.ExtensionStatus) int {
		return cmp.Or(cmp.Compare(layerNumber(a), layerNumber(b)), cmp.Compare(a.Metadata().ID(), b.Metadata().ID()))
	})
	for _, e := range all {
		about := e.TypedSpec().Metadata
		c.Layers = append(c.Layers, observe.ExtensionLayer{Name: about.Name, Version: about.Version, Author: about.Author, ExtraInfo: about.ExtraInfo})
	}
	return nil
}

func layerNumber(e *runtime.ExtensionStatus) int {
	n, err := strconv.Atoi(e.Metadata().ID())
	if err != nil {
		return math.MaxInt
	}
	return n
}

var claimFactory = filling(runtime.NewImageFactorySchematic(runtime.NamespaceName, runtime.ImageFactorySchematicID).Metadata(), func(c *observe.Claims, f *runtime.ImageFactorySchematic) {
	c.Factory = &observe.FactoryClaim{SchematicID: f.TypedSpec().SchematicID, Flavor: f.TypedSpec().Flavor, URL: f.TypedSpec().APIURL}
})

func claimBoot(ctx context.Context, s session, c *observe.Claims) error {
	var m cluster.Machine
	err := inParallel(
		getting(ctx, s, runtime.NewBootedEntrySpec().Metadata(), func(entry *runtime.BootedEntry) {
			c.Booted.Entry = strings.ToLower(entry.TypedSpec().BootedEntry)
		}),
		getting(ctx, s, runtime.NewSecurityStateSpec(runtime.NamespaceName).Metadata(), func(security *runtime.SecurityState) {
			c.Booted.UKI, c.Booted.SecureBoot = new(security.TypedSpec().BootedWithUKI), security.TypedSpec().SecureBoot
		}),
		func() error { return readNextBoot(ctx, s, &m) },
	)
	c.Booted.Next = m.NextBoot
	return err
}

// lockArg is the kernel argument that carries a lock hash.
const lockArg = "recast.lock="

// claimCmdline keeps only recast's own argument of the command line: the other arguments may contain tokens.
func claimCmdline(ctx context.Context, s session, c *observe.Claims) error {
	text, known, err := cmdline(ctx, s)
	c.Booted.Cmdline = known
	for arg := range strings.FieldsSeq(text) {
		if hash, ours := strings.CutPrefix(strings.Trim(arg, `"`), lockArg); ours {
			c.Booted.Locks = append(c.Booted.Locks, hash)
		}
	}
	return err
}
