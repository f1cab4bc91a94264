package talos

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/siderolabs/talos/pkg/machinery/config"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/knownissue"
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

// fieldsSince lists the fields that releases after 1.12.0 added to kinds of documents that earlier ones have:
// the difference of what their machinery decodes (config/types, config/schemas/config.schema.json). A
// path leads through every entry of a list. A release without a patch level is the first of its minor version.
var fieldsSince = []struct{ release, kind, path string }{
	{"v1.12.4", "", "machine.network.kubespan.filters.excludeAdvertisedNetworks"}, // neither in v1.12.1
	{"v1.13", "", "cluster.network.cni.flannel.kubeNetworkPoliciesEnabled"},
	{"v1.13", "ExistingVolumeConfig", "mount.disableAccessTime"},
	{"v1.13", "ExistingVolumeConfig", "mount.secure"},
	{"v1.13", "UserVolumeConfig", "mount"},
	{"v1.13", "VolumeConfig", "mount"},
	{"v1.13.4", "OOMConfig", "strictCgroupClassOrdering"}, // not in v1.13.3
	{"v1.14", "DHCPv4Config", "ignoreRoutes"},
	{"v1.14", "ExistingVolumeConfig", "scrub"},
	{"v1.14", "ExistingVolumeConfig", "trim"},
	{"v1.14", "RawVolumeConfig", "encryption.allowDiscards"},
	{"v1.14", "ResolverConfig", "hostDNS"},
	{"v1.14", "ResolverConfig", "nameservers.protocol"},
	{"v1.14", "ResolverConfig", "nameservers.tlsServerName"},
	{"v1.14", "SwapVolumeConfig", "encryption.allowDiscards"},
	{"v1.14", "TimeSyncConfig", "ntp.useNTS"},
	{"v1.14", "UserVolumeConfig", "encryption.allowDiscards"},
	{"v1.14", "UserVolumeConfig", "filesystem.xfs"},
	{"v1.14", "UserVolumeConfig", "scrub"},
	{"v1.14", "UserVolumeConfig", "trim"},
	{"v1.14", "VolumeConfig", "encryption.allowDiscards"},
	{"v1.14", "VolumeConfig", "filesystem"},
	{"v1.14", "VolumeConfig", "mount.disableAccessTime"},
	{"v1.14", "VolumeConfig", "scrub"},
	{"v1.14", "VolumeConfig", "trim"},
}

// checkVersion refuses documents and fields that the Talos that will read them does not know.
// Talos reads strictly: one such document, and it rejects the whole configuration.
func checkVersion(docs []*document, p cluster.ConfigPatch) error {
	if _, err := config.ParseContractFromVersion(p.Talos); err != nil {
		return nil //nolint:nilerr // the version that reads it is unknown
	}
	names := map[string][]string{}
	add := func(release, name string) {
		if older(p.Talos, release) && !slices.Contains(names[release], name) {
			names[release] = append(names[release], name)
		}
	}
	for _, doc := range docs {
		for _, since := range documentsSince {
			name := doc.kind()
			if name == "VolumeConfig" {
				name = doc.title()
			}
			if slices.Contains(since.documents, name) {
				add(since.release.String(), name)
			}
		}
		for _, f := range fieldsSince {
			if doc.node != nil && doc.kind() == f.kind && has(doc.orig, strings.Split(f.path, ".")) {
				add(f.release, strings.TrimSpace(doc.title()+" "+f.path))
			}
		}
	}
	if len(names) == 0 {
		return nil
	}
	var newer []string
	releases := slices.SortedFunc(maps.Keys(names), func(a, b string) int { return map[bool]int{true: -1, false: 1}[older(a, b)] })
	for _, release := range releases {
		newer = append(newer, strings.Join(names[release], ", ")+" came with "+release)
	}
	needs := releases[len(releases)-1]
	return fault.WithHint(fault.MachineConfig.Refusedf("Talos %s would refuse it: %s", p.Talos, strings.Join(newer, "; ")),
		"a configuration for Talos %s does not work on an older one: set talos.version to %s or later, or give the node its own configuration (talos.machineConfigs)", needs, needs)
}

// checkIssue refuses what the Talos that will read it reads, and then fails with.
func checkIssue(docs []*document, p cluster.ConfigPatch) error {
	issue, known := knownissue.Of(p.Talos)
	if !known || !issue.Scheduler {
		return nil
	}
	for _, doc := range docs {
		if doc.node != nil && (doc.kind() == "" && hasInteger(doc.orig, "cluster", "scheduler", "config") || doc.kind() == "KubeSchedulerConfig" && hasInteger(doc.orig, "config")) {
			return fault.WithHint(fault.MachineConfig.Refusedf("%s, and this one has", issue), "%s, or write no integers there", issue.Hint())
		}
	}
	return nil
}

// hasInteger says whether an integer is anywhere below a field.
func hasInteger(value any, path ...string) bool {
	switch v := value.(type) {
	case map[string]any:
		if len(path) > 0 {
			return hasInteger(v[path[0]], path[1:]...)
		}
		for _, entry := range v {
			if hasInteger(entry) {
				return true
			}
		}
	case []any:
		return len(path) == 0 && slices.ContainsFunc(v, func(entry any) bool { return hasInteger(entry) })
	case int, int64, uint64:
		return len(path) == 0
	}
	return false
}

// title names a document in an error: its kind and its name; "" for the main one.
func (d *document) title() string { return strings.TrimSpace(d.kind() + " " + d.root.text("name")) }

// has says whether a value has a field, in any entry of a list on the way. An empty field is there as well:
// Talos refuses to read its name.
func has(value any, path []string) bool {
	switch v := value.(type) {
	case []any:
		return slices.ContainsFunc(v, func(entry any) bool { return has(entry, path) })
	case map[string]any:
		next, there := v[path[0]]
		return there && (len(path) == 1 || has(next, path[1:]))
	}
	return false
}

// older says whether a version is before a release: "v1.13.3" is before "v1.13.4" and "v1.14", "v1.14.0-rc.1" is not before "v1.14".
func older(version, release string) bool {
	numbers := func(v string) []int {
		v, _, _ = strings.Cut(strings.TrimPrefix(v, "v"), "-")
		out := make([]int, 3)
		for i, part := range strings.SplitN(v, ".", 3) {
			out[i], _ = strconv.Atoi(part) // versions were parsed before
		}
		return out
	}
	return slices.Compare(numbers(version), numbers(release)) < 0
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
