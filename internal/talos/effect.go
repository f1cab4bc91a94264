//lint:file-ignore SA1019 nodes have these fields, whatever replaces them

package talos

import (
	"bytes"
	"cmp"
	"crypto/x509"
	"fmt"
	"reflect"
	"slices"
	"strings"

	talosx509 "github.com/siderolabs/crypto/x509"
	"github.com/siderolabs/talos/pkg/machinery/config"
	configs "github.com/siderolabs/talos/pkg/machinery/config/config"
	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
	"github.com/siderolabs/talos/pkg/machinery/config/container"
	"github.com/siderolabs/talos/pkg/machinery/config/encoder"
	"github.com/siderolabs/talos/pkg/machinery/config/machine"
	"github.com/siderolabs/talos/pkg/machinery/config/types/v1alpha1"

	"github.com/recast-sh/recast/cluster"
	machineconfig "github.com/recast-sh/recast/cluster/config"
	"github.com/recast-sh/recast/internal/fault"
)

func (*Client) ConfigEffect(runs, wanted cluster.Secret) (cluster.ConfigEffect, error) {
	was, _, err := loadKnown(runs)
	if err != nil {
		return cluster.ConfigEffect{}, fault.MachineConfig.Refusedf("what the node runs can't be read: %w", err)
	}
	is, unknown, err := loadKnown(wanted)
	if err != nil {
		return cluster.ConfigEffect{}, err
	}
	if was.RawV1Alpha1() == nil || is.RawV1Alpha1() == nil {
		return cluster.ConfigEffect{}, fault.MachineConfig.Refusedf("the main document, with machine and cluster, is missing")
	}
	effect := cluster.ConfigEffect{Identity: differ(was, is), Unknown: unknown}
	if effect.Reboot, err = needReboot(was, is); err != nil {
		return effect, err
	}
	docs, err := parseDocuments(wanted)
	if err != nil {
		return effect, fault.MachineConfig.Refusedf("not a machine configuration: %w", err)
	}
	effect.Encryption, err = encryption(docs)
	return effect, err
}

// identities are the parts of a configuration that make a machine this node of this cluster. Each part has the value
// that takes effect, in whatever document it is written.
var identities = []struct {
	name string
	of   func(config.Config) any
}{
	{cluster.NodeRole, func(c config.Config) any { return c.Machine().Type() }},
	{"the machine's token", func(c config.Config) any { return c.Machine().Security().Token() }},
	{cluster.TalosCA, func(c config.Config) any { return c.Machine().Security().IssuingCA() }},
	{"the cluster's endpoint", part("", config.Config.K8sClusterConfig, func(k configs.K8sClusterConfig) any {
		return fmt.Sprint(k.ClusterEndpoint())
	})},
	{"the cluster's name", part("", config.Config.K8sClusterConfig, func(k configs.K8sClusterConfig) any {
		return k.ClusterName()
	})},
	{"the cluster's ID", part("", config.Config.DiscoveryIdentityConfig, func(d configs.DiscoveryIdentityConfig) any {
		return d.ClusterID()
	})},
	{"the cluster's secret", part("", config.Config.DiscoveryIdentityConfig, func(d configs.DiscoveryIdentityConfig) any {
		return d.ClusterSecret()
	})},
	{"the bootstrap token of Kubernetes", func(c config.Config) any {
		if t := c.Cluster().Token(); t != nil {
			return t.ID() + "." + t.Secret()
		}
		return ""
	}},
	{kubernetesCA, part(nil, config.Config.K8sAPIServerCAConfig, func(k configs.K8sAPIServerCAConfig) any {
		return k.IssuingCA()
	})},
	{"the aggregator CA of Kubernetes", func(c config.Config) any {
		if ca := c.K8sAggregatorCAConfig(); ca != nil {
			return ca.IssuingCA()
		}
		return nil
	}},
	{"the service account key of Kubernetes", func(c config.Config) any {
		if sa := c.K8sServiceAccountConfig(); sa != nil {
			return sa.IssuingKey()
		}
		return nil
	}},
	{"the keys that encrypt Kubernetes' secrets", func(c config.Config) any {
		if e := c.K8sEtcdEncryptionConfig(); e != nil {
			return keysIn(e.EtcdEncryptionConfig())
		}
		return slices.DeleteFunc([]string{c.Cluster().AESCBCEncryptionSecret(), c.Cluster().SecretboxEncryptionSecret()}, func(key string) bool { return key == "" })
	}},
	{"the CA of etcd", func(c config.Config) any {
		if e := c.Cluster().Etcd(); e != nil {
			return e.CA()
		}
		return nil
	}},
}

// part returns a function that reads a value from a part of the configuration; the function returns none if there is
// no such part.
func part[T comparable](none any, of func(config.Config) T, value func(T) any) func(config.Config) any {
	return func(c config.Config) any {
		if p := of(c); p != *new(T) {
			return value(p)
		}
		return none
	}
}

// kubernetesCA is the CA of Kubernetes as part of a node's identity. Control planes issue certificates with the CA,
// and workers accept it (config.K8sAPIServerCAConfig).
const kubernetesCA = "the CA of Kubernetes"

// wholeOnControlPlanes are the parts of the identity that a worker has only in part, or not at all.
var wholeOnControlPlanes = []string{
	cluster.TalosCA, "the aggregator CA of Kubernetes", "the service account key of Kubernetes", "the keys that encrypt Kubernetes' secrets", "the CA of etcd",
}

// differ returns the names of the parts of the identity that differ. Of a control plane and a worker it compares only
// what both roles have.
func differ(was, is config.Config) []string {
	var out []string
	before, after := was.Machine().Type(), is.Machine().Type()
	for _, i := range identities {
		if i.name == cluster.NodeRole && before == machine.TypeInit && after == machine.TypeControlPlane {
			continue // the node is still a control plane, and no longer begins its own etcd
		}
		if i.name == kubernetesCA && !(before.IsControlPlane() && after.IsControlPlane()) {
			if apart(acceptedCAs(was), acceptedCAs(is)) {
				out = append(out, i.name)
			}
			continue
		}
		if before.IsControlPlane() != after.IsControlPlane() && slices.Contains(wholeOnControlPlanes, i.name) {
			if !sameCertificate(i.of(was), i.of(is)) {
				out = append(out, i.name)
			}
			continue
		}
		if !reflect.DeepEqual(i.of(was), i.of(is)) {
			out = append(out, i.name)
		}
	}
	return out
}

// sameCertificate reports whether the certificate of a CA, which nodes of both roles have, is the same. A certificate
// that one of the nodes lacks counts as the same.
func sameCertificate(a, b any) bool {
	x, isCA := a.(*talosx509.PEMEncodedCertificateAndKey)
	y, also := b.(*talosx509.PEMEncodedCertificateAndKey)
	return !isCA || !also || x == nil || y == nil || len(x.Crt) == 0 || len(y.Crt) == 0 || bytes.Equal(x.Crt, y.Crt)
}

// acceptedCAs returns the CAs of Kubernetes that a node accepts, including the issuing CA.
func acceptedCAs(c config.Config) (out []*x509.Certificate) {
	if ca := c.K8sAPIServerCAConfig(); ca != nil {
		for _, accepted := range ca.AcceptedCAs() {
			out = append(out, certificates(accepted.Crt)...)
		}
	}
	return out
}

// apart reports whether a and b both have CAs, but none in common: while a CA is rotated, both nodes accept two.
func apart(a, b []*x509.Certificate) bool {
	return len(a) > 0 && len(b) > 0 && !slices.ContainsFunc(a, func(ca *x509.Certificate) bool { return slices.ContainsFunc(b, ca.Equal) })
}

// keysIn returns the secrets in a configuration of encryption, sorted.
func keysIn(v any) (keys []string) {
	switch v := v.(type) {
	case map[string]any:
		for name, child := range v {
			if text, ok := child.(string); ok && name == "secret" {
				keys = append(keys, text)
			}
			keys = append(keys, keysIn(child)...)
		}
	case []any:
		for _, child := range v {
			keys = append(keys, keysIn(child)...)
		}
	}
	slices.Sort(keys)
	return keys
}

// needReboot lists the fields that take effect only at the next boot. They are the fields of the main document that
// Talos 1.12 and 1.13 refuse to change without a reboot (CanApplyImmediate in v1alpha1_runtime.go; Talos 1.14 no
// longer checks, and changes none of these fields either); the fields of etcd, which Talos reads when it starts that
// service, and never starts again (PreFunc in services/etcd.go); the variables of the environment, which running
// services keep (SetUserEnvVars); and the like.
func needReboot(was, is config.Provider) ([]string, error) {
	now, then := was.RawV1Alpha1(), is.RawV1Alpha1().DeepCopy()
	then.ConfigDebug = now.ConfigDebug
	if a, b := now.ClusterConfig, then.ClusterConfig; a != nil && b != nil && was.Machine().Type().IsControlPlane() {
		etcd := b.EtcdConfig
		then.ClusterConfig = a.DeepCopy()
		then.ClusterConfig.EtcdConfig = etcd
	} else {
		then.ClusterConfig = a
	}
	if a, b := now.MachineConfig, then.MachineConfig; a != nil && b != nil {
		b.MachineCA, b.MachineAcceptedCAs, b.MachineCertSANs = a.MachineCA, a.MachineAcceptedCAs, a.MachineCertSANs
		b.MachineTime, b.MachineNetwork, b.MachineRegistries = a.MachineTime, a.MachineNetwork, a.MachineRegistries
		b.MachineInstall, b.MachineSysfs, b.MachineSysctls = a.MachineInstall, a.MachineSysfs, a.MachineSysctls
		b.MachineLogging, b.MachineControlPlane, b.MachineKubelet = a.MachineLogging, a.MachineControlPlane, a.MachineKubelet
		b.MachineKernel, b.MachinePods, b.MachineSeccompProfiles = a.MachineKernel, a.MachinePods, a.MachineSeccompProfiles
		b.MachineNodeAnnotations, b.MachineNodeLabels, b.MachineNodeTaints = a.MachineNodeAnnotations, a.MachineNodeLabels, a.MachineNodeTaints
		if f, g := a.MachineFeatures, b.MachineFeatures; f != nil && g != nil {
			g.KubernetesTalosAPIAccessConfig, g.KubePrismSupport, g.HostDNSSupport = f.KubernetesTalosAPIAccessConfig, f.KubePrismSupport, f.HostDNSSupport
			g.ImageCacheSupport, g.FeatureNodeAddressSortAlgorithm = f.ImageCacheSupport, f.FeatureNodeAddressSortAlgorithm
		}
	}
	changes, err := changesOf(now, then)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, c := range changes {
		out = append(out, c.Path)
	}
	for _, d := range readAtStart {
		if !reflect.DeepEqual(d.of(was), d.of(is)) && (d.document != "EnvironmentConfig" || len(out) == 0) {
			out = append(out, d.document)
		}
	}
	wanted := moduleParameters(is)
	for name, now := range moduleParameters(was) {
		if parameters, stays := wanted[name]; stays && !slices.Equal(now, parameters) {
			out = append(out, "parameters of kernel module "+name) // a loaded module keeps its parameters (controllers/runtime/kernel_module_spec.go)
		}
	}
	slices.Sort(out)
	return out, nil
}

// readAtStart are documents, or sections of the main document, whose old values running services keep until the next
// boot.
var readAtStart = []struct {
	document string
	of       func(config.Config) any
}{
	{"EnvironmentConfig", func(c config.Config) any { return c.Environment() }},
	{"RegistryAuthConfig", func(c config.Config) any { // CRI reads the credentials when it starts (RegistryAuth's comment in v1alpha1_types.go)
		all := map[string][4]string{}
		for registry, auth := range c.RegistryAuthConfigs() {
			all[registry] = [4]string{auth.Username(), auth.Password(), auth.Auth(), auth.IdentityToken()}
		}
		return all
	}},
	{"SecurityProfileConfig", func(c config.Config) any { // since 1.14: read by the boot sequence
		profile := c.SecurityProfileConfig()
		return profile != nil && profile.WorkloadIsolation()
	}},
}

func moduleParameters(c config.Config) map[string][]string {
	all := map[string][]string{}
	for _, m := range c.KernelModuleConfigs() {
		all[m.Name()] = m.Parameters()
	}
	return all
}

// changesOf compares two main documents.
func changesOf(a, b *v1alpha1.Config) ([]machineconfig.Change, error) {
	var docs [2]machineconfig.Documents
	for i, c := range []*v1alpha1.Config{a, b} {
		text, err := container.NewV1Alpha1(c).EncodeBytes(encoder.WithComments(encoder.CommentsDisabled))
		if err == nil {
			docs[i], err = machineconfig.Parse(text)
		}
		if err != nil {
			return nil, fault.MachineConfig.Refusedf("whether it needs a reboot can't be determined")
		}
	}
	return machineconfig.Compare(docs[0], docs[1]), nil
}

// loadKnown reads a configuration without the documents of kinds that recast does not know. unknown names those
// kinds: a newer Talos may know them.
func loadKnown(text cluster.Secret) (cfg config.Provider, unknown []string, err error) {
	cfg, err = configloader.NewFromBytes(text)
	if err == nil {
		return cfg, nil, nil
	}
	docs, errDocs := parseDocuments(text)
	if errDocs != nil {
		return nil, nil, fault.MachineConfig.Refusedf("not a machine configuration: %w", errDocs)
	}
	var known []byte
	for _, d := range docs {
		if _, errOne := configloader.NewFromBytes(d.raw); errOne != nil && strings.Contains(errOne.Error(), notRegistered) {
			unknown = append(unknown, withoutValues(cmp.Or(d.kind(), "a document")+" of "+d.root.text("apiVersion"), text))
			continue
		}
		known = append(known, d.raw...)
	}
	if len(unknown) > 0 {
		cfg, err = configloader.NewFromBytes(known)
	}
	if err != nil {
		return nil, nil, fault.MachineConfig.Refusedf("Talos would refuse it: %s", withoutValues(err.Error(), text))
	}
	return cfg, unknown, nil
}

// notRegistered is part of the loader's error for a document of an unknown kind; the error itself is internal
// (config/internal/registry).
const notRegistered = "not registered"
