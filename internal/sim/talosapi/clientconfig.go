package talosapi

import (
	"archive/tar"
	"bytes"
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
	"github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"
	"github.com/siderolabs/talos/pkg/machinery/role"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
)

// GenerateClientConfiguration implements the API.
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

// talosconfig is a client configuration of one context, without endpoints.
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

// kubeconfig is an administrator's (pkg/kubeconfig.GenerateAdmin).
func kubeconfig(cfg config.Provider) ([]byte, error) {
	admin, ca := cfg.Cluster().AdminKubeconfig(), cfg.K8sAPIServerCAConfig()
	authority, err := x509.NewCertificateAuthorityFromCertificateAndKey(ca.IssuingCA())
	if err != nil {
		return nil, fmt.Errorf("error getting Kubernetes CA: %w", err)
	}
	pair, err := x509.NewKeyPair(authority, x509.CommonName(admin.CommonName()), x509.Organization(admin.CertOrganization()),
		x509.NotBefore(time.Now().Add(-allowedTimeSkew)), x509.NotAfter(time.Now().Add(admin.CertLifetime())),
		x509.KeyUsage(stdx509.KeyUsageDigitalSignature|stdx509.KeyUsageKeyEncipherment), x509.ExtKeyUsage([]stdx509.ExtKeyUsage{stdx509.ExtKeyUsageClientAuth}))
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
