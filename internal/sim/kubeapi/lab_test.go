package kubeapi_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/recast-sh/recast/internal/sim/kubeapi"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/sim/network"
	"github.com/recast-sh/recast/internal/sim/record"
)

const apiAddr = "127.42.7.10:6443"

// lab is an API in memory with three workers that are starting.
type lab struct {
	*kubeapi.Server
	net   *network.Network
	calls *record.Recorder
	ca    *authority
	who   kubeapi.Identity // its only API server
}

func newLab(t *testing.T, nodes ...string) *lab {
	t.Helper()
	return startLab(t, kubeapi.Options{}, nodes...)
}

// startLab starts an API with these options, which its version and recorder are added to.
func startLab(t *testing.T, o kubeapi.Options, nodes ...string) *lab {
	t.Helper()
	l := &lab{net: network.Memory(), calls: record.New(), ca: newAuthority(t)}
	server := l.ca.issue(t, "kube-apiserver", nil)
	cert := must.Get(tls.X509KeyPair(server.cert, server.key))(t)
	l.who = kubeapi.Identity{Version: "v1.35.4", Certificate: &cert, ClientCA: l.ca.pool()}
	o.Version, o.Recorder = "v1.35.4", l.calls
	l.Server = must.Get(kubeapi.New(t.Context(), o))(t)
	listener := must.Get(l.net.Listen(apiAddr))(t)
	served := make(chan error, 1)
	go func() { served <- l.Serve(t.Context(), listener, l.who) }()
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	for i, name := range nodes {
		l.NodeUp(node(name, i))
	}
	return l
}

func node(name string, i int) kubeapi.NodeInfo {
	return kubeapi.NodeInfo{
		Name: name, UUID: "4c4c4544-0000-4000-8000-00000000000" + string(rune('1'+i)), BootID: "boot-1-" + name,
		KubeletVersion: "v1.35.4", OSImage: "Talos (v1.13.9)", Addresses: []string{"127.42.7.3" + string(rune('1'+i))},
		Annotations: map[string]string{"talos.dev/owned-labels": "[]"},
	}
}

// client is a normal client-go client with a kubeconfig.
func (l *lab) client(t *testing.T, organization ...string) *kubernetes.Clientset {
	t.Helper()
	return must.Get(kubernetes.NewForConfig(l.config(t, organization...)))(t)
}

func (l *lab) config(t *testing.T, organization ...string) *rest.Config {
	t.Helper()
	pair := l.ca.issue(t, "admin", organization)
	kubeconfig := must.Get(kubeapi.Kubeconfig("lab", "https://"+apiAddr, l.ca.cert, pair.cert, pair.key))(t)
	cfg := must.Get(clientcmd.RESTConfigFromKubeConfig(kubeconfig))(t)
	cfg.Dial = l.net.Dialer().DialContext
	cfg.QPS = -1
	httpClient := must.Get(rest.HTTPClientFor(cfg))(t)
	// All clients of this config share the transport.
	t.Cleanup(httpClient.CloseIdleConnections)
	return cfg
}

type authority struct {
	cert []byte // PEM
	leaf *x509.Certificate
	key  *ecdsa.PrivateKey
}

type keyPair struct{ cert, key []byte }

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key := must.Get(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "kubernetes"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der := must.Get(x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key))(t)
	leaf := must.Get(x509.ParseCertificate(der))(t)
	return &authority{cert: pemBlock("CERTIFICATE", der), leaf: leaf, key: key}
}

func (a *authority) pool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(a.leaf)
	return p
}

func (a *authority) issue(t *testing.T, name string, organization []string) keyPair {
	t.Helper()
	key := must.Get(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name, Organization: organization},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(12 * time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		IPAddresses: []net.IP{net.ParseIP("127.42.7.10")},
	}
	der := must.Get(x509.CreateCertificate(rand.Reader, template, a.leaf, &key.PublicKey, a.key))(t)
	pkcs8 := must.Get(x509.MarshalPKCS8PrivateKey(key))(t)
	return keyPair{cert: pemBlock("CERTIFICATE", der), key: pemBlock("PRIVATE KEY", pkcs8)}
}

func pemBlock(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}
