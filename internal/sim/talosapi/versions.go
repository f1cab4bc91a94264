package talosapi

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/resource/meta"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"github.com/siderolabs/talos/pkg/machinery/resources/storage"
	"go.yaml.in/yaml/v4"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// release is the visible differences between minor releases of Talos.
type release struct {
	contract *config.VersionContract
	// bareMaintenance: maintenance mode is a separate service with few methods
	// (internal/app/maintenance), and not apid.
	bareMaintenance bool
	lifecycle       bool // has LifecycleService and ImageService
	rebootApplies   bool // a configured machine accepts a configuration with mode REBOOT
	patientPull     bool // its image API retries like Talos' own pulls, unless the image does not exist
	keepsDefault    bool // its installer keeps the default boot entry instead of the running one
	// lacks are kinds of resources, documents those of a machine configuration, and volumes
	// the names in a VolumeConfig, that came with a later release.
	lacks     []resource.Type
	documents [][]string
	fields    [][]string // of documents that it knows
	volumes   []string
	// unprobed are the filesystems that its probes don't detect (go-blockdevice,
	// blkid/internal/chain: btrfs since 2.0.30 of Talos 1.13.5, md since 2.0.32 of 1.14).
	unprobed []string
}

// releases are those that the lab simulates, in order.
var releases = []release{
	{
		contract: config.TalosVersion1_12, bareMaintenance: true, rebootApplies: true, patientPull: true, keepsDefault: true,
		lacks: sinceFourteen, documents: documentsSince, fields: fieldsSince, volumes: volumesSinceFourteen, unprobed: []string{"btrfs", "linux_raid_member"},
	},
	{
		contract: config.TalosVersion1_13, lifecycle: true, rebootApplies: true, patientPull: true, keepsDefault: true,
		lacks: sinceFourteen, documents: documentsSince[1:], fields: fieldsSince[1:], volumes: volumesSinceFourteen, unprobed: []string{"linux_raid_member"},
	},
	{contract: config.TalosVersion1_14, lifecycle: true},
}

// The simulated additions of 1.14 (CHANGELOG.md, 1.14.0-alpha.2 and beta.0;
// volume_config.go of 1.13 and 1.14).
var (
	sinceFourteen        = []resource.Type{runtime.BootIDType, runtime.ImageFactorySchematicType, runtime.UnattendedInstallStatusType, storage.LVMPhysicalVolumeStatusType}
	volumesSinceFourteen = []string{labelEtcd, "CRI", "KUBELET", "LOG"}
)

// releaseOf is the release of a version: the first one for older versions, the last one
// for newer or invalid ones.
func releaseOf(version string) release {
	c, err := config.ParseContractFromVersion(version)
	if err != nil {
		return releases[len(releases)-1]
	}
	for _, r := range releases {
		if !c.Greater(r.contract) {
			return r
		}
	}
	return releases[len(releases)-1]
}

// release is that of the running system.
func (b *boot) release() release { return releaseOf(b.med.image.TalosVersion) }

// kinds filters out what the release lacks.
func (r release) kinds(all []*meta.ResourceDefinition) []*meta.ResourceDefinition {
	return slices.DeleteFunc(slices.Clone(all), func(rd *meta.ResourceDefinition) bool {
		return slices.Contains(r.lacks, rd.TypedSpec().Type)
	})
}

// maintained is a separate maintenance service's answer to methods that it lacks, or
// refuses to callers from the network (assertAdminRole in its server.go).
func (r release) maintained(method string) error {
	service, name := path.Split(strings.TrimPrefix(method, "/"))
	switch {
	case !r.bareMaintenance, service == "cosi.resource.State/", service == "storage.StorageService/", name == "ApplyConfiguration":
		return nil
	case service != "machine.MachineService/":
		return status.Errorf(codes.Unimplemented, "unknown service %s", path.Clean(service))
	case slices.Contains([]string{"Version", "Upgrade", "Reset", "MetaWrite", "MetaDelete"}, name):
		return status.Error(codes.Unimplemented, "API is not implemented in maintenance mode")
	case name == "GenerateClientConfiguration":
		return status.Error(codes.Unimplemented, "client configuration (talosconfig) can't be generated in the maintenance mode")
	}
	return status.Errorf(codes.Unimplemented, "method %s not implemented", name)
}

// badMode is the error for a mode of ApplyConfiguration that the release refuses, nil if
// it accepts it: a separate maintenance service checks that first, apid after it has
// checked the configuration.
func (r release) badMode(mode machineapi.ApplyConfigurationRequest_Mode, maintenance bool) error {
	//lint:ignore SA1019 REBOOT is the zero value, and what Talos knew before 1.14
	const reboot = machineapi.ApplyConfigurationRequest_REBOOT
	const auto, try = machineapi.ApplyConfigurationRequest_AUTO, machineapi.ApplyConfigurationRequest_TRY
	_, known := machineapi.ApplyConfigurationRequest_Mode_name[int32(mode)]
	const incorrect = "incorrect mode '%s' specified for the apply config call"
	switch {
	case maintenance && r.bareMaintenance && mode != reboot && mode != auto && mode != try:
		return status.Errorf(codes.Unimplemented, "apply configuration --mode='%s' is not supported in maintenance mode", strings.ReplaceAll(strings.ToLower(mode.String()), "_", "-"))
	case mode == reboot && !maintenance && !r.rebootApplies:
		return status.Error(codes.Unimplemented, "the REBOOT mode is not supported, please use AUTO or NO_REBOOT modes instead")
	case !known && r.rebootApplies:
		return fmt.Errorf(incorrect, mode)
	case !known:
		return status.Errorf(codes.InvalidArgument, incorrect, mode)
	}
	return nil
}

// fourteen says whether it is 1.14 or later.
func (r release) fourteen() bool { return len(r.lacks) == 0 }

// documentsSince are the kinds of configuration documents that 1.13 and 1.14 added: those
// registered by their decoders (registry.Register in pkg/machinery/config/types) but not
// by the previous minor release's.
var documentsSince = [][]string{
	{
		"BlackholeRouteConfig", "EnvironmentConfig", "ExternalVolumeConfig", "ImageVerificationConfig", "KubeSpanConfig",
		"RoutingRuleConfig", "TCPProbeConfig", "VRFConfig",
	},
	{
		"BGPInstanceConfig", "CRIBaseRuntimeSpecConfig", "CRICustomizationConfig", "ContainerConfig", "DiscoveryIdentityConfig",
		"DiscoveryServiceConfig", "EtcFileConfig", "FilesystemScrubConfig", "FilesystemTrimConfig", "HTTPProbeConfig", "ImageCacheConfig",
		"KernelModuleConfig", "KubeAPIServerCAConfig", "KubeAPIServerConfig", "KubeAdmissionControlConfig", "KubeAggregatorCAConfig",
		"KubeAuditPolicyConfig", "KubeAuthenticationConfig", "KubeAuthorizerConfig", "KubeClusterConfig", "KubeControllerManagerConfig",
		"KubeCoreDNSConfig", "KubeCredentialProviderConfig", "KubeEtcdEncryptionConfig", "KubeExternalManifestConfig",
		"KubeFlannelCNIConfig", "KubeInlineManifestConfig", "KubeNetworkConfig", "KubeNodeConfig", "KubePrismConfig", "KubeProxyConfig",
		"KubeSchedulerConfig", "KubeServiceAccountConfig", "KubeStaticPodConfig", "KubeTalosAPIAccessConfig", "KubeletConfig",
		"LVMLogicalVolumeConfig", "LVMVolumeGroupConfig", "RAIDArrayConfig", "SecurityProfileConfig", "SysctlConfig", "SysfsConfig",
		"UdevRulesConfig", "UnattendedInstallConfig", "VethConfig",
	},
}

// fieldsSince are the fields that 1.13 and 1.14 added to kinds of documents that they found, as their structs
// have them (yaml tags in pkg/machinery/config/types).
var fieldsSince = [][]string{
	{" cluster.network.cni.flannel.kubeNetworkPoliciesEnabled", "ExistingVolumeConfig mount.secure", "UserVolumeConfig mount", "VolumeConfig mount"},
	{
		"DHCPv4Config ignoreRoutes", "ExistingVolumeConfig scrub", "ExistingVolumeConfig trim", "RawVolumeConfig encryption.allowDiscards", "ResolverConfig hostDNS",
		"SwapVolumeConfig encryption.allowDiscards", "TimeSyncConfig ntp.useNTS", "UserVolumeConfig encryption.allowDiscards", "UserVolumeConfig filesystem.xfs",
		"UserVolumeConfig scrub", "UserVolumeConfig trim", "VolumeConfig encryption.allowDiscards", "VolumeConfig filesystem", "VolumeConfig scrub", "VolumeConfig trim",
	},
}

// unknownField is a field of a document that came with a later release; "" if there is none.
func (r release) unknownField(kind string, node *yaml.Node) string {
	for _, field := range slices.Concat(r.fields...) {
		of, path, _ := strings.Cut(field, " ")
		at := node.Content[0]
		for key := range strings.SplitSeq(path, ".") {
			at = valueOf(at, key)
		}
		if of == kind && at != nil {
			return path
		}
	}
	return ""
}

// valueOf is the value of a key; nil if the node is no mapping, or lacks it.
func valueOf(node *yaml.Node, key string) *yaml.Node {
	if node == nil || node.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(node.Content); i += 2 {
		if node.Content[i].Value == key {
			return node.Content[i+1]
		}
	}
	return nil
}

// takes refuses a configuration with kinds, fields or volumes of a later release, with the errors
// of the release's decoder and of its VolumeConfig.
func (r release) takes(raw []byte) error {
	for dec := yaml.NewDecoder(bytes.NewReader(raw)); ; {
		var node yaml.Node
		if err := dec.Decode(&node); errors.Is(err, io.EOF) || err != nil {
			return nil //nolint:nilerr // invalid YAML was refused before
		}
		var doc struct {
			APIVersion string `yaml:"apiVersion"`
			Kind, Name string
		}
		if len(node.Content) != 1 || node.Decode(&doc) != nil {
			continue
		}
		switch {
		case slices.ContainsFunc(r.documents, func(kinds []string) bool { return slices.Contains(kinds, doc.Kind) }):
			return fmt.Errorf("error decoding document %s/%s/%s (line %d): %q %q: not registered",
				doc.APIVersion, doc.Kind, doc.Name, node.Content[0].Line, doc.Kind, doc.APIVersion)
		case r.unknownField(doc.Kind, &node) != "":
			return fmt.Errorf("error decoding document %s/%s/%s (line %d): unknown keys: %s",
				doc.APIVersion, doc.Kind, doc.Name, node.Content[0].Line, r.unknownField(doc.Kind, &node))
		case doc.Kind == "VolumeConfig" && slices.Contains(r.volumes, doc.Name):
			return fmt.Errorf("only %q volumes are supported", []string{labelState, labelEphemeral, "IMAGECACHE"})
		}
	}
}
