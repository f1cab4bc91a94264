package talos

import (
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
)

// TrustedCA implements cluster.Maintenance. Workers have the certificate, too, without its key.
func (c *Client) TrustedCA(config cluster.Secret) (trusted, known bool, err error) {
	own := c.config.Contexts[c.config.Context].CA
	if own == "" {
		return false, false, nil
	}
	text, err := base64.StdEncoding.DecodeString(own)
	if err != nil {
		return false, false, fault.Credentials.Configf("the CA of the talosconfig can't be read")
	}
	cfg, _, err := loadKnown(config)
	if err != nil {
		return false, false, err
	}
	if cfg.Machine() == nil || cfg.Machine().Security().IssuingCA() == nil {
		return false, true, nil
	}
	has := certificates(cfg.Machine().Security().IssuingCA().Crt)
	for _, crt := range certificates(text) {
		for _, h := range has {
			if h.Equal(crt) {
				return true, true, nil
			}
		}
	}
	return false, true, nil
}

// certificates are those in a PEM text that can be read.
func certificates(text []byte) (out []*x509.Certificate) {
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if crt, err := x509.ParseCertificate(block.Bytes); err == nil {
			out = append(out, crt)
		}
	}
	return out
}
