// Package adminconfig makes the talosconfig and the kubeconfig of a cluster's administrator from the machine
// configuration of a control plane, before there is a machine that could be asked for them. Its main type is [Config].
package adminconfig

import (
	"bytes"
	stdx509 "crypto/x509"
	"encoding/base64"
	"errors"
	"net/netip"
	"time"

	"github.com/siderolabs/crypto/x509"
	clientconfig "github.com/siderolabs/talos/pkg/machinery/client/config"
	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
	"github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/siderolabs/talos/pkg/machinery/role"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
)

const (
	life = 365 * 24 * time.Hour // of the certificates, as with talosctl
	skew = 10 * time.Second     // by which the clocks of new machines may be late, as in Talos
)

// Config is what an administrator reaches a cluster with.
type Config struct {
	Talosconfig, Kubeconfig cluster.Secret

	talosCA, kubernetesCA []byte // PEM
}

// Of makes the files for the cluster whose control plane has that machine configuration. The
// endpoints are the addresses of all control planes.
func Of(name string, config cluster.Secret, endpoints []netip.Addr) (Config, error) {
	c, err := of(name, config, endpoints)
	if err != nil {
		return Config{}, fault.MachineConfig.Configf("make the talosconfig and the kubeconfig: %w", err)
	}
	return c, nil
}

func of(name string, config cluster.Secret, endpoints []netip.Addr) (c Config, err error) {
	cfg, err := configloader.NewFromBytes(config)
	if err != nil {
		return c, err
	}
	if cfg.Machine() == nil || !cfg.Machine().Type().IsControlPlane() {
		return c, errors.New("the machine configuration is not that of a control plane")
	}
	since := time.Now().Add(-skew)
	bundle, err := secrets.NewBundleFromConfig(secrets.NewClock(), cfg)
	if err != nil {
		return c, err
	}
	c.talosCA, c.kubernetesCA = bundle.Certs.OS.Crt, bundle.Certs.K8s.Crt
	admin, err := secrets.NewAdminCertificateAndKey(since, bundle.Certs.OS, role.MakeSet(role.Admin), life)
	if err != nil {
		return c, err
	}
	ask := cluster.Each(endpoints, netip.Addr.String)
	if c.Talosconfig, err = clientconfig.NewConfig(name, ask, c.talosCA, admin).Bytes(); err != nil {
		return c, err
	}
	c.Kubeconfig, err = kubeconfig(name, cfg.K8sClusterConfig().ClusterEndpoint().String(), bundle.Certs.K8s, since)
	return c, err
}

// kubeconfig makes the kubeconfig that talosctl kubeconfig would fetch (internal/pkg/kubeconfig in Talos).
func kubeconfig(name, server string, ca *x509.PEMEncodedCertificateAndKey, since time.Time) ([]byte, error) {
	authority, err := x509.NewCertificateAuthorityFromCertificateAndKey(ca)
	if err != nil {
		return nil, err
	}
	pair, err := x509.NewKeyPair(authority,
		x509.CommonName(constants.KubernetesAdminCertCommonName), x509.Organization(constants.KubernetesAdminCertOrganization),
		x509.NotBefore(since), x509.NotAfter(since.Add(life)), x509.KeyUsage(stdx509.KeyUsageDigitalSignature), x509.ExtKeyUsage([]stdx509.ExtKeyUsage{stdx509.ExtKeyUsageClientAuth}),
	)
	if err != nil {
		return nil, err
	}
	cert := x509.NewCertificateAndKeyFromKeyPair(pair)
	user := "admin@" + name
	return clientcmd.Write(api.Config{
		Clusters:       map[string]*api.Cluster{name: {Server: server, CertificateAuthorityData: ca.Crt}},
		AuthInfos:      map[string]*api.AuthInfo{user: {ClientCertificateData: cert.Crt, ClientKeyData: cert.Key}},
		Contexts:       map[string]*api.Context{user: {Cluster: name, AuthInfo: user, Namespace: "default"}},
		CurrentContext: user,
	})
}

// IsTalosconfig says whether a talosconfig is of the same cluster: its context has the same CA.
func (c Config) IsTalosconfig(text []byte) (bool, error) {
	conf, err := clientconfig.FromBytes(text)
	if err != nil {
		return false, err
	}
	at, ok := conf.Contexts[conf.Context]
	if !ok {
		return false, nil
	}
	return at.CA == base64.StdEncoding.EncodeToString(c.talosCA), nil
}

// IsKubeconfig says whether a kubeconfig is of the same cluster: its context has the same CA.
func (c Config) IsKubeconfig(text []byte) (bool, error) {
	conf, err := clientcmd.Load(text)
	if err != nil {
		return false, err
	}
	at, ok := conf.Contexts[conf.CurrentContext]
	if !ok || conf.Clusters[at.Cluster] == nil {
		return false, nil
	}
	return bytes.Equal(bytes.TrimSpace(conf.Clusters[at.Cluster].CertificateAuthorityData), bytes.TrimSpace(c.kubernetesCA)), nil
}
