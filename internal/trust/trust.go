// Package trust decides which certificates are trusted: those of the system and of a CA
// file ([Transport]). [Explain] says why one is not, and what to do. [Encrypted] sends nothing without TLS.
package trust

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"slices"

	"github.com/recast-sh/recast/internal/fault"
)

// Transport returns a copy of the default transport that trusts the system's
// certificate authorities and those of a PEM file; "": only the system's.
func Transport(caFile string) (*http.Transport, error) {
	t := http.DefaultTransport.(*http.Transport).Clone()
	if caFile == "" {
		return t, nil
	}
	pem, err := os.ReadFile(caFile)
	if err != nil {
		return nil, fault.TLS.Configf("read certificates: %w", err)
	}
	roots, err := x509.SystemCertPool()
	if err != nil {
		roots = x509.NewCertPool()
	}
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fault.TLS.Configf("%s holds no PEM certificate", caFile)
	}
	t.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}
	return t, nil
}

// ErrClear ends the error of a request that Encrypted does not send.
var ErrClear = errors.New("without TLS")

// Encrypted carries requests over TLS alone, except to a loopback address, and to the hosts in plain, such as "10.0.0.5:5000",
// which get every request by http. It is for go-containerregistry, which falls back to http for private addresses and names
// that end in .localhost (pkg/name/registry.go, Scheme), and then sends the login in the clear.
func Encrypted(inner http.RoundTripper, plain []string) http.RoundTripper {
	return encrypted{inner, plain}
}

type encrypted struct {
	inner http.RoundTripper
	plain []string
}

func (e encrypted) RoundTrip(req *http.Request) (*http.Response, error) {
	switch {
	case slices.Contains(e.plain, req.URL.Host):
		req = req.Clone(req.Context())
		req.URL.Scheme = "http"
	case req.URL.Scheme != "https" && !Loopback(req.URL.Host):
		if req.Body != nil {
			_ = req.Body.Close()
		}
		return nil, fmt.Errorf("nothing is sent to %s %w", req.URL.Host, ErrClear)
	}
	return e.inner.RoundTrip(req)
}

// Loopback reports whether a host, with or without a port, is this machine.
func Loopback(hostport string) bool {
	u := url.URL{Host: hostport}
	ip, err := netip.ParseAddr(u.Hostname())
	return u.Hostname() == "localhost" || err == nil && ip.IsLoopback()
}

// CloseIdleConnections closes those of the inner transport.
func (e encrypted) CloseIdleConnections() {
	if t, ok := e.inner.(interface{ CloseIdleConnections() }); ok {
		t.CloseIdleConnections()
	}
}

// Explain adds the code and the remedy to an error about the certificate of a factory or registry; ok is false for any
// other error. The message is crypto/x509's: "certificate signed by unknown authority".
func Explain(err error) (explained error, ok bool) {
	var hint string
	if _, is := errors.AsType[x509.UnknownAuthorityError](err); is {
		hint = "if your own CA has signed it, name that CA's certificate, a PEM file, in images.caFile"
	} else if _, is := errors.AsType[x509.HostnameError](err); is {
		hint = "use the certificate's name of the server in recast.yaml, or issue a certificate for this name"
	} else if e, is := errors.AsType[x509.CertificateInvalidError](err); is && e.Reason == x509.Expired {
		hint = "check this machine's clock; if it is right, the server's operator has to renew its certificate"
	} else if _, is := errors.AsType[*tls.CertificateVerificationError](err); is {
		hint = "`openssl s_client -connect HOST:443` shows the certificate that is served"
	} else {
		return err, false
	}
	return fault.WithHint(fault.TLS.Of(err), "%s", hint), true
}
