package api

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"time"
)

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
