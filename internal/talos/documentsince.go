package talos

import (
	"cmp"
	"slices"
	"strings"

	"github.com/siderolabs/talos/pkg/machinery/config"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
)

// documentsSince lists the kinds of configuration documents, and names of such, that
// Talos releases after 1.12 added: those that their machinery registers
// (registry.Register in config/types) and the previous one, v1.12.0 or v1.13.9, does
// not, and those that config/types/block/volume_config.go allows since.
var documentsSince = []struct {
	release   *config.VersionContract
	documents []string
}{
	{config.TalosVersion1_13, []string{
		"BlackholeRouteConfig", "EnvironmentConfig", "ExternalVolumeConfig", "ImageVerificationConfig", "KubeSpanConfig",
		"RoutingRuleConfig", "TCPProbeConfig", "VRFConfig",
	}},
	{config.TalosVersion1_14, []string{
		"BGPInstanceConfig", "CRIBaseRuntimeSpecConfig", "CRICustomizationConfig", "ContainerConfig", "DiscoveryIdentityConfig",
		"DiscoveryServiceConfig", "EtcFileConfig", "FilesystemScrubConfig", "FilesystemTrimConfig", "HTTPProbeConfig", "ImageCacheConfig",
		"KernelModuleConfig", "KubeAPIServerCAConfig", "KubeAPIServerConfig", "KubeAdmissionControlConfig", "KubeAggregatorCAConfig",
		"KubeAuditPolicyConfig", "KubeAuthenticationConfig", "KubeAuthorizerConfig", "KubeClusterConfig", "KubeControllerManagerConfig",
		"KubeCoreDNSConfig", "KubeCredentialProviderConfig", "KubeEtcdEncryptionConfig", "KubeExternalManifestConfig",
		"KubeFlannelCNIConfig", "KubeInlineManifestConfig", "KubeNetworkConfig", "KubeNodeConfig", "KubePrismConfig", "KubeProxyConfig",
		"KubeSchedulerConfig", "KubeServiceAccountConfig", "KubeStaticPodConfig", "KubeTalosAPIAccessConfig", "KubeletConfig",
		"LVMLogicalVolumeConfig", "LVMVolumeGroupConfig", "RAIDArrayConfig", "SecurityProfileConfig", "SysctlConfig", "SysfsConfig",
		"UdevRulesConfig", "UnattendedInstallConfig", "VethConfig", "VolumeConfig CRI", "VolumeConfig ETCD", "VolumeConfig KUBELET",
		"VolumeConfig LOG",
	}},
}

// checkVersion refuses documents that the Talos that will read them does not know.
// Talos reads strictly: one such document, and it rejects the whole configuration.
func checkVersion(cfg config.Provider, p cluster.ConfigPatch) error {
	reader, err := config.ParseContractFromVersion(p.Talos)
	if err != nil {
		return nil //nolint:nilerr // the version that reads it is unknown
	}
	var newer []string
	var needs *config.VersionContract
	for _, since := range documentsSince {
		var names []string
		for _, doc := range cfg.Documents() {
			name := doc.Kind()
			if named, ok := doc.(interface{ Name() string }); ok && name == "VolumeConfig" {
				name += " " + named.Name()
			}
			if slices.Contains(since.documents, name) && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
		if since.release.Greater(reader) && len(names) > 0 {
			newer, needs = append(newer, strings.Join(names, ", ")+" came with "+since.release.String()), since.release
		}
	}
	if needs == nil {
		return nil
	}
	return fault.WithHint(fault.MachineConfig.Refusedf("Talos %s would refuse it: %s", p.Talos, strings.Join(newer, "; ")),
		"a configuration for Talos %s does not work on an older one: set talos.version to %s or later, or give the node its own configuration (talos.machineConfigs)", needs, needs)
}

// checkUnknown refuses documents of kinds that recast does not know, unless the Talos that will
// read them is newer than all that recast knows: that one has to judge them.
func checkUnknown(unknown []string, p cluster.ConfigPatch) error {
	reader, err := config.ParseContractFromVersion(p.Talos)
	newest := documentsSince[len(documentsSince)-1].release
	if len(unknown) == 0 || err == nil && reader.Greater(newest) {
		return nil
	}
	return fault.WithHint(fault.MachineConfig.Refusedf("Talos %s would refuse it: it does not know %s", cmp.Or(p.Talos, newest.String()), strings.Join(unknown, ", ")),
		"is it spelled as Talos' documentation has it? recast knows all kinds up to Talos %s", newest)
}
