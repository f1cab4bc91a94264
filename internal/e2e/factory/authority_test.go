package factory

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
	"net/http"
	"path/filepath"
	"testing"
	"time"
)

// authority is a private CA, which no system trusts.
type authority struct {
	file  string // its certificate, PEM
	about *x509.Certificate
	key   *ecdsa.PrivateKey
	roots *x509.CertPool

	certFile, keyFile string // of every server at 127.0.0.1, PEM
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	dir := t.TempDir()
	a := &authority{file: filepath.Join(dir, "ca.pem"), certFile: filepath.Join(dir, "server.crt"), keyFile: filepath.Join(dir, "server.key"), roots: x509.NewCertPool()}
	a.key = newKey(t)
	a.about = &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "CA of this test"}, NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	own := a.signs(t, a.about, a.key)
	write(t, a.file, own)
	a.roots.AppendCertsFromPEM(own)
	server := newKey(t)
	write(t, a.certFile, a.signs(t, &x509.Certificate{
		SerialNumber: big.NewInt(2), NotBefore: a.about.NotBefore, NotAfter: a.about.NotAfter, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, server))
	der := must(x509.MarshalPKCS8PrivateKey(server))(t)
	write(t, a.keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
	return a
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	return must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
}

// signs makes a certificate, PEM.
func (a *authority) signs(t *testing.T, about *x509.Certificate, key *ecdsa.PrivateKey) []byte {
	t.Helper()
	der := must(x509.CreateCertificate(rand.Reader, about, a.about, &key.PublicKey, a.key))(t)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// client trusts this authority.
func (a *authority) client() *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: a.roots}}}
}
