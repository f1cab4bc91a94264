package talosapi

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
)

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
