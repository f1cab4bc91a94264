package api

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"

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
	pairs := make([]string, len(sum))
	for i, b := range sum {
		pairs[i] = fmt.Sprintf("%02X", b)
	}
	return strings.Join(pairs, ":")
}
