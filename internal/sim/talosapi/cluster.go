package talosapi

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	stdx509 "crypto/x509"
	"encoding/base64"
	"fmt"
	"strings"
	"time"

	"github.com/siderolabs/crypto/x509"
	"github.com/siderolabs/talos/pkg/machinery/api/common"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/config"
	configtypes "github.com/siderolabs/talos/pkg/machinery/config/config"
	"github.com/siderolabs/talos/pkg/machinery/config/container"
	"github.com/siderolabs/talos/pkg/machinery/config/encoder"
	"github.com/siderolabs/talos/pkg/machinery/config/generate"
	"github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"
	machineconf "github.com/siderolabs/talos/pkg/machinery/config/machine"
	netconf "github.com/siderolabs/talos/pkg/machinery/config/types/network"
	"github.com/siderolabs/talos/pkg/machinery/config/types/v1alpha1"
	"github.com/siderolabs/talos/pkg/machinery/nethelpers"
	"github.com/siderolabs/talos/pkg/machinery/role"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/recast-sh/recast/internal/sim/artefact"
)

// Cluster holds the secrets and common settings of one Talos cluster, as talosctl gen makes them.
type Cluster struct {
	Name              string
	Endpoint          string // of Kubernetes: "https://127.42.7.10:6443"
	TalosVersion      string // "v1.13.9"
	KubernetesVersion string // "v1.35.4"
	Secrets           *secrets.Bundle

	contract *config.VersionContract
}

// NewCluster makes the secrets of a new cluster, valid from now on.
func NewCluster(name, endpoint, talosVersion, kubernetesVersion string) (*Cluster, error) {
	contract, err := config.ParseContractFromVersion(talosVersion)
	if err != nil {
		return nil, fmt.Errorf("read Talos version: %w", err)
	}
	bundle, err := secrets.NewBundle(secrets.NewClock(), contract, secrets.WithECDSAServiceAccountKey())
	if err != nil {
		return nil, fmt.Errorf("make cluster secrets: %w", err)
	}
	return &Cluster{
		Name: name, Endpoint: endpoint, TalosVersion: talosVersion, KubernetesVersion: kubernetesVersion,
		Secrets: bundle, contract: contract,
	}, nil
}

// Talosconfig makes a client configuration with a new certificate of that role.
func (c *Cluster) Talosconfig(r role.Role, endpoints ...string) ([]byte, error) {
	in, err := c.input(generate.WithRoles(role.MakeSet(r)), generate.WithEndpointList(endpoints))
	if err != nil {
		return nil, err
	}
	conf, err := in.Talosconfig()
	if err != nil {
		return nil, fmt.Errorf("make talosconfig: %w", err)
	}
	b, err := conf.Bytes()
	if err != nil {
		return nil, fmt.Errorf("write talosconfig: %w", err)
	}
	return b, nil
}

// Machine is the individual part of one machine's configuration.
type Machine struct {
	Hostname      string
	ControlPlane  bool
	Installer     string   // image reference
	InstallDisk   string   // empty: /dev/sda
	InstallSerial string   // serial of the install disk, preferred to InstallDisk unless the installation is unattended
	Documents     []string // additional configuration documents, as YAML: volumes and the like
}

// MachineConfig makes the machine's configuration.
func (c *Cluster) MachineConfig(m Machine) ([]byte, error) {
	in, err := c.input(generate.WithInstallDisk(cmp.Or(m.InstallDisk, "/dev/sda")), generate.WithInstallImage(m.Installer))
	if err != nil {
		return nil, err
	}
	kind := machineconf.TypeWorker
	if m.ControlPlane {
		kind = machineconf.TypeControlPlane
	}
	cfg, err := in.Config(kind)
	if err != nil {
		return nil, fmt.Errorf("make configuration of %s: %w", m.Hostname, err)
	}
	own, err := container.New(personal(cfg.Documents(), m)...)
	if err != nil {
		return nil, fmt.Errorf("make configuration of %s: %w", m.Hostname, err)
	}
	b, err := own.EncodeBytes(encoder.WithComments(encoder.CommentsDisabled))
	if err != nil {
		return nil, fmt.Errorf("write configuration of %s: %w", m.Hostname, err)
	}
	for _, d := range m.Documents {
		b = append(append(b, "---\n"...), d...)
	}
	if _, err := parseConfig(b); err != nil {
		return nil, fmt.Errorf("read configuration of %s: %w", m.Hostname, err)
	}
	return b, nil
}

// personal sets the machine's own name and install disk in generated documents.
func personal(docs []configtypes.Document, m Machine) []configtypes.Document {
	var out []configtypes.Document
	for _, doc := range docs {
		switch d := doc.(type) {
		case *netconf.HostnameConfigV1Alpha1:
			d.ConfigAuto, d.ConfigHostname = new(nethelpers.AutoHostnameKindOff), m.Hostname
		case *v1alpha1.Config:
			//lint:ignore SA1019 Talos 1.13 reads it
			in := d.MachineConfig.MachineInstall
			if m.InstallSerial != "" && in != nil {
				in.InstallDisk, in.InstallDiskSelector = "", &v1alpha1.InstallDiskSelector{Serial: m.InstallSerial}
			}
		}
		out = append(out, doc)
	}
	return out
}

func (c *Cluster) input(more ...generate.Option) (*generate.Input, error) {
	in, err := generate.NewInput(c.Name, c.Endpoint, strings.TrimPrefix(c.KubernetesVersion, "v"), append([]generate.Option{
		generate.WithVersionContract(c.contract), generate.WithSecretsBundle(c.Secrets), generate.WithClusterDiscovery(true),
	}, more...)...)
	if err != nil {
		return nil, fmt.Errorf("prepare configuration: %w", err)
	}
	return in, nil
}

// Preinstalled returns the content of a system disk on which an installer with that boot image has installed Talos
// with that machine configuration. The content includes EPHEMERAL unless elsewhere says that another disk has
// EPHEMERAL, or will have it.
func (fw *Firmware) Preinstalled(machineConfig, uki []byte, elsewhere bool) ([]byte, error) {
	if _, err := parseConfig(machineConfig); err != nil {
		return nil, fmt.Errorf("read machine configuration: %w", err)
	}
	img, err := artefact.ReadUKI(uki)
	if err != nil {
		return nil, err
	}
	sum, err := fw.boots.keep(uki)
	if err != nil {
		return nil, err
	}
	disk := systemPartitions(img.TalosVersion, sum, "", stateData{Config: machineConfig, NodeID: newNodeID()})
	if !elsewhere {
		disk.Partitions = append(disk.Partitions, newPartition(labelEphemeral, "xfs", nil))
	}
	return artefact.WriteDisk(disk), nil
}

// DataDisk returns the content of a disk with one xfs volume of that partition label ("EPHEMERAL", or "u-" and the
// name of a user volume) and that data.
func DataDisk(label string, data []byte) []byte { return DataDiskOf(label, "xfs", data) }

// DataDiskOf returns a DataDisk with another filesystem, as blkid calls it: "btrfs", "linux_raid_member".
func DataDiskOf(label, filesystem string, data []byte) []byte {
	return artefact.WriteDisk(artefact.Disk{Partitions: []artefact.Partition{newPartition(label, filesystem, data)}})
}

func (s *machineService) GenerateClientConfiguration(_ context.Context, req *machineapi.GenerateClientConfigurationRequest) (*machineapi.GenerateClientConfigurationResponse, error) {
	if err := s.checkControlPlane("generate client configuration"); err != nil {
		return nil, err
	}
	life := req.GetCrtTtl().AsDuration()
	if life <= 0 {
		return nil, status.Error(codes.InvalidArgument, "crt_ttl should be positive")
	}
	roles, _ := role.Parse(req.GetRoles())
	cfg := s.boot.config()
	bundle, err := secrets.NewBundleFromConfig(secrets.NewFixedClock(time.Now()), cfg)
	if err != nil {
		return nil, fmt.Errorf("error creating secrets bundle from config: %w", err)
	}
	cert, err := bundle.GenerateTalosAPIClientCertificateWithTTL(roles, life)
	if err != nil {
		return nil, err
	}
	name := cfg.K8sClusterConfig().ClusterName()
	if r := roles.Strings(); len(r) == 1 {
		name = strings.TrimPrefix(r[0], role.Prefix) + "@" + name
	}
	ca := bundle.Certs.OS.Crt
	return &machineapi.GenerateClientConfigurationResponse{Messages: []*machineapi.GenerateClientConfiguration{{
		Ca: ca, Crt: cert.Crt, Key: cert.Key, Talosconfig: talosconfig(name, ca, cert),
	}}}, nil
}

// talosconfig returns a client configuration of one context, without endpoints.
func talosconfig(name string, ca []byte, cert *x509.PEMEncodedCertificateAndKey) []byte {
	return fmt.Appendf(nil, "context: %[1]s\ncontexts:\n    %[1]s:\n        endpoints: []\n        ca: %s\n        crt: %s\n        key: %s\n",
		name, base64.StdEncoding.EncodeToString(ca), base64.StdEncoding.EncodeToString(cert.Crt), base64.StdEncoding.EncodeToString(cert.Key))
}

// Kubeconfig implements the API: a gzipped tar of one file.
func (s *machineService) Kubeconfig(_ *emptypb.Empty, srv grpc.ServerStreamingServer[common.Data]) error {
	if err := s.checkControlPlane("kubeconfig"); err != nil {
		return err
	}
	cfg := s.boot.config()
	if cfg.K8sAPIServerCAConfig() == nil {
		return status.Error(codes.FailedPrecondition, "k8s API server CA config is not set")
	}
	file, err := kubeconfig(cfg)
	if err != nil {
		return err
	}
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	archive := tar.NewWriter(z)
	if err := archive.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "kubeconfig", Size: int64(len(file)), ModTime: time.Now(), Mode: 0o600}); err != nil {
		return err
	}
	if _, err := archive.Write(file); err != nil {
		return err
	}
	if err := z.Close(); err != nil {
		return err
	}
	return srv.Send(&common.Data{Bytes: packed.Bytes()})
}

// allowedTimeSkew is how far a client's clock may be behind.
const allowedTimeSkew = 10 * time.Second

// kubeconfig returns an administrator's kubeconfig (pkg/kubeconfig.GenerateAdmin).
func kubeconfig(cfg config.Provider) ([]byte, error) {
	admin, ca := cfg.Cluster().AdminKubeconfig(), cfg.K8sAPIServerCAConfig()
	options := clientOptions(admin.CommonName(), admin.CertOrganization(), allowedTimeSkew, admin.CertLifetime())
	options = append(options, x509.KeyUsage(stdx509.KeyUsageDigitalSignature|stdx509.KeyUsageKeyEncipherment))
	pair, _, err := issue(ca.IssuingCA(), options...)
	if err != nil {
		return nil, fmt.Errorf("error generating admin certificate: %w", err)
	}
	cert := x509.NewCertificateAndKeyFromKeyPair(pair)
	var roots []byte
	for _, c := range ca.AcceptedCAs() {
		roots = append(roots, c.Crt...)
	}
	encode := base64.StdEncoding.EncodeToString
	return fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters:
- name: %[1]s
  cluster:
    server: %[2]s
    certificate-authority-data: %[3]s
users:
- name: admin@%[1]s
  user:
    client-certificate-data: %[4]s
    client-key-data: %[5]s
contexts:
- context:
    cluster: %[1]s
    namespace: default
    user: admin@%[1]s
  name: admin@%[1]s
current-context: admin@%[1]s
`, cfg.K8sClusterConfig().ClusterName(), cfg.K8sClusterConfig().ClusterEndpoint(), encode(roots), encode(cert.Crt), encode(cert.Key)), nil
}
