package trust_test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/trust"
)

func TestExplain(t *testing.T) {
	t.Parallel()
	rejected := func(err error) error {
		return fmt.Errorf("GET https://x: %w", &tls.CertificateVerificationError{Err: err})
	}
	cases := map[string]struct {
		err  error
		hint string // its beginning; "": not about certificates
	}{
		"another CA":    {rejected(x509.UnknownAuthorityError{}), "if your own CA has signed it"},
		"another name":  {rejected(x509.HostnameError{Host: "x", Certificate: &x509.Certificate{}}), "use the certificate's name of the server in recast.yaml"},
		"expired":       {rejected(x509.CertificateInvalidError{Reason: x509.Expired}), "check this machine's clock"},
		"anything else": {rejected(x509.CertificateInvalidError{Reason: x509.NotAuthorizedToSign}), "`openssl s_client"},
		"no TLS at all": {errors.New("connection refused"), ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, ok := trust.Explain(c.err)
			hint := strings.Join(fault.Hints(got), "; ")
			must.Hold(t, got.Error() == c.err.Error() && ok == (c.hint != "") && strings.HasPrefix(hint, c.hint),
				"%v, %t, hint %q; want %q", got, ok, hint, c.hint)
			must.Hold(t, !ok || fault.CodeOf(got) == fault.TLS, "code %s", fault.CodeOf(got))
		})
	}
}
