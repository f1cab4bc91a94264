package kube_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"net/http"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/recast-sh/recast/internal/kube"
	"github.com/recast-sh/recast/internal/sim/kubeapi"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/sim/network"
	"github.com/recast-sh/recast/internal/sim/record"
)

const apiAddr = "127.42.7.10:6443"

// lab is an API in memory with three workers starting up.
type lab struct {
	*kubeapi.Server
	net   *network.Network
	calls *record.Recorder
	ca    *authority
	who   kubeapi.Identity
}

func newLab(t *testing.T, nodes ...string) *lab {
	t.Helper()
	l := &lab{net: network.Memory(), calls: record.New(), ca: newAuthority(t)}
	server := l.ca.issue(t, "kube-apiserver", nil)
	cert, err := tls.X509KeyPair(server.cert, server.key)
	must.Do(t, err)
	l.who = kubeapi.Identity{Version: "v1.35.4", Certificate: &cert, ClientCA: l.ca.pool()}
	l.Server, err = kubeapi.New(t.Context(), kubeapi.Options{Version: "v1.35.4", Recorder: l.calls})
	must.Do(t, err)
	listener := must.Get(l.net.Listen(apiAddr))(t)
	served := make(chan error, 1)
	go func() { served <- l.Serve(t.Context(), listener, l.who) }()
	t.Cleanup(func() {
		must.Do(t, l.Close())
		must.Do(t, <-served)
	})
	for i, name := range nodes {
		l.NodeUp(node(name, i))
	}
	return l
}

// upLab is a lab whose nodes have started.
func upLab(t *testing.T, nodes ...string) *lab {
	t.Helper()
	l := newLab(t, nodes...)
	time.Sleep(10 * time.Second)
	return l
}

func node(name string, i int) kubeapi.NodeInfo {
	return kubeapi.NodeInfo{
		Name: name, UUID: "4c4c4544-0000-4000-8000-00000000000" + string(rune('1'+i)), BootID: "boot-1-" + name,
		KubeletVersion: "v1.35.4", OSImage: "Talos (v1.13.9)", Addresses: []string{"127.42.7.3" + string(rune('1'+i))},
		Annotations: map[string]string{"talos.dev/owned-labels": "[]"},
	}
}

// client is recast's, with the rights of that organization.
func (l *lab) client(t *testing.T, organization ...string) *kube.Client {
	t.Helper()
	return connect(t, l.net, l.ca.cert, l.ca.issue(t, "admin", organization))
}

func connect(t *testing.T, net *network.Network, ca []byte, pair keyPair) *kube.Client {
	t.Helper()
	kubeconfig, err := kubeapi.Kubeconfig("lab", "https://"+apiAddr, ca, pair.cert, pair.key)
	must.Do(t, err)
	c := must.Get(kube.New(kubeconfig, kube.Options{Dial: net.Dialer().DialContext, Poll: 2 * time.Second}))(t)
	t.Cleanup(func() { must.Do(t, c.Close()) })
	return c
}

// change edits a node, bypassing the API.
func (l *lab) change(t *testing.T, name string, edit func(n *corev1.Node)) {
	t.Helper()
	n := must.Get(l.Node(t.Context(), name))(t)
	edit(n)
	must.Get(l.Store().Update(t.Context(), store.Nodes(), n, store.Main))(t)
}

// atFirstPatch acts before the first PATCH, which fails with the error of the act.
func (l *lab) atFirstPatch(act func() error) {
	struck := false
	l.calls.Hooks(func(c record.Call) error {
		if c.Method != http.MethodPatch || struck {
			return nil
		}
		struck = true
		return act()
	}, nil)
}

// loseChange loses the first PATCH, and loseAnswer the answer to it.
func (l *lab) loseChange() {
	l.atFirstPatch(func() error { return errors.New("connection reset by peer") })
}

func (l *lab) loseAnswer() {
	struck := false
	l.calls.Hooks(nil, func(c record.Call) {
		if c.Method == http.MethodPatch && !struck {
			struck = true
			panic(http.ErrAbortHandler)
		}
	})
}

// put creates an object of the lab, bypassing its API.
func (l *lab) put(t *testing.T, r schema.GroupVersionResource, o store.Object) {
	t.Helper()
	must.Get(l.Store().Create(t.Context(), r, o))(t)
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
