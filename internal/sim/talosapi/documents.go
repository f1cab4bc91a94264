package talosapi

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"

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

// takes refuses a configuration with kinds or volumes of a later release, with the errors
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
		case doc.Kind == "VolumeConfig" && slices.Contains(r.volumes, doc.Name):
			return fmt.Errorf("only %q volumes are supported", []string{labelState, labelEphemeral, "IMAGECACHE"})
		}
	}
}
