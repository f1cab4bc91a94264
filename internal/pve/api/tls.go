package api

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/recast-sh/recast/internal/fault"
)

// keptSessions bounds the kept TLS sessions: one per host is needed.
const keptSessions = 64

// FingerprintError says that a server's certificate is not the pinned one.
type FingerprintError struct {
	Addr string   // "host:port" of the endpoint
	Got  string   // SHA-256 of the served certificate, "AA:BB:…"
	Want []string // the pinned ones
}

func (e *FingerprintError) Error() string {
	return fmt.Sprintf("certificate of %s has fingerprint %s, not the pinned %s", e.Addr, e.Got, strings.Join(e.Want, " or "))
}

// tlsConfig decides what to trust: the pinned certificates if there are any, else
// the given authorities, else the system's.
func tlsConfig(o Options) (*tls.Config, error) {
	// Changes use new connections, which resume the TLS session of an earlier one:
	// the verification set up here then runs, too.
	cfg := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: o.RootCAs, ClientSessionCache: tls.NewLRUClientSessionCache(keptSessions)}
	if o.Fingerprint != "" {
		pins, err := parseFingerprints(o.Fingerprint)
		if err != nil {
			return nil, err
		}
		// A pin replaces the checks of the chain and the host name.
		cfg.InsecureSkipVerify = true
		cfg.VerifyConnection = func(cs tls.ConnectionState) error { return verifyPin(cs, pins) }
		return cfg, nil
	}
	if o.CAFile != "" {
		pem, err := os.ReadFile(o.CAFile)
		if err != nil {
			return nil, fault.TLS.Configf("read the CA of Proxmox: %w", err)
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fault.WithHint(fault.TLS.Configf("%s holds no PEM certificate", o.CAFile), "copy /etc/pve/pve-root-ca.pem from a Proxmox node")
		}
	}
	return cfg, nil
}

func verifyPin(cs tls.ConnectionState, pins [][sha256.Size]byte) error {
	if len(cs.PeerCertificates) == 0 {
		return errors.New("the server sent no certificate")
	}
	got := sha256.Sum256(cs.PeerCertificates[0].Raw)
	e := &FingerprintError{Got: formatFingerprint(got)}
	for _, pin := range pins {
		if bytes.Equal(pin[:], got[:]) {
			return nil
		}
		e.Want = append(e.Want, formatFingerprint(pin))
	}
	return e
}

// parseFingerprints reads one or more SHA-256 fingerprints, with or without
// colons, separated by commas or spaces: every node of a Proxmox cluster has a
// certificate of its own.
func parseFingerprints(s string) ([][sha256.Size]byte, error) {
	var pins [][sha256.Size]byte
	for _, field := range strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' || r == '\n' }) {
		b, err := hex.DecodeString(strings.ReplaceAll(field, ":", ""))
		if err != nil || len(b) != sha256.Size {
			return nil, fault.WithHint(fault.TLS.Configf("%q is not a SHA-256 fingerprint", field),
				"openssl x509 -noout -fingerprint -sha256 prints 32 hex pairs: AA:BB:…")
		}
		pins = append(pins, [sha256.Size]byte(b))
	}
	if len(pins) == 0 {
		return nil, fault.TLS.Configf("the fingerprint is blank")
	}
	return pins, nil
}

func formatFingerprint(sum [sha256.Size]byte) string {
	return strings.ReplaceAll(fmt.Sprintf("% X", sum), " ", ":")
}

// Untrusted returns why the server's certificate is not trusted; "" if err is
// something else. wrongName says that it is for other names: pinning it would mean
// pinning any server at that address.
func Untrusted(err error) (why string, wrongName bool) {
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return "its issuer is not trusted by this machine", false
	}
	if e, ok := errors.AsType[x509.HostnameError](err); ok {
		return e.Error(), true
	}
	if e, ok := errors.AsType[x509.CertificateInvalidError](err); ok {
		return e.Error(), false
	}
	return "", false
}

// Fingerprint reads the SHA-256 fingerprint of the certificate that a server
// presents. It sends nothing and proves nothing: a person has to compare it. A nil
// dial uses the machine's network.
func Fingerprint(ctx context.Context, endpoint string, dial func(ctx context.Context, network, addr string) (net.Conn, error)) (string, error) {
	urls, err := parseEndpoints([]string{endpoint})
	if err != nil {
		return "", err
	}
	if dial == nil {
		dial = (&net.Dialer{}).DialContext
	}
	ctx, cancel := context.WithTimeout(ctx, 2*dialTimeout)
	defer cancel()
	raw, err := dial(ctx, "tcp", urls[0].Host)
	if err != nil {
		return "", fmt.Errorf("read the certificate of %s: %w", urls[0].Host, err)
	}
	conn := tls.Client(raw, &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true}) //nolint:gosec // see above
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(dialTimeout)); err != nil {
		return "", fmt.Errorf("read the certificate of %s: %w", urls[0].Host, err)
	}
	if err := conn.HandshakeContext(ctx); err != nil {
		return "", fmt.Errorf("read the certificate of %s: %w", urls[0].Host, err)
	}
	return formatFingerprint(sha256.Sum256(conn.ConnectionState().PeerCertificates[0].Raw)), nil
}
