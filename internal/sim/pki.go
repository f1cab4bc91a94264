package sim

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"strings"
	"time"
)

// authority signs certificates that are valid for ten years from now.
type authority struct {
	pair tls.Certificate
	pem  []byte
}

func readAuthority(certPEM, keyPEM []byte) (authority, error) {
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return authority{}, fmt.Errorf("read CA: %w", err)
	}
	return authority{pair: pair, pem: certPEM}, nil
}

const tenYears = 10 * 365 * 24 * time.Hour

// issue makes a certificate for a server at those addresses, or for a client. A nil
// authority makes a self-signed one.
func issue(a *authority, subject pkix.Name, addrs []string) (certPEM, keyPEM []byte, err error) {
	return issueFor(tenYears, a, subject, addrs)
}

func issueFor(life time.Duration, a *authority, subject pkix.Name, addrs []string) (certPEM, keyPEM []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make key: %w", err)
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		return nil, nil, fmt.Errorf("make serial number: %w", err)
	}
	now := time.Now()
	t := &x509.Certificate{
		SerialNumber: serial, Subject: subject, NotBefore: now.Add(-time.Minute), NotAfter: now.Add(life),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	for _, addr := range addrs {
		if ip := net.ParseIP(addr); ip != nil {
			t.IPAddresses = append(t.IPAddresses, ip)
		} else {
			t.DNSNames = append(t.DNSNames, addr)
		}
	}
	parent, signer := t, any(key)
	if a != nil {
		parent, signer = a.pair.Leaf, a.pair.PrivateKey
	}
	der, err := x509.CreateCertificate(rand.Reader, t, parent, key.Public(), signer)
	if err != nil {
		return nil, nil, fmt.Errorf("sign certificate: %w", err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, fmt.Errorf("write key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}), nil
}

// issuePair is issue for one of the lab's servers.
func issuePair(a *authority, name string, addrs []string) (tls.Certificate, error) {
	certPEM, keyPEM, err := issue(a, pkix.Name{CommonName: name}, addrs)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.X509KeyPair(certPEM, keyPEM)
}

// fingerprint is a certificate's SHA-256 as Proxmox shows it: "AA:BB:…".
func fingerprint(c tls.Certificate) string {
	sum := sha256.Sum256(c.Certificate[0])
	hex := make([]string, len(sum))
	for i, b := range sum {
		hex[i] = fmt.Sprintf("%02X", b)
	}
	return strings.Join(hex, ":")
}
