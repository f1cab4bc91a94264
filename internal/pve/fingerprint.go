package pve

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"net"
	"time"
)

// Untrusted says whether err is that nobody vouches for the server's certificate.
func Untrusted(err error) bool { return isCertificate(err) }

// Fingerprint reads the SHA-256 fingerprint of the certificate that a server shows.
// Nothing is sent to it, and nothing is proven by it: a person has to compare it.
// dial nil is the machine's network.
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
