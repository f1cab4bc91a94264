package factory

import (
	"bytes"
	"context"
	"encoding/pem"
	"fmt"
	"net/http"

	"github.com/recast-sh/recast/internal/fault"
)

// SigningKey is the public key (PEM) with which the factory says it signs
// installers; nil if it has none: older ones, and those that sign without a key of
// their own, which return nothing.
func (c *Client) SigningKey(ctx context.Context) ([]byte, error) {
	key, err := c.ask(ctx, c.get("oci", "cosign", "signing-key.pub"))
	if hasStatus(err, http.StatusNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if len(bytes.TrimSpace(key)) == 0 {
		return nil, nil
	}
	return c.requirePEM(key, "signing key")
}

// SecureBootCertificate is the certificate (PEM) with which the factory signs images
// for Secure Boot. A factory that signs none is an error of kind Config.
func (c *Client) SecureBootCertificate(ctx context.Context) ([]byte, error) {
	cert, err := c.ask(ctx, c.get("secureboot", "signing-cert.pem"))
	switch {
	case hasStatus(err, http.StatusInternalServerError), hasStatus(err, http.StatusNotFound):
		// It answers 500 if Secure Boot is disabled (image-factory, internal/secureboot/secureboot.go).
		return nil, fault.WithHint(fault.As(fault.Config, fmt.Errorf("certificate for Secure Boot: %w", err)),
			"a factory without images for Secure Boot gives this answer: set images.secureBoot to false, or name another factory in images.factory")
	case err != nil:
		return nil, fmt.Errorf("certificate for Secure Boot: %w", err)
	}
	return c.requirePEM(cert, "certificate for Secure Boot")
}

func (c *Client) requirePEM(text []byte, what string) ([]byte, error) {
	if block, _ := pem.Decode(text); block == nil {
		return nil, c.foreign(fmt.Errorf("the %s is not PEM", what))
	}
	return text, nil
}
