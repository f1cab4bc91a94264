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

// release holds the visible differences between minor releases of Talos.
type release struct {
	contract *config.VersionContract
	// bareMaintenance: maintenance mode is a separate service with few methods (internal/app/maintenance), and not apid.
	bareMaintenance bool
	lifecycle       bool // has LifecycleService and ImageService
	rebootApplies   bool // a configured machine accepts a configuration with mode REBOOT
	patientPull     bool // its image API retries like Talos' own pulls, unless the image does not exist
	keepsDefault    bool // its installer keeps the default boot entry instead of the running one
	// lacks are the kinds of resources, documents the kinds of documents of a machine configuration, and volumes the
	// names in a VolumeConfig that came with a later release.
	lacks     []resource.Type
	documents [][]string
	fields    [][]string // of documents that it knows
	volumes   []string
	// unprobed are the filesystems that the release's probes don't detect (go-blockdevice, blkid/internal/chain:
	// btrfs since 2.0.30 of Talos 1.13.5, md since 2.0.32 of 1.14).
	unprobed []string
}

// releases are the releases that the lab simulates, in order.
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

// The simulated additions of 1.14 (CHANGELOG.md, 1.14.0-alpha.2 and beta.0; volume_config.go of 1.13 and 1.14).
var (
	sinceFourteen        = []resource.Type{runtime.BootIDType, runtime.ImageFactorySchematicType, runtime.UnattendedInstallStatusType, storage.LVMPhysicalVolumeStatusType}
	volumesSinceFourteen = []string{labelEtcd, "CRI", "KUBELET", "LOG"}
)

// releaseOf returns the release of a version: the first release for older versions, the last release for newer or
// invalid versions.
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

// release returns the release of the running system.
func (b *boot) release() release { return releaseOf(b.med.image.TalosVersion) }

// kinds returns all without the kinds that the release lacks.
func (r release) kinds(all []*meta.ResourceDefinition) []*meta.ResourceDefinition {
	return slices.DeleteFunc(slices.Clone(all), func(rd *meta.ResourceDefinition) bool {
		return slices.Contains(r.lacks, rd.TypedSpec().Type)
	})
}

// maintained returns the answer of a separate maintenance service to methods that the service lacks, or refuses to
// callers from the network (assertAdminRole in its server.go).
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

// badMode returns the error for a mode of ApplyConfiguration that the release refuses, nil if the release accepts the
// mode. A separate maintenance service checks the mode first; apid checks the mode after the configuration.
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

// fourteen reports whether the release is 1.14 or later.
func (r release) fourteen() bool { return len(r.lacks) == 0 }

// documentsSince are the kinds of configuration documents that 1.13 and 1.14 added: the kinds registered by their
// decoders (registry.Register in pkg/machinery/config/types) but not by the decoder of the previous minor release.
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

// fieldsSince are the fields that 1.13 and 1.14 added to existing kinds of documents, as the structs of these kinds
// have them (yaml tags in pkg/machinery/config/types).
var fieldsSince = [][]string{
	{" cluster.network.cni.flannel.kubeNetworkPoliciesEnabled", "ExistingVolumeConfig mount.secure", "UserVolumeConfig mount", "VolumeConfig mount"},
	{
		"DHCPv4Config ignoreRoutes", "ExistingVolumeConfig scrub", "ExistingVolumeConfig trim", "RawVolumeConfig encryption.allowDiscards", "ResolverConfig hostDNS",
		"SwapVolumeConfig encryption.allowDiscards", "TimeSyncConfig ntp.useNTS", "UserVolumeConfig encryption.allowDiscards", "UserVolumeConfig filesystem.xfs",
		"UserVolumeConfig scrub", "UserVolumeConfig trim", "VolumeConfig encryption.allowDiscards", "VolumeConfig filesystem", "VolumeConfig scrub", "VolumeConfig trim",
	},
}

// unknownField returns a field of a document that came with a later release; "" if the document has no such field.
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

// valueOf returns the value of a key; nil if the node is no mapping, or lacks the key.
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
