package talosapi

import (
	"context"
	"crypto/tls"
	stdx509 "crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/siderolabs/crypto/x509"

	"github.com/recast-sh/recast/internal/sim/etcd"
)

// APIServer is a kube-apiserver that answers.
type APIServer struct {
	Address netip.Addr // of its machine
	Version string     // "v1.35.4"
	Boot    string     // ID of the machine's boot
	Ready   bool       // to serve; an unready one answers too
	// Certificate and Clients are from the CAs of the machine's configuration. Clients are
	// the issuers of the clients' certificates.
	Certificate *tls.Certificate
	Clients     *stdx509.CertPool
}

// serveKubernetes sets the image of this control plane's answering API server ("" for
// none) and whether it is ready to serve. After gone it has no effect.
func (b *boot) serveKubernetes(image string, ready bool) {
	if b.etcdService() == nil {
		return
	}
	server, err := APIServer{}, error(nil)
	if image != "" {
		server = APIServer{Address: b.m.addr(), Version: tagOf(image), Boot: b.id, Ready: ready}
		server.Certificate, server.Clients, err = b.apiServerTLS()
	}
	h := b.m.fw.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.kubernetes, b)
	switch {
	case err != nil:
		b.m.console("kube-apiserver: %v", err)
	case image == "":
	case h.kubernetesOf != clusterID(b.config()):
		b.m.console("kube-apiserver: the lab's only Kubernetes is that of another cluster")
	default:
		h.kubernetes[b] = server
		h.served = h.served || ready
	}
	h.notify()
}

// apiServerTLS are the server's certificate, and the authorities that it accepts clients'
// certificates of (KubernetesCertSANsController and KubernetesDynamicCertsController).
func (b *boot) apiServerTLS() (*tls.Certificate, *stdx509.CertPool, error) {
	cfg := b.config()
	ca, cluster, server := cfg.K8sAPIServerCAConfig(), cfg.K8sClusterConfig(), cfg.K8sAPIServerConfig()
	if ca == nil || ca.IssuingCA() == nil || cluster == nil {
		return nil, nil, errors.New("no CA of Kubernetes is configured")
	}
	authority, err := x509.NewCertificateAuthorityFromCertificateAndKey(ca.IssuingCA())
	if err != nil {
		return nil, nil, fmt.Errorf("read the CA of Kubernetes: %w", err)
	}
	b.mu.Lock()
	host := hostOf(b.cfg, b.nodeID)
	b.mu.Unlock()
	names := []string{cluster.ClusterEndpoint().Hostname()}
	if server != nil {
		names = append(names, server.CertSANs()...)
	}
	names = append(names, "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local", "localhost",
		host.Hostname, host.FQDN(), apiService, "127.0.0.1")
	options := append(serverOptions(b.m.addr(), "kube-apiserver", names...), x509.Organization("kube-master"))
	pair, err := x509.NewKeyPair(authority, options...)
	if err != nil {
		return nil, nil, fmt.Errorf("make the certificate: %w", err)
	}
	clients := stdx509.NewCertPool()
	for _, accepted := range ca.AcceptedCAs() {
		if !clients.AppendCertsFromPEM(accepted.Crt) {
			return nil, nil, errors.New("an accepted CA of Kubernetes is not in PEM")
		}
	}
	return pair.Certificate, clients, nil
}

// apiService is the address of the Service kubernetes.
const apiService = "10.96.0.1"

// APIServers are those of the control planes by address; the channel is closed when they
// may have changed.
func (fw *Firmware) APIServers() ([]APIServer, <-chan struct{}) {
	fw.hub.mu.Lock()
	defer fw.hub.mu.Unlock()
	var all []APIServer
	for _, s := range fw.hub.kubernetes {
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b APIServer) int { return a.Address.Compare(b.Address) })
	return all, fw.hub.changed
}

// KubernetesStorage waits until a running API server can read from its local etcd, and
// fails as etcd does if that times out.
func (fw *Firmware) KubernetesStorage(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, fw.scaled(7*time.Second))
	defer cancel()
	for {
		fw.hub.mu.Lock()
		var beside []*etcd.Cluster
		for b := range fw.hub.kubernetes {
			if c, id, ok := b.etcdService().server(); ok && !c.Status(id).Learner {
				beside = append(beside, c)
			}
		}
		changed := fw.hub.changed
		fw.hub.mu.Unlock()
		for _, c := range beside {
			if err := c.Linearizable(ctx); err == nil {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return etcd.ErrTimeout
			}
			return ctx.Err()
		case <-changed:
		}
	}
}

// registers says whether a kubelet can register: the API of its cluster has served. Else the
// channel is closed when it may have.
func (b *boot) registers() (bool, <-chan struct{}) {
	if reached, changed := b.peered(); !reached {
		return false, changed
	}
	h, id := b.m.fw.hub, clusterID(b.config())
	h.mu.Lock()
	defer h.mu.Unlock()
	return b.m.fw.o.Data == nil || h.served && h.kubernetesOf == id, h.changed
}
